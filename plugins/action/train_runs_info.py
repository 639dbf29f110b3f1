# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of train_runs_info. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_OPTION, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.train import writable_volumes


class ActionModule(HostAction):
    """Lists the runs of a user on the host, and prints them."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        _own_options, module_args = self.split_own_options({"record": RECORD_OPTION})
        module_args["volumes"] = writable_volumes(self.record(), str(self._task.delegate_to or self.machine))
        result = self.run_module("gpumesh.cluster.train_runs_info", module_args)
        # The names of directories, and what is in them, are text of the user.
        run_lines = [printable(run["summary"]) for run in result["runs"]]
        self.print_message("\n".join([f"Runs in {result['folder']}: {len(run_lines)}", *run_lines]))
        return result
