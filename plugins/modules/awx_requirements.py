#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: awx_requirements
short_description: Look for what an AWX needs before it is set up
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Asks the controller for the organization and for what the templates refer to by name, and the project's URL for its
    branch. Fails with all that is missing at once.
  - Runs on the machine that runs Ansible. The login is that of the modules of O(collection), from the environment.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
options:
  collection:
    description: The collection that talks to the controller. Its lookup plugin C(controller_api) is used.
    type: str
    required: true
  organization:
    description: An organization that has to exist, with a Galaxy credential.
    type: str
    required: true
  names:
    description: Names that have to exist, by the endpoint of the API, such as C(credentials).
    type: dict
    default: {}
  planned:
    description: Names that are going to be made, by the endpoint of the API. See RV(to_make).
    type: dict
    default: {}
  environment:
    description: The name of the execution environment. Without an image it has to exist.
    type: str
    default: ""
  environment_image:
    description: The image of the execution environment, if it is going to be made.
    type: str
    default: ""
  project_url:
    description: Where the project is fetched from, by Git.
    type: str
    default: ""
  project_branch:
    description: The branch or tag of the project.
    type: str
    default: ""
  project_check:
    description: Look for O(project_branch) at O(project_url) from this machine.
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
  description: What is missing, a sentence for each.
  returned: always
  type: list
  elements: str
to_make:
  description: Those of O(planned) that do not exist yet.
  returned: success
  type: list
  elements: str
"""

# The work is done by the action plugin of the same name.
