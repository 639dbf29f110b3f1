# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that the firewall of a member accepts, from the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import BASE, Layer, Ports


def desired_parameters(
    record: model.Record, options: Mapping[str, Any], layer_ports: Sequence[Ports]
) -> dict[str, Any]:
    """Return the parameters of the module firewall.

    ``options``: those that the record does not contain. ``layer_ports``: the ports of each layer.
    """
    if options.get("state") == "absent":
        return {"cluster": record["name"], "state": "absent"}
    has_mesh = record["mesh"]["backend"] != "none"
    mesh_addresses = [member["mesh"]["address"] for member in record["members"] if has_mesh and member["mesh"]]
    # Machines that share only the mesh have no other address.
    member_addresses = [member["address"] for member in record["members"] if member["address"] not in mesh_addresses]
    return {
        **options,
        "cluster": record["name"],
        "members": member_addresses,
        "mesh_members": mesh_addresses,
        "mesh_interface": record["mesh"]["interface"],
        "tcp_ports": [*(options.get("tcp_ports") or []), *(port for ports in layer_ports for port in ports.tcp)],
        "udp_ports": [*(options.get("udp_ports") or []), *(port for ports in layer_ports for port in ports.udp)],
        "open_udp_ports": [
            *(options.get("open_udp_ports") or []),
            *(port for ports in layer_ports for port in ports.open_udp),
        ],
    }


LAYER = Layer("firewall", BASE, options=("firewall_enabled",), lists_members=True)
