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
  - Also reads C(ansible_host) of each host.
  - Runs only on the controller, once for all hosts of the play. Set C(run_once).
  - "Reads these options of roles: C(cluster_endpoint), C(cluster_join_only), C(cluster_machines), C(cluster_manager),
    C(cluster_name), C(cluster_site), C(cluster_subnet), C(discover_exclude), C(discover_include), C(discover_prefer),
    C(job_environment_rdma), C(mesh_backend), C(mesh_interface), C(mesh_mtu), C(mesh_port), C(mesh_relays),
    C(mesh_subnet), C(mesh_userspace), C(mesh_userspace_nodes), C(session_allow), C(session_enabled),
    C(session_mounts_allowed), C(session_nat), C(session_storage_dir), C(session_subnets), C(slurm_accounting),
    C(slurm_node), C(slurm_rest), C(slurm_rest_address), C(ssh_trust_users), C(storage_backend), C(storage_volumes),
    C(tracking_certificate_file), C(tracking_port), C(tracking_server), C(tracking_state), C(tracking_tls),
    C(tracking_volume)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  registered:
    description: The name of the variable in which a task has registered M(gpumesh.cluster.cluster_info) on the
      hosts, with their interfaces.
    type: str
    required: true
  copies:
    description: The name of the variable in which M(gpumesh.cluster.cluster_copies) is registered.
    type: str
    required: true
  candidate:
    description: The manager of a new cluster when C(cluster_manager) is empty.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Decide which hosts are members
  gpumesh.cluster.cluster_registration:
    registered: cluster_info
    copies: copies
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
withdrawn:
  description: Members that run no jobs any more, and whose nodes have to be drained before the record is written.
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
  description: The machines between which the subnet has to be probed, with their addresses and the subnet. Empty if no
    machine joins.
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
