# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of a node as a program that Slurm runs: as HealthCheckProgram on each node, and as Prolog before a job.
A daemon watches the kernel log with it, and runs it when that tells of a fault.

A node that fails is drained with a reason of ours. It is resumed when the checks pass again, if the reason is still
ours. A node that Slurm has drained because a job did not end in time, for which a network outage is enough, is resumed
once no processes of jobs are left on it. What an administrator has drained is left alone. Jobs that have ended with the
power of the node are requeued, and jobs that start while a volume is unavailable wait for it. The expected state comes
from the node's copy of the cluster record, so the program does not change with a new volume or address. What the checks
have seen is recorded for the next run.

Source: slurm.conf(5), HealthCheckProgram and Prolog; Slurm's prolog and epilog guide (SLURM_SCRIPT_CONTEXT).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import sys
import time
from typing import Any, ContextManager, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import (
    fault_history,
    hung,
    jobs,
    look_lock,
    lost_jobs,
    snapshots,
    waiting,
    watch,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.catalogue import (
    DRAINING_CHECKS,
    SINGLE_CARD_CHECKS,
    VOLUME_CHECK,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.logs import DAEMON_LOGS, limit_logs
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import CheckResult, ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.run import (
    CheckContext,
    JudgedCheck,
    build_results,
    judge_checks,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.settings import (
    WATCH_DAEMON,
    WATCH_OPTION,
    HealthSettings,
    find_state_folder,
    locate_snapshot,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.shared_faults import (
    COMMENT_PREFIX,
    COUNTS_PREFIX,
    FaultCounts,
    choose_counting_node,
    count_faults,
    format_counts,
    format_report,
    parse_comments,
    parse_counts,
    parse_report,
    read_extra,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.derive import node_requirements
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.membership import find_member
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import exit_status, print_line
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import read_stat, runs_as_root
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.show import SlurmNode, parse_nodes_text

#: The prefix of each reason of this program. It differs from that of slurm_node: only a passed check resumes an
#: unhealthy node.
REASON_PREFIX = "gpumesh health: "
#: Slurm shows reasons in one line of a table.
_MAX_REASON_LENGTH = 400
#: The end of a reason that was cut.
_CUT_SUFFIX = " …"
_SCONTROL_TIMEOUT = 15.0
#: Seconds in which nodes with the same fault report it: Slurm runs the check on many of them at the same time.
_SETTLE_SECONDS = 8.0
#: Seconds over which nodes that find no recent count are spread, so that the first one counts for all.
_SPREAD_SECONDS = 2.0
#: Seconds to wait for another look at this node. Slurm ends the program after a minute.
_LOCK_SECONDS = 10.0
_STAYS_DRAINED = "stays drained, since these could not be checked: {}"
#: The nodes on which Slurm runs the check at the same time. With more, the next ones follow once all of these have
#: responded, so that most have not looked yet when the first ones report a shared fault.
_SIMULTANEOUS_NODES = 10

#: Slurm's own reasons of a drain that are over once no process of a job is left on the node. Processes of a step
#: existed for UnkillableStepTimeout after they had been killed; or the controller lost its power before it had saved
#: that it had started a job, and started the job again where it was running. slurmctld saves that only with the next
#: event.
KILL_FAILED, DUPLICATE_JOB = "Kill task failed", "Duplicate jobid"
_JOB_RELATED_REASONS = (KILL_FAILED, DUPLICATE_JOB)
#: A line in /proc/PID/cgroup of a job's processes, with either version of control groups. Users choose the names below
#: /user.slice.
_JOB_GROUP = re.compile(r"^[^/]*:(?!/user\.slice/)/.*\bjob_[0-9]+(/|$)", re.MULTILINE)
_NODE_DAEMONS = ("slurmd", "slurmd-wlm")
_STEP_DAEMONS = ("slurmstepd", "slurmstepd-wlm")


class NodeAction(NamedTuple):
    """An action on the node. ``action_kind`` is none, drain or resume; a drain has ``explanation`` as its reason.

    ``is_unfit``: no job may start.
    """

    action_kind: str
    explanation: str
    is_unfit: bool = False


def build_expected_state(record: Record, settings: HealthSettings, job_gpus: Sequence[int] = ()) -> ExpectedState:
    """The record's data of this node. Raises InputError if the machine is not among the members.

    ``job_gpus``: those of the job that is about to start.
    """
    return ExpectedState(
        **node_requirements(record, settings.machine),
        rdma_rate_gbps=settings.rdma_rate_gbps,
        max_disk_percent=settings.max_disk_percent,
        drains=True,
        mount_timeout=settings.mount_timeout,
        job_gpus=job_gpus,
    )


def choose_checks(record: Record, settings: HealthSettings) -> List[str]:
    """The checks to make. A node without GPUs in the record is not drained for a missing driver."""
    without_gpus = not find_member(record, settings.machine)["gpus"]
    check_ids = DRAINING_CHECKS if settings.drain_on is None else settings.drain_on
    return [check_id for check_id in check_ids if not (without_gpus and check_id == "health.gpu_count")]


def format_reason(failing: Sequence[CheckResult]) -> str:
    """The reason of a drain: the failed checks with their messages, on one line."""
    reason_text = "; ".join(f"{result['id']}: {result['reason'].rstrip('.')}" for result in failing)
    # A quotation mark would end the reason when Slurm reads it again.
    line = " ".join((REASON_PREFIX + reason_text).replace('"', "'").split())
    return line if len(line) <= _MAX_REASON_LENGTH else line[: _MAX_REASON_LENGTH - len(_CUT_SUFFIX)] + _CUT_SUFFIX


def format_notice(node_name: str, reason: str) -> str:
    """The text for jobs on a node that is drained for this reason, which does not end them."""
    return f"{node_name} accepts no more jobs, because it is unhealthy: {reason[len(REASON_PREFIX) :]}"


def parse_drain_reason(reason: str, checks: Sequence[str]) -> List[str]:
    """Return the checks among these that a reason of ours names; all of them if it was too long to name each."""
    cut = reason.endswith(_CUT_SUFFIX)
    return [check for check in checks if cut or f"; {check}: " in f"; {reason[len(REASON_PREFIX) :]}"]


def find_excused_checks(checks: Sequence[str]) -> List[str]:
    """Return the shared faults that have a common cause, so that no node is taken out of service for them."""
    return [check for check in checks if check not in SINGLE_CARD_CHECKS]


def find_job_leftovers(host_tree: Tree) -> List[str]:
    """Return the processes that jobs have left on this node, each as "NAME (PID)".

    These are processes in the control groups of jobs, and those that Slurm starts for jobs. Where Slurm uses no control
    groups, its jobs are in that of slurmd: there, a process that no signal can end. Elsewhere it may be that of any user,
    who only has to wait for an executable.
    """
    leftover_processes = []
    process_ids = [name for name in host_tree.list_names("proc") if name.isdigit()]
    slurmd_groups = {
        host_tree.read("proc", process_id, "cgroup")
        for process_id in process_ids
        if runs_as_root(host_tree.path("proc"), int(process_id), _NODE_DAEMONS)
    }
    for process_id in process_ids:
        name, stat_fields = read_stat(host_tree.path("proc"), process_id)
        group = host_tree.read("proc", process_id, "cgroup") or ""
        uninterruptible = stat_fields[:1] == ["D"] and group in slurmd_groups
        if name and (
            uninterruptible
            or _JOB_GROUP.search(group)
            or runs_as_root(host_tree.path("proc"), int(process_id), _STEP_DAEMONS)
        ):
            leftover_processes.append(f"{name} ({process_id})")
    return leftover_processes


def decide_action(
    check_results: Sequence[CheckResult],
    slurm_node: SlurmNode,
    shared_checks: Sequence[str] = (),
    leftover_processes: Sequence[str] = (),
    unconfirmed_checks: Sequence[str] = (),
) -> NodeAction:
    """Decide what to do with the node.

    A check that could not be made neither drains a node nor resumes one that was drained for it. No shared fault
    drains, and faults with a common cause do not keep a node drained either.

    ``leftover_processes`` are those of jobs, on a node that Slurm has drained for them. ``unconfirmed_checks``: new
    faults of a node in service that may turn out to be shared until its next look.
    """
    excused_checks = find_excused_checks(shared_checks)
    failed_results = [
        result for result in check_results if result["status"] == "fail" and result["id"] not in excused_checks
    ]
    undecided_checks = [result["id"] for result in check_results if result["status"] == "error"]
    is_drained = "drain" in slurm_node["flags"]
    drained_for_job = is_drained and slurm_node["reason"] in _JOB_RELATED_REASONS
    drained_by_us = slurm_node["reason"].startswith(REASON_PREFIX)
    if drained_by_us:
        # A check that can never be made on this node has not drained it, and must not keep it drained.
        undecided_checks = parse_drain_reason(slurm_node["reason"], undecided_checks)
    out_of_service = is_drained or slurm_node["state"] == "down" or "fail" in slurm_node["flags"]
    if failed_results and out_of_service and not drained_by_us:
        return NodeAction(
            "none", f"unhealthy, and already out of service: {slurm_node['reason'] or 'without a reason'}"
        )
    if failed_results and not is_drained and all(result["id"] in unconfirmed_checks for result in failed_results):
        fault_names = ", ".join(result["id"] for result in failed_results)
        return NodeAction(
            "none", f"drained at the next check, unless too many nodes have the fault by then: {fault_names}"
        )
    if failed_results:
        return _decide_faulty_node(
            failed_results, slurm_node["reason"] if is_drained else None, shared_checks, undecided_checks
        )
    if excused_checks and not (is_drained and drained_by_us):
        return NodeAction("none", f"kept in service, since other nodes have it too: {', '.join(excused_checks)}")
    if not (is_drained and (drained_by_us or drained_for_job)):
        return NodeAction(
            "none", "fit" if not out_of_service else f"healthy, and left alone: {slurm_node['reason'] or 'no reason'}"
        )
    if undecided_checks:
        return NodeAction("none", _STAYS_DRAINED.format(", ".join(undecided_checks)))
    if drained_for_job and leftover_processes:
        return NodeAction(
            "none",
            f"stays drained, since these are still there: {join_names(leftover_processes)}",
        )
    return NodeAction(
        "resume", f"other nodes have it too: {', '.join(excused_checks)}" if excused_checks else "fit again"
    )


def _decide_faulty_node(
    failing: Sequence[CheckResult], present_reason: Optional[str], shared_checks: Sequence[str], unsure: Sequence[str]
) -> NodeAction:
    """Decide what to do with a node that has faults. ``present_reason``: ours, if it is drained already."""
    reason = format_reason(failing)
    if present_reason and unsure:
        # A new reason would no longer name them, and the node would be resumed without them.
        return NodeAction("none", f"{_STAYS_DRAINED.format(', '.join(unsure))}; {reason}")
    if present_reason is None and all(result["id"] in shared_checks for result in failing):
        fault_names = ", ".join(result["id"] for result in failing)
        return NodeAction(
            "none", f"unhealthy, but as many nodes have the fault as may be drained for it: {fault_names}"
        )
    return NodeAction("none" if reason == present_reason else "drain", reason)


def _show_nodes(run_command: Runner, *name: str) -> str:
    return run_command(["scontrol", "--oneliner", "show", "node", *name], timeout=_SCONTROL_TIMEOUT).stdout


def _parse_node(nodes_text: str, name: str) -> SlurmNode:
    matching_nodes: List[SlurmNode] = [node for node in parse_nodes_text(nodes_text) if node["name"] == name]
    if not matching_nodes:
        raise CommandError(["scontrol", "show", "node", name], "showed no node")
    return matching_nodes[0]


def _update_node(run_command: Runner, name: str, *settings: str) -> None:
    run_command(["scontrol", "update", f"nodename={name}", *settings], timeout=_SCONTROL_TIMEOUT)


def count_shared_faults(
    run_command: Runner,
    node_name: str,
    counting_node: str,
    failing: Sequence[str],
    is_reported: bool,
    too_early_counts: Optional[FaultCounts],
) -> FaultCounts:
    """Return how many nodes have each fault, counting them only if no other node has done that in the last seconds.

    ``is_reported``: whether others count this node. ``too_early_counts`` were made before it reported its faults.
    """

    def are_valid(counts: Optional[FaultCounts]) -> bool:
        # No clocks of different nodes are compared: one that is wrong only costs another count.
        return counts is not None and counts != too_early_counts and counts.is_recent(time.time())

    if not is_reported:
        return count_faults(_show_nodes(run_command), node_name, failing, time.time())
    counts, is_free = _read_counts(run_command, counting_node)
    if not are_valid(counts):
        time.sleep(random.uniform(0.0, _SPREAD_SECONDS))
        counts, is_free = _read_counts(run_command, counting_node)
    if counts is not None and are_valid(counts):
        return counts
    counts = count_faults(_show_nodes(run_command), node_name, failing, time.time())
    if is_free:
        # Without it, the next node counts again.
        with contextlib.suppress(CommandError):
            _update_node(run_command, counting_node, f"extra={format_counts(counts)}")
    return counts


def _read_counts(run_command: Runner, counting_node: str) -> Tuple[Optional[FaultCounts], bool]:
    """Return the counts that other nodes have left, and whether there is room for them."""
    try:
        node_text = _show_nodes(run_command, counting_node)
    except CommandError:
        # A manager that has just taken over may not be among the nodes yet.
        return None, False
    extra = read_extra(node_text)
    return parse_counts(node_text), not extra or extra.startswith(COUNTS_PREFIX)


def publish_and_act(
    run_command: Runner,
    health_settings: HealthSettings,
    counting_node: str,
    check_results: Sequence[CheckResult],
    host_tree: Tree,
    is_prolog: bool = False,
) -> NodeAction:
    """Publish the faults of this node, find out how many others have them, and drain or resume the node accordingly.

    ``counting_node``: the one with the counts.
    """
    node_name = health_settings.machine
    failed_checks = list_failed_checks(check_results)
    node_text = _show_nodes(run_command, node_name)
    before = parse_comments(node_text).get(node_name, "")
    new_comment = format_report(failed_checks)
    may_comment = not before or before.startswith(COMMENT_PREFIX)
    new_reports = [check for check in failed_checks if may_comment and check not in parse_report(before)]
    too_early_counts = _read_counts(run_command, counting_node)[0] if new_reports else None
    if before != new_comment and may_comment:
        _update_node(run_command, node_name, f"comment={new_comment}")
        if new_reports:
            time.sleep(_SETTLE_SECONDS)
    shared_checks: List[str] = []
    unconfirmed_checks: List[str] = []
    if failed_checks:
        counts = count_shared_faults(
            run_command, node_name, counting_node, failed_checks, may_comment, too_early_counts
        )
        shared_checks = counts.find_shared_faults(failed_checks, health_settings.max_drained_percent)
        if counts.node_count > _SIMULTANEOUS_NODES and not is_prolog:
            unconfirmed_checks = find_excused_checks(new_reports)
    node = _parse_node(node_text, node_name)
    action = decide_action(
        check_results,
        node,
        shared_checks,
        find_job_leftovers(host_tree) if node["reason"] in _JOB_RELATED_REASONS else (),
        unconfirmed_checks,
    )
    apply_action(run_command, node_name, action)
    if action.action_kind == "drain" and "drain" not in node["flags"]:
        jobs.notify_jobs(run_command, node_name, format_notice(node_name, action.explanation))
    if action.action_kind == "resume" and node["reason"] == DUPLICATE_JOB:
        lost_jobs.release_refused_jobs(run_command, node_name)
    if new_comment and may_comment and action.action_kind == "resume":
        # Slurm removes the comment together with the reason.
        _update_node(run_command, node_name, f"comment={new_comment}")
    return action._replace(is_unfit=bool(set(failed_checks) - set(find_excused_checks(shared_checks))))


def apply_action(run_command: Runner, name: str, action: NodeAction) -> None:
    """Drain or resume the node in the controller."""
    if action.action_kind == "drain":
        _update_node(run_command, name, "state=drain", f"reason={action.explanation}")
    elif action.action_kind == "resume":
        _update_node(run_command, name, "state=resume")


def judge_repeatedly(context: CheckContext, only: Sequence[str]) -> List[JudgedCheck]:
    """Make the checks, and repeat the failed ones: one disturbed reading must not drain a node."""
    judged_checks = judge_checks(context, only)
    failing = [check.check_id for check, judgement in judged_checks if judgement.status == "fail"]
    if not failing:
        return judged_checks
    # A new context, since each caches what it has read.
    fresh_context = CheckContext(
        context.expected_state, context.host_tree, context.run_command, context.find_program, context.snapshot_path
    )
    repeated_checks = {repeated.check.check_id: repeated for repeated in judge_checks(fresh_context, failing)}
    context.snapshot.update(fresh_context.snapshot)
    context.urgent_snapshot.update(fresh_context.urgent_snapshot)
    return [repeated_checks.get(judged.check.check_id, judged) for judged in judged_checks]


def run_checks(
    health_settings: HealthSettings, context: CheckContext, only: Sequence[str], notes_faults: bool = False
) -> List[CheckResult]:
    """The results of the checks, which are recorded for the next snapshot.

    ``notes_faults``: the node remembers which faults have begun and which are over.
    """
    judged_checks = judge_repeatedly(context, only)
    record_snapshot(context)
    state_folder = find_state_folder(health_settings.folder)
    noted_faults = fault_history.read_faults(state_folder)
    if notes_faults:
        judgements = {check.check_id: judgement for check, judgement in judged_checks}
        try:
            noted_faults = fault_history.note_faults(state_folder, judgements, time.time())
        except OSError as failure:
            # A full or read-only disk has a check of its own.
            print_line(f"{health_settings.machine}: faults could not be recorded: {failure.strerror}")
    return build_results(judged_checks, health_settings.machine, noted_faults)


def record_snapshot(context: CheckContext) -> None:
    """Record what the checks have seen, and which processes wait in the kernel, for the next snapshot."""
    processes = hung.follow_sleeping(context.host_tree, snapshots.read_part(context.last_snapshot, "processes"))
    try:
        snapshots.write_snapshot(
            context.host_tree,
            context.snapshot_path,
            {**context.snapshot, "processes": processes},
            context.urgent_snapshot,
        )
    except OSError as failure:
        print_line(f"This snapshot could not be recorded: {failure}")


def list_failed_checks(results: Sequence[CheckResult]) -> List[str]:
    """The checks that have failed."""
    return [result["id"] for result in results if result["status"] == "fail"]


def judge_node(
    health_settings: HealthSettings,
    run_command: Runner,
    host_tree: Tree,
    show_only: bool,
    is_prolog: bool,
    job_gpus: Sequence[int] = (),
) -> Tuple[bool, bool]:
    """Make the checks, and act on them. Returns whether the node is unfit, and whether it only lacks a volume."""
    record = Store(health_settings.folder, health_settings.cluster).read()
    if record is None:
        # The member has left, or its copy was never written: there is nothing to judge it by.
        print_line(f"There is no record of cluster {health_settings.cluster} in {health_settings.folder}.")
        return False, False
    # A prolog that passes changes nothing, and jobs that start at the same time do not wait for each other.
    with contextlib.nullcontext() if show_only or is_prolog else _exclude_other_looks(health_settings):
        return _look_at_node(health_settings, record, run_command, host_tree, show_only, is_prolog, job_gpus)


def _exclude_other_looks(health_settings: HealthSettings) -> ContextManager[None]:
    return look_lock.exclusive_look(find_state_folder(health_settings.folder), _LOCK_SECONDS)


def _look_at_node(
    health_settings: HealthSettings,
    record: Record,
    run_command: Runner,
    host_tree: Tree,
    show_only: bool,
    is_prolog: bool,
    job_gpus: Sequence[int],
) -> Tuple[bool, bool]:
    """Do what ``judge_node`` does, while no other look goes on."""
    check_results = run_checks(
        health_settings,
        CheckContext(
            build_expected_state(record, health_settings, job_gpus),
            host_tree,
            run_command,
            snapshot_path=locate_snapshot(health_settings.folder),
        ),
        choose_checks(record, health_settings),
        not show_only and not is_prolog,
    )
    for result in check_results:
        if result["status"] in ("fail", "error") or show_only:
            print_line(f"{result['status']} {result['id']}: {result['reason'] or result['actual']}")
    failing = list_failed_checks(check_results)
    if is_prolog and failing == [VOLUME_CHECK]:
        # The periodic check finds out whether other nodes lack it, too.
        return False, True
    is_unfit = bool(failing)
    # A prolog that passes has nothing to report, and must not cost a request to the controller per job and node.
    if not show_only and (is_unfit or not is_prolog):
        # A look that began before the fault could otherwise resume the node.
        with _exclude_other_looks(health_settings) if is_prolog else contextlib.nullcontext():
            action = publish_and_act(
                run_command,
                health_settings,
                choose_counting_node(record),
                check_results,
                host_tree,
                is_prolog,
            )
        is_unfit = action.is_unfit
        print_line(f"{health_settings.machine}: {action.action_kind}: {action.explanation}")
    return is_unfit, False


def wait_for_volumes(health_settings: HealthSettings, run_command: Runner, host_tree: Tree, job_id: str) -> bool:
    """Wait with a job until the volumes are back. Returns whether the node is unfit, so that Slurm requeues the job."""
    for seconds in waiting.iterate_pauses(waiting.read_wait_limit(run_command)):
        if not waiting.is_still_starting(run_command, job_id):
            return False
        print_line(f"{health_settings.machine}: job {job_id} waits for the shared volumes")
        time.sleep(seconds)
        is_unfit, away = judge_node(health_settings, run_command, host_tree, False, True)
        if not away or is_drained(run_command, health_settings.machine):
            return is_unfit or away
    waiting.requeue_job(run_command, job_id)
    return False


def is_drained(run_command: Runner, name: str) -> bool:
    """Whether a node is drained. False if the controller says nothing about it."""
    try:
        return "drain" in _parse_node(_show_nodes(run_command, name), name)["flags"]
    except CommandError:
        return False


def main(
    settings_document: Mapping[str, Any],
    command_arguments: Sequence[str] = (),
    environment: Optional[Mapping[str, str]] = None,
    run_command: Runner = run,
    host_tree: Optional[Tree] = None,
    log_paths: Sequence[str] = DAEMON_LOGS,
) -> int:
    """Return 0 for a fit node. With ``--show``, only print the results, and do not change the node in Slurm.

    With ``--watch``, have the node looked at whenever the kernel log tells of a fault, and never return.

    ``log_paths`` are kept within bounds here, since no other program of ours runs periodically.
    """
    health_settings = HealthSettings(**settings_document)
    if WATCH_OPTION in command_arguments:
        return exit_status(WATCH_DAEMON, lambda: watch.watch_log(os.path.abspath(sys.argv[0])))
    process_environment = os.environ if environment is None else environment
    is_prolog = process_environment.get("SLURM_SCRIPT_CONTEXT", "").startswith("prolog")
    show_only = "--show" in command_arguments
    periodic = not show_only and not is_prolog
    if periodic:
        limit_logs(log_paths)
    try:
        host_tree = host_tree or Tree()
        if periodic:
            lost_jobs.requeue_lost_jobs(run_command, health_settings.machine, host_tree)
        job_gpus = jobs.parse_job_gpus(process_environment.get("SLURM_JOB_GPUS", "")) if is_prolog else ()
        is_unfit, away = judge_node(health_settings, run_command, host_tree, show_only, is_prolog, job_gpus)
        if away:
            is_unfit = wait_for_volumes(
                health_settings, run_command, host_tree, process_environment.get("SLURM_JOB_ID", "")
            )
    except GpumeshError as failure:
        print_line(f"{health_settings.machine}: could not be checked: {failure}")
        # A node that could not be checked has not failed: the job may run.
        return 0 if process_environment.get("SLURM_SCRIPT_CONTEXT") else 2
    return 1 if is_unfit else 0
