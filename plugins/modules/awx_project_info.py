#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: awx_project_info
short_description: Show the last update of a project in AWX
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns the status of a project and, if its last update has not succeeded, the end of that update's output.
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
    description: The organization of the project.
    type: str
    required: true
  name:
    description: The name of the project.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the last update of the project
  gpumesh.cluster.awx_project_info:
    collection: awx.awx
    organization: Research
    name: gpumesh
"""

RETURN = r"""
status:
  description: The status of the project. Empty if it does not exist.
  returned: success
  type: str
  sample: failed
needs_update:
  description: Whether the project exists, and its last update has not succeeded.
  returned: success
  type: bool
summary:
  description: The status of the project, and the end of the output of an update that has not succeeded.
  returned: success
  type: str
"""

# The work is done by the action plugin of the same name.
