# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of slurm_state_info. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleConnectionFailure

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster import handover
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    HostAction,
    ModuleFailedError,
)

_MODULE = "gpumesh.cluster.slurm_state_info"
_STATE_OPTION = {"type": "dict"}


class ActionModule(HostAction):
    """Runs the module, and with a record decides from its results which queue is the current one."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        if "record" not in self._task.args:
            return self.run_module(_MODULE, self._task.args)
        task_args = self.arguments(
            record=RECORD_OPTION,
            manager_state=_STATE_OPTION,
            member_state=_STATE_OPTION,
        )
        record = self.record()
        options = self.options("slurm_former_manager", "cluster_manager_lost")
        is_lost = options["cluster_manager_lost"]
        # The manager cannot take over from itself, for example when an interrupted run is repeated.
        former_manager = "" if options["slurm_former_manager"] == record["manager"] else options["slurm_former_manager"]
        if task_args["member_state"] is not None:
            return self._inspect_leftover(record, task_args["member_state"])
        if task_args["manager_state"] is not None:
            return self._inspect_former_manager(record, task_args["manager_state"], former_manager, is_lost)
        return self._decide_on_manager(record, former_manager, is_lost)

    def _read_state(self) -> dict[str, Any]:
        return self.run_module(_MODULE, {})

    def _decide_on_manager(self, record: model.Record, former_manager: str, is_lost: bool) -> dict[str, Any]:
        """Decide what happens on the manager, unless another machine has to be queried first."""
        state_result = self._read_state()
        manager_status = handover.require_status(record, state_result)
        inventory_hosts = self.variables["groups"]["all"]
        return _handover_result(
            state_result,
            handover.decide_before_query(record, manager_status, inventory_hosts, former_manager, is_lost),
        )

    def _inspect_former_manager(
        self, record: model.Record, manager_state: object, former_manager: str, is_lost: bool
    ) -> dict[str, Any]:
        """Decide what the manager does, after querying the former manager."""
        state_result: dict[str, Any] = {"changed": False}
        former_status, unreachable_reason = None, "it does not answer"
        try:
            state_result = self._read_state()
            former_status = handover.parse_status(state_result)
        except ModuleFailedError as failure:
            unreachable_reason = str(failure) or unreachable_reason
        except AnsibleConnectionFailure as failure:
            unreachable_reason = str(failure)
        manager_status = handover.require_status(record, manager_state)
        printable_reason = "" if former_status else printable(unreachable_reason)
        return _handover_result(
            state_result,
            handover.decide_handover(
                record,
                manager_status,
                former_status,
                former_manager,
                is_lost,
                printable_reason,
            ),
        )

    def _inspect_leftover(self, record: model.Record, member_state: object) -> dict[str, Any]:
        """Decide what happens to the queue of a machine that is not the manager."""
        state_result = self._read_state()
        member_status = handover.parse_status(member_state)
        leftover_action = (
            handover.decide_leftover(record, self.machine, member_status, handover.parse_status(state_result))
            if member_status
            else ""
        )
        return {**state_result, "leftover_action": leftover_action}


def _handover_result(state_result: Mapping[str, Any], decision: handover.HandoverDecision) -> dict[str, Any]:
    """Return the result of the task. Raises HostStateError if the controller must not start."""
    if decision.refusal:
        raise HostStateError(decision.refusal)
    return {**state_result, "handover": decision._asdict()}
