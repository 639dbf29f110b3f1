# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The options that the modules of the cluster record share, as in module_utils/record/interface.py."""

    DOCUMENTATION = r"""
options:
  path:
    description:
      - The folder of the cluster records on the host.
      - It has to belong to the user that the module runs as, and nobody else may write to it.
    type: path
    default: /var/lib/gpumesh/clusters
"""

    GIVEN = r"""
options:
  record:
    description:
      - The cluster record, as the role P(gpumesh.cluster.cluster#role) sets it. Options that it does not need are derived
        from it on the controller, and it is not sent to the host.
    type: dict
"""

    CHANGE = r"""
options:
  actor:
    description:
      - Who is written into the record's history.
      - By default the account and the name of the host that the module runs on.
    type: str
  lock_timeout:
    description: How many seconds to wait for another change of the same record to end.
    type: float
    default: 30.0
  force:
    description:
      - Go on where going on loses something.
      - For a copy, take the given record although the host's own is newer, has another history or is damaged.
      - For a deletion, delete a damaged record too.
      - For a member that leaves, let the server of a storage volume go; its data stays where it is.
    type: bool
    default: false
  known:
    description: Digests of records that the caller has. One of them is not returned, but its digest alone.
    type: list
    elements: str
    default: []
"""

    MEMBERS = r"""
options:
  members:
    description:
      - The members to add, or to update by the keys that are given; a key that is left out stays as it is.
      - All of them together are one change of the record.
    type: list
    elements: dict
    suboptions:
      machine:
        description: The inventory hostname.
        type: str
        required: true
      address:
        description:
          - The address in the subnet of the cluster. Needed for a new member.
          - Where the members share nothing but the mesh, it is the mesh address, and this is not used.
        type: str
      interface:
        description: The interface that has the address. Needed for a new member, unless they share only the mesh.
        type: str
      site:
        description:
          - Where the machine is. Members of one site reach each other's addresses directly.
          - A new member is at the site V(default).
        type: str
      lan_address:
        description:
          - Where members of its site dial the machine, where the members of the cluster share nothing but a WireGuard mesh;
            else O(members[].address) is that.
          - An empty text takes it away; then its site dials it like all others.
        type: str
      endpoint:
        description:
          - Where the tunnels of other sites dial the machine, as C(HOST:PORT). Without a port it is the mesh's.
          - An empty text takes it away. A machine without one cannot be dialled, as behind NAT.
        type: str
      gpus:
        description: The number of GPUs.
        type: int
      mesh:
        description: The member's end of the mesh.
        type: dict
        suboptions:
          address:
            description: The mesh address. A WireGuard mesh gives each new member the lowest free one.
            type: str
          public_key:
            description: The public key of the member's own tunnel interface.
            type: str
      ssh_host_keys:
        description: The public SSH host keys, each as C(TYPE BASE64).
        type: list
        elements: str
      ssh_public_key:
        description: A public SSH key of the member, as C(TYPE BASE64).
        type: str
  joining:
    description:
      - Which of the members may be new. When given, another one that is not in the record is refused, since it has left
        after the caller has read the record. When not given, all of them may.
    type: list
    elements: str
"""
