# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of tailscale_device, whose documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import mesh

_MODULE = "gpumesh.cluster.tailscale_device"


class ActionModule(HostAction):
    """Determines the device of a machine, and runs the module."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        action_options, module_args = self.split_own_options({"machine": {"type": "str"}})
        record, former_members = (
            self.resolve_record(module_args.pop("record", None)),
            module_args.pop("former_members", None) or [],
        )
        if record is None:
            return self.run_module(_MODULE, module_args)
        machine = action_options["machine"] or self.machine
        # A host could report the device of another one, so this is used only if the record has no address.
        reported_address = module_args.pop("address", None) or ""
        address = mesh.find_device_address([*record["members"], *former_members], machine) or reported_address
        if not address:
            return {"skipped": True, "skip_reason": f"{machine} had no address in the tailnet."}
        options = self.options("mesh_api_key", "mesh_login_server", "mesh_api_ca_path", "mesh_tags")
        device_args = {
            "address": address,
            "name": self._tailnet_name(machine),
            "api_key": options["mesh_api_key"],
            "login_server": options["mesh_login_server"] or None,
            "ca_path": options["mesh_api_ca_path"] or None,
            **({"tags": options["mesh_tags"]} if module_args.get("state") != "absent" else {}),
            **module_args,
        }
        return self.run_module(_MODULE, {name: value for name, value in device_args.items() if value is not None})

    def _tailnet_name(self, machine: str) -> str:
        configured_name = self.options("mesh_hostname", machine=machine)["mesh_hostname"]
        return str(configured_name or mesh.tailnet_name(machine))
