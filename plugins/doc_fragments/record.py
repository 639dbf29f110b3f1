# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The options that the modules of the cluster record share, as in module_utils/_cluster/record/interface.py."""

    DOCUMENTATION = r"""
options:
  path:
    description:
      - The directory of the cluster records on the host.
      - It must be owned by the user that runs the module, and must not be writable by anyone else.
    type: path
    default: /var/lib/gpumesh/clusters
"""

    GIVEN = r"""
options:
  record:
    description:
      - The cluster record, as set by the role P(gpumesh.cluster.cluster#role), or the name of the variable that holds it. With
        many members the name is faster, since the record is not searched for templates.
      - Other options are derived from it. Those that grow with the members are derived on the host from its own copy, if that
        is the same. The record itself is not sent to the host.
    type: raw
"""

    DERIVED = r"""
options:
  derived_from:
    description:
      - The record from which the other options are derived. If this host has a newer one by now, the module fails and changes
        nothing, since another run has changed the cluster meanwhile. Not compared in check mode.
      - It is set on the controller by O(record).
    type: dict
    suboptions:
      cluster:
        description: The name of the cluster.
        type: str
        required: true
      generation:
        description: The generation of the record.
        type: int
        required: true
      machine:
        description: The name of this host, for the message.
        type: str
        required: true
      path:
        description: The directory of the cluster records on this host.
        type: path
        default: /var/lib/gpumesh/clusters
"""

    COPY = r"""
options:
  record_copy:
    description:
      - This host's copy of the record, from which the options that follow from it are derived. If the copy is not the record
        that the task applies, nothing is done, and C(copy_differs) is returned.
      - It is set on the controller by O(record), so that what is sent does not grow with the members.
    type: dict
    suboptions:
      cluster:
        description: The name of the cluster.
        type: str
        required: true
      digest:
        description: The digest of the record that the task applies.
        type: str
        required: true
      path:
        description: The directory of the cluster records on this host.
        type: path
        default: /var/lib/gpumesh/clusters
"""

    CHANGE = r"""
options:
  actor:
    description:
      - The name to record in the history.
      - Defaults to the user and the name of the host on which the module runs.
    type: str
  lock_timeout:
    description: The time in seconds to wait for another change of the same record to finish.
    type: float
    default: 30.0
  force:
    description:
      - Force the change even if something is lost.
      - When copying, accept the given record even if the host's own copy is newer, has a different history or is damaged.
      - When deleting, also delete a damaged record.
      - When removing a member, allow it to be the server of a storage volume; its data is not deleted.
    type: bool
    default: false
  known_digests:
    description: Digests of records that the caller already has. For these, only the digest is returned.
    type: list
    elements: str
    default: []
  older_version:
    description:
      - Whether to change the record even if a newer version of this collection has changed it last. The record then names
        the version of the module.
      - The playbooks set it from C(cluster_older_version).
    type: bool
    default: false
"""

    MEMBERS = r"""
options:
  members:
    description:
      - The members to add or update. Keys that are not set keep their value.
      - All members are changed together, as a single change of the record.
    type: list
    elements: dict
    suboptions:
      machine:
        description: The inventory hostname.
        type: str
        required: true
      address:
        description:
          - The address in the subnet of the cluster. Required for a new member.
          - If the members share only the mesh, the mesh address is used instead and this option is ignored.
        type: str
      interface:
        description: The interface that has the address. Required for a new member, unless the members share only the mesh.
        type: str
      site:
        description:
          - The site of the machine. Members of the same site reach each other's addresses directly.
          - The default for a new member is V(default).
        type: str
      lan_address:
        description:
          - The address at which members of the same site connect to the machine if the members of the cluster share only a
            WireGuard mesh. Otherwise, O(members[].address) is used.
          - An empty string removes it; then members of its site connect to it like all others.
        type: str
      endpoint:
        description:
          - The endpoint at which other sites connect to the machine, as C(HOST:PORT). The default port is that of the mesh.
          - An empty string removes it. Other sites cannot connect to a machine without an endpoint, for example behind NAT.
        type: str
      gpus:
        description: The number of GPUs.
        type: int
      rdma:
        description: The fabric of the active RDMA ports. Jobs use RDMA only on nodes of the same site with the same fabric.
        type: str
        choices: [infiniband, roce, none]
      slurm_node:
        description: Whether the machine runs jobs. The default for a new member is V(true). At least one member has to.
        type: bool
      mesh:
        description: The mesh settings of the member.
        type: dict
        suboptions:
          address:
            description: The mesh address. With WireGuard, a new member gets the lowest free address by default.
            type: str
          public_key:
            description: The public key of the member's tunnel interface.
            type: str
          userspace:
            description:
              - Whether the member is a node without an interface of its tailnet, whose programs see it through a library.
            type: bool
      ssh_host_keys:
        description: The public SSH host keys, each as C(TYPE BASE64).
        type: list
        elements: str
      ssh_public_key:
        description: A public SSH key of the member, as C(TYPE BASE64).
        type: str
  joining:
    description:
      - The members that may be new. If set, other members that are not in the record are refused, since they have left the
        cluster after the caller read the record. If not set, all members may be new.
    type: list
    elements: str
"""
