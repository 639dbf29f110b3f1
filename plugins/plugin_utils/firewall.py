# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts the firewall of a member accepts, from the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model


def desired(record: model.Record, options: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the module firewall. ``options`` are those that the record does not contain."""
    if options.get("state") == "absent":
        return {"cluster": record["name"], "state": "absent"}
    mesh = record["mesh"]
    meshed = mesh["backend"] != "none"
    ends = [member["mesh"]["address"] for member in record["members"] if meshed and member["mesh"]]
    # Machines that share only the mesh have no other address.
    members = [member["address"] for member in record["members"] if member["address"] not in ends]
    # Either side of a tunnel may send the first packet.
    tunnels = [str(mesh["port"])] if meshed else []
    tracking = record.get("tracking")
    tracker = [str(tracking["port"])] if tracking else []
    return {
        **options,
        "tcp_ports": [*(options.get("tcp_ports") or []), *tracker],
        "cluster": record["name"],
        "members": members,
        "mesh_members": ends,
        "mesh_interface": mesh["interface"],
        "open_udp_ports": [*(options.get("open_udp_ports") or []), *tunnels],
    }
