# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of reachability_verdicts. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks import reachability_matrix
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability import ReachabilityAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_verdicts import judge_reachability

_NAME_OPTION = {"type": "str", "required": True}


class ActionModule(ReachabilityAction):
    """Reads and evaluates the results of the hosts of the play about each other."""

    _requires_connection = False

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            members={"type": "raw", "required": True},
            run={"type": "str", "default": ""},
            registered={
                "type": "dict",
                "required": True,
                "options": {"listen": _NAME_OPTION, "probe": _NAME_OPTION, "throughput": {"type": "str"}},
            },
        )
        options = self.options("reachability_layer", "reachability_show", "check_max_clock_offset")
        members = self.require_targets(task_args["members"], options["reachability_layer"])
        machines_in_run = self.participants(members)
        results_by_phase = {
            phase: self.registered_results(name, machines_in_run)
            for phase, name in task_args["registered"].items()
            if name
        }
        automatic_machines = [
            machine
            for machine in machines_in_run
            if self.options("firewall_host", machine=machine)["firewall_host"] == "auto"
        ]
        verdicts = {
            **judge_reachability(
                results_by_phase,
                members,
                max_clock_offset=options["check_max_clock_offset"],
                automatic_machines=automatic_machines,
            ),
            "layer": options["reachability_layer"],
            "run": task_args["run"],
        }
        matrix_text = reachability_matrix.draw_matrix(verdicts["pairs"])
        if options["reachability_show"]:
            self.print_text(matrix_text)
        return {"changed": False, "verdicts": verdicts, "text": matrix_text}
