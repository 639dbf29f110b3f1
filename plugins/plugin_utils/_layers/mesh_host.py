# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The work of the mesh actions on a host: derive the options of a module from the record, and run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import desired
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction, RecordArguments
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import mesh

WIREGUARD_MODULE, TAILSCALE_MODULE = "gpumesh.cluster.wireguard", "gpumesh.cluster.tailscale"

#: The packages by implementation: the kernel, or a userspace implementation that is installed or missing.
_PACKAGES_BY_IMPLEMENTATION = {"kernel": ["wireguard-tools"]}
_USERSPACE_PACKAGES = ["wireguard-tools", "wireguard-go"]
#: The options of the role mesh that the module tailscale has as well, by its own names.
_MODULE_OPTIONS = {
    "login_server": "mesh_login_server",
    "hostname": "mesh_hostname",
    "ephemeral": "mesh_ephemeral",
    "tags": "mesh_tags",
    "advertise_routes": "mesh_advertise_routes",
    "accept_routes": "mesh_accept_routes",
    "accept_dns": "mesh_accept_dns",
    "ssh": "mesh_ssh",
}
#: The options of the role mesh for a member of a tailnet.
TAILNET_OPTIONS = (
    *_MODULE_OPTIONS.values(),
    "mesh_auth_key_file",
    "mesh_userspace",
    "mesh_userspace_nodes",
    "mesh_proxy_port",
)


def supervisor_program_options(action: HostAction) -> dict[str, Any]:
    """Return the path of supervisord's programs on the action's host, as an option of the modules."""
    return {name: path for name, path in action.supervisor_options().items() if name == "supervisor_programs"}


def set_up_tunnel(
    action: HostAction,
    record: Mapping[str, Any],
    action_options: Mapping[str, Any],
    module_overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """Set up the tunnel of the action's host according to the record. Returns the results of module and action.

    ``action_options``: the options of the action; ``module_overrides``: options of the module that are not taken from
    the record. Raises GpumeshError.
    """
    given_args = {
        "interface": record["mesh"]["interface"],
        "machine": action.machine,
        "relays": action_options["relays"],
        **supervisor_program_options(action),
        **absent_members(action, record, action_options["preshared"], action_options.get("preshared_results")),
    }

    def derive_arguments() -> dict[str, Any]:
        return desired.derive_parameters(record, given_args)

    arguments: Mapping[str, Any] | RecordArguments = RecordArguments(given_args, derive_arguments)
    # What the task sets has precedence, and no host has the preshared keys of its peers: these are derived here.
    results_name = action_options.get("preshared_results")
    if module_overrides or results_name:
        peer_results = action.registered_results(results_name, action.active_hosts) if results_name else {}
        key_options = {"preshared_keys": mesh.preshared_keys(action.machine, peer_results)} if results_name else {}
        arguments = {**given_args, **derive_arguments(), **module_overrides, **key_options}
    result = action.ensure_packages(WIREGUARD_MODULE, arguments, _missing_packages)
    key_registration = mesh.key_registration(record, action.machine, result["public_key"])
    is_ready = result["interface_up"] and result["boot"]
    return {**result, "ready": is_ready, **({"registration": key_registration} if key_registration else {})}


def update_tailnet(
    action: HostAction, record: Mapping[str, Any], options: Mapping[str, Any], module_overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Set up the action's host in the tailnet of the record. Returns the results of module and action.

    ``options``: TAILNET_OPTIONS; ``module_overrides``: options of the module that take precedence. Raises GpumeshError.
    """
    arguments = {
        "hostname": mesh.tailnet_name(action.machine),
        **{
            name: options[option_name]
            for name, option_name in _MODULE_OPTIONS.items()
            if options[option_name] not in (None, "")
        },
        "peers": mesh.tailnet_peers(record, action.machine),
        **supervisor_program_options(action),
        **module_overrides,
    }
    result = ensure_logged_in(action, arguments, options)
    is_userspace = options["mesh_userspace"] == "always" or not result["tun_device"]
    is_pod = bool(is_userspace and options["mesh_userspace_nodes"])
    address_registration = mesh.address_registration(record, action.machine, result["addresses"], is_pod)
    daemon_flags = mesh.daemon_flags(record["mesh"], is_userspace, options["mesh_proxy_port"])
    # Programs of a pod depend on the proxy. Elsewhere, a daemon that already runs keeps its settings.
    flags_differ = bool(is_pod and result["running"] and set(daemon_flags) - set(result["command"]))
    # A host may have been a pod before. The library asks the daemon, and is tested with it.
    library_changes = bool(result["addresses"] and (is_pod or not result["tun_device"]))
    return {
        **result,
        "flags": daemon_flags,
        "flags_differ": flags_differ,
        "pod": is_pod,
        "ready": bool(result["boot"] and result["addresses"] and not result["tags_differ"] and not flags_differ),
        **({"library": "present" if is_pod else "absent"} if library_changes else {}),
        **({"registration": address_registration} if address_registration else {}),
    }


def ensure_logged_in(action: HostAction, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Run the module, and run it again with the key if the host needs to log in.

    ``options``: mesh_auth_key_file. Raises GpumeshError.
    """
    if arguments.get("state") == "absent":
        return action.run_module(TAILSCALE_MODULE, arguments)
    auth_key = arguments.get("auth_key")
    keyless_arguments = {name: value for name, value in arguments.items() if name != "auth_key"}
    result = action.run_module(TAILSCALE_MODULE, {**keyless_arguments, "login": False})
    renewal_needed = boolean(arguments.get("renew", False)) and result["renewal_due"]
    login_needed = result["login_needed"] or ((result["tags_differ"] or renewal_needed) and auth_key)
    if not login_needed or not boolean(arguments.get("login", True)):
        return result
    key_file = options["mesh_auth_key_file"]
    if key_file and not auth_key and result["login_needed"]:
        raise InputError(f"mesh_auth_key_file: there is no file {key_file}.", "Correct the path, or set mesh_auth_key.")
    login_result = action.run_module(
        TAILSCALE_MODULE, {**keyless_arguments, **({"auth_key": auth_key} if auth_key else {}), "login": True}
    )
    return {**login_result, "changed": result["changed"] or login_result["changed"]}


def absent_members(
    action: HostAction, record: Mapping[str, Any], preshared: object, results_name: str | None = None
) -> dict[str, Any]:
    """Return the options that remove preshared keys. ``preshared``, ``results_name``: as given to the module wireguard.

    Both ends of a pair get its key in one task, and lose it in one, so keys with members outside the play are kept.
    """
    if preshared is not False or results_name:
        return {}
    active_hosts = set(action.active_hosts)
    return {
        "preshared": False,
        "absent_members": [machine for machine in mesh.member_machines(record) if machine not in active_hosts],
    }


def _missing_packages(result: Mapping[str, Any]) -> list[str]:
    """Return the packages for an interface, if the host has no implementation or no tools."""
    if result["tools"] and result["implementation"] != "missing":
        return []
    return _PACKAGES_BY_IMPLEMENTATION.get(result["implementation"], _USERSPACE_PACKAGES)
