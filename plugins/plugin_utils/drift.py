# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files and services that a record requires of each member, for comparison with the member. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.layers import NOT_SET_UP
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model

#: The files that each daemon reads at its start. The roles restart a daemon that is older than these.
_NODE_FILES = ("slurmd.env", "slurm.conf", "cgroup.conf", "gres.conf")
_READS = {
    "munge": ["/etc/munge/munge.key"],
    "slurmd": [f"/etc/slurm/node/{name}" for name in _NODE_FILES],
    "slurmctld": [
        "/etc/slurm/slurm.conf",
        "/etc/slurm/cgroup.conf",
        "/etc/slurm/gres.conf",
        "/etc/slurm/node/slurm.conf",
    ],
    "slurmdbd": ["/etc/slurm/slurmdbd.conf"],
}

#: The layers that a userspace-only member does not get.
_OF_NODES = ("storage", "tracking", "munge", "job environment", "session", "slurm", "train")

_PEER_WORDS = (("added", "add"), ("removed", "remove"), ("updated", "update"))


def questions(
    record: model.Record,
    machine: str,
    accounting: bool = True,
) -> dict[str, Any]:
    """Parameters of the module layer_info for one member, for layers that do not compare it themselves."""
    manager = derive.member_of(record, record["manager"])
    controller = derive.cluster_address(record, manager)
    manages = machine == record["manager"]
    daemons = ["slurmd", *(["slurmctld"] if manages else []), *(["slurmdbd"] if manages and accounting else [])]
    units = [("munge", "munge"), *(("slurm", name) for name in daemons)]
    return {
        "files": _slurm(controller, manages),
        "services": [{"layer": layer, "unit": f"{name}.service", "reads": _READS[name]} for layer, name in units],
    }


def _slurm(controller: str, manages: bool) -> list[dict[str, Any]]:
    own = [{"layer": "slurm", "path": "/etc/slurm/node/slurmd.env", "contains": f"--conf-server {controller}"}]
    served = [{"layer": "slurm", "path": "/etc/slurm/slurm.conf", "contains": f"({controller})"}]
    return own + (served if manages else [])


def drift(record: model.Record, machine: str, states: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What `site` would change on a member, by layer, as messages. ``states``: the state of each member's layers."""
    own = states.get(machine, {})
    words = _mesh(record, machine, own.get("mesh"))
    host = own.get("host") or {}
    if "drift" not in host:
        return words
    words.update(host["drift"])
    if host.get("userspace_only"):
        return {layer: what for layer, what in words.items() if layer not in _OF_NODES}
    if "munge" not in words:
        reference = (states.get(record["manager"], {}).get("host") or {}).get("munge_key")
        if not host["munge_key"]:
            words["munge"] = "there is no key"
        elif reference and host["munge_key"] != reference:
            words["munge"] = f"its key is not the one of {record['manager']}"
    return words


def _mesh(record: model.Record, machine: str, state: object) -> dict[str, str]:
    backend = record["mesh"]["backend"]
    if not isinstance(state, Mapping) or not state or backend == "none":
        return {}
    words = _tailnet(record, machine, state) if backend == "tailscale" else _tunnel(record, machine, state)
    return {"mesh": words} if words else {}


def _tunnel(record: model.Record, machine: str, state: Mapping[str, Any]) -> str:
    if "interface_up" not in state:
        return ""
    if not state["public_key"]:
        return NOT_SET_UP
    if not state["interface_up"]:
        return f"{record['mesh']['interface']} is down"
    own = derive.member_of(record, machine)["mesh"]
    if own is None or own["public_key"] != state["public_key"]:
        return "its key is not the one in the record"
    peers = state["peers"]
    words = [f"{verb} {', '.join(peers[key])}" for key, verb in _PEER_WORDS if peers[key]]
    return "would " + ", ".join(words) if words else ""


def _tailnet(record: model.Record, machine: str, state: Mapping[str, Any]) -> str:
    """``state``: the result of the module tailscale in check mode; only ``msg`` if it refused the host."""
    if "backend_state" not in state:
        return str(state.get("msg", ""))
    if not state["installed"]:
        return NOT_SET_UP
    if not state["running"]:
        return "tailscaled does not run"
    if state["backend_state"] != "Running":
        return f"it is not logged in to its tailnet ({state['backend_state']})"
    ends = {member["machine"]: member["mesh"]["address"] for member in record["members"] if member["mesh"]}
    if ends.get(machine) not in state["addresses"]:
        return "its address is not the one in the record"
    words = [] if state["boot"] else ["tailscaled does not start at boot"]
    unknown = [name for name, address in ends.items() if state["peers"].get(address, {}).get("path") == "unknown"]
    if unknown:
        words.append(f"its tailnet has no {', '.join(unknown)}")
    return ", ".join(words)


def in_words(differences: Mapping[str, str]) -> str:
    """The drift of a member as one text; layers with the same drift are listed together."""
    together: dict[str, list[str]] = {}
    for layer, what in differences.items():
        together.setdefault(what, []).append(layer)
    return "; ".join(f"{', '.join(layers)}: {what}" for what, layers in together.items())
