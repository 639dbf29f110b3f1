# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: choose_subnet
short_description: Choose the subnet of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives the best subnet that the hosts share, as P(gpumesh.cluster.shared_subnets#filter) ranks them, or the one that
    was asked for.
  - Fails in words that name the host, its address and the remedy where a host is not in it.
extends_documentation_fragment:
  - gpumesh.cluster.subnets
positional: wanted
options:
  wanted:
    description:
      - The subnet to take, as C(ip addr) prints it, host bits and all. Addresses inside it count whatever their own
        mask. By default the best one.
    type: str
"""

EXAMPLES = r"""
- name: Name the subnet and the addresses
  ansible.builtin.debug:
    msg: "{{ choice.subnet }}: {{ choice.members.n1.address }}"
  vars:
    choice: "{{ facts | gpumesh.cluster.choose_subnet(cluster_subnet | default('')) }}"
  run_once: true

# n3: 10.0.0.7 is not in 192.168.1.0/24 (eno1 has 10.0.0.7/24).
# Give cluster_subnet=10.0.0.0/24, or put n3 on the cluster network.
"""

RETURN = r"""
_value:
  description: The subnet and each host's place in it, in the shape of a candidate of
    P(gpumesh.cluster.shared_subnets#filter).
  type: dict
  contains:
    subnet:
      description: The network without host bits.
      type: str
      sample: 10.77.0.0/24
    family:
      description: C(inet) or C(inet6).
      type: str
    score:
      description: The points that it was ranked by.
      type: int
    reasons:
      description: What the points are for.
      type: list
      elements: str
    warnings:
      description: What may go wrong in it, such as a host with two interfaces there.
      type: list
      elements: str
    members:
      description: By host, its interface, address, prefix length, MTU, speed, kind and RDMA port.
      type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_choice import choose
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_places import options_from


@as_filter
def choose_subnet(facts: Mapping[str, Any], wanted: str | None = None, **options: Any) -> dict[str, Any]:
    """Choose a subnet; see DOCUMENTATION."""
    return choose(facts, options_from(wanted, **options))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"choose_subnet": choose_subnet}
