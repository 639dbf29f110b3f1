# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_reboot. Its documentation is in the module of the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.machines import runs_ansible
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.reboot import (
    describe_plan,
    plan_reboots,
    read_state,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_OPTION, ControllerAction

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ActionModule(ControllerAction):
    """Decides from the results of all hosts of the play, and prints the order."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            record=RECORD_OPTION,
            copies={"type": "str", "required": True},
            registered={"type": "dict", "required": True},
        )
        record = self.record()
        controller_boot_id = _BOOT_ID.read_text(encoding="utf-8").strip() if _BOOT_ID.exists() else ""
        results_by_name = {
            name: self.registered_results(register_name, self.variables["ansible_play_hosts"])
            for name, register_name in task_args["registered"].items()
        }
        state_by_machine = {
            machine: read_state(
                {name: results[machine] for name, results in results_by_name.items()},
                runs_ansible(machine, self.variables_of(machine)),
                controller_boot_id,
            )
            for machine in self.variables["ansible_play_hosts"]
        }
        plan = plan_reboots(
            record,
            self.variables["ansible_play_hosts_all"],
            state_by_machine,
            record["manager"] in self.variables[task_args["copies"]]["unreachable_members"],
        )
        reboot_timeout = self.options("cluster_reboot_timeout")["cluster_reboot_timeout"]
        self.print_message(describe_plan(record, plan))
        return {"changed": False, "machines": plan.machines, "obstacles": plan.obstacles, "timeout": reboot_timeout}
