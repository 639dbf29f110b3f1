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
  - Validates the variables of a host against the argument specifications of roles of this collection before the first of
    them runs. Ansible itself validates each role when it starts, after earlier roles have already changed the host.
  - Refuses variables of the inventory or the command line whose name is not that of an option, but close to one, unless
    the variable C(cluster_unknown_variables) is V(ignore). Others that begin with the name of a role are listed.
  - Refuses downloads that cannot be verified by a checksum, since what is fetched runs as root on every member.
  - Variables that cannot be templated yet because they refer to variables of a later role are left to that role.
  - Runs only on the controller and makes no connection.
  - "Reads these options of roles: C(cluster_unknown_variables)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  roles:
    description: Names of roles, without the name of the collection. Their entry point V(main) is used.
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
  description: The errors, one sentence for each option.
  returned: on failure
  type: list
  elements: str
"""

# The work is done by the action plugin of the same name.
