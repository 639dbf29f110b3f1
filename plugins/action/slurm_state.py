# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of slurm_state. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleConnectionFailure

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import rest
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster import handover
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    HostAction,
    ModuleFailedError,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import slurm
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.accounting import SlurmAccounting

_MODULE = "gpumesh.cluster.slurm_state"
_QUEUE_OPTION = {"type": "dict"}


class ActionModule(HostAction):
    """Runs the module, and with a record decides from its results which queue is the current one."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        if "record" not in self._task.args:
            return (
                self._retire_queue()
                if self._task.args.get("state") == "retired"
                else self.run_module(_MODULE, self._task.args)
            )
        task_args = self.arguments(
            record=RECORD_OPTION,
            state={"type": "str", "choices": ["inspected"], "required": True},
            manager_queue=_QUEUE_OPTION,
            member_queue=_QUEUE_OPTION,
        )
        record = self.record()
        options = self.options("slurm_former_manager", "cluster_manager_lost")
        # The manager cannot take over from itself, for example when an interrupted run is repeated.
        former_manager = "" if options["slurm_former_manager"] == record["manager"] else options["slurm_former_manager"]
        if task_args["member_queue"] is not None:
            return self._inspect_leftover(record, task_args["member_queue"])
        if task_args["manager_queue"] is not None:
            return self._inspect_former_manager(
                record, task_args["manager_queue"], former_manager, options["cluster_manager_lost"]
            )
        return self._decide_on_manager(record, former_manager, options["cluster_manager_lost"])

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
            self.path_exists(slurm.DATABASE_DIRECTORY),
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
        if retirement["kept"]:
            self.print_text(
                f"{self.machine} had the queue and the accounting of an earlier tenure, from which those of the cluster "
                f"are not derived. They are kept in {printable(str(retirement['kept']))}, the accounting as "
                "accounting.sql. Delete them when they are no longer needed."
            )
        return {**retirement, "changed": changed or retirement["changed"]}

    def _inspect_queue(self) -> dict[str, Any]:
        return self.run_module(_MODULE, {"state": "inspected"})

    def _decide_on_manager(self, record: model.Record, former_manager: str, is_lost: bool) -> dict[str, Any]:
        """Decide what happens on the manager, unless another machine has to be queried first."""
        queue_result = self._inspect_queue()
        own_queue = handover.require_status(record, queue_result)
        inventory_hosts = self.variables["groups"]["all"]
        return _handover_result(
            queue_result,
            handover.decide_before_query(record, own_queue, inventory_hosts, former_manager, is_lost),
        )

    def _inspect_former_manager(
        self, record: model.Record, manager_queue: object, former_manager: str, is_lost: bool
    ) -> dict[str, Any]:
        """Decide what the manager does, after querying the former manager."""
        queue_result: dict[str, Any] = {"changed": False}
        former_queue, unreachable_reason = None, "it does not answer"
        try:
            queue_result = self._inspect_queue()
            former_queue = handover.parse_status(queue_result)
        except ModuleFailedError as failure:
            unreachable_reason = str(failure) or unreachable_reason
        except AnsibleConnectionFailure as failure:
            unreachable_reason = str(failure)
        own_queue = handover.require_status(record, manager_queue)
        printable_reason = "" if former_queue else printable(unreachable_reason)
        return _handover_result(
            queue_result,
            handover.decide_handover(record, own_queue, former_queue, former_manager, is_lost, printable_reason),
        )

    def _inspect_leftover(self, record: model.Record, member_queue: object) -> dict[str, Any]:
        """Decide what happens to the queue of a machine that is not the manager."""
        queue_result = self._inspect_queue()
        own_queue = handover.parse_status(member_queue)
        leftover_action = (
            handover.decide_leftover(record, self.machine, own_queue, handover.parse_status(queue_result))
            if own_queue
            else ""
        )
        return {**queue_result, "leftover": leftover_action}


def _handover_result(queue_result: Mapping[str, Any], decision: handover.HandoverDecision) -> dict[str, Any]:
    """Return the result of the task. Raises HostStateError if the controller must not start."""
    if decision.refusal:
        raise HostStateError(decision.refusal)
    return {**queue_result, "succession": decision._asdict()}
