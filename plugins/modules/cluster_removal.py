#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_removal
short_description: Decide how machines leave a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns where the removal is written, and validates the request before anything is changed.
  - Runs only on the controller, once for all hosts of the play. Set C(run_once).
  - "Reads these options of roles: C(cluster_machine), C(cluster_manager_lost), C(cluster_name),
    C(cluster_new_manager), C(cluster_untrusted), C(mesh_relays), C(mesh_userspace), C(mesh_userspace_nodes),
    C(munge_key_file)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  registered:
    description: The name of the variable in which a task has registered M(gpumesh.cluster.cluster_info) on the hosts.
    type: str
    required: true
  copies:
    description: The name of the variable in which M(gpumesh.cluster.cluster_copies) is registered.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Validate the removal
  gpumesh.cluster.cluster_removal:
    registered: cluster_info
    copies: copies
  register: removal
  run_once: true
"""

RETURN = r"""
authority:
  description: The host on which the record is changed.
  returned: success
  type: str
former_manager:
  description: The manager that hands over the cluster. Empty if there is none.
  returned: success
  type: str
leaving:
  description: The machines that leave.
  returned: success
  type: list
  elements: str
members_leaving:
  description: The leaving machines that are members now.
  returned: success
  type: list
  elements: str
unreachable_machines:
  description: The leaving machines that are in the play and do not answer.
  returned: success
  type: list
  elements: str
record:
  description: The current record.
  returned: success
  type: dict
"""

# The work is done by the action plugin of the same name.
