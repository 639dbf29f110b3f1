# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that the firewall of a member accepts, from the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model


def desired_parameters(record: model.Record, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the module firewall. ``options`` are those that the record does not contain."""
    if options.get("state") == "absent":
        return {"cluster": record["name"], "state": "absent"}
    mesh = record["mesh"]
    has_mesh = mesh["backend"] != "none"
    mesh_addresses = [member["mesh"]["address"] for member in record["members"] if has_mesh and member["mesh"]]
    # Machines that share only the mesh have no other address.
    member_addresses = [member["address"] for member in record["members"] if member["address"] not in mesh_addresses]
    # Either side of a tunnel may send the first packet.
    tunnel_ports = [str(mesh["port"])] if has_mesh else []
    tracking = record.get("tracking")
    tracking_ports = [str(tracking["port"])] if tracking else []
    return {
        **options,
        "tcp_ports": [*(options.get("tcp_ports") or []), *tracking_ports],
        "cluster": record["name"],
        "members": member_addresses,
        "mesh_members": mesh_addresses,
        "mesh_interface": mesh["interface"],
        "open_udp_ports": [*(options.get("open_udp_ports") or []), *tunnel_ports],
    }
