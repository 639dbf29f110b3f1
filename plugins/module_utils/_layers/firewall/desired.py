# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that the firewall of a member accepts, derived from the record. Pure."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership


def derive_parameters(record: membership.Record, _given_params: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the parameters of the module that follow from the record."""
    has_mesh = record["mesh"]["backend"] != "none"
    mesh_addresses = [member["mesh"]["address"] for member in record["members"] if has_mesh and member["mesh"]]
    known_addresses = set(mesh_addresses)
    return {
        "cluster": record["name"],
        # Machines that share only the mesh have no other address.
        "members": [member["address"] for member in record["members"] if member["address"] not in known_addresses],
        "mesh_members": mesh_addresses,
        "mesh_interface": record["mesh"]["interface"],
    }
