# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of a node as a program that Slurm runs: as HealthCheckProgram on each node, and as Prolog before a job.

A node that fails is drained with a reason of ours. It is resumed when the checks pass again, if the reason is still
ours. A node that Slurm has drained because a job did not end in time, for which a network outage is enough, is resumed
once no processes of jobs are left on it. What an administrator has drained is left alone. Jobs that have ended with the
power of the node are requeued, and jobs that start while a volume is away wait for it. The expected state comes from the
node's copy of the cluster record, so the program does not change with a new volume or address.

Source: slurm.conf(5), HealthCheckProgram and Prolog; Slurm's prolog and epilog guide (SLURM_SCRIPT_CONTEXT).
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import lost_jobs, waiting
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.logs import LOGS, bound
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.run import HARDWARE, Context, make_checks
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.shapes import Expected, Result
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import is_roots
from ansible_collections.gpumesh.cluster.plugins.module_utils.program import say
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.derive import member_of, node_needs
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import DEFAULT_FOLDER
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.store import Store
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.show import Node, parse_nodes_text

#: The prefix of each reason of this program. It differs from that of slurm_node: only a passed check resumes an
#: unhealthy node.
MARK = "gpumesh health: "
#: The maximum number of processes that are named in a line.
_MOST_LEFT = 5
#: Slurm shows reasons in one line of a table.
_LONGEST_REASON = 400
#: The end of a longer one.
_CUT = " …"
_TIMEOUT = 15.0
#: Seconds in which nodes with the same fault report it: Slurm runs the check on all of them at the same time.
_SETTLE = 8.0
_STAYS = "stays drained, since these could not be checked: {}"
#: The prefix of the comment of a node that has a fault, whether it is drained or not.
NOTE = "gpumesh-unfit:"
_NAME = re.compile(r"^NodeName=(\S+)")
#: Slurm shows the reservation of a node after it. Our own comments contain no blanks.
_COMMENT = re.compile(rf"\sComment=({NOTE}\S*|.*$)")

#: Slurm's own reasons of a drain that are over once no process of a job is left on the node. Processes of a step existed
#: for UnkillableStepTimeout after they had been killed; or the controller lost its power before it had saved that it had
#: started a job, and started the job again where it was running. slurmctld saves that only with the next event.
KILL_FAILED, DUPLICATE_JOB = "Kill task failed", "Duplicate jobid"
_OVER_WITH_THE_JOB = (KILL_FAILED, DUPLICATE_JOB)
#: In /proc/PID/cgroup of a job's processes, with either version of control groups. Below /user.slice, users choose the
#: names.
_JOB_GROUP = re.compile(r"^[^/]*:(?!/user\.slice/)/.*\bjob_[0-9]+(/|$)", re.MULTILINE)
_STEP_DAEMONS = ("slurmstepd", "slurmstepd-wlm")

#: The check of the shared volumes.
VOLUMES = "storage.mounts"

#: The checks that make a node unfit for all jobs. The clock, swap, names and connections to other members are not among
#: them: they are judged by the check playbook, and one dead peer must not drain the others.
DRAIN_ON = (
    "health.gpu_count",
    *HARDWARE,
    "health.memlock",
    "health.disk",
    VOLUMES,
)

#: Faults of a single card. That several nodes have one is a coincidence: no common cause excuses it, and jobs fail on
#: each of these nodes. All other checks can fail everywhere for one reason: a file server (storage.mounts), a switch or
#: subnet manager (health.rdma), an upgrade of the driver (health.fabric_manager), a setting (health.memlock), or a
#: service that writes too much (health.disk).
OF_A_CARD = (
    "health.dcgm",
    "health.gpu_count",
    "health.gpu_ecc",
    "health.gpu_retired",
    "health.gpu_xid",
    "health.nvlink",
    "health.pcie",
)
#: A node with one of these neither runs jobs nor reports what it has: its comment is from an earlier time.
_SILENT = {"not_responding", "powered_down", "powering_down"}


class Settings(NamedTuple):
    """Which node this is, and the faults for which it is drained."""

    cluster: str
    machine: str
    folder: str = DEFAULT_FOLDER
    drain_on: Sequence[str] = DRAIN_ON
    max_disk_percent: float = 95.0
    rdma_rate_gbps: Optional[float] = None
    mount_timeout: float = 10.0
    max_drained_percent: float = 25.0


