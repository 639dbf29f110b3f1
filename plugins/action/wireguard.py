# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of wireguard, whose documentation is in the module of the same name.

With a cluster record, it derives the tunnel of the host, and installs missing packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.options import RECORD_OPTIONS, TUNNEL_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction

_MODULE = "gpumesh.cluster.wireguard"

#: By implementation: the kernel, or a userspace implementation that is installed or missing.
_PACKAGES = {"kernel": ["wireguard-tools"]}
_WITHOUT_KERNEL = ["wireguard-tools", "wireguard-go"]


class ActionModule(HostAction):
    """Runs the module, and again after installing what it needs."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        options, given = self.own_options({**RECORD_OPTIONS, **TUNNEL_OPTIONS})
        record = self.named(given.pop("record", None))
        programs = self.variable("daemon_supervisor_programs")
        arguments = {**({"supervisor_programs": programs} if programs else {}), **given}
        if record is None:
            return self.module(_MODULE, arguments)
        arguments = {**mesh.tunnel(record, self.machine, options["relays"]), **arguments}
        arguments.update(self._shared_keys(options, [peer["machine"] for peer in arguments["peers"]]))
        result = self.equipped_module(_MODULE, arguments, _lacking)
        entry = mesh.key_registration(record, self.machine, result["public_key"])
        ready = result["interface_up"] and result["boot"]
        return {**result, "ready": ready, **({"registration": entry} if entry else {})}

    def _shared_keys(self, options: dict[str, Any], peers: list[str]) -> dict[str, Any]:
        """Both ends of a pair get its key in one task, and lose it in one. Keys with absent peers are kept."""
        if options["preshared_results"]:
            return {
                "preshared_keys": mesh.shared_keys(
                    self.machine, self.registered(options["preshared_results"], self.present)
                )
            }
        if options["preshared"] is False:
            return {"preshared_without": [peer for peer in peers if peer in self.present]}
        return {}


def _lacking(result: Mapping[str, Any]) -> list[str]:
    """The packages with what runs the interface, where the host has neither that nor the tools."""
    if result["tools"] and result["implementation"] != "missing":
        return []
    return _PACKAGES.get(result["implementation"], _WITHOUT_KERNEL)
