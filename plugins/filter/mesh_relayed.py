# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: mesh_relayed
short_description: The pairs of members that need a relay
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Names every pair of members that can neither share a LAN nor be dialled, and the member that forwards between them.
  - Refuses, naming the pair, where there is none.
positional: relays
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  relays:
    description: Members that may forward for others, in the order of preference. By default the manager.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Show the relayed pairs
  gpumesh.cluster.print_text:
    text: "{{ cluster_record | gpumesh.cluster.mesh_relayed | gpumesh.cluster.table(['a', 'b', 'relay']) }}"
"""

RETURN = r"""
_value:
  description: One entry a pair, with C(a), C(b) and C(relay).
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.topology import read_mesh, relayed_pairs
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def mesh_relayed(record: Mapping[str, Any], relays: Sequence[str] = ()) -> list[dict[str, str]]:
    """See DOCUMENTATION."""
    return relayed_pairs(read_mesh(record, relays))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"mesh_relayed": mesh_relayed}