class Action(NamedTuple):
    """``kind`` is none, drain or resume; ``words`` explain it, and are the reason of a drain.

    ``unfit``: no job may start.
    """

    kind: str
    words: str
    unfit: bool = False


def expected_of(record: Record, settings: Settings) -> Expected:
    """The record's data of this node. Raises InputError if the machine is not among the members."""
    return Expected(
        **node_needs(record, settings.machine),
        rdma_rate_gbps=settings.rdma_rate_gbps,
        max_disk_percent=settings.max_disk_percent,
        drains=True,
        mount_timeout=settings.mount_timeout,
    )


def chosen(record: Record, settings: Settings) -> List[str]:
    """The checks to make. A node without GPUs in the record is not drained for a missing driver."""
    without_gpus = not member_of(record, settings.machine)["gpus"]
    return [name for name in settings.drain_on if not (without_gpus and name == "health.gpu_count")]


def reason_of(failing: Sequence[Result]) -> str:
    """The reason of a drain: the failed checks with their messages, on one line."""
    words = "; ".join(f"{result['id']}: {result['reason'].rstrip('.')}" for result in failing)
    # A quotation mark would end the reason when Slurm reads it again.
    line = " ".join((MARK + words).replace('"', "'").split())
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - len(_CUT)] + _CUT


def drained_for(reason: str, checks: Sequence[str]) -> List[str]:
    """Those of these checks that a reason of ours names; all of them if it was too long to name each."""
    cut = reason.endswith(_CUT)
    return [check for check in checks if cut or f"; {check}: " in f"; {reason[len(MARK) :]}"]


def parse_comments(shown: str) -> Dict[str, str]:
    """The comment of each node that has one, from ``scontrol --oneliner show node``, where it comes last.

    Comments of others may be followed by more fields.
    """
    found = {}
    for line in shown.splitlines():
        name, comment = _NAME.match(line), _COMMENT.search(line)
        if name and comment:
            found[name.group(1)] = comment.group(1).strip()
    return found


def noted(comment: str) -> List[str]:
    """The checks that a node reports as failed."""
    return comment[len(NOTE) :].split(",") if comment.startswith(NOTE) else []


def present(nodes: Sequence[Node], name: str) -> Set[str]:
    """The nodes that report their faults: this one, and all that are up."""
    return {
        node["name"]
        for node in nodes
        if node["name"] == name or (node["state"] != "down" and not _SILENT.intersection(node["flags"]))
    }


def excused(checks: Sequence[str]) -> List[str]:
    """Those of these shared faults that have a common cause, so that no node is out of service for them."""
    return [check for check in checks if check not in OF_A_CARD]


def shared_faults(
    failing: Sequence[str], name: str, comments: Mapping[str, str], nodes: int, max_percent: float
) -> List[str]:
    """Our faults that more of the ``nodes`` have than may be drained for one fault."""
    most = max(1.0, nodes * max_percent / 100)
    return [
        check
        for check in failing
        if len({name, *(other for other, comment in comments.items() if check in noted(comment))}) > most
    ]


def left_of_jobs(tree: Tree) -> List[str]:
    """What jobs have left on this node, each as "NAME (PID)".

    These are processes in the control groups of jobs, and those that Slurm starts for jobs. Where Slurm uses no control
    groups, its jobs are in that of slurmd, to which this program also belongs: there, a process that no signal can end.
    Elsewhere it may be that of any user, who only has to wait for an executable.
    """
    found, own = [], tree.read("proc", "self", "cgroup")
    for pid in tree.names("proc"):
        # The name, in brackets, may contain any character.
        before, _bracket, after = (tree.read("proc", pid, "stat") or "").rpartition(")") if pid.isdigit() else ("",) * 3
        name = before.partition("(")[2]
        group = tree.read("proc", pid, "cgroup") or ""
        uninterruptible = after.split()[:1] == ["D"] and group == own
        if name and (
            uninterruptible or _JOB_GROUP.search(group) or is_roots(tree.path("proc"), int(pid), _STEP_DAEMONS)
        ):
            found.append(f"{name} ({pid})")
    return found


