# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of firewall. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.desired import derive_parameters
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction, RecordArguments
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.firewall import complete_parameters


class ActionModule(HostAction):
    """Runs the module, with the members from the record, and installs nftables if it is needed."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = dict(self._task.args)
        if "record" not in module_args:
            return self.run_module("gpumesh.cluster.firewall", module_args)
        record = self.record()
        del module_args["record"]
        if module_args.get("state") == "absent":
            return self.run_module("gpumesh.cluster.firewall", {"cluster": record["name"], "state": "absent"})
        if self.machine not in [member["machine"] for member in record["members"]]:
            return {"changed": False}
        given_args = {
            "cluster": record["name"],
            **complete_parameters(module_args, registry.layer_ports(record, self.options)),
        }
        return self.ensure_packages(
            "gpumesh.cluster.firewall",
            RecordArguments(given_args, lambda: derive_parameters(record, given_args)),
            lambda result: [] if result["tools"] else ["nftables"],
        )
