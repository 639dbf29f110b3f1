# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of layer_plan. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.drift import plan_layers
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_OPTION, ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry


class ActionModule(ControllerAction):
    """Decides once for all hosts of the play which layers are entered."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(record=RECORD_OPTION, registered={"type": "str", "required": True})
        record = self.record()
        option_names = sorted({name for layer in registry.LAYERS for name in layer.request_options})
        states_by_machine, given_options = {}, []
        for machine in self.active_hosts:
            host_state = self.variables_of(machine).get(task_args["registered"]) or {}
            states_by_machine[machine] = {"host": host_state}
            given_options.append({name: self.read_option(name, machine) for name in option_names})
        plan = plan_layers(record, states_by_machine, given_options)
        self._announce(plan.layers)
        return {"changed": False, "layers": plan.layers, "generation": record["generation"], "reasons": plan.reasons}

    def _announce(self, planned_layers: list[str]) -> None:
        """Tell which layers are left out."""
        left_out = [layer.name for layer in registry.LAYERS if layer.name not in planned_layers]
        if left_out:
            self.print_message(f"These layers are as the record requires, and are left out: {', '.join(left_out)}.")