def decide(results: Sequence[Result], node: Node, shared: Sequence[str] = (), left: Sequence[str] = ()) -> Action:
    """What to do with the node.

    A check that could not be made neither drains a node nor resumes one that was drained for it. No ``shared`` fault
    drains, and those with a common cause do not keep a node drained either.

    ``left``: remaining processes of jobs, on a node that Slurm has drained for them.
    """
    common = excused(shared)
    failing = [result for result in results if result["status"] == "fail" and result["id"] not in common]
    unsure = [result["id"] for result in results if result["status"] == "error"]
    drained = "drain" in node["flags"]
    unended = drained and node["reason"] in _OVER_WITH_THE_JOB
    ours = node["reason"].startswith(MARK)
    if ours:
        # What can never be checked on this node has not drained it, and must not keep it drained.
        unsure = drained_for(node["reason"], unsure)
    out = drained or node["state"] == "down" or "fail" in node["flags"]
    if failing and out and not ours:
        return Action("none", f"unhealthy, and already out of service: {node['reason'] or 'without a reason'}")
    if failing:
        return _act_on(failing, node["reason"] if drained else None, shared, unsure)
    if common and not (drained and ours):
        return Action("none", f"kept in service, since other nodes have it too: {', '.join(common)}")
    if not (drained and (ours or unended)):
        return Action("none", "fit" if not out else f"healthy, and left alone: {node['reason'] or 'no reason'}")
    if unsure:
        return Action("none", _STAYS.format(", ".join(unsure)))
    if unended and left:
        return Action("none", f"stays drained, since these are still there: {', '.join(left[:_MOST_LEFT])}")
    return Action("resume", f"other nodes have it too: {', '.join(common)}" if common else "fit again")


def _act_on(failing: Sequence[Result], drained: Optional[str], shared: Sequence[str], unsure: Sequence[str]) -> Action:
    """What to do with a node that has faults. ``drained``: the reason of ours with which it is drained already."""
    reason = reason_of(failing)
    if drained and unsure:
        # A new reason would no longer name them, and the node would be resumed without them.
        return Action("none", f"{_STAYS.format(', '.join(unsure))}; {reason}")
    if drained is None and all(result["id"] in shared for result in failing):
        named = ", ".join(result["id"] for result in failing)
        return Action("none", f"unhealthy, but as many nodes have the fault as may be drained for it: {named}")
    return Action("none" if reason == drained else "drain", reason)


def _shown(runner: Runner, *name: str) -> str:
    return runner(["scontrol", "--oneliner", "show", "node", *name], timeout=_TIMEOUT).stdout


def _node(shown: str, name: str) -> Node:
    found: List[Node] = [node for node in parse_nodes_text(shown) if node["name"] == name]
    if not found:
        raise CommandError(["scontrol", "show", "node", name], "showed no node")
    return found[0]


def _note(runner: Runner, name: str, note: str) -> None:
    runner(["scontrol", "update", f"nodename={name}", f"comment={note}"], timeout=_TIMEOUT)


def settle(runner: Runner, settings: Settings, results: Sequence[Result], tree: Tree) -> Action:
    """Publish the faults of this node, read those of the others, and drain or resume the node accordingly."""
    name = settings.machine
    failing = failed_of(results)
    shown = _shown(runner, name)
    before = parse_comments(shown).get(name, "")
    note = NOTE + ",".join(failing) if failing else ""
    shared: List[str] = []
    ours = not before or before.startswith(NOTE)
    if before != note and ours:
        _note(runner, name, note)
        if set(failing) - set(noted(before)):
            time.sleep(_SETTLE)
    if failing:
        everybody = _shown(runner)
        up = present(parse_nodes_text(everybody), name)
        comments = {other: comment for other, comment in parse_comments(everybody).items() if other in up}
        shared = shared_faults(failing, name, comments, len(up), settings.max_drained_percent)
    node = _node(shown, name)
    action = decide(results, node, shared, left_of_jobs(tree) if node["reason"] in _OVER_WITH_THE_JOB else ())
    carry_out(runner, name, action)
    if action.kind == "resume" and node["reason"] == DUPLICATE_JOB:
        lost_jobs.release(runner, name)
    if note and ours and action.kind == "resume":
        # Slurm removes the comment together with the reason.
        _note(runner, name, note)
    return action._replace(unfit=bool(set(failing) - set(excused(shared))))


