# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mesh as a layer of the cluster, and how that of a member differs from the record. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.drift import NOT_SET_UP
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import NETWORK, Layer, Options, Ports
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.mesh import (
    SETTING_OPTIONS,
    changed_settings,
    select_settings,
)

#: Options about keys, which no host shows alone.
_KEY_OPTIONS = ("mesh_rotate_keys", "mesh_preshared_keys", "mesh_rotate_preshared_keys")


def tunnel_parameters(record: model.Record, machine: str, options: Options) -> dict[str, dict[str, Any]]:
    """Return the parameters of the module wireguard that do not follow from the record.

    Which members are not in the run is still missing.
    """
    membership.find_member(record, machine)
    if record["mesh"]["backend"] != "wireguard":
        return {}
    given_parameters = {
        "machine": machine,
        "interface": record["mesh"]["interface"],
        "relays": options["mesh_relays"],
        "preshared": options["mesh_preshared_keys"],
    }
    return {"wireguard": given_parameters}


def compare_tailnet(record: model.Record, machine: str, states_by_machine: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe how the tailnet of a member differs from the record, from what its module reported in check mode."""
    state = states_by_machine.get(machine, {}).get("mesh")
    if not isinstance(state, Mapping) or not state or record["mesh"]["backend"] != "tailscale":
        return ""
    return _compare_tailnet(record, machine, state)


def describe_mesh(record: Mapping[str, Any]) -> str:
    """Return one line about the mesh."""
    mesh = record.get("mesh") or {}
    backend = mesh.get("backend", "none")
    if backend == "none":
        return "none: the members communicate over their subnet"
    return f"{backend}, {mesh.get('subnet')}, MTU {mesh.get('mtu')}"


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


def _repeats(record: model.Record, _machines: Collection[str], given_options: Sequence[Options]) -> bool:
    """Whether the mesh is a tailnet, whose server has the rest of its state, or has keys that both ends must know."""
    return record["mesh"]["backend"] == "tailscale" or any(
        boolean(options[name] or False, strict=False) for options in given_options for name in _KEY_OPTIONS
    )


def _requests_setting(record: model.Record, options: Options) -> bool:
    """Whether other settings are requested than those of the record, or some that the role has to refuse."""
    given_settings = {name: value or "" for name, value in select_settings(options).items()}
    for name in ("port", "mtu"):
        given_settings[name] = parse_whole_number(str(given_settings[name])) or 0
    try:
        return bool(changed_settings(record, given_settings))
    except InputError:
        return True


LAYER = Layer(
    "mesh",
    NETWORK,
    further_parameters=tunnel_parameters,
    further_options=("mesh_relays", "mesh_preshared_keys"),
    compare_states=compare_tailnet,
    is_used=_has_mesh,
    repeats=_repeats,
    requested=_requests_setting,
    request_options=(*_KEY_OPTIONS, *SETTING_OPTIONS),
    lists_members=True,
    ports=_tunnel_ports,
    title="Mesh",
    describe=describe_mesh,
)
