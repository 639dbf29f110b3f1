# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: mesh_registrations
short_description: The public keys that the cluster record does not know yet
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives each member with a new key the entry that M(gpumesh.cluster.cluster_member) takes.
  - Members whose key is in the record already, and machines that are no members, are left out.
positional: public_keys
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  public_keys:
    description: The public key of each machine, by inventory hostname. V(none) where there is none yet.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Register the keys
  gpumesh.cluster.cluster_member:
    cluster: "{{ cluster_record.name }}"
    members: "{{ cluster_record | gpumesh.cluster.mesh_registrations({'n1': key_of_n1, 'n2': key_of_n2}) }}"

# [{"machine": "n2", "mesh": {"public_key": "…"}}]
"""

RETURN = r"""
_value:
  description: One entry a changed member, with C(machine) and C(mesh), which has C(public_key).
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.topology import read_mesh, registrations
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def mesh_registrations(record: Mapping[str, Any], public_keys: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """See DOCUMENTATION."""
    return registrations(read_mesh(record), public_keys)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"mesh_registrations": mesh_registrations}
