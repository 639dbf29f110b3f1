# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mesh as a layer of the cluster, and how that of a member differs from the record. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.drift import NOT_SET_UP
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import NETWORK, Layer, Options, Ports

_PEER_VERBS = (("added", "add"), ("removed", "remove"), ("updated", "update"))


def compare_mesh(record: model.Record, machine: str, states_by_machine: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe how the mesh of a member differs from the record, from what its module reported in check mode."""
    state, backend = states_by_machine.get(machine, {}).get("mesh"), record["mesh"]["backend"]
    if not isinstance(state, Mapping) or not state or backend == "none":
        return ""
    return (
        _compare_tailnet(record, machine, state) if backend == "tailscale" else _compare_tunnel(record, machine, state)
    )


def describe_mesh(record: Mapping[str, Any]) -> str:
    """Return one line about the mesh."""
    mesh = record.get("mesh") or {}
    backend = mesh.get("backend", "none")
    if backend == "none":
        return "none: the members communicate over their subnet"
    return f"{backend}, {mesh.get('subnet')}, MTU {mesh.get('mtu')}"


def _compare_tunnel(record: model.Record, machine: str, state: Mapping[str, Any]) -> str:
    if "interface_up" not in state:
        return ""
    if not state["public_key"]:
        return NOT_SET_UP
    if not state["interface_up"]:
        return f"{record['mesh']['interface']} is down"
    recorded_mesh = membership.find_member(record, machine)["mesh"]
    if recorded_mesh is None or recorded_mesh["public_key"] != state["public_key"]:
        return "its key is not the one in the record"
    peers = state["peers"]
    peer_changes = [f"{verb} {', '.join(peers[key])}" for key, verb in _PEER_VERBS if peers[key]]
    return "would " + ", ".join(peer_changes) if peer_changes else ""


def _compare_tailnet(record: model.Record, machine: str, state: Mapping[str, Any]) -> str:
    """Compare the tailnet of a member with the record.

    ``state``: the result of the module tailscale in check mode; only ``msg`` if it refused the host.
    """
    if "backend_state" not in state:
        return str(state.get("msg", ""))
    if not state["installed"]:
        return NOT_SET_UP
    if not state["running"]:
        return "tailscaled is not running"
    if state["backend_state"] != "Running":
        return f"it is not logged in to its tailnet ({state['backend_state']})"
    mesh_addresses = {member["machine"]: member["mesh"]["address"] for member in record["members"] if member["mesh"]}
    if mesh_addresses.get(machine) not in state["addresses"]:
        return "its address is not the one in the record"
    differences = [] if state["boot"] else ["tailscaled does not start at boot"]
    unknown_peers = [
        name for name, address in mesh_addresses.items() if state["peers"].get(address, {}).get("path") == "unknown"
    ]
    if unknown_peers:
        differences.append(f"its tailnet has no {', '.join(unknown_peers)}")
    return ", ".join(differences)


def _tunnel_ports(record: model.Record, _options: Options) -> Ports:
    mesh = record["mesh"]
    # Either side of a tunnel may send the first packet.
    return Ports(open_udp=[str(mesh["port"])] if mesh["backend"] != "none" else [])


def _has_mesh(record: model.Record, _machine: str) -> bool:
    return record["mesh"]["backend"] != "none"


LAYER = Layer(
    "mesh",
    NETWORK,
    compare_states=compare_mesh,
    is_used=_has_mesh,
    lists_members=True,
    ports=_tunnel_ports,
    title="Mesh",
    describe=describe_mesh,
)
