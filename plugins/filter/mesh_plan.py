# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: mesh_plan
short_description: Derive the tunnel of a member from the cluster record
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns the peers of a member, their endpoints, and the members that are reached through a relay.
  - Members of the same site connect to each other's LAN address, members of other sites to the endpoint. A member without an
    endpoint keeps its tunnels open. Two members without endpoints at different sites are relayed.
  - Fails and names the pair if two members cannot reach each other.
positional: machine, relays
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  machine:
    description: The member for which to create the plan.
    type: str
    required: true
  relays:
    description: Members that can relay for others, in order of preference. Defaults to the manager.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Show the tunnel of a member
  ansible.builtin.debug:
    msg: "{{ cluster_record | gpumesh.cluster.mesh_plan('n2') }}"

# {"public_key": "…", "interface": "gpumesh0", "address": "10.99.0.2/16", "listen_port": 51820, "mtu": 1420,
#  "peers": [{"machine": "n1", "public_key": "…", "endpoint": "203.0.113.10:51820",
#             "allowed_ips": ["10.99.0.1/32", "10.99.0.3/32"], "persistent_keepalive": 25}],
#  "relayed": [{"machine": "n3", "relay": "n1"}], "relay": false, "pending": []}
"""

RETURN = r"""
_value:
  description:
    - C(public_key) is the member's own key in the record, empty if it has none yet.
    - C(interface), C(address) in CIDR notation, C(listen_port) and C(mtu) in bytes are those of the member.
    - C(peers) is a list of peers as required by M(gpumesh.cluster.wireguard).
    - C(relayed) lists the members that are reached through a relay, with the relay.
    - C(relay) is true if this member relays for others.
    - C(pending) lists the members that have no key yet, and therefore no tunnel.
  type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.topology import plan_for, read_mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def mesh_plan(record: Mapping[str, Any], machine: str, relays: Sequence[str] = ()) -> dict[str, Any]:
    """See DOCUMENTATION."""
    return plan_for(read_mesh(record, relays), machine)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"mesh_plan": mesh_plan}