def carry_out(runner: Runner, name: str, action: Action) -> None:
    """Drain or resume the node in the controller."""
    update = ["scontrol", "update", f"nodename={name}"]
    if action.kind == "drain":
        runner([*update, "state=drain", f"reason={action.words}"], timeout=_TIMEOUT)
    elif action.kind == "resume":
        runner([*update, "state=resume"], timeout=_TIMEOUT)


def examine(settings: Settings, context: Context, only: Sequence[str]) -> List[Result]:
    """The results of the checks. Failed ones are repeated: one disturbed reading must not drain a node."""
    results = make_checks(context, settings.machine, only)
    failing = failed_of(results)
    if not failing:
        return results
    # A new context, since each caches what it has read.
    anew = Context(context.expected, context.tree, context.run, context.find)
    again = {result["id"]: result for result in make_checks(anew, settings.machine, failing)}
    return [again.get(result["id"], result) for result in results]


def failed_of(results: Sequence[Result]) -> List[str]:
    """The checks that have failed."""
    return [result["id"] for result in results if result["status"] == "fail"]


def judge(settings: Settings, runner: Runner, tree: Tree, shows: bool, prolog: bool) -> Tuple[bool, bool]:
    """Make the checks, and act on them. Returns whether the node is unfit, and whether it only lacks a volume."""
    record = Store(settings.folder, settings.cluster).read()
    if record is None:
        # The member has left, or its copy was never written: there is nothing to judge it by.
        say(f"There is no record of cluster {settings.cluster} in {settings.folder}.")
        return False, False
    results = examine(settings, Context(expected_of(record, settings), tree, runner), chosen(record, settings))
    for result in results:
        if result["status"] in ("fail", "error") or shows:
            say(f"{result['status']} {result['id']}: {result['reason'] or result['actual']}")
    failing = failed_of(results)
    if prolog and failing == [VOLUMES]:
        # The periodic check finds out whether other nodes lack it, too.
        return False, True
    unfit = bool(failing)
    # A prolog that passes has nothing to report, and must not cost a request to the controller per job and node.
    if not shows and (unfit or not prolog):
        action = settle(runner, settings, results, tree)
        unfit = action.unfit
        say(f"{settings.machine}: {action.kind}: {action.words}")
    return unfit, False


def await_volumes(settings: Settings, runner: Runner, tree: Tree, job: str) -> bool:
    """Wait with a job until the volumes are back. Returns whether the node is unfit, so that Slurm requeues the job."""
    for seconds in waiting.pauses(waiting.limit(runner)):
        if not waiting.is_wanted(runner, job):
            return False
        say(f"{settings.machine}: job {job} waits for the shared volumes")
        time.sleep(seconds)
        unfit, away = judge(settings, runner, tree, False, True)
        if not away or is_drained(runner, settings.machine):
            return unfit or away
    waiting.requeue(runner, job)
    return False


def is_drained(runner: Runner, name: str) -> bool:
    """Whether a node is drained. One of which the controller says nothing is not known to be."""
    try:
        return "drain" in _node(_shown(runner, name), name)["flags"]
    except CommandError:
        return False


def main(
    given: Mapping[str, Any],
    arguments: Sequence[str] = (),
    environment: Optional[Mapping[str, str]] = None,
    runner: Runner = run,
    tree: Optional[Tree] = None,
    logs: Sequence[str] = LOGS,
) -> int:
    """Returns 0 for a fit node. With ``--show``, only prints the results, and does not change the node in Slurm.

    ``logs``: those that are kept within bounds, since this is the only program of ours that runs again and again.
    """
    settings = Settings(**given)
    variables = os.environ if environment is None else environment
    prolog = variables.get("SLURM_SCRIPT_CONTEXT", "").startswith("prolog")
    shows = "--show" in arguments
    periodic = not shows and not prolog
    if periodic:
        bound(logs)
    try:
        tree = tree or Tree()
        if periodic:
            lost_jobs.requeue(runner, settings.machine, tree)
        unfit, away = judge(settings, runner, tree, shows, prolog)
        if away:
            unfit = await_volumes(settings, runner, tree, variables.get("SLURM_JOB_ID", ""))
    except GpumeshError as failure:
        say(f"{settings.machine}: could not be checked: {failure}")
        # A node that could not be checked has not failed: the job may run.
        return 0 if variables.get("SLURM_SCRIPT_CONTEXT") else 2
    return 1 if unfit else 0
