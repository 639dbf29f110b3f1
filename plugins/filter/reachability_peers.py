# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: reachability_peers
short_description: List the members to probe
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Makes the peers of M(gpumesh.cluster.reachability) from the members and from what became of their listeners. Also a
    member without a listener is a peer, so that one that cannot be reached over SSH is probed by the others.
positional: members
options:
  _input:
    description: By machine, the result of the phase C(listen).
    type: dict
    required: true
  members:
    description: The cluster record, or a list of mappings with C(machine), C(address) and C(interface).
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Probe all members
  gpumesh.cluster.reachability:
    phase: probe
    peers: "{{ listening | gpumesh.cluster.reachability_peers(cluster_record) }}"
"""

RETURN = r"""
_value:
  description: The peers, each with C(machine), C(address), C(ports) and C(rdma).
  type: list
  elements: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reach_evidence import peers


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"reachability_peers": as_filter(peers)}
