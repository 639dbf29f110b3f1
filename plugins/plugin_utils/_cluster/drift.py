# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files and services that a record requires of each member, for comparison with the member. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.drift import NOT_SET_UP

#: The files that each daemon reads at its start. The roles restart a daemon that is older than these.
_SLURMD_FILES = ("slurmd.env", "slurm.conf", "cgroup.conf", "gres.conf")
_FILES_BY_DAEMON = {
    "munge": ["/etc/munge/munge.key"],
    "slurmd": [f"/etc/slurm/node/{name}" for name in _SLURMD_FILES],
    "slurmctld": [
        "/etc/slurm/slurm.conf",
        "/etc/slurm/cgroup.conf",
        "/etc/slurm/gres.conf",
        "/etc/slurm/node/slurm.conf",
    ],
    "slurmdbd": ["/etc/slurm/slurmdbd.conf"],
}

#: The layers that a userspace-only member does not get.
_NODE_LAYERS = ("storage", "tracking", "munge", "job environment", "session", "slurm", "train")

_PEER_VERBS = (("added", "add"), ("removed", "remove"), ("updated", "update"))


def layer_queries(
    record: model.Record,
    machine: str,
    accounting: bool = True,
) -> dict[str, Any]:
    """Return the parameters of the module layer_info for one member, for layers that do not compare it themselves."""
    manager = derive.find_member(record, record["manager"])
    controller_address = derive.cluster_address(record, manager)
    is_manager = machine == record["manager"]
    daemon_names = [
        "slurmd",
        *(["slurmctld"] if is_manager else []),
        *(["slurmdbd"] if is_manager and accounting else []),
    ]
    layer_units = [("munge", "munge"), *(("slurm", name) for name in daemon_names)]
    return {
        "files": _expected_slurm_files(controller_address, is_manager),
        "services": [
            {"layer": layer, "unit": f"{name}.service", "reads": _FILES_BY_DAEMON[name]} for layer, name in layer_units
        ],
    }


def _expected_slurm_files(controller_address: str, is_manager: bool) -> list[dict[str, Any]]:
    node_files = [
        {"layer": "slurm", "path": "/etc/slurm/node/slurmd.env", "contains": f"--conf-server {controller_address}"}
    ]
    controller_files = [{"layer": "slurm", "path": "/etc/slurm/slurm.conf", "contains": f"({controller_address})"}]
    return node_files + (controller_files if is_manager else [])


def compare_member(
    record: model.Record, machine: str, states_by_machine: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Describe what `site` would change on a member, by layer.

    ``states_by_machine``: the state of each member's layers.
    """
    own_state = states_by_machine.get(machine, {})
    drift_by_layer = _compare_mesh(record, machine, own_state.get("mesh"))
    host_state = own_state.get("host") or {}
    if "drift" not in host_state:
        return drift_by_layer
    drift_by_layer.update(host_state["drift"])
    if host_state.get("userspace_only"):
        return {layer: difference for layer, difference in drift_by_layer.items() if layer not in _NODE_LAYERS}
    if "munge" not in drift_by_layer:
        manager_key = (states_by_machine.get(record["manager"], {}).get("host") or {}).get("munge_key")
        if not host_state["munge_key"]:
            drift_by_layer["munge"] = "there is no key"
        elif manager_key and host_state["munge_key"] != manager_key:
            drift_by_layer["munge"] = f"its key is not the one of {record['manager']}"
    return drift_by_layer


def _compare_mesh(record: model.Record, machine: str, state: object) -> dict[str, str]:
    backend = record["mesh"]["backend"]
    if not isinstance(state, Mapping) or not state or backend == "none":
        return {}
    difference = (
        _compare_tailnet(record, machine, state) if backend == "tailscale" else _compare_tunnel(record, machine, state)
    )
    return {"mesh": difference} if difference else {}


def _compare_tunnel(record: model.Record, machine: str, state: Mapping[str, Any]) -> str:
    if "interface_up" not in state:
        return ""
    if not state["public_key"]:
        return NOT_SET_UP
    if not state["interface_up"]:
        return f"{record['mesh']['interface']} is down"
    recorded_mesh = derive.find_member(record, machine)["mesh"]
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
        return "tailscaled does not run"
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


def format_drift(drift_by_layer: Mapping[str, str]) -> str:
    """Format the drift of a member as one text; layers with the same drift are listed together."""
    layers_by_drift: dict[str, list[str]] = {}
    for layer, difference in drift_by_layer.items():
        layers_by_drift.setdefault(difference, []).append(layer)
    return "; ".join(f"{', '.join(layers)}: {difference}" for difference, layers in layers_by_drift.items())
