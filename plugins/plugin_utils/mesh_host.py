# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the actions of the mesh do on a host: derive the options of a module from the record, and run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction

WIREGUARD, TAILSCALE = "gpumesh.cluster.wireguard", "gpumesh.cluster.tailscale"

#: By implementation: the kernel, or a userspace implementation that is installed or missing.
_PACKAGES = {"kernel": ["wireguard-tools"]}
_WITHOUT_KERNEL = ["wireguard-tools", "wireguard-go"]
#: Options of the module that the role mesh has with the prefix mesh_.
_OF_THE_ROLE = (
    "login_server",
    "hostname",
    "ephemeral",
    "tags",
    "advertise_routes",
    "accept_routes",
    "accept_dns",
    "ssh",
)


def places(action: HostAction) -> dict[str, Any]:
    """Where supervisord has its programs on the action's host, as an option of the modules."""
    programs = action.variable("daemon_supervisor_programs")
    return {"supervisor_programs": programs} if programs else {}


def set_up_tunnel(
    action: HostAction, record: Mapping[str, Any], options: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Set up the tunnel of the action's host as the record says. Returns the result of the module with that of the action.

    ``options``: those of the action; ``given``: options of the module that are not taken from the record. Raises
    GpumeshError.
    """
    arguments = {**mesh.tunnel(record, action.machine, options["relays"]), **places(action), **given}
    arguments.update(_shared_keys(action, options, [peer["machine"] for peer in arguments["peers"]]))
    result = action.equipped_module(WIREGUARD, arguments, _lacking)
    entry = mesh.key_registration(record, action.machine, result["public_key"])
    ready = result["interface_up"] and result["boot"]
    return {**result, "ready": ready, **({"registration": entry} if entry else {})}


def update_tailnet(action: HostAction, record: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Set up the action's host in the tailnet of the record. Returns the result of the module with that of the action.

    ``given``: options of the module that are not taken from the role mesh. Raises GpumeshError.
    """
    result = logged_in(action, {**_of_the_role(action, record), **places(action), **given})
    options = action.options("mesh", "userspace", "userspace_nodes", "proxy_port")
    userspace = options["userspace"] == "always" or not result["tun_device"]
    pod = bool(userspace and options["userspace_nodes"])
    entry = mesh.address_registration(record, action.machine, result["addresses"], pod)
    flags = mesh.daemon_flags(record["mesh"], userspace, options["proxy_port"])
    # Programs of a pod go by the proxy. Elsewhere, a daemon that already runs keeps its settings.
    differ = bool(pod and result["running"] and set(flags) - set(result["command"]))
    # A host may have been a pod before. The library asks the daemon, and is tested with it.
    replaced = bool(result["addresses"] and (pod or not result["tun_device"]))
    return {
        **result,
        "flags": flags,
        "flags_differ": differ,
        "pod": pod,
        "ready": bool(result["boot"] and result["addresses"] and not result["tags_differ"] and not differ),
        **({"library": "present" if pod else "absent"} if replaced else {}),
        **({"registration": entry} if entry else {}),
    }


def logged_in(action: HostAction, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run the module, and run it again with the key if the host needs it. Raises GpumeshError."""
    if arguments.get("state") == "absent":
        return action.module(TAILSCALE, arguments)
    key = arguments.get("auth_key")
    without = {name: value for name, value in arguments.items() if name != "auth_key"}
    result = action.module(TAILSCALE, {**without, "login": False})
    renew = boolean(arguments.get("renew", False)) and result["renewal_due"]
    needed = result["login_needed"] or ((result["tags_differ"] or renew) and key)
    if not needed or not boolean(arguments.get("login", True)):
        return result
    file = action.variable("mesh_auth_key_file")
    if file and not key and result["login_needed"]:
        raise InputError(f"mesh_auth_key_file: there is no file {file}.", "Correct the path, or set mesh_auth_key.")
    second = action.module(TAILSCALE, {**without, **({"auth_key": key} if key else {}), "login": True})
    return {**second, "changed": result["changed"] or second["changed"]}


def _of_the_role(action: HostAction, record: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: action.variable(f"mesh_{name}") for name in _OF_THE_ROLE}
    return {
        "hostname": mesh.tailnet_name(action.machine),
        **{name: value for name, value in found.items() if value not in (None, "")},
        "peers": mesh.tailnet_peers(record, action.machine),
    }


def _shared_keys(action: HostAction, options: Mapping[str, Any], peers: list[str]) -> dict[str, Any]:
    """Both ends of a pair get its key in one task, and lose it in one. Keys with absent peers are kept."""
    if options.get("preshared_results"):
        results = action.registered(options["preshared_results"], action.present)
        return {"preshared_keys": mesh.shared_keys(action.machine, results)}
    if options["preshared"] is False:
        return {"preshared_without": [peer for peer in peers if peer in action.present]}
    return {}


def _lacking(result: Mapping[str, Any]) -> list[str]:
    """The packages with what runs the interface, where the host has neither that nor the tools."""
    if result["tools"] and result["implementation"] != "missing":
        return []
    return _PACKAGES.get(result["implementation"], _WITHOUT_KERNEL)
