# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_drain. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.service import ServicePaths
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.nodes import (
    HOST_SETTINGS_PATH,
    LEAVING_REASON,
    REASON_PREFIX,
    REBOOT_REASON,
    WITHDRAWAL_REASON,
    is_out_of_service,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.show import SlurmNode
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster import handover
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.usage import (
    format_job,
    format_unreachable,
    format_volume_users,
    running_jobs,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    HostAction,
    ModuleFailedError,
)

#: A job may have started since the query.
_MIN_WAIT = 10
#: Slurm repeats the request to end a job after two minutes, for example to a node that was restarted meanwhile.
_COMPLETION_WAIT = 300
#: Jobs that do not end, as on a dead machine, must not block this indefinitely.
_MAX_END_WAIT = 90


class _Purpose(NamedTuple):
    """Why machines are drained: the reason in Slurm, and what it says when that is not possible.

    ``preparation``: what else helps while their jobs run.
    """

    reason: str
    refusal: str
    outcome: str
    preparation: str = ""


_PURPOSES = {
    "removal": _Purpose(
        LEAVING_REASON, "cannot leave cluster '{cluster}' while jobs run there", "Nothing has been removed."
    ),
    "reboot": _Purpose(REBOOT_REASON, "cannot be rebooted while jobs run there", "It has not been rebooted."),
    "withdrawal": _Purpose(
        WITHDRAWAL_REASON,
        "cannot stop running jobs (slurm_node=false) while they are there",
        "Nothing has been changed.",
        " To keep new ones off until then: scontrol update nodename={nodes} state=drain reason='no jobs here'.",
    ),
}


class ActionModule(HostAction):
    """Queries Slurm on the host that knows the jobs, refuses the request, or drains the machines."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            record=RECORD_OPTION,
            machines={"type": "list", "elements": "str"},
            unreachable={"type": "list", "elements": "str", "default": []},
            handing_over={"type": "bool", "default": False},
            drain={"type": "bool", "default": True},
            usage={"type": "str"},
            purpose={"type": "str", "choices": list(_PURPOSES), "default": "removal"},
        )
        self._purpose = _PURPOSES[task_args["purpose"]]
        options = self.options("cluster_drain_timeout", "cluster_force")
        is_forced = options["cluster_force"]
        record = self.record()
        foreign_slurm = self._belongs_to_other_cluster(record)
        has_scheduler = not foreign_slurm and self.path_exists(HOST_SETTINGS_PATH)
        if has_scheduler and task_args["handing_over"]:
            self._refuse_incomplete_handover(record)
        skip_query = foreign_slurm or not task_args["drain"] or not self._has_controller()
        slurm_report = {} if skip_query else self._query_slurm(is_forced)
        node_names = [node["name"] for node in slurm_report.get("nodes", [])]
        if task_args["machines"] is not None:
            node_names = [node for node in node_names if node in task_args["machines"]]
        jobs = running_jobs(slurm_report.get("jobs", []), node_names)
        changed = False
        if task_args["machines"] is None:
            if not is_forced:
                self._refuse_use(record, jobs, task_args["usage"])
            changed = bool(is_forced and node_names) and self._end_jobs(node_names, jobs, node_names)
        left_alone = self._find_left_alone(slurm_report.get("nodes", []), node_names, jobs)
        # The module keeps the reasons of nodes that others have drained, and waits for their jobs.
        drained_by_others = [
            node["name"]
            for node in slurm_report.get("nodes", [])
            if node["name"] in left_alone and "drain" in node["flags"]
        ]
        own_nodes = [node for node in node_names if node not in left_alone]
        drained_nodes = [*own_nodes, *drained_by_others]
        if task_args["machines"] is not None and drained_nodes:
            drain_timeout = options["cluster_drain_timeout"]
            if not (is_forced or drain_timeout):
                self._refuse_jobs(record, jobs, task_args["machines"])
            changed = (
                self._end_jobs(drained_nodes, jobs, own_nodes)
                if is_forced
                else self._drain(slurm_report["nodes"], drained_nodes, drain_timeout)
            )
        # A reachable machine deletes its own node in the entry point leave of the role slurm, which a dead one cannot.
        unreachable_nodes = [node for node in node_names if node in task_args["unreachable"]]
        if unreachable_nodes and task_args["machines"] is not None:
            changed = self._set_node_state(unreachable_nodes, "absent") or changed
        return {
            "changed": changed,
            "scheduler": has_scheduler,
            "foreign": foreign_slurm,
            "nodes": node_names,
            "drained": own_nodes,
            "left_alone": left_alone,
            "jobs": [str(job["id"]) for job in jobs],
        }

    def _find_left_alone(
        self, known_nodes: Sequence[SlurmNode], node_names: Sequence[str], jobs: Sequence[Mapping[str, Any]]
    ) -> dict[str, str]:
        """Return the nodes that others have taken out of service, with their reasons: a reboot does not resume them.

        Raises HostStateError if one of them is being removed, or is not drained and has jobs.
        """
        if self._purpose.reason != REBOOT_REASON:
            return {}
        left_alone = {
            node["name"]: node["reason"]
            for node in known_nodes
            if node["name"] in node_names and not self._may_resume(node)
        }
        for node_name, reason in left_alone.items():
            if reason.startswith(REASON_PREFIX + LEAVING_REASON):
                raise HostStateError(
                    f"{node_name} cannot be rebooted: its removal from the cluster was interrupted.",
                    f"Complete that with the playbook remove, or exclude it: cluster_without={node_name}.",
                )
        undrained_nodes = [
            node["name"] for node in known_nodes if node["name"] in left_alone and "drain" not in node["flags"]
        ]
        busy_jobs = _select_unfinished(running_jobs(jobs, undrained_nodes))
        if busy_jobs:
            raise HostStateError(
                f"{', '.join(undrained_nodes)} cannot be rebooted: others have taken it out of service "
                f"({left_alone[undrained_nodes[0]]}), but it still has {', '.join(format_job(job) for job in busy_jobs)}.",
                "Wait until they have ended, or cancel them (scancel).",
            )
        return left_alone

    def _drain(self, known_nodes: Sequence[SlurmNode], node_names: Sequence[str], timeout: int) -> bool:
        """Drain the nodes, and return them to service if their jobs do not end in time. Raises ModuleFailedError."""
        try:
            return self._drain_and_wait(node_names, timeout)
        except ModuleFailedError as failure:
            # Nodes that were out of service before remain so, whoever drained them.
            resumable_nodes = [
                node["name"] for node in known_nodes if node["name"] in node_names and self._may_resume(node)
            ]
            jobs_sentence = self._describe_remaining_jobs(node_names)
            if resumable_nodes and not self.check_mode:
                self._set_node_state(resumable_nodes, "idle")
            failure_message = str(failure.result.get("msg", "")).replace(
                "wait longer", "increase cluster_drain_timeout"
            )
            resume_sentence = f" {', '.join(resumable_nodes)} accepts jobs again." if resumable_nodes else ""
            raise ModuleFailedError(
                {**failure.result, "msg": f"{failure_message}{jobs_sentence} {self._purpose.outcome}{resume_sentence}"}
            ) from failure

    def _may_resume(self, node: SlurmNode) -> bool:
        """Whether the node was in service, or drained by an earlier run that was interrupted before the reboot."""
        return not is_out_of_service(node) or (
            self._purpose.reason == REBOOT_REASON and node["reason"] == REASON_PREFIX + REBOOT_REASON
        )

    def _describe_remaining_jobs(self, node_names: Sequence[str]) -> str:
        """Describe the jobs that have not ended in time, some of which may have started after the first query."""
        if self._purpose.reason != REBOOT_REASON:
            return ""
        jobs = running_jobs(self._query_slurm(force=True).get("jobs", []), node_names)
        return f" Still running: {', '.join(format_job(job) for job in jobs)}." if jobs else ""

    def _drain_and_wait(self, node_names: Sequence[str], timeout: int) -> bool:
        try:
            return self._set_node_state(node_names, "drained", wait_seconds=max(timeout, _MIN_WAIT))
        except ModuleFailedError as failure:
            if timeout >= _COMPLETION_WAIT or not failure.result.get("error", {}).get("completing"):
                raise
        self.print_message(
            f"{', '.join(node_names)}: the jobs have ended, but Slurm still waits for their processes. It retries after two minutes."
        )
        self._set_node_state(node_names, "drained", wait_seconds=_COMPLETION_WAIT)
        return True

    def _belongs_to_other_cluster(self, record: model.Record) -> bool:
        """Whether the Slurm of this host belongs to another cluster, whose nodes and jobs this one must not touch."""
        claim_query = {"cluster": record["name"], "cluster_id": record["id"]}
        return "slurm" in self.run_module("gpumesh.cluster.host_owner", claim_query)["foreign_claims"]

    def _has_controller(self) -> bool:
        """Whether this host runs slurmctld, by the files of its service.

        These files are written after the configuration and removed before it: after an interrupted run, there may be a
        configuration, but no controller to query about jobs.
        """
        service_paths = ServicePaths()._replace(**self.supervisor_options())
        return self.path_exists(service_paths.drop_in_path("slurmctld")) or self.path_exists(
            service_paths.program_path("slurmctld")
        )

    def _refuse_incomplete_handover(self, record: model.Record) -> None:
        """Refuse a handover that the manager itself has not completed yet. Raises HostStateError."""
        own_queue = handover.require_status(record, self.run_module("gpumesh.cluster.slurm_state_info", {}))
        decision = handover.decide_before_query(record, own_queue, reachable_machines=())
        if decision.refusal:
            raise HostStateError(decision.refusal)

    def _query_slurm(self, force: bool) -> Mapping[str, Any]:
        try:
            return self.run_module("gpumesh.cluster.slurm_info", {"gather": ["nodes", "jobs"]})
        except ModuleFailedError:
            if not force:
                raise
            return {}

    def _refuse_jobs(self, record: model.Record, jobs: Sequence[Mapping[str, Any]], machines: Sequence[str]) -> None:
        unfinished_jobs = _select_unfinished(jobs)
        if unfinished_jobs:
            raise HostStateError(
                f"{', '.join(machines)} {self._purpose.refusal.format(cluster=record['name'])}: "
                f"{', '.join(format_job(job) for job in unfinished_jobs)}.",
                "Wait until they have ended (cluster_drain_timeout=SECONDS waits at most that long), or cancel them "
                "with cluster_force=true." + self._purpose.preparation.format(nodes=",".join(machines)),
            )

    def _refuse_use(self, record: model.Record, jobs: Sequence[Mapping[str, Any]], register_name: str | None) -> None:
        usage_results = (
            self.registered_results(register_name, self.variables["ansible_play_hosts_all"]) if register_name else {}
        )
        current_users = [*(f"job {format_job(job)}" for job in jobs), *format_volume_users(usage_results)]
        unreachable_reasons = format_unreachable(usage_results)
        if current_users or unreachable_reasons:
            raise HostStateError(
                f"Cluster '{record['name']}' {'is' if current_users else 'may be'} in use: {'; '.join([*current_users, *unreachable_reasons])}.",
                "Wait until they have ended, or end them (scancel, kill); cluster_force=true ends them, too."
                if current_users
                else "Run this again when they answer; cluster_force=true deletes the cluster in any case.",
            )

    def _end_jobs(self, node_names: Sequence[str], jobs: Sequence[Mapping[str, Any]], own_nodes: Sequence[str]) -> bool:
        """Cancel the jobs before ``own_nodes`` are set down, since a node that is down leaves its processes running."""
        changed = self._set_node_state(node_names, "drained")
        if not jobs:
            return changed
        unfinished_jobs = _select_unfinished(jobs)
        if unfinished_jobs and not self.check_mode:
            self.run_module(
                "ansible.builtin.command", {"argv": ["scancel", *(str(job["id"]) for job in unfinished_jobs)]}
            )
        try:
            self._set_node_state(node_names, "drained", wait_seconds=_MAX_END_WAIT)
        except ModuleFailedError as failure:
            if "error" in failure.result and own_nodes:
                self._set_node_state(own_nodes, "down")
        return True

    def _set_node_state(self, node_names: Sequence[str], state: str, wait_seconds: int = 0) -> bool:
        module_args: dict[str, Any] = {"name": list(node_names), "state": state}
        if state != "absent":
            module_args["reason"] = self._purpose.reason
        if wait_seconds:
            module_args["wait"] = wait_seconds
        return bool(self.run_module("gpumesh.cluster.slurm_node", module_args).get("changed"))


def _select_unfinished(jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the jobs that do not end by themselves. Slurm kills the processes of completing jobs after a while."""
    return [job for job in jobs if job["state"] != "completing"]
