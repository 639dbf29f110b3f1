# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The work of the module wireguard, and how a host differs according to it."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.managed_files import LayerDifferences
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.service import ServicePaths
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.interface import (
    WireguardHost,
    ensure_interface,
    remove_interface,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.options import TUNNEL, TUNNEL_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.wireguard import make_desired

#: The options of the module, apart from the record.
OPTIONS: Dict[str, Any] = {
    **TUNNEL,
    **TUNNEL_OPTIONS,
    "machine": {"type": "str"},
    "absent_members": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "mtu": {"type": "int", "default": 1420},
    "probe_mtu": {"type": "bool", "default": False},
    "public_key": {"type": "str", "no_log": False},
    "forward": {"type": "bool", "default": False},
    "preshared_keys": {"type": "dict", "no_log": True},
    "preshared_without": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "supervisor_programs": {"type": "path", "default": ServicePaths().supervisor_programs},
}
_PEER_VERBS = (("added", "add"), ("removed", "remove"), ("updated", "update"))


def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Apply the desired state of the tunnel. Raises GpumeshError."""
    interface = params["interface"]
    tunnel_host = WireguardHost(
        run, check_mode, service_paths=ServicePaths(supervisor_programs=params["supervisor_programs"])
    )
    if params["state"] == "absent":
        result = remove_interface(tunnel_host, interface)
    else:
        desired_tunnel = None
        if params["peers"] is not None:
            desired_tunnel = make_desired(
                interface, params["address"], params["listen_port"], params["mtu"], params["peers"], params["forward"]
            )
        result = ensure_interface(
            tunnel_host,
            interface,
            desired_tunnel,
            params["probe_mtu"],
            params["public_key"],
            params["preshared_keys"],
            params["preshared_without"],
        )
    return_values: Dict[str, Any] = {
        "public_key": result.public_key,
        "interface_up": result.interface_up,
        "tools": result.tools_installed,
        "implementation": result.implementation,
        "systemd": runs_systemd(),
        "boot": result.starts_at_boot,
        "mtu": result.mtu,
        "peers": result.peer_changes._asdict(),
        "handshakes": result.handshakes,
    }
    if params["state"] == "absent":
        return_values.update(other_interfaces=list(result.other_interfaces), foreign=result.foreign_conf)
    return ModuleResult(
        result.changed,
        return_values,
        result.diff_before,
        result.diff_after,
        tunnel_host.conf_path(interface),
        result.warnings,
    )


def describe_differences(params: Mapping[str, Any], return_values: Mapping[str, Any]) -> LayerDifferences:
    """Describe how a tunnel differs from the record, from the parameters and return values in check mode."""
    if not return_values["public_key"]:
        return LayerDifferences(["there is no key"], True)
    messages: List[str] = []
    if not return_values["interface_up"]:
        messages.append(f"{params['interface']} is down")
    if not return_values["boot"]:
        messages.append(f"{params['interface']} does not start at boot")
    if return_values["public_key"] != params["public_key"]:
        messages.append("its key is not the one in the record")
    peers = return_values["peers"]
    peer_changes = [f"{verb} {', '.join(peers[key])}" for key, verb in _PEER_VERBS if peers[key]]
    if peer_changes and not messages:
        messages.append(f"would {', '.join(peer_changes)}")
    return LayerDifferences(messages, False)
