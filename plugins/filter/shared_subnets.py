# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: shared_subnets
short_description: Rank the subnets that hosts share
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Finds the subnets in which every host has an address that other machines can reach, and ranks them by the following
    criteria, in this order.
    Your preference; physical before virtual before tunnels; RDMA on every host; the speed of the slowest host; the smallest
    MTU; private addresses; the same interface name on all hosts; the smaller subnet. The speed of a bridge, bond or macvlan
    without its own is that of its fastest port.
  - Bridges of container runtimes and hypervisors, bridges without a physical port, loopback, link-local and single
    addresses are ignored. So are subnets in which two hosts have the same address, since these are separate networks.
  - The interface of a container that is itself a host, a veth with an address, is used.
  - Two hosts with addresses in the same subnet cannot necessarily reach each other.
    M(gpumesh.cluster.reachability) tests that.
extends_documentation_fragment:
  - gpumesh.cluster.subnets
options:
  _input:
    description:
      - The results of M(gpumesh.cluster.interface_info), by host name. Only C(interfaces) is used.
    type: dict
    required: true
  min_hosts:
    description: The number of hosts that must be in the subnet. V(0) means all hosts.
    type: int
    default: 0
  subnet:
    description:
      - Only consider this subnet, in the form that C(ip addr) prints, with or without host bits. Addresses inside it are
        used regardless of their own prefix length.
    type: str
  own_tunnels:
    description: Patterns of the interface names of the cluster's own tunnels, which are never used as its network.
    type: list
    elements: str
    default: [gpumesh*]
"""

EXAMPLES = r"""
- name: Examine every host
  gpumesh.cluster.interface_info:
  register: detected

- name: Rank the shared subnets
  ansible.builtin.debug:
    msg: "{{ (facts | gpumesh.cluster.shared_subnets).candidates | map(attribute='subnet') }}"
  vars:
    facts: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'detected'))) }}"
  run_once: true
"""

RETURN = r"""
_value:
  description: The candidates, best first, and the rejected subnets with the reasons.
  type: dict
  contains:
    candidates:
      description: The subnets that all hosts share, best first. With O(min_hosts), those on more hosts come first.
      type: list
      elements: dict
      sample:
        - subnet: 10.77.0.0/24
          family: inet
          score: 222350
          reasons: [physical everywhere, no RDMA, 10 Gbit/s, MTU 1500, private addresses, eno1 on every host]
          warnings: []
          members:
            n1:
              interface: eno1
              address: 10.77.0.11
              prefix_length: 24
              mtu: 1500
              speed_mbps: 10000
              kind: ethernet
              rdma: null
    rejected:
      description:
        - The other subnets, those on the most hosts first. C(reasons) describes for each host what it has in the subnet or
          why that is ignored. If there are very many subnets, only those on the most hosts list hosts without an address.
      type: list
      elements: dict
      sample:
        - subnet: 172.17.0.0/16
          family: inet
          hosts: 2
          reason: docker0 belongs to a container runtime or hypervisor
          reasons:
            n1: docker0 belongs to a container runtime or hypervisor
            n2: docker0 belongs to a container runtime or hypervisor
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnet_placement import build_options
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnets import find_shared
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.filter_errors import convert_errors


@convert_errors
def shared_subnets(facts: Mapping[str, Any], subnet: str | None = None, **options: Any) -> dict[str, Any]:
    """Rank the subnets; see DOCUMENTATION."""
    ranked_subnets = find_shared(facts, build_options(subnet, **options))
    return {"candidates": ranked_subnets.candidates, "rejected": ranked_subnets.rejected}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the name and the function of the filter."""
        return {"shared_subnets": shared_subnets}
