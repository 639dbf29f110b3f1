# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tailnet_registrations
short_description: The tailnet addresses that the cluster record does not know yet
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives each member with a new address the entry that M(gpumesh.cluster.cluster_member) takes.
  - Members whose address is in the record already, that are not logged in, or that are no members, are left out.
  - Refuses an address outside of the mesh's subnet.
positional: tailnet
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  tailnet:
    description: What M(gpumesh.cluster.tailscale) returned on each machine, by inventory hostname.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Register the addresses
  gpumesh.cluster.cluster_member:
    cluster: "{{ cluster_record.name }}"
    members: "{{ cluster_record | gpumesh.cluster.tailnet_registrations({'n1': result_of_n1}) }}"

# [{"machine": "n1", "mesh": {"address": "100.64.0.1"}}]
"""

RETURN = r"""
_value:
  description: One entry a changed member, with C(machine) and C(mesh), which has the C(address).
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.tailscale import registrations
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def tailnet_registrations(record: Mapping[str, Any], tailnet: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """See DOCUMENTATION."""
    return registrations(record, tailnet)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"tailnet_registrations": tailnet_registrations}
