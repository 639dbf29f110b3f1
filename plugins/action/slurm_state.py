# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of slurm_state. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import rest
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.database import DATABASE_DIRECTORY
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import slurm
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.accounting import SlurmAccounting

_MODULE = "gpumesh.cluster.slurm_state"


class ActionModule(HostAction):
    """Runs the module, and ends the daemons and the accounting of a queue that is retired."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        if self._task.args.get("state") == "retired":
            return self._retire_queue()
        return self.run_module(_MODULE, self._task.args)

    def _retire_queue(self) -> dict[str, Any]:
        """End a queue, with its daemons and its accounting. Running it again completes an interrupted run."""
        task_args = self.arguments(
            state={"type": "str", "choices": ["retired"], "required": True}, keep={"type": "bool", "default": True}
        )
        changed = False
        for daemon_name in (rest.PROXY_SERVICE, rest.REST_DAEMON, "slurmctld", "slurmdbd"):
            changed = self.stop_daemon(daemon_name) or changed
        # If an interrupted run deleted the database, its account and MariaDB may remain.
        has_database, has_configuration = (
            self.path_exists(DATABASE_DIRECTORY),
            self.path_exists(slurm.DBD_CONFIG_PATH),
        )
        if has_database or has_configuration:
            accounting = SlurmAccounting(self)
            if has_database and task_args["keep"]:
                accounting.save()
            accounting.delete()
            changed = changed or accounting.changed
        file_args = {"path": slurm.DBD_CONFIG_PATH, "state": "absent"}
        changed = self.run_module("ansible.builtin.file", file_args)["changed"] or changed
        # The queue is retired last, since a repetition of an interrupted run relies on it.
        retirement = self.run_module(_MODULE, {"state": "retired", "keep": task_args["keep"]})
        if retirement["moved_to"]:
            self.print_message(
                f"{self.machine} had a queue and accounting from an earlier term as the manager, from which those of the cluster "
                f"do not descend. They were kept in {printable(str(retirement['moved_to']))}, the accounting as "
                "accounting.sql. Delete them when they are no longer needed."
            )
        return {**retirement, "changed": changed or retirement["changed"]}
