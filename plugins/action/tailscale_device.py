# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of tailscale_device, whose documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils import mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction

_MODULE = "gpumesh.cluster.tailscale_device"


class ActionModule(HostAction):
    """Determines the device of a machine, and runs the module."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        options, given = self.own_options({"machine": {"type": "str"}})
        record, left = self.named(given.pop("record", None)), given.pop("left", None) or []
        if record is None:
            return self.module(_MODULE, given)
        machine = options["machine"] or self.machine
        # A host could report the device of another one, so this is used only if the record has no address.
        own = given.pop("address", None) or ""
        address = mesh.device_address([*record["members"], *left], machine) or own
        if not address:
            return {"skipped": True, "skip_reason": f"{machine} had no address in the tailnet."}
        role = self.options("mesh", "api_key", "login_server", "api_ca_path")
        arguments = {
            "address": address,
            "name": self._name(machine),
            "api_key": role["api_key"],
            "login_server": role["login_server"] or None,
            "ca_path": role["api_ca_path"] or None,
            **given,
        }
        return self.module(_MODULE, {name: value for name, value in arguments.items() if value is not None})

    def _name(self, machine: str) -> str:
        others = self.variables["hostvars"]
        own = self.variable("mesh_hostname") if machine == self.machine else others[machine].get("mesh_hostname")
        return str(own or mesh.tailnet_name(machine))
