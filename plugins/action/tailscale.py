# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of tailscale, whose documentation is in the module of the same name.

An auth key is sent to a host only if the module has reported that it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction

_MODULE = "gpumesh.cluster.tailscale"

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


class ActionModule(HostAction):
    """Runs the module, and again with the key if the host has to log in."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = dict(self._task.args)
        record = self.named(given.pop("record", None))
        programs = self.variable("daemon_supervisor_programs")
        arguments = {**({"supervisor_programs": programs} if programs else {}), **given}
        if record is None:
            return self._logged_in(arguments)
        result = self._logged_in({**self._of_the_role(record), **arguments})
        options = self.options("mesh", "userspace", "userspace_nodes", "proxy_port")
        userspace = options["userspace"] == "always" or not result["tun_device"]
        pod = bool(userspace and options["userspace_nodes"])
        entry = mesh.address_registration(record, self.machine, result["addresses"], pod)
        flags = mesh.daemon_flags(record["mesh"], userspace, options["proxy_port"])
        # Programs of a pod go by the proxy. Elsewhere, a daemon that already runs keeps its settings.
        differ = bool(pod and result["running"] and set(flags) - set(result["command"]))
        return {
            **result,
            "flags": flags,
            "flags_differ": differ,
            "pod": pod,
            "ready": bool(result["boot"] and result["addresses"] and not result["tags_differ"] and not differ),
            **({"registration": entry} if entry else {}),
        }

    def _logged_in(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if arguments.get("state") == "absent":
            return self.module(_MODULE, arguments)
        key = arguments.get("auth_key")
        without = {name: value for name, value in arguments.items() if name != "auth_key"}
        result = self.module(_MODULE, {**without, "login": False})
        needed = result["login_needed"] or (result["tags_differ"] and key)
        if not needed or not boolean(arguments.get("login", True)):
            return result
        file = self.variable("mesh_auth_key_file")
        if file and not key and result["login_needed"]:
            raise InputError(f"mesh_auth_key_file: there is no file {file}.", "Correct the path, or set mesh_auth_key.")
        second = self.module(_MODULE, {**without, **({"auth_key": key} if key else {}), "login": True})
        return {**second, "changed": result["changed"] or second["changed"]}

    def _of_the_role(self, record: Mapping[str, Any]) -> dict[str, Any]:
        found = {name: self.variable(f"mesh_{name}") for name in _OF_THE_ROLE}
        return {
            "hostname": mesh.tailnet_name(self.machine),
            **{name: value for name, value in found.items() if value not in (None, "")},
            "peers": mesh.tailnet_peers(record, self.machine),
        }
