#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: role_options
short_description: Check the options of several roles at once
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Compares the variables of a host with the argument specifications of roles of this collection, before the first of them
    runs. Ansible by itself does so for each role when it comes to it, after the roles before it have changed the host.
  - A variable that cannot be templated yet, since it refers to what a later role sets, is left to that role.
  - Runs on the controller alone; no connection is made.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
options:
  roles:
    description: Names of roles without the collection's. Of each, the entry point V(main) is meant.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Check the options of all layers
  gpumesh.cluster.role_options:
    roles: [mesh, slurm]
"""

RETURN = r"""
invalid:
  description: What is wrong, a sentence for each option.
  returned: on failure
  type: list
  elements: str
"""

# The work is done by the action plugin of the same name.
