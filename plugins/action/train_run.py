# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of train_run. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_OPTION, HostAction, build_stats
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.train import (
    describe_run,
    run_artifacts,
    writable_volumes,
)

_MODULE, _INFO_MODULE = "gpumesh.cluster.train_run", "gpumesh.cluster.train_run_info"
#: Seconds between two queries.
_POLL_INTERVAL = 5.0
_ACTION_OPTIONS = {"record": RECORD_OPTION, "wait": {"type": "bool", "default": True}}


class ActionModule(HostAction):
    """Starts the run on the host and follows it until it has ended, or cancels it."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        self.refuse_converted_options("train", "run")
        action_options, module_args = self.split_own_options(_ACTION_OPTIONS)
        # The role delegates the task to the manager, since the first host of the play may be a pod.
        is_present = module_args.get("state", "present") == "present"
        module_args["volumes"] = writable_volumes(self.record(), str(self._task.delegate_to or self.machine))
        result = self.run_module(_MODULE, module_args)
        changed = result["changed"]
        if is_present and action_options["wait"] and not self.check_mode:
            info_args, action = {"folder": result["folder"]}, result["action"]
            result = self.follow_progress(
                result,
                lambda latest_result: not latest_result["ended"],
                lambda: {**self.run_module(_INFO_MODULE, info_args), "action": action},
                _POLL_INTERVAL,
            )
        result = {**result, **build_stats(run_artifacts(module_args["name"], result))}
        if self.check_mode:
            return {**result, "changed": changed}
        description = describe_run(result, str(self._task.delegate_to or self.machine))
        if is_present and result["run"]["state"] in ("failed", "cancelled"):
            return {**result, "changed": changed, "failed": True, "msg": description}
        self.print_message(description)
        return {**result, "changed": changed}
