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
  - Finds the subnets in which every host has an address that another machine can reach, and ranks them by these
    criteria, each deciding only where those before it are equal.
    What you prefer; physical before virtual before tunnels; RDMA on every host; the speed of the slowest; the smallest
    MTU; private addresses; the same interface name everywhere; the smaller subnet.
  - Bridges of container runtimes and hypervisors, bridges without a physical port, loopback, link-local and single
    addresses are out. So is a subnet in which two hosts have the same address, since then each has one of its own.
  - An interface of a container that is a host itself, a veth with an address, is in.
  - That two hosts have addresses in one subnet does not prove that they reach each other.
    M(gpumesh.cluster.reachability) does.
extends_documentation_fragment:
  - gpumesh.cluster.subnets
options:
  subnet:
    description:
      - The only subnet to take, as C(ip addr) prints it, host bits and all. Addresses inside it count whatever their
        own mask.
    type: str
"""

EXAMPLES = r"""
- name: Look at every host
  gpumesh.cluster.interface_info:
  register: detected

- name: Rank what they share
  ansible.builtin.debug:
    msg: "{{ (facts | gpumesh.cluster.shared_subnets).candidates | map(attribute='subnet') }}"
  vars:
    facts: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'detected'))) }}"
  run_once: true
"""

RETURN = r"""
_value:
  description: The candidates, the best first, and the others with the reasons.
  type: dict
  contains:
    candidates:
      description: The subnets that all hosts share, the best first; with O(min_hosts), those on more hosts come first.
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
        - The other subnets, those on the most hosts first. C(reasons) says of each host what it has there or why that
          is out. Of very many subnets only those on the most hosts name the hosts that have nothing in them.
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

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets import find_shared
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_places import options_from


@as_filter
def shared_subnets(facts: Mapping[str, Any], subnet: str | None = None, **options: Any) -> dict[str, Any]:
    """Rank the subnets; see DOCUMENTATION."""
    shared = find_shared(facts, options_from(subnet, **options))
    return {"candidates": shared.candidates, "rejected": shared.rejected}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"shared_subnets": shared_subnets}
