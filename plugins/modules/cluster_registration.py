#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_registration
short_description: Decide how the hosts of a play become members of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Chooses the subnet, the address of each machine in it, and the members. Everything is validated before any change.
  - Reads the variables of each host, which are C(ansible_host), C(cluster_site), C(cluster_endpoint) and
    C(mesh_userspace), and options of the roles P(gpumesh.cluster.mesh#role), P(gpumesh.cluster.storage#role) and
    P(gpumesh.cluster.discover#role).
  - Runs only on the controller, once for all hosts of the play. Set C(run_once).
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  name:
    description: The name of the cluster.
    type: str
    required: true
  registered:
    description: The name of the variable in which a task has registered M(gpumesh.cluster.cluster_info) on the
      hosts, with their interfaces.
    type: str
    required: true
  found:
    description: The name of the variable in which M(gpumesh.cluster.cluster_copies) is registered.
    type: str
    required: true
  candidate:
    description: The manager of a new cluster when O(manager) is empty.
    type: str
    required: true
  subnet:
    description: The requested subnet. Empty for the best one.
    type: str
    default: ""
  manager:
    description: The requested manager. Empty for the current one, or for O(candidate).
    type: str
    default: ""
  machines:
    description: The members, as a list or a string separated by commas or spaces. Empty for all hosts.
    type: raw
    default: []
  join_only:
    description: Whether to fail if the cluster does not exist, and to require O(machines).
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Decide who is in the cluster
  gpumesh.cluster.cluster_registration:
    name: lab
    registered: held
    found: found
    candidate: gpu1
  register: decision
  run_once: true

- name: Write the record
  gpumesh.cluster.cluster:
    name: lab
    registration: decision
  delegate_to: "{{ decision.manager }}"
  run_once: true
"""

RETURN = r"""
manager:
  description: The manager.
  returned: success
  type: str
subnet:
  description: The subnet.
  returned: success
  type: str
members:
  description: The members, as M(gpumesh.cluster.cluster) takes them.
  returned: success
  type: list
  elements: dict
joining:
  description: The new members.
  returned: success
  type: list
  elements: str
left_out:
  description: Machines that were removed, and that only the playbook C(join) adds again.
  returned: success
  type: list
  elements: str
enrolling:
  description: Machines that must join the tailnet of RV(enrol_settings) before they have an address for the record.
  returned: success
  type: list
  elements: str
enrol_settings:
  description: The settings of the mesh.
  returned: success
  type: dict
probed:
  description: The machines between which the subnet has to be probed, with their addresses. Empty if no machine joins.
  returned: success
  type: list
  elements: dict
preflight:
  description:
    - What M(gpumesh.cluster.preflight) has to know, the C(machines) on which it is to run, the C(pods) among the members,
      and the C(volumes) of the cluster as it would be. No machines if nothing would change.
  returned: success
  type: dict
writes:
  description: Whether the record must be written.
  returned: success
  type: bool
record:
  description: The current record. Null if the cluster is created.
  returned: success
  type: dict
"""

# The work is done by the action plugin of the same name.
