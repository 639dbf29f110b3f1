#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: firewall
short_description: Restrict the ports of a cluster's services to its members
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Maintains an nftables table with the addresses of the members. The table is replaced in a single transaction, so there
    is no moment without it, and established connections stay open.
  - A host that is in several clusters has one table, to which each of them contributes. Whatever one cluster accepts is
    accepted, also on the ports that another one closes.
  - Rules outside this table are neither read nor changed. A port that the host's own rules close stays closed.
  - A systemd service loads the table at boot, and C(nftables.service) loads it again whenever it loads the host's own
    rules. Without systemd, the table is loaded now, and again on the next run.
  - If C(nft) is not installed, the module does nothing and RV(tools) says so. With O(record), nftables is installed.
  - "Reads these options of roles: C(job_environment_port_range), C(slurm_rest_port)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.record.copy
options:
  record:
    description:
      - The cluster record, or the name of the variable that holds it, as the role P(gpumesh.cluster.cluster#role) sets it.
        O(cluster), O(members), O(mesh_members) and O(mesh_interface) are derived from it on the controller, and the port of
        the mesh is added to O(open_udp_ports).
      - A host that is not among the cluster's members is left unchanged.
    type: raw
  cluster:
    description: The name of the cluster. Required without O(record).
    type: str
  state:
    description:
      - V(absent) removes the cluster's part of the table, or with the last one the table, now and at boot.
      - V(admitted) only accepts O(members), for O(seconds) or until the table is next changed, whichever clusters it is
        for. This is for probes before machines join, since they become members only if these succeed. It does nothing on
        a host without the table.
    type: str
    choices: [present, absent, admitted]
    default: present
  members:
    description: Addresses of the members, accepted on all interfaces.
    type: list
    elements: str
    default: []
  seconds:
    description: With O(state=admitted), the time for which the addresses are accepted.
    type: int
    default: 900
  mesh_members:
    description: Mesh addresses of the members, accepted only on O(mesh_interface).
    type: list
    elements: str
    default: []
  mesh_interface:
    description: The interface of the mesh. Required with O(mesh_members).
    type: str
  trusted:
    description: Networks that are treated as members.
    type: list
    elements: str
    default: []
  tcp_ports:
    description: TCP ports and ranges, such as V(6817-6819), to close to other hosts.
    type: list
    elements: str
    default: []
  udp_ports:
    description: UDP ports and ranges to close to other hosts.
    type: list
    elements: str
    default: []
  ephemeral:
    description: Whether to also close the kernel's range of ephemeral ports, on which jobs listen.
    type: bool
    default: true
  open_udp_ports:
    description: UDP ports that stay open to all hosts, as required for tunnels.
    type: list
    elements: str
    default: []
  ssh_port:
    description:
      - The port of SSH. It stays open whatever O(tcp_ports) and O(ephemeral) close, unless O(ssh_from) restricts it, and
        so do other ports on which C(sshd) listens, and the one over which the module itself runs.
    type: int
    default: 22
  ssh_from:
    description:
      - Networks that can use SSH on O(ssh_port) besides the members; it is closed to all others. If empty, SSH is not
        restricted.
      - The machine that runs Ansible must be in one of them. A host that it reaches over SSH refuses a table that would
        close this connection.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Close the ports of the cluster in the record
  gpumesh.cluster.firewall:
    record: cluster_record
    tcp_ports: ["2049", 6817-6819]

- name: Close Slurm and NFS to others
  gpumesh.cluster.firewall:
    cluster: lab
    members: [192.168.1.11, 192.168.1.12]
    mesh_members: [10.99.0.1, 10.99.0.2]
    mesh_interface: gpumesh0
    tcp_ports: ["2049", 6817-6819]
    open_udp_ports: ["51820"]

- name: Remove the rules of the cluster
  gpumesh.cluster.firewall:
    cluster: lab
    state: absent
"""

RETURN = r"""
copy_differs:
  description: V(true) if the host's copy of the record is not O(record_copy). Nothing else was done then.
  type: bool
  returned: when it differs
tools:
  description: Whether C(nft) is installed.
  type: bool
  returned: success
table:
  description: The name of the table, in the family C(inet).
  type: str
  returned: success
  sample: gpumesh-firewall
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import (
    COPY_OPTION,
    DERIVED_OPTION,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.desired import derive_parameters


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={"record": {"type": "raw"}, **DERIVED_OPTION, **COPY_OPTION, **apply.OPTIONS},
        required_one_of=[("cluster", "record")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: apply.work(module.params, module.check_mode), derive=derive_parameters)


if __name__ == "__main__":
    main()
