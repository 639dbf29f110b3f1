#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: awx_requirements
short_description: Check the prerequisites of AWX before it is set up
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Checks whether the organization and the objects that the templates refer to by name exist on the controller, and
    whether the project's URL has its branch, and whether the account may create the credential types. Fails with a list of everything that is missing.
  - Several organizations can use the same names. A name of which there is more than one means the object of
    O(organization).
  - Runs on the machine that runs Ansible. Logs in like the modules of O(collection), with the environment.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  collection:
    description: The collection that talks to the controller. Its lookup plugin C(controller_api) is used.
    type: str
    required: true
  organization:
    description: The organization, which must exist and have a Galaxy credential.
    type: str
    required: true
  names:
    description: Names that must exist, by the endpoint of the API, such as C(credentials).
    type: dict
    default: {}
  planned:
    description: Names that will be created, by the endpoint of the API. See RV(to_create).
    type: dict
    default: {}
  credential_types:
    description:
      - The credential types that will be created or updated, with their C(name), C(description), C(kind), C(inputs) and
        C(injectors). If one does not exist or differs, the account must be a system administrator.
    type: list
    elements: dict
    default: []
  environment:
    description: The name of the execution environment. Without an image, it must exist.
    type: str
    default: ""
  environment_image:
    description:
      - The image of the execution environment, if it will be created. Its name must not belong to another organization.
    type: str
    default: ""
  project_url:
    description: The URL from which the project is fetched with Git.
    type: str
    default: ""
  project_branch:
    description: The branch or tag of the project.
    type: str
    default: ""
  project_check:
    description: Whether to check from this machine that O(project_url) has O(project_branch).
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Check the prerequisites
  gpumesh.cluster.awx_requirements:
    collection: awx.awx
    organization: Research
    names:
      credentials: [gpu machines, gpu host keys]
    environment: gpumesh
    project_url: https://git.example.com/research/clusters.git
    project_branch: main
"""

RETURN = r"""
missing:
  description: What is missing, one sentence for each item.
  returned: always
  type: list
  elements: str
to_create:
  description: The names in O(planned) that do not exist yet in the organization.
  returned: success
  type: list
  elements: str
ids:
  description: The IDs of the objects in O(names), by the endpoint of the API and by name.
  returned: success
  type: dict
  sample:
    credentials:
      gpu machines: 7
"""

# The work is done by the action plugin of the same name.
