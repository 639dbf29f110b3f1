# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main process of a run's job: it starts attempts in its allocation, one after the other, until the run has ended.

It is one process on one node, which may fail like any other. Everything that its successor needs is in the run's
directory.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, Deque, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    NO_SPACE_ERRNOS,
    CommandError,
    GpumeshError,
    HostStateError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import write_all
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import (
    agent,
    decide,
    profile,
    protocol,
    scheduler,
    show,
    volume,
    volume_fault,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.attribution import signal_name
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.early_standby import EarlyStandbys
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.growth import (
    Growth,
    GrowthTracker,
    OfferRequest,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.liveness import (
    START_ALLOWANCE,
    STOPPED_GAP,
    PauseLimits,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    ENDED_STATES,
    Attempt,
    Cause,
    RunRequest,
    Submission,
    TrainingRun,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.paths import MASTER_PORTS
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.step import AgentStep, NodeProber
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import (
    RunDirectory,
    unwritable_error,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.watch import AttemptMonitor

#: Seconds between two reads of the agents' messages, two updates of run.json, and two queries to the controller.
_POLL_INTERVAL = 1.0
_SAVE_INTERVAL = 3.0
_QUERY_INTERVAL = 15.0
#: Seconds for the agents to end their ranks, which have 5 s for that.
_END_TIMEOUT = 12.0
#: Seconds for all processes of a step to end after SIGKILL.
_KILL_TIMEOUT = 30.0
#: Seconds for the remaining output of srun to arrive after it has ended.
_OUTPUT_TIMEOUT = 3.0
#: Seconds for the node of a lost supervisor to answer, for which the run waits if that node is lost as well.
_NODE_TIMEOUT = 4.0
#: Seconds in which nodes that the run needs may return before the run leaves its job.
_RETURN_TIMEOUT = 10.0
#: Seconds for nodes to return after an outage of the controller.
_RECOVERY_TIMEOUT = 60.0
#: The number of times that another job is requested if Slurm refuses it.
_SUBMIT_ATTEMPTS = 120
#: Seconds by which the next job is delayed if it might get the same nodes.
_SUBMIT_DELAY = 60
#: Seconds over which the speed is measured.
_SPEED_WINDOW = 60.0
#: Seconds, in addition to the grace time, before a time limit at which the ranks are warned.
_WARNING_RESERVE = 30.0
#: Seconds before a time limit at which a job without a successor is requeued, and from which on no other job is
#: requested.
_REQUEUE_MARGIN = 10.0
_SUBMIT_MARGIN = 2 * _REQUEUE_MARGIN
#: Seconds between two queries of the time limit for this, which rarely changes.
_LIMIT_QUERY_INTERVAL = 60.0
#: Seconds by which Slurm may warn of the time limit earlier than requested.
_EARLY_WARNING = 60.0
#: A volume that takes more than this many seconds to write run.json has not answered.
_BLOCKED_AFTER = 2.0
#: Seconds between two checks of a waiting supervisor, and for a full volume to accept the last state of a run.
_STANDBY_INTERVAL = 5.0
_VOLUME_TIMEOUT = 900.0
#: Seconds between the second attempt that fails because of the volume and the next one; the delay then doubles.
_RETRY_DELAY = 60.0


#: The reason of a live process that does not continue.
_SUPERSEDED_REASON = "another node considers this one dead, and continues the run"
#: The reason to leave a job whose end Slurm does not notice.
_ABANDONED_REASON = "the process of Slurm that ran the batch script has ended"
#: The reason for which Slurm ends a job while its run continues.
_SCRIPT_KILLED_REASON = "the batch script was killed"
#: Descriptions of what Slurm does with a job; see `scheduler.job_fate`.
_FATE_REASONS = {
    "preempted": "Slurm has preempted the job",
    "requeued": "Slurm has requeued the job",
    "timeout": "Slurm has ended the job at its time limit",
    "killed": _SCRIPT_KILLED_REASON,
}
#: The end of a job by decision: the state of the run, and the action recorded with the last attempt.
_JOB_ENDINGS = {
    "finish": ("finished", ""),
    "cancel": ("cancelled", ""),
    "fail": ("failed", "stopped"),
    "resubmit": ("queued", "another job was submitted"),
    "requeue": ("queued", "Slurm starts the job again"),
}


class SupervisorId(NamedTuple):
    """The identity of a supervisor. ``inherited``: the attempt whose supervisor was lost; 0 in the batch script.

    ``turn``: the epoch in which this standby took over. In the batch script, ``daemon`` is the process of Slurm that
    runs it, and ``killed`` the signal that has ended an earlier supervisor; 0 for none. ``outage``: the controller was
    away until now. ``ends``: the batch script of the job was killed, so that no attempt starts in it any more.
    """

    program_path: str
    job_id: int
    token: str
    node: str
    allocated_nodes: Sequence[str]
    inherited: int = 0
    turn: int = 0
    daemon: int = 0
    killed: int = 0
    outage: bool = False
    ends: bool = False


class TimeLimitGuard:
    """Requeues a job just before its time limit, unless it is settled by then what follows the job.

    Another job has usually been submitted. But a volume may be full, or block the main thread, until no time remains.
    """

    def __init__(self, runner: Runner, job_id: int) -> None:
        self._runner = runner
        self._job = job_id
        self._deadline: Optional[float] = None
        self._settled = threading.Event()

    def start(self) -> None:
        """Watch the time limit in a thread."""
        threading.Thread(target=self._watch, daemon=True).start()

    def settle(self) -> None:
        """Record that it is settled what follows the job, or that nothing does."""
        self._settled.set()

    def _watch(self) -> None:
        queried_at: Optional[float] = None
        while not self._settled.wait(_POLL_INTERVAL):
            now = time.monotonic()
            seconds_left = None if self._deadline is None else self._deadline - now
            if seconds_left is not None and seconds_left < _REQUEUE_MARGIN:
                with contextlib.suppress(CommandError):
                    scheduler.requeue_job(self._runner, self._job)
                    return
            elif queried_at is None or (
                now - queried_at >= _LIMIT_QUERY_INTERVAL and (seconds_left is None or seconds_left > _WARNING_RESERVE)
            ):
                with contextlib.suppress(CommandError):
                    seconds_left = scheduler.time_left(self._runner, self._job)
                    self._deadline = None if seconds_left is None else time.monotonic() + seconds_left
                    queried_at = now


class DismissedError(GpumeshError):
    """Another process supervises the run."""


class Supervisor:
    """One job of the run, or what remains of it."""

    def __init__(
        self,
        run_directory: RunDirectory,
        supervisor_id: SupervisorId,
        runner: Runner = run,
        early_standbys: Optional[EarlyStandbys] = None,
    ) -> None:
        self._early_standbys = early_standbys
        self._run_directory = run_directory
        self._supervisor_id = supervisor_id
        self._runner = runner
        self.request: RunRequest = run_directory.read_request()
        self._run: TrainingRun = run_directory.read_or_restore()
        examination_command = [supervisor_id.program_path, "examine", str(run_directory.path)]
        self.prober = NodeProber(
            runner,
            supervisor_id.job_id,
            examination_command,
            self.request.gpus_per_node,
            len(supervisor_id.allocated_nodes),
        )
        self._lost_nodes: List[str] = []
        #: The attempt that this process monitors.
        self._started_attempt = 0
        #: The attempt whose supervisor this process succeeds, with its epoch, and the last attempt that it has claimed.
        self._predecessor = self._last_claim = (supervisor_id.inherited, supervisor_id.turn)
        self._preempted = False
        #: The minimum number of nodes of the next job, if the last attempt has ended to grow the run.
        self._min_next_nodes = 0
        #: The job that follows this one then, which is not in charge yet.
        self._successor: Optional[Submission] = None
        #: Whether Slurm can never run such a job.
        self._growth_refused = False
        #: The steps of earlier attempts, whose agents would continue the run if this process were lost now.
        self._resting_steps: List[AgentStep] = []
        #: Whether the job has to end immediately.
        self.cancelled = False
        #: Whether Slurm starts this job again.
        self._is_requeued = False
        #: Whether the volume had no space for this process since the last attempt started.
        self._had_no_room = False

    def preempt(self, _number: int, _frame: Any) -> None:
        """Slurm, or ``scancel --batch --signal=USR1``, announces that the job will end soon."""
        self._preempted = True

    def cancel(self, _number: int, _frame: Any) -> None:
        """``scancel``, or the end of the job."""
        self.cancelled = True

    def supervise(self) -> int:
        """Supervise the run. Returns the exit status of the job."""
        is_dismissed = False
        try:
            self._require_in_charge()
            return self._run_attempts()
        except DismissedError as why:
            is_dismissed = True
            _log(f"{self.request.name}: {why}")
            self._dismiss_resting_steps()
            return self._stand_by()
        finally:
            self._dismiss_resting_steps()
            self._withdraw_successor()
            # The job is ended in any case: no batch script remains whose end would end it.
            is_settled = is_dismissed or self._supervisor_id.ends or self._is_requeued
            if (self._supervisor_id.inherited or self._is_abandoned()) and not is_settled:
                self._end_job()

    def _run_attempts(self) -> int:
        if (self._run.state, self._run.token) == ("finished", self._supervisor_id.token):
            # Slurm requeues a job whose node failed just after the end of the run.
            return self._leave(decide.Decision("finish", self._run.detail))
        if self._supervisor_id.killed:
            if self._run.token == self._supervisor_id.token and self._run.state in ENDED_STATES:
                return 1
            self._take_over_killed()
        self._close_open_attempt()
        if self._supervisor_id.ends:
            return self._leave(self._decide_end() or decide.Decision("resubmit", _SCRIPT_KILLED_REASON))
        shortage = "" if self._predecessor[0] else self._too_short()
        if shortage:
            return self._leave(decide.Decision("fail", shortage))
        # Interruptions of earlier jobs do not count, unless this process continues the same job.
        decision: Optional[decide.Decision] = None
        if self._predecessor[0]:
            decision = self._decide_end()
        while True:
            decision = self._defer_to_slurm(decision or self._placement())
            self._record_action(decision)
            if decision.action != "restart":
                return self._leave(decision)
            self._run_attempt(decision.nodes)
            decision = self._decide_end()

    def _decide_end(self) -> Optional[decide.Decision]:
        """Decide whether the run ends, and note the node that it excludes, if it excludes one."""
        excluded_node = decide.choose_excluded_node(self._counted_attempts(), self._is_replaceable)
        if excluded_node:
            self._replace_last_attempt(self._run.attempts[-1]._replace(excluded=excluded_node))
        cause = self._run.attempts[-1].cause if self._run.attempts else None
        if self._min_next_nodes and cause and cause.kind == "grown":
            return decide.Decision("resubmit", cause.detail)
        self._withdraw_successor()
        return decide.verdict(self.request, self._counted_attempts())

    def _is_replaceable(self, node: str) -> bool:
        """Whether the run could continue without this node, in its job or in another one."""
        barred_nodes = {node, *decide.barred_nodes(self._counted_attempts())}
        if len(set(self._supervisor_id.allocated_nodes) - barred_nodes) >= self.request.min_nodes:
            return True
        try:
            node_states = scheduler.node_states(self._runner, self.request.partition)
            usable_nodes = [
                name for name, state in node_states.items() if scheduler.is_usable(state) and name not in barred_nodes
            ]
            # The request may name its nodes, or no others have such GPUs.
            return len(usable_nodes) >= max(self.request.min_nodes, 1) and scheduler.is_possible(
                self._runner, self.request, self._supervisor_id.program_path, sorted(barred_nodes)
            )
        except CommandError:
            # The question is decided again when the controller answers and the run continues.
            return True

    def _too_short(self) -> str:
        """Return why the job has no time to train; empty if it has. A partition or QOS may limit its time."""
        seconds_left, seconds_needed = None, self.request.grace + _WARNING_RESERVE
        with contextlib.suppress(CommandError):
            seconds_left = scheduler.time_left(self._runner, self._supervisor_id.job_id)
        if seconds_left is None or seconds_left > seconds_needed:
            return ""
        return (
            f"job {self._supervisor_id.job_id} has {seconds_left:g} s left, but {seconds_needed:g} s are reserved for a checkpoint. Give a smaller "
            f"--grace, or a partition or QOS with a longer time limit (sinfo --format='%P %l')"
        )

    def _counted_attempts(self) -> List[Attempt]:
        return [attempt for attempt in self._run.attempts if attempt.number >= self._run.counted]

    def _require_in_charge(self) -> None:
        """Raise DismissedError if another process is in charge."""
        try:
            submission = self._run_directory.read_submission()
        except GpumeshError as failure:
            # Wait for a volume that is temporarily unreadable.
            _log(str(failure))
            return
        if submission.token != self._supervisor_id.token:
            raise DismissedError(f"job {submission.job} supervises the run")
        if self._predecessor[0] and not self._started_attempt and len(self._run.attempts) > self._predecessor[0]:
            # The claim of this standby came too late. Fewer attempts mean that the last ones could not be recorded.
            raise DismissedError("another attempt has been started in the meantime")
        if self._supervisor_id.ends:
            return
        claims = [
            (attempt_number, epoch)
            for attempt_number, epoch in (self._last_claim, (self._started_attempt, -1))
            if attempt_number
        ]
        try:
            is_superseded = any(
                self._run_directory.has_successor(attempt_number, epoch) for attempt_number, epoch in claims
            )
        except OSError as failure:
            _log(f"it is unknown whether another node continues the run: {failure}")
            return
        if is_superseded:
            raise DismissedError(_SUPERSEDED_REASON)

    def _is_abandoned(self) -> bool:
        """Whether Slurm will not notice the end of the batch script."""
        try:
            if self._supervisor_id.daemon:
                os.kill(self._supervisor_id.daemon, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def _take_over_killed(self) -> None:
        """Continue the run in place of an earlier supervisor of this batch script, which was killed.

        Raises DismissedError if one of its agents was faster.
        """
        last_attempt = self._run.attempts[-1] if self._run.attempts else None
        if last_attempt is None or last_attempt.job != self._supervisor_id.job_id:
            return
        if last_attempt.heir:
            raise DismissedError(_SUPERSEDED_REASON)
        epoch = 0
        try:
            while not self._run_directory.claim(last_attempt.number, epoch, self._supervisor_id.node):
                if last_attempt.end is None:
                    raise DismissedError(_SUPERSEDED_REASON)
                # The predecessor ended this attempt and claimed the run, but was killed before it started another one.
                epoch += 1
        except OSError as failure:
            _log(f"heir-{epoch} of attempt {last_attempt.number} cannot be written now: {failure}")
            epoch -= 1
        self._predecessor = self._last_claim = (last_attempt.number, epoch)
        self._run = self._run_directory.read_or_restore()
        self._require_in_charge()
        self._kill_steps()

    def _kill_steps(self) -> None:
        """End the agents of an earlier supervisor with their ranks, so that there is one attempt at a time."""
        step_name = os.path.basename(self._supervisor_id.program_path)
        deadline = time.monotonic() + _KILL_TIMEOUT
        while not self.cancelled and time.monotonic() < deadline:
            try:
                remaining_steps = scheduler.find_steps(self._runner, self._supervisor_id.job_id, step_name)
                if not remaining_steps:
                    return
                scheduler.kill_steps(self._runner, remaining_steps)
            except CommandError as failure:
                _log(f"waiting for the controller, to end the ranks: {failure}")
                deadline = time.monotonic() + _KILL_TIMEOUT
            time.sleep(_POLL_INTERVAL)
        # Ranks of a node that does not answer cannot be killed. Those of other nodes are killed by the next agents.

    def _stand_by(self) -> int:
        """Wait for the end of the run if it continues in this job: Slurm ends a job with its batch script."""
        while not self._supervisor_id.inherited and not self.cancelled:
            try:
                state = self._run_directory.read().state
                if state in ENDED_STATES or self._run_directory.read_submission().token != self._supervisor_id.token:
                    return 0 if state == "finished" else 1
            except GpumeshError as failure:
                _log(str(failure))
            time.sleep(_STANDBY_INTERVAL)
        return 1

    def _close_open_attempt(self) -> None:
        """Close the last attempt if it is still open, since its supervisor was lost."""
        missing_attempts = [
            self._unrecorded_attempt(number)
            for number in range(len(self._run.attempts) + 1, self._supervisor_id.inherited + 1)
        ]
        if not self._supervisor_id.inherited:
            with contextlib.suppress(OSError):
                self._run = self._run_directory.with_unrecorded_attempts(self._run)
        attempts = (*self._run.attempts, *missing_attempts)
        self._run = self._run._replace(
            job=self._supervisor_id.job_id, token=self._supervisor_id.token, detail="", attempts=attempts
        )
        if self._run.attempts and self._run.attempts[-1].end is None:
            last_attempt = self._run.attempts[-1]
            cause = Cause(
                "node",
                f"{last_attempt.supervisor}, the node of the supervisor, was lost",
                None,
                last_attempt.supervisor,
            )
            if (
                not self._supervisor_id.inherited
                and last_attempt.job == self._supervisor_id.job_id
                and len(last_attempt.nodes) > 1
            ):
                # Slurm has requeued the job, and no node remained that could take over.
                cause = Cause("node", "all nodes of the job were lost")
            if self._supervisor_id.ends:
                cause = Cause("supervisor", _SCRIPT_KILLED_REASON)
            elif self._supervisor_id.killed and last_attempt.job == self._supervisor_id.job_id:
                cause = Cause("supervisor", f"the supervisor was killed ({signal_name(self._supervisor_id.killed)})")
            elif self._supervisor_id.inherited and self._is_alive(last_attempt.supervisor):
                cause = Cause("supervisor", f"the supervisor has stopped, but {last_attempt.supervisor} responds")
            self._lost_nodes = [last_attempt.supervisor] if self._supervisor_id.inherited and cause.node else []
            self._replace_last_attempt(last_attempt._replace(end=time.time(), cause=cause))

    def _is_alive(self, node: str) -> bool:
        """Whether a node is up, although its supervisor is lost."""
        return node == self._supervisor_id.node or self.prober.is_alive(node, _NODE_TIMEOUT)

    def _unrecorded_attempt(self, number: int) -> Attempt:
        """An attempt of this job that its supervisor, which was lost, could not record, since the volume was full."""
        nodes, now = tuple(self._supervisor_id.allocated_nodes), time.time()
        cause = Cause("node", "the node of the supervisor was lost before it could write run.json")
        world_size = len(nodes) * self.request.ranks_per_node
        return Attempt(number, self._supervisor_id.job_id, nodes, world_size, "", now, end=now, cause=cause)

    def _placement(self) -> decide.Decision:
        """Decide where the next attempt runs. Waits for a volume and a controller that do not answer."""
        self._await_volume()
        deadline = time.monotonic() + (
            _RECOVERY_TIMEOUT if self._supervisor_id.outage and not self._started_attempt else _RETURN_TIMEOUT
        )
        while not self.cancelled:
            self._require_in_charge()
            try:
                suspects = decide.suspect_nodes(self._counted_attempts())
                usable_nodes = self.prober.find_usable_nodes(
                    self._supervisor_id.allocated_nodes, self._lost_nodes, suspects
                )
            except CommandError as failure:
                _log(f"waiting for the controller: {failure}")
                # A controller needs a while until it knows its nodes again.
                deadline = time.monotonic() + _RECOVERY_TIMEOUT
                time.sleep(_POLL_INTERVAL)
                continue
            cut_off = self.prober.cut_off
            decision = decide.choose_placement(
                self.request, self._counted_attempts(), self._supervisor_id.allocated_nodes, usable_nodes, cut_off
            )
            if cut_off and decision.action == "resubmit":
                # Slurm itself excludes the others. If all are cut off, the next job waits for the end of this one.
                node_states = self.prober.node_states
                unreachable_nodes = tuple(
                    node for node in decision.excluded_nodes if scheduler.is_usable(node_states.get(node, ""))
                )
                return decision._replace(excluded_nodes=unreachable_nodes)
            if decision.action == "restart" or time.monotonic() > deadline:
                return decision
            # Lost nodes may have returned by now.
            self._lost_nodes = []
            if self._finds_cancellation():
                break
            time.sleep(_POLL_INTERVAL)
        return decide.Decision("cancel")

    def _finds_cancellation(self) -> bool:
        """Ask Slurm whether the job was cancelled: SIGTERM comes once, and is lost while the shell starts this process.

        Slurm no longer starts anything on the nodes then.
        """
        # The job of an heir may end since its batch script has ended in any way.
        if not self._supervisor_id.inherited and scheduler.is_cancelled(self._runner, self._supervisor_id.job_id):
            self.cancelled = True
            return True
        return False

    def _await_volume(self) -> None:
        """Wait until the volume that made the last attempt fail accepts data again, and longer each time.

        The volume may lack space for a checkpoint although it accepts the probe, so a full one is tried again.
        """
        failure_count = decide.volume_failure_count(self._counted_attempts())
        min_wait, waited = (
            min(_RETRY_DELAY * (2 ** min(failure_count - 2, 8)), _VOLUME_TIMEOUT) if failure_count > 1 else 0.0,
            0.0,
        )
        while failure_count and not self.cancelled and not self._preempted:
            self._require_in_charge()
            volume_state = volume_fault.probe_volume(str(self._run_directory.path))
            if waited >= (min_wait if not volume_state.problem else _VOLUME_TIMEOUT) and (
                volume_state.is_full or not volume_state.problem
            ):
                return
            scheduler.set_job_comment(
                self._runner, self._supervisor_id.job_id, "gpumesh-train: waiting for the volume of the run"
            )
            time.sleep(_STANDBY_INTERVAL)
            waited += _STANDBY_INTERVAL

    def _defer_to_slurm(self, decision: decide.Decision) -> decide.Decision:
        """Return the decision, changed if Slurm itself requeues the job, as after a preemption, or will not notice its
        end, or if somebody has cancelled it.
        """
        if decision.action == "restart" and self._is_abandoned():
            return decide.Decision("resubmit", _ABANDONED_REASON)
        if decision.action not in ("cancel", "resubmit"):
            return decision
        if decision.action == "resubmit" and self._finds_cancellation():
            return decide.Decision("cancel")
        fate = scheduler.job_fate(self._runner, self._supervisor_id.job_id)
        if fate == "requeued":
            return decide.Decision("requeue", _FATE_REASONS[fate])
        ended_by_slurm = fate and (decision.action == "cancel" or fate == "killed")
        return decide.Decision("resubmit", _FATE_REASONS[fate]) if ended_by_slurm else decision

    def explain_cause(self, cause: Cause) -> Cause:
        """Return the cause of the end of an attempt: a preemption, in which Slurm stops the ranks, is not a crash."""
        if cause.kind in ("finished", "warned", "grown"):
            return cause
        fate = scheduler.job_fate(self._runner, self._supervisor_id.job_id)
        if fate:
            return Cause("warned", _FATE_REASONS[fate])
        volume_failures = decide.volume_failure_count(self._counted_attempts())
        return volume_fault.attribute_to_volume(
            cause, str(self._run_directory.path), self.request.directory, volume_failures, self._had_no_room
        )

    def _leave(self, decision: decide.Decision) -> int:
        if not self._record_end(decision) and self.cancelled and decision.action == "resubmit":
            # The job ends while this process waits for the volume.
            decision = self._defer_to_slurm(decide.Decision("cancel"))
            self._record_end(decision)
        self._is_requeued = decision.action == "requeue"
        if decision.action == "resubmit":
            if not self._hand_over():
                while not self.cancelled and not scheduler.controller_answers(self._runner):
                    _log("waiting for the controller, to submit another job")
                    time.sleep(_STANDBY_INTERVAL)
                self._submit_next_job(decision.excluded_nodes)
            if self._is_cancelled_by_user():
                return self._end_cancelled()
        return 1 if decision.action in ("cancel", "fail") else 0

    def _is_cancelled_by_user(self) -> bool:
        """Whether somebody has cancelled this job, which then ends the run, although another job should follow."""
        return self.cancelled and scheduler.is_cancelled(self._runner, self._supervisor_id.job_id)

    def _end_cancelled(self) -> int:
        """End the run, with the job that was to follow. Return the exit status."""
        with contextlib.suppress(GpumeshError):
            next_job = self._run_directory.read_submission().job
            if next_job not in (0, self._supervisor_id.job_id):
                scheduler.cancel_job(self._runner, next_job)
        _log(f"{self.request.name}: cancelled")
        with contextlib.suppress(OSError):
            self._run_directory.write(self._run._replace(state="cancelled", detail="", updated=time.time()))
        return 1

    def _record_end(self, decision: decide.Decision) -> bool:
        """Record how the job ends, and return whether that worked. Waits for a volume that cannot be written to now."""
        state, detail = _JOB_ENDINGS[decision.action][0], decision.reason
        _log(f"{self.request.name}: {state}{': ' if detail else ''}{detail}")
        deadline = time.monotonic() + _VOLUME_TIMEOUT
        while not self._save_run(self._run._replace(state=state, detail=detail)):
            if (self.cancelled and state == "queued") or time.monotonic() > deadline:
                return False
            time.sleep(_STANDBY_INTERVAL)
        return True

    def _end_job(self) -> None:
        """Release the nodes, since nothing else would. Waits for a controller that does not answer."""
        while True:
            try:
                scheduler.cancel_job(self._runner, self._supervisor_id.job_id)
            except CommandError as failure:
                _log(f"waiting for the controller: {failure}")
            else:
                return
            if self.cancelled:
                return
            time.sleep(_STANDBY_INTERVAL)

    def _submit_next_job(self, excluded_nodes: Sequence[str]) -> None:
        """Submit another job, which starts within seconds on other nodes. A requeued one would wait for minutes."""
        refusal = self._try_submission(excluded_nodes)
        for _try in range(_SUBMIT_ATTEMPTS):
            if refusal is None or self.cancelled or not _is_temporary(refusal) or self._supervisor_id.ends:
                break
            seconds_left = self.prober.time_left
            if seconds_left is not None and seconds_left < _SUBMIT_MARGIN:
                break
            _log(f"another job will be requested again: {refusal}")
            self.prober.query_controller()
            time.sleep(_STANDBY_INTERVAL)
            refusal = self._try_submission(excluded_nodes)
        if refusal is None or self._is_cancelled_by_user() or (_is_temporary(refusal) and self._requeue_job()):
            return
        with contextlib.suppress(OSError):
            self._run_directory.write(self._run._replace(state="failed", detail=f"{self._run.detail}. {refusal}"))
        raise refusal

    def _requeue_job(self) -> bool:
        """Whether Slurm starts this job again, which takes minutes, but needs no new job, and nothing on the volume."""
        fate = scheduler.job_fate(self._runner, self._supervisor_id.job_id) if self.cancelled else ""
        if fate == "requeued":
            self._is_requeued = True
            return True
        if self.cancelled and not fate:
            # The user has cancelled the job. Slurm would requeue even a job that is just ending.
            return False
        try:
            with contextlib.suppress(OSError):
                self._run_directory.write_submission(Submission(self._supervisor_id.token, self._supervisor_id.job_id))
            with contextlib.suppress(HostStateError):
                # A volume that cannot be read may be readable when the job starts, which ends if it is not in charge.
                if self._run_directory.read_submission().token != self._supervisor_id.token:
                    return False
            scheduler.requeue_job(self._runner, self._supervisor_id.job_id)
        except CommandError as failure:
            _log(f"the job cannot be requeued: {failure}")
            return False
        self._is_requeued = True
        return True

    def _try_submission(self, excluded_nodes: Sequence[str]) -> Optional[GpumeshError]:
        """Submit another job. Return why that is not possible; None if Slurm has accepted it."""
        barred_nodes = sorted(decide.barred_nodes(self._counted_attempts()))
        all_excluded = sorted({*excluded_nodes, *barred_nodes})
        submit = partial(
            scheduler.submit,
            self._runner,
            self._run_directory,
            self._supervisor_id.program_path,
            fewer=True,
            least=self._min_next_nodes,
            of_job=self.request,
        )
        # The job waits for this one, since it might start with the returned nodes alone.
        wait_for_job = self._supervisor_id.job_id if self._min_next_nodes else 0
        try:
            try:
                submit(
                    excluded=all_excluded,
                    after=self._supervisor_id.job_id if self._waits_for_release(excluded_nodes) else wait_for_job,
                )
            except GpumeshError as failure:
                _log(f"without {', '.join(all_excluded)}: {failure}")
                submit(excluded=barred_nodes, hold=_SUBMIT_DELAY, after=wait_for_job)
        except OSError as failure:
            refusal = unwritable_error(self._run_directory, failure, f"gpumesh-train resume {self.request.name}")
            refusal.__cause__ = failure
            return refusal
        except GpumeshError as failure:
            return failure
        return None

    def _waits_for_release(self, excluded_nodes: Sequence[str]) -> bool:
        """Whether the next job should wait for the nodes of this one, which ends within seconds.

        Otherwise, one that may have fewer nodes would start at once on the idle ones. A lost node delays the end of a
        job for minutes. ``excluded_nodes``: nodes that the next job does not use.
        """
        request = self.request
        return request.min_nodes < request.nodes + request.spare and not excluded_nodes and not self._lost_nodes

    def _next_profile(self) -> str:
        """The profile of the next attempt; none if an earlier attempt has recorded it."""
        for attempt in self._run.attempts if self.request.profile else ():
            profile_dir = Path(profile.profile_directory(str(self._run_directory.path), attempt.number))
            with contextlib.suppress(OSError):
                if profile.is_complete(profile_dir, attempt.world_size):
                    return ""
        return self.request.profile

    def _claim_attempt(self) -> None:
        """Claim to continue the run after an attempt, since a node of it that was cut off may do so as well.

        A standby claims the next epoch, which starts if it takes long. Raises DismissedError if another node was
        faster.
        """
        attempt_number, epoch = (
            (self._started_attempt, 0) if self._started_attempt else (self._predecessor[0], self._predecessor[1] + 1)
        )
        if not attempt_number:
            return
        try:
            if not self._run_directory.claim(attempt_number, epoch, self._supervisor_id.node):
                raise DismissedError(_SUPERSEDED_REASON)
            self._last_claim = (attempt_number, epoch)
        except OSError as failure:
            # The run must not end because of it. The claim of this epoch is left to another process.
            _log(f"heir-{epoch} of attempt {attempt_number} cannot be written now: {failure}")
            self._last_claim = (attempt_number, epoch - 1)

    def _run_attempt(self, nodes: Sequence[str]) -> None:
        self._claim_attempt()
        self._had_no_room = False
        request, supervisor_id = self.request, self._supervisor_id
        attempt_number = len(self._run.attempts) + 1
        task = agent.AgentTask(
            request.name,
            str(self._run_directory.path),
            supervisor_id.token,
            attempt_number,
            list(nodes),
            request.ranks_per_node,
            list(request.command),
            request.directory,
            MASTER_PORTS[(supervisor_id.job_id * 31 + attempt_number * 7) % len(MASTER_PORTS)],
            request.stage_dir,
            self._next_profile(),
            self.request.commit,
            self.request.warn_signal,
        )
        world_size = len(nodes) * request.ranks_per_node
        attempt = Attempt(
            attempt_number,
            supervisor_id.job_id,
            tuple(nodes),
            world_size,
            supervisor_id.node,
            time.time(),
            allocated=tuple(supervisor_id.allocated_nodes),
            heir=bool(supervisor_id.inherited),
        )
        self._started_attempt = attempt_number
        self._min_next_nodes = 0
        previous_run = self._run
        while not self._save_run(previous_run._replace(state="running", attempts=(*previous_run.attempts, attempt))):
            # Ranks could not save a checkpoint either, and attempts that fail for this reason would end the run.
            self._run = previous_run
            if self.cancelled:
                return
            scheduler.set_job_comment(
                self._runner, supervisor_id.job_id, "gpumesh-train: waiting for free space on the volume of the run"
            )
            time.sleep(_STANDBY_INTERVAL)
        with contextlib.suppress(OSError):
            # The agents use this directory as well. Its existence tells a later job that the attempt has started.
            self._run_directory.attempt_dir(attempt_number).mkdir(exist_ok=True)
        # Standbys can see this attempt from now on, so no more of them claim the run: an earlier one is in charge.
        self._require_in_charge()
        _log(f"{request.name}: attempt {attempt_number} on {', '.join(nodes)}")
        step = AgentStep(supervisor_id.program_path, supervisor_id.job_id, task, request.gpus_per_node)
        self._dismiss_resting_steps()
        limits = PauseLimits(self._run.longest_gap, self._run.longest_start)
        monitor = AttemptMonitor(
            request, nodes, time.monotonic(), reports_steps=self._run.step is not None, limits=limits
        )
        attempt_runner = AttemptRunner(self, step, monitor)
        try:
            cause = attempt_runner.follow()
        finally:
            attempt_runner.end_ranks()
        self._lost_nodes = [node for node in monitor.lost_nodes if node not in monitor.responding_nodes]
        self._replace_last_attempt(self._run.attempts[-1]._replace(end=time.time(), cause=cause))
        _log(f"{request.name}: attempt {attempt_number}: {cause.kind}: {cause.detail or 'the program has ended'}")

    def dismiss_early_standbys(self) -> None:
        """End the standbys of the time before the first attempt, since its agents would continue the run."""
        if self._early_standbys:
            self._early_standbys.dismiss()

    def keep_step(self, step: AgentStep) -> None:
        """Keep the agents of an attempt that has ended until the next one starts."""
        self._resting_steps.append(step)

    def _dismiss_resting_steps(self) -> None:
        for step in self._resting_steps:
            step.order("leave")
        while self._resting_steps:
            self._resting_steps.pop().kill()

    def find_interruption(self, watched: Sequence[str]) -> Optional[Cause]:
        """Return why the ranks should save a checkpoint and end now, if they should."""
        seconds_left = self.prober.time_left
        warning_time = self.request.grace + _WARNING_RESERVE + (_EARLY_WARNING if self._preempted else 0.0)
        if seconds_left is not None and seconds_left < warning_time:
            return Cause("warned", "the time limit is near")
        if self._preempted:
            return Cause("warned", "Slurm has announced the end of the job")
        if self._is_abandoned():
            return Cause("warned", _ABANDONED_REASON)
        draining_nodes = [node for node in watched if scheduler.is_draining(self.prober.node_states.get(node, ""))]
        if not draining_nodes:
            return None
        node = draining_nodes[0]
        reason = self.prober.drain_reasons.get(node)
        return Cause("warned", f"{node} is to be drained{f': {reason}' if reason else ''}", None, node)

    def request_offer(self, offer_request: OfferRequest) -> None:
        """Ask Slurm which nodes another job of the run could have now."""
        self.prober.check_offer(self.request, self._supervisor_id.program_path, offer_request)

    def watch_growth(self) -> GrowthTracker:
        """Return the watch for nodes that were away, for the attempt that starts."""
        return GrowthTracker(
            self.request, self._counted_attempts(), self._supervisor_id.allocated_nodes, time.monotonic()
        )

    def accepts_growth(self, growth: Growth) -> bool:
        """Whether ending the attempt for these nodes now is possible and worthwhile."""
        seconds_left = self.prober.time_left
        if seconds_left is not None and seconds_left < self.request.grace + _WARNING_RESERVE + START_ALLOWANCE:
            return False
        if not growth.needs_new_job:
            return True
        if self._growth_refused or self.prober.other_jobs_wait:
            return False
        node_count = len(self._run.attempts[-1].nodes)
        try:
            self._successor = scheduler.submit_successor(
                self._runner,
                self.request,
                self._supervisor_id.program_path,
                sorted(decide.barred_nodes(self._counted_attempts())),
                node_count,
                self._supervisor_id.job_id,
            )
        except GpumeshError as failure:
            self._growth_refused = not scheduler.is_temporary(failure.message)
            _log(f"the run stays in this job: {failure}")
            return False
        self._min_next_nodes = node_count
        return True

    def _hand_over(self) -> bool:
        """Put the job in charge that was submitted before the last attempt ended. Return whether there is one."""
        if self._successor is None:
            return False
        try:
            self._run_directory.write_submission(self._successor)
        except OSError as failure:
            _log(f"job {self._successor.job} cannot take over the run now: {failure}")
            self._withdraw_successor()
            return False
        scheduler.delay_successor(self._runner, self._successor.job)
        self._successor = None
        return True

    def _withdraw_successor(self) -> None:
        """Cancel a job that is not in charge, which would otherwise end as soon as it starts."""
        if self._successor is not None:
            with contextlib.suppress(CommandError):
                scheduler.cancel_job(self._runner, self._successor.job)
            self._successor = None

    def record_progress(
        self, monitor: AttemptMonitor, steps_per_second: Optional[float], away_nodes: Tuple[str, ...] = ()
    ) -> None:
        """Record the progress of the attempt in run.json. Raises DismissedError."""
        progress = monitor.progress()
        last_attempt = self._run.attempts[-1]
        is_new_checkpoint = progress.checkpoint is not None and progress.checkpoint != last_attempt.checkpoint
        last_attempt = last_attempt._replace(
            first=monitor.first_step,
            last=last_attempt.last if progress.step is None else progress.step,
            checkpoint=last_attempt.checkpoint if progress.checkpoint is None else progress.checkpoint,
            stragglers=tuple(monitor.straggler_detector.stragglers),
            stepping=monitor.seconds_stepping,
            away=away_nodes,
        )
        nan_since = self._run.nan_since
        if progress.nan and nan_since is None:
            nan_since = progress.step
        elif progress.loss is not None:
            nan_since = None
        self._save_run(
            self._run._replace(
                attempts=(*self._run.attempts[:-1], last_attempt),
                step=self._run.step if progress.step is None else progress.step,
                steps=self._run.steps if progress.steps is None else progress.steps,
                loss=self._run.loss if progress.loss is None else progress.loss,
                steps_per_second=steps_per_second,
                checkpoint_at=time.time() if is_new_checkpoint else self._run.checkpoint_at,
                detail=monitor.format_staging(),
                nan_since=nan_since,
                busy=progress.busy or "",
                longest_gap=round(monitor.limits.longest_gap, 1),
                longest_start=round(monitor.limits.longest_start, 1),
                watched=monitor.hang_evidence,
            )
        )

    def _replace_last_attempt(self, attempt: Attempt) -> None:
        self._save_run(self._run._replace(attempts=(*self._run.attempts[:-1], attempt)))

    def _record_action(self, decision: decide.Decision) -> None:
        if self._run.attempts:
            restarted = f"restarted on {', '.join(decision.nodes)}"
            action = restarted if decision.action == "restart" else _JOB_ENDINGS[decision.action][1]
            last_attempt = self._run.attempts[-1]
            exclusion_notes = []
            if decision.action in ("restart", "resubmit"):
                exclusion_notes = decide.describe_excluded_nodes(
                    self._counted_attempts(), last_attempt.nodes, self.prober.unusable_reasons
                )
            self._replace_last_attempt(last_attempt._replace(action="; ".join([action, *exclusion_notes])))
            for exclusion_note in exclusion_notes:
                _log(exclusion_note)
            if exclusion_notes and decide.barred_nodes(self._counted_attempts()):
                # The comment is for administrators, who alone can have a node examined, or drain it.
                scheduler.set_job_comment(
                    self._runner, self._supervisor_id.job_id, f"gpumesh-train: {'; '.join(exclusion_notes)}"
                )

    def _save_run(self, new_run: TrainingRun) -> bool:
        """Write run.json, and return whether that worked.

        A later write may succeed, so a failure must not end the run. Raises DismissedError.
        """
        self._require_in_charge()
        self._run = new_run = new_run._replace(updated=time.time())
        try:
            self._run_directory.write(new_run)
        except OSError as failure:
            _log(f"run.json cannot be written now: {failure}")
            self._had_no_room |= failure.errno in NO_SPACE_ERRNOS
            return False
        return True


class AttemptRunner:
    """A running attempt."""

    def __init__(self, supervisor: Supervisor, step: AgentStep, monitor: AttemptMonitor) -> None:
        self._supervisor = supervisor
        self._step = step
        self._monitor = monitor
        self._decoder = protocol.MessageDecoder()
        self._recent_steps: Deque[Tuple[float, int]] = deque()
        self._warning_cause: Optional[Cause] = None
        self._warned_at = 0.0
        self._is_staged = False
        self._seconds_stopped = 0.0
        self._saved_at = 0.0
        self._queried_at = 0.0
        self._srun_ended_at: Optional[float] = None
        self._growing = supervisor.watch_growth()
        self._queue_queried_at = 0.0

    def follow(self) -> Cause:
        """Monitor the attempt until it has ended, or has to. Raises DismissedError."""
        while True:
            self._process_messages(time.monotonic() + _POLL_INTERVAL)
            now = time.monotonic()
            self._excuse_pause(now)
            if self._monitor.all_agents_heard:
                self._supervisor.dismiss_early_standbys()
            cause = self._find_end(now)
            if cause is not None:
                self._record_progress(now)
                return cause
            if self._monitor.is_staged() and not self._is_staged:
                self._is_staged = True
                self._step.order("start")
            self._warn_ranks(now)
            self._query_nodes(now)
            for straggler in self._monitor.straggler_detector.evaluate(now, time.time()):
                _log(show.format_straggler(straggler))
            if now - self._saved_at > _SAVE_INTERVAL:
                self._saved_at = now
                self._record_progress(now)
                if time.monotonic() - now > _BLOCKED_AFTER:
                    self._monitor.excuse(time.monotonic())

    def _record_progress(self, now: float) -> None:
        prober = self._supervisor.prober
        away_nodes = self._growing.away_nodes(prober.node_states, prober.unusable_reasons)
        self._supervisor.record_progress(self._monitor, self._recent_speed(now), away_nodes)

    def _excuse_pause(self, now: float) -> None:
        """Excuse all nodes and ranks for the time in which this process was stopped."""
        seconds_stopped = self._step.stopped - self._seconds_stopped
        if seconds_stopped > STOPPED_GAP:
            self._seconds_stopped += seconds_stopped
            _log(f"the supervisor was stopped for {seconds_stopped:.0f} s")
            self._monitor.resume(now, seconds_stopped)

    def _process_messages(self, deadline: float) -> None:
        """Process the messages that have arrived, and those that arrive before the deadline."""
        while True:
            try:
                received_at, line = self._step.received_lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            message = self._decoder.feed(line)
            if message is not None:
                self._monitor.process_message(message, received_at)
            elif line.strip() and not protocol.is_message(line):
                _log(line.rstrip())

    def _find_end(self, now: float) -> Optional[Cause]:
        """Return why the attempt has ended, or has to end."""
        if self._supervisor.cancelled:
            return self._supervisor.explain_cause(Cause("cancelled", "the job was cancelled"))
        cause = self._monitor.verdict(now)
        if cause is not None:
            return self._supervisor.explain_cause(cause)
        if self._supervisor.request.stop_on_nan and self._monitor.progress().nan:
            return Cause("diverged", "the loss is not a number (--stop-on-nan)")
        if self._warning_cause is not None and now - self._warned_at > self._supervisor.request.grace:
            return self._warning_cause
        if self._step.over():
            self._srun_ended_at = self._srun_ended_at or now
            if now - self._srun_ended_at > _OUTPUT_TIMEOUT:
                return self._monitor.cause_without_step()
        return None

    def _warn_ranks(self, now: float) -> None:
        if self._warning_cause is None:
            self._warning_cause = self._supervisor.find_interruption(self._monitor.nodes) or self._find_growth(now)
            if self._warning_cause is not None:
                self._warned_at = now
                self._monitor.record_warning(self._warning_cause)
                _log(f"{self._warning_cause.detail}: the ranks are asked for a checkpoint")
                self._step.order("warn")

    def _find_growth(self, now: float) -> Optional[Cause]:
        """Return why the attempt should end, if the next one can have nodes that are missing."""
        prober, growing = self._supervisor.prober, self._growing
        while not prober.recheck_results.empty():
            growing.record_answer(*prober.recheck_results.get())
        for node in growing.nodes_to_query(now, prober.node_states):
            prober.recheck_node(node)
        while not prober.offers.empty():
            growing.record_offer(prober.offers.get())
        offer_request = growing.request_offer(now, prober.node_states)
        if offer_request:
            self._supervisor.request_offer(offer_request)
        growth = growing.find_growth(prober.node_states)
        if growth and growth.needs_new_job and now - self._queue_queried_at > _QUERY_INTERVAL:
            self._queue_queried_at = now
            prober.check_queue()
        is_ripe = growing.should_end_attempt(growth, self._monitor.first_step, self._monitor.progress().checkpoint)
        return growth.cause if growth and is_ripe and self._supervisor.accepts_growth(growth) else None

    def _query_nodes(self, now: float) -> None:
        prober = self._supervisor.prober
        if now - self._queried_at > _QUERY_INTERVAL:
            self._queried_at = now
            prober.query_controller()
        if self._monitor.needs_reports(now):
            self._step.order("look")
        silent_nodes = self._monitor.silent_nodes(now)
        for node in silent_nodes:
            prober.check_node(node)
        while not prober.responses.empty():
            node, is_alive = prober.responses.get()
            # The node may have reported in the meantime.
            if node in silent_nodes and is_alive:
                self._monitor.record_response(node, now)
            elif node in silent_nodes:
                self._monitor.lost_nodes[node] = "no longer responds"

    def _recent_speed(self, now: float) -> Optional[float]:
        """The recent rate, in steps per second."""
        step = self._monitor.progress().step
        if step is None:
            return None
        self._recent_steps.append((now, step))
        while now - self._recent_steps[0][0] > _SPEED_WINDOW:
            self._recent_steps.popleft()
        seconds_passed, steps_made = now - self._recent_steps[0][0], step - self._recent_steps[0][1]
        return round(steps_made / seconds_passed, 3) if seconds_passed > 0 else None

    def end_ranks(self) -> None:
        """End the ranks, whether their nodes respond or not. Their agents stay until the next attempt starts."""
        # Agents of an older version know only the second order.
        for order in ("rest", "end"):
            self._step.order(order)
        deadline = time.monotonic() + _END_TIMEOUT
        while not self._step.over() and not self._monitor.is_over(time.monotonic()) and time.monotonic() < deadline:
            self._process_messages(time.monotonic() + 0.2)
        self._supervisor.keep_step(self._step)


def _is_temporary(refusal: GpumeshError) -> bool:
    """Whether another job may be submitted later, when the volume is writable again, or Slurm accepts one."""
    return isinstance(refusal.__cause__, OSError) or scheduler.is_temporary(refusal.message)


def _log(text: str) -> None:
    """Write to supervisor.log. The log is on the shared volume: if that is full, the run continues without the line.

    Nothing is buffered, since Python would write it again later, and fail then.
    """
    with contextlib.suppress(OSError):
        write_all(1, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n".encode("utf-8", "replace"))


def _refuse_foreign_owner(run_directory: RunDirectory) -> None:
    """Refuse the run of another user before its request is read, whose command then runs.

    A standby takes over from a process that has done this. Raises GpumeshError, OSError.
    """
    expected_uid = os.geteuid()
    # A full volume, on which the effective owner cannot be determined, does not end a run.
    with contextlib.suppress(OSError):
        expected_uid = run_directory.writer_uid()
    run_directory.refuse_foreign_owner(expected_uid)


def _await_volume(run_directory: RunDirectory, supervisor_id: SupervisorId, volumes: Sequence[str]) -> bool:
    """Wait for the volume, and write to the log of the run from then on.

    Return False if it has taken too long: then the job is requeued, and releases its nodes for some minutes. Raises
    GpumeshError.
    """
    reported_waits: List[str] = []

    def report_wait(text: str) -> None:
        reported_waits.append(text)
        scheduler.set_job_comment(run, supervisor_id.job_id, f"gpumesh-train: {text}")

    started_at = time.monotonic()
    try:
        log_fd = volume.wait_for_volume(run_directory, volumes, _refuse_foreign_owner, _VOLUME_TIMEOUT, report_wait)
    except TimeoutError:
        scheduler.requeue_job(run, supervisor_id.job_id)
        return False
    null_fd = os.open(os.devnull, os.O_RDONLY)
    for source_fd, target_fd in ((null_fd, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(source_fd, target_fd)
    if reported_waits:
        _log(f"the volume answered after {time.monotonic() - started_at:.0f} s")
        scheduler.set_job_comment(run, supervisor_id.job_id, "")
    return True


def main(run_directory: RunDirectory, supervisor_id: SupervisorId, volumes: Sequence[str] = ()) -> int:
    """Run the supervisor in the batch script, or as a standby. ``volumes``: mount points. Raises GpumeshError."""
    time_limit_guard = TimeLimitGuard(run, supervisor_id.job_id)
    if not supervisor_id.ends:
        time_limit_guard.start()
    early_standbys = EarlyStandbys(
        supervisor_id.program_path, supervisor_id.job_id, supervisor_id.node, supervisor_id.allocated_nodes, run
    )
    if not supervisor_id.inherited:
        early_standbys.start()
    try:
        return _supervise(run_directory, supervisor_id, volumes, time_limit_guard, early_standbys)
    finally:
        early_standbys.dismiss()
        time_limit_guard.settle()


def _supervise(
    run_directory: RunDirectory,
    supervisor_id: SupervisorId,
    volumes: Sequence[str],
    time_limit_guard: TimeLimitGuard,
    early_standbys: EarlyStandbys,
) -> int:
    early_signals: List[int] = []
    if not supervisor_id.inherited:
        signal.signal(signal.SIGUSR1, lambda number, _frame: early_signals.append(number))
        if not _await_volume(run_directory, supervisor_id, volumes):
            return 1
    supervisor = Supervisor(run_directory, supervisor_id, early_standbys=early_standbys)

    def cancel(number: int, frame: Any) -> None:
        # A job that is already ending is not requeued.
        time_limit_guard.settle()
        supervisor.cancel(number, frame)

    signal.signal(signal.SIGUSR1, supervisor.preempt)
    signal.signal(signal.SIGTERM, cancel)
    if early_signals:
        supervisor.preempt(signal.SIGUSR1, None)
    return supervisor.supervise()
