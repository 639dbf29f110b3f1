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

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import (
    NO_ROOM,
    CommandError,
    GpumeshError,
    HostStateError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import write_all
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import (
    agent,
    decide,
    lines,
    profile,
    scheduler,
    show,
    volume,
    volume_fault,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.cause import signal_name
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.growth import Growing, Growth
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.liveness import STARTING, STOPPED, Limits
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import (
    ENDED,
    Attempt,
    Cause,
    Request,
    Run,
    Submission,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.step import Asking, Step
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.store import Folder, unwritable
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.watch import Watch

#: Seconds between two reads of the agents' messages, two updates of run.json, and two queries to the controller.
_SPACING = 1.0
_NOTE = 3.0
_ASK = 15.0
#: Seconds for the agents to end their ranks, which have 5 s for that.
_ENDING = 12.0
#: Seconds for all processes of a step to end after SIGKILL.
_KILLING = 30.0
#: Seconds for the remaining output of srun to arrive after it has ended.
_ARRIVAL = 3.0
#: Seconds for the node of a lost supervisor to answer. If it is lost as well, the run waits for it so long.
_ALIVE = 4.0
#: Seconds in which nodes that the run needs may return before the run leaves its job.
_RETURN = 10.0
#: The same after an outage of the controller.
_RECOVERY = 60.0
#: How often another job is requested again if Slurm refuses it.
_TRIES = 120
#: Seconds by which the next job is delayed if it might get the same nodes.
_HOLD = 60
#: Seconds over which the speed is measured.
_SPAN = 60.0
#: Seconds, in addition to the grace time, before a time limit at which the ranks are warned.
_RESERVE = 30.0
#: Seconds before a time limit at which the job is requeued if nothing follows it by then, and at which Slurm is not asked
#: for another job any more.
_LAST = 10.0
_TOO_LATE = 2 * _LAST
#: Seconds between two queries of the time limit for this. It rarely changes.
_LIMIT_ASK = 60.0
#: Seconds by which Slurm may warn of the time limit earlier than it was asked to.
_EARLY = 60.0
#: A volume that takes longer than so many seconds for run.json has not answered.
_BLOCKED = 2.0
#: The range of MASTER_PORT: a different port for each attempt, since the previous one may still be in use. Below the
#: ephemeral ports.
_PORTS = range(25000, 29000)
#: Seconds between two checks of a waiting supervisor, and for a full volume to accept the last state of a run.
_STAND_BY = 5.0
_FULL = 900.0
#: Seconds between the second attempt that has failed because of the volume and the next one, then twice as many each time.
_AGAIN = 60.0


#: Why a process that is not lost does not go on.
_SUCCEEDED = "another node considers this one dead, and continues the run"
#: Why a run leaves a job whose end Slurm does not notice.
_ABANDONED = "the process of Slurm that ran the batch script has ended"
#: Why Slurm ends a job that a run has not left.
_SCRIPT_KILLED = "the batch script was killed"
#: The words for what Slurm does with a job; see `scheduler.fate`.
_FATES = {
    "preempted": "Slurm has preempted the job",
    "requeued": "Slurm has requeued the job",
    "timeout": "Slurm has ended the job at its time limit",
    "killed": _SCRIPT_KILLED,
}
#: How a job ends with each decision: the state of the run, and what is noted with the last attempt.
_ENDS = {
    "finish": ("finished", ""),
    "cancel": ("cancelled", ""),
    "fail": ("failed", "stopped"),
    "resubmit": ("queued", "another job was submitted"),
    "requeue": ("queued", "Slurm starts the job again"),
}


class Post(NamedTuple):
    """The place of a supervisor. ``inherited``: the attempt whose supervisor was lost; 0 in the batch script.

    ``turn``: the turn of the heir that this process is. In the batch script, ``daemon`` is the process of Slurm that runs
    it, and ``killed`` the signal that has ended an earlier supervisor; 0 for none. ``outage``: the controller has been away
    until now. ``ends``: the batch script of the job was killed, so that no attempt begins in it any more.
    """

    program: str
    job: int
    token: str
    node: str
    allocated: Sequence[str]
    inherited: int = 0
    turn: int = 0
    daemon: int = 0
    killed: int = 0
    outage: bool = False
    ends: bool = False


class Limit:
    """Has Slurm start a job again just before its time limit, unless it is settled by then what follows the job.

    Usually, another job has been submitted. But a volume may be full, or block the main thread, until no time is left.
    """

    def __init__(self, runner: Runner, job: int) -> None:
        self._runner = runner
        self._job = job
        self._deadline: Optional[float] = None
        self._settled = threading.Event()

    def begin(self) -> None:
        """Watch the time limit in a thread."""
        threading.Thread(target=self._watch, daemon=True).start()

    def settle(self) -> None:
        """It is settled what follows the job, or that nothing does."""
        self._settled.set()

    def _watch(self) -> None:
        asked: Optional[float] = None
        while not self._settled.wait(_SPACING):
            now = time.monotonic()
            left = None if self._deadline is None else self._deadline - now
            if left is not None and left < _LAST:
                with contextlib.suppress(CommandError):
                    scheduler.requeue(self._runner, self._job)
                    return
            elif asked is None or (now - asked >= _LIMIT_ASK and (left is None or left > _RESERVE)):
                with contextlib.suppress(CommandError):
                    left = scheduler.time_left(self._runner, self._job)
                    self._deadline = None if left is None else time.monotonic() + left
                    asked = now


class DismissedError(GpumeshError):
    """Another process is in charge of the run."""


class Supervisor:
    """One job of the run, or what remains of it."""

    def __init__(self, folder: Folder, post: Post, runner: Runner = run) -> None:
        self._folder = folder
        self._post = post
        self._runner = runner
        self.request: Request = folder.request()
        self._run: Run = folder.read_or_restore()
        examination = [post.program, "examine", str(folder.path)]
        self.asking = Asking(runner, post.job, examination, self.request.gpus_per_node, len(post.allocated))
        self._lost: List[str] = []
        #: The attempt that this process monitors.
        self._started = 0
        #: The attempt whose supervisor this process succeeds, with its turn, and the last one that it has claimed.
        self._succeeds = self._claimed = (post.inherited, post.turn)
        self._preempted = False
        #: The number of nodes without which another job must not start, if the last attempt has ended for such a job.
        self._least = 0
        #: Whether Slurm has refused such a job.
        self._refused = False
        #: The steps of earlier attempts, whose agents would continue the run if this process were lost now.
        self._resting: List[Step] = []
        #: Whether the job was told to end immediately.
        self.cancelled = False
        #: Whether Slurm starts this job again.
        self._restarts = False
        #: Whether the volume had no room for this process, since the last attempt began.
        self._had_no_room = False

    def preempt(self, _number: int, _frame: Any) -> None:
        """Slurm, or ``scancel --batch --signal=USR1``, announces that the job will end soon."""
        self._preempted = True

    def cancel(self, _number: int, _frame: Any) -> None:
        """``scancel``, or the end of the job."""
        self.cancelled = True

    def supervise(self) -> int:
        """Supervise the run. Returns the exit status of the job."""
        dismissed = False
        try:
            self._require_charge()
            return self._work()
        except DismissedError as why:
            dismissed = True
            _say(f"{self.request.name}: {why}")
            self._dismiss_resting()
            return self._stand_by()
        finally:
            self._dismiss_resting()
            # Whatever has happened: there is no batch script left whose end would end the job.
            settled = dismissed or self._post.ends or self._restarts
            if (self._post.inherited or self._abandoned()) and not settled:
                self._end_job()

    def _work(self) -> int:
        if (self._run.state, self._run.token) == ("finished", self._post.token):
            # Slurm requeues a job whose node failed just after the end of the run.
            return self._leave(decide.Decision("finish", self._run.detail))
        if self._post.killed:
            if self._run.token == self._post.token and self._run.state in ENDED:
                return 1
            self._succeed_killed()
        self._begin()
        if self._post.ends:
            return self._leave(self._verdict() or decide.Decision("resubmit", _SCRIPT_KILLED))
        short = "" if self._succeeds[0] else self._too_short()
        if short:
            return self._leave(decide.Decision("fail", short))
        # Interruptions of earlier jobs do not count for this one, unless it is the same job.
        follows: Optional[decide.Decision] = None
        if self._succeeds[0]:
            follows = self._verdict()
        while True:
            follows = self._left_to_slurm(follows or self._placement())
            self._note_action(follows)
            if follows.action != "restart":
                return self._leave(follows)
            self._attempt(follows.nodes)
            follows = self._verdict()

    def _verdict(self) -> Optional[decide.Decision]:
        """Decide whether the run ends, and note the node that it excludes, if it excludes one."""
        node = decide.exclusion(self._counted(), self._replaceable)
        if node:
            self._replace_last(self._run.attempts[-1]._replace(excluded=node))
        cause = self._run.attempts[-1].cause if self._run.attempts else None
        if self._least and cause and cause.kind == "grown":
            return decide.Decision("resubmit", cause.detail)
        return decide.verdict(self.request, self._counted())

    def _replaceable(self, node: str) -> bool:
        """Whether the run could continue without this node, in its job or in another one."""
        out = {node, *decide.barred(self._counted())}
        if len(set(self._post.allocated) - out) >= self.request.min_nodes:
            return True
        try:
            states = scheduler.node_states(self._runner, self.request.partition)
            fit = [name for name, state in states.items() if scheduler.fit(state) and name not in out]
            # The request may name its nodes, or no others have such GPUs.
            return len(fit) >= max(self.request.min_nodes, 1) and scheduler.possible(
                self._runner, self.request, self._post.program, sorted(out)
            )
        except CommandError:
            # The run goes on as soon as the controller answers, and then knows better.
            return True

    def _too_short(self) -> str:
        """Why this job could do nothing but submit the next one; empty if it can. A partition or QOS may limit its time."""
        left, least = None, self.request.grace + _RESERVE
        with contextlib.suppress(CommandError):
            left = scheduler.time_left(self._runner, self._post.job)
        if left is None or left > least:
            return ""
        return (
            f"job {self._post.job} has {left:g} s left, but {least:g} s are reserved for a checkpoint. Give a smaller "
            f"--grace, or a partition or QOS with a longer time limit (sinfo --format='%P %l')"
        )

    def _counted(self) -> List[Attempt]:
        return [attempt for attempt in self._run.attempts if attempt.number >= self._run.counted]

    def _require_charge(self) -> None:
        """Raises DismissedError if another process is in charge."""
        try:
            submission = self._folder.submission()
        except GpumeshError as failure:
            # Wait for a volume that is temporarily unreadable.
            _say(str(failure))
            return
        if submission.token != self._post.token:
            raise DismissedError(f"job {submission.job} is in charge of the run")
        if self._succeeds[0] and not self._started and len(self._run.attempts) > self._succeeds[0]:
            # An heir, whose claim came too late. Fewer attempts mean that the last ones could not be recorded.
            raise DismissedError("another attempt has been started in the meantime")
        if self._post.ends:
            return
        claims = [(attempt, turn) for attempt, turn in (self._claimed, (self._started, -1)) if attempt]
        try:
            succeeded = any(self._folder.inherited(attempt, turn) for attempt, turn in claims)
        except OSError as failure:
            _say(f"it is not known whether another node continues the run: {failure}")
            return
        if succeeded:
            raise DismissedError(_SUCCEEDED)

    def _abandoned(self) -> bool:
        """Whether nothing will tell Slurm that the batch script has ended."""
        try:
            if self._post.daemon:
                os.kill(self._post.daemon, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def _succeed_killed(self) -> None:
        """Continue the run in place of an earlier supervisor of this batch script, which was killed.

        Raises DismissedError if one of its agents was faster.
        """
        last = self._run.attempts[-1] if self._run.attempts else None
        if last is None or last.job != self._post.job:
            return
        if last.heir:
            raise DismissedError(_SUCCEEDED)
        turn = 0
        try:
            while not self._folder.claim(last.number, turn, self._post.node):
                if last.end is None:
                    raise DismissedError(_SUCCEEDED)
                # It has ended this attempt and claimed to go on, but was killed before it began another one.
                turn += 1
        except OSError as failure:
            _say(f"heir-{turn} of attempt {last.number} cannot be written now: {failure}")
            turn -= 1
        self._succeeds = self._claimed = (last.number, turn)
        self._run = self._folder.read_or_restore()
        self._require_charge()
        self._kill_steps()

    def _kill_steps(self) -> None:
        """End the agents of an earlier supervisor with their ranks, so that there is one attempt at a time."""
        name = os.path.basename(self._post.program)
        deadline = time.monotonic() + _KILLING
        while not self.cancelled and time.monotonic() < deadline:
            try:
                left = scheduler.steps(self._runner, self._post.job, name)
                if not left:
                    return
                scheduler.kill_steps(self._runner, left)
            except CommandError as failure:
                _say(f"waiting for the controller, to end the ranks: {failure}")
                deadline = time.monotonic() + _KILLING
            time.sleep(_SPACING)
        # Those of a node that does not answer cannot be killed, and those of other nodes are by the agents of the next one.

    def _stand_by(self) -> int:
        """Wait for the end of the run if it continues in this job: Slurm ends a job with its batch script."""
        while not self._post.inherited and not self.cancelled:
            try:
                state = self._folder.read().state
                if state in ENDED or self._folder.submission().token != self._post.token:
                    return 0 if state == "finished" else 1
            except GpumeshError as failure:
                _say(str(failure))
            time.sleep(_STAND_BY)
        return 1

    def _begin(self) -> None:
        """Close the last attempt if it is still open, since its supervisor was lost."""
        missing = [self._unrecorded(number) for number in range(len(self._run.attempts) + 1, self._post.inherited + 1)]
        if not self._post.inherited:
            with contextlib.suppress(OSError):
                self._run = self._folder.with_unrecorded(self._run)
        attempts = (*self._run.attempts, *missing)
        self._run = self._run._replace(job=self._post.job, token=self._post.token, detail="", attempts=attempts)
        if self._run.attempts and self._run.attempts[-1].end is None:
            last = self._run.attempts[-1]
            cause = Cause("node", f"{last.supervisor}, the node of the supervisor, was lost", None, last.supervisor)
            if not self._post.inherited and last.job == self._post.job and len(last.nodes) > 1:
                # Slurm has started the job again, and no node was left that could inherit it.
                cause = Cause("node", "all nodes of the job were lost")
            if self._post.ends:
                cause = Cause("supervisor", _SCRIPT_KILLED)
            elif self._post.killed and last.job == self._post.job:
                cause = Cause("supervisor", f"the supervisor was killed ({signal_name(self._post.killed)})")
            elif self._post.inherited and self._lives(last.supervisor):
                cause = Cause("supervisor", f"the supervisor has stopped, but {last.supervisor} responds")
            self._lost = [last.supervisor] if self._post.inherited and cause.node else []
            self._replace_last(last._replace(end=time.time(), cause=cause))

    def _lives(self, node: str) -> bool:
        """Whether a node is there, although its supervisor is lost."""
        return node == self._post.node or self.asking.lives(node, _ALIVE)

    def _unrecorded(self, number: int) -> Attempt:
        """An attempt of this job that its supervisor, which was lost, could not record, since the volume was full."""
        nodes, now = tuple(self._post.allocated), time.time()
        cause = Cause("node", "the node of the supervisor was lost before it could write run.json")
        ranks = len(nodes) * self.request.ranks_per_node
        return Attempt(number, self._post.job, nodes, ranks, "", now, end=now, cause=cause)

    def _placement(self) -> decide.Decision:
        """Decide where the next attempt runs. Waits for a volume and a controller that do not answer."""
        self._await_volume()
        deadline = time.monotonic() + (_RECOVERY if self._post.outage and not self._started else _RETURN)
        while not self.cancelled:
            self._require_charge()
            try:
                suspects = decide.suspects(self._counted())
                fit = self.asking.fit(self._post.allocated, self._lost, suspects)
            except CommandError as failure:
                _say(f"waiting for the controller: {failure}")
                # It takes a while until it knows its nodes again.
                deadline = time.monotonic() + _RECOVERY
                time.sleep(_SPACING)
                continue
            cut_off = self.asking.cut_off
            decision = decide.placement(self.request, self._counted(), self._post.allocated, fit, cut_off)
            if cut_off and decision.action == "resubmit":
                # Slurm itself leaves out the others, and the next job waits for the end of this one if they are all.
                states = self.asking.states
                silent = tuple(node for node in decision.excluded if scheduler.fit(states.get(node, "")))
                return decision._replace(excluded=silent)
            if decision.action == "restart" or time.monotonic() > deadline:
                return decision
            # They may have returned by now.
            self._lost = []
            time.sleep(_SPACING)
        return decide.Decision("cancel")

    def _await_volume(self) -> None:
        """Wait until the volume because of which the last attempt has failed takes data again, and longer each time.

        It may have no room for a checkpoint although it takes what is tried here, so a full one is tried again.
        """
        times = decide.volume_failures(self._counted())
        least, waited = min(_AGAIN * (2 ** min(times - 2, 8)), _FULL) if times > 1 else 0.0, 0.0
        while times and not self.cancelled and not self._preempted:
            self._require_charge()
            found = volume_fault.state(str(self._folder.path))
            if waited >= (least if not found.text else _FULL) and (found.full or not found.text):
                return
            scheduler.note(self._runner, self._post.job, "gpumesh-train: waiting for the volume of the run")
            time.sleep(_STAND_BY)
            waited += _STAND_BY

    def _left_to_slurm(self, decision: decide.Decision) -> decide.Decision:
        """The decision, unless Slurm itself starts the job again, such as after a preemption, or does not know its end."""
        if decision.action == "restart" and self._abandoned():
            return decide.Decision("resubmit", _ABANDONED)
        if decision.action not in ("cancel", "resubmit"):
            return decision
        fate = scheduler.fate(self._runner, self._post.job)
        if fate == "requeued":
            return decide.Decision("requeue", _FATES[fate])
        ends = fate and (decision.action == "cancel" or fate == "killed")
        return decide.Decision("resubmit", _FATES[fate]) if ends else decision

    def explained(self, cause: Cause) -> Cause:
        """The cause of the end of an attempt: Slurm stops the ranks of a job that it preempts, which is no crash."""
        if cause.kind in ("finished", "warned", "grown"):
            return cause
        fate = scheduler.fate(self._runner, self._post.job)
        if fate:
            return Cause("warned", _FATES[fate])
        times = decide.volume_failures(self._counted())
        return volume_fault.judged(cause, str(self._folder.path), self.request.directory, times, self._had_no_room)

    def _leave(self, decision: decide.Decision) -> int:
        if not self._note_end(decision) and self.cancelled and decision.action == "resubmit":
            # The job ends while this process waits for the volume.
            decision = self._left_to_slurm(decide.Decision("cancel"))
            self._note_end(decision)
        self._restarts = decision.action == "requeue"
        if decision.action == "resubmit":
            while not self.cancelled and not scheduler.answers(self._runner):
                _say("waiting for the controller, to submit another job")
                time.sleep(_STAND_BY)
            self._resubmit(decision.excluded)
        return 1 if decision.action in ("cancel", "fail") else 0

    def _note_end(self, decision: decide.Decision) -> bool:
        """Record how the job ends. Returns whether that worked; waits for a volume that cannot be written to now."""
        state, detail = _ENDS[decision.action][0], decision.reason
        _say(f"{self.request.name}: {state}{': ' if detail else ''}{detail}")
        deadline = time.monotonic() + _FULL
        while not self._save(self._run._replace(state=state, detail=detail)):
            if (self.cancelled and state == "queued") or time.monotonic() > deadline:
                return False
            time.sleep(_STAND_BY)
        return True

    def _end_job(self) -> None:
        """Release the nodes, since nothing else would. Waits for a controller that does not answer."""
        while True:
            try:
                scheduler.cancel(self._runner, self._post.job)
            except CommandError as failure:
                _say(f"waiting for the controller: {failure}")
            else:
                return
            if self.cancelled:
                return
            time.sleep(_STAND_BY)

    def _resubmit(self, excluded: Sequence[str]) -> None:
        """Submit another job, which starts within seconds on other nodes. A requeued one would wait for minutes."""
        refusal = self._refusal(excluded)
        for _try in range(_TRIES):
            if refusal is None or self.cancelled or not _may_pass(refusal) or self._post.ends:
                break
            left = self.asking.time_left
            if left is not None and left < _TOO_LATE:
                break
            _say(f"another job will be requested again: {refusal}")
            self.asking.controller()
            time.sleep(_STAND_BY)
            refusal = self._refusal(excluded)
        if refusal is None or (_may_pass(refusal) and self._requeued()):
            return
        with contextlib.suppress(OSError):
            self._folder.write(self._run._replace(state="failed", detail=f"{self._run.detail}. {refusal}"))
        raise refusal

    def _requeued(self) -> bool:
        """Whether Slurm starts this job again, which takes minutes, but needs no new job, and nothing on the volume."""
        fate = scheduler.fate(self._runner, self._post.job) if self.cancelled else ""
        if fate == "requeued":
            self._restarts = True
            return True
        if self.cancelled and not fate:
            # By its user. Slurm also requeues a job that is just ending.
            return False
        try:
            with contextlib.suppress(OSError):
                self._folder.write_submission(Submission(self._post.token, self._post.job))
            with contextlib.suppress(HostStateError):
                # A volume that cannot be read may be readable when the job starts, which ends if it is not in charge.
                if self._folder.submission().token != self._post.token:
                    return False
            scheduler.requeue(self._runner, self._post.job)
        except CommandError as failure:
            _say(f"the job cannot be requeued: {failure}")
            return False
        self._restarts = True
        return True

    def _refusal(self, excluded: Sequence[str]) -> Optional[GpumeshError]:
        """Submit another job. Returns why that is not possible; None if Slurm has accepted one."""
        barred = sorted(decide.barred(self._counted()))
        without = sorted({*excluded, *barred})
        submit = partial(
            scheduler.submit,
            self._runner,
            self._folder,
            self._post.program,
            fewer=True,
            least=self._least,
            of_job=self.request,
        )
        # Otherwise, it might start with the nodes that are back alone.
        after = self._post.job if self._least else 0
        try:
            try:
                submit(excluded=without, after=self._post.job if self._gives_back(excluded) else after)
            except GpumeshError as failure:
                _say(f"without {', '.join(without)}: {failure}")
                submit(excluded=barred, hold=_HOLD, after=after)
        except OSError as failure:
            refusal = unwritable(self._folder, failure, f"gpumesh-train resume {self.request.name}")
            refusal.__cause__ = failure
            return refusal
        except GpumeshError as failure:
            return failure
        return None

    def _gives_back(self, excluded: Sequence[str]) -> bool:
        """Whether the next job should wait for the nodes of this one, which ends within seconds.

        Otherwise, one that may have fewer nodes would begin at once with those that are idle. A node that is lost delays the
        end of a job for minutes. ``excluded``: nodes that the next job does not use.
        """
        request = self.request
        return request.min_nodes < request.nodes + request.spare and not excluded and not self._lost

    def _profile(self) -> str:
        """The profile of the next attempt; none if an earlier attempt has recorded it."""
        for attempt in self._run.attempts if self.request.profile else ():
            folder = Path(profile.directory(str(self._folder.path), attempt.number))
            with contextlib.suppress(OSError):
                if profile.complete(folder, attempt.world_size):
                    return ""
        return self.request.profile

    def _claim(self) -> None:
        """Claim to continue the run after the attempt that has ended, as a node of it that was cut off may do as well.

        An heir claims the next turn, which begins if it takes long. Raises DismissedError if another node was faster.
        """
        attempt, turn = (self._started, 0) if self._started else (self._succeeds[0], self._succeeds[1] + 1)
        if not attempt:
            return
        try:
            if not self._folder.claim(attempt, turn, self._post.node):
                raise DismissedError(_SUCCEEDED)
            self._claimed = (attempt, turn)
        except OSError as failure:
            # The run must not end because of it. A claim of this turn is now that of another process.
            _say(f"heir-{turn} of attempt {attempt} cannot be written now: {failure}")
            self._claimed = (attempt, turn - 1)

    def _attempt(self, nodes: Sequence[str]) -> None:
        self._claim()
        self._had_no_room = False
        request, post = self.request, self._post
        number = len(self._run.attempts) + 1
        task = agent.Task(
            request.name,
            str(self._folder.path),
            post.token,
            number,
            list(nodes),
            request.ranks_per_node,
            list(request.command),
            request.directory,
            _PORTS[(post.job * 31 + number * 7) % len(_PORTS)],
            request.stage_dir,
            self._profile(),
            self.request.commit,
            self.request.warn_signal,
        )
        ranks = len(nodes) * request.ranks_per_node
        attempt = Attempt(
            number,
            post.job,
            tuple(nodes),
            ranks,
            post.node,
            time.time(),
            allocated=tuple(post.allocated),
            heir=bool(post.inherited),
        )
        self._started = number
        self._least = 0
        before = self._run
        while not self._save(before._replace(state="running", attempts=(*before.attempts, attempt))):
            # Ranks could not save a checkpoint either. Attempts that fail for this reason would end the run.
            self._run = before
            if self.cancelled:
                return
            scheduler.note(self._runner, post.job, "gpumesh-train: waiting for room on the volume of the run")
            time.sleep(_STAND_BY)
        with contextlib.suppress(OSError):
            # The agents use this as well. A later job takes an attempt for one that has begun if this is there.
            self._folder.attempt(number).mkdir(exist_ok=True)
        # Now that heirs can see this attempt, no more of them appear: one that came before is in charge.
        self._require_charge()
        _say(f"{request.name}: attempt {number} on {', '.join(nodes)}")
        step = Step(post.program, post.job, task, request.gpus_per_node)
        self._dismiss_resting()
        limits = Limits(self._run.longest_gap, self._run.longest_start)
        watch = Watch(request, nodes, time.monotonic(), tells=self._run.step is not None, limits=limits)
        course = Course(self, step, watch)
        try:
            cause = course.follow()
        finally:
            course.end()
        self._lost = [node for node in watch.lost if node not in watch.alive]
        self._replace_last(self._run.attempts[-1]._replace(end=time.time(), cause=cause))
        _say(f"{request.name}: attempt {number}: {cause.kind}: {cause.detail or 'the program has ended'}")

    def keep(self, step: Step) -> None:
        """Keep the agents of an attempt that has ended until the next one begins."""
        self._resting.append(step)

    def _dismiss_resting(self) -> None:
        for step in self._resting:
            step.order("leave")
        while self._resting:
            self._resting.pop().kill()

    def interruption(self, watched: Sequence[str]) -> Optional[Cause]:
        """Why the ranks should save a checkpoint and end now, if they should."""
        left = self.asking.time_left
        near = self.request.grace + _RESERVE + (_EARLY if self._preempted else 0.0)
        if left is not None and left < near:
            return Cause("warned", "the time limit is near")
        if self._preempted:
            return Cause("warned", "Slurm has announced the end of the job")
        if self._abandoned():
            return Cause("warned", _ABANDONED)
        leaving = [node for node in watched if scheduler.leaves(self.asking.states.get(node, ""))]
        return Cause("warned", f"{leaving[0]} is to be drained", None, leaving[0]) if leaving else None

    def growing(self) -> Growing:
        """What is known of nodes that were away, for the attempt that begins."""
        return Growing(self.request, self._counted(), self._post.allocated, time.monotonic())

    def grows(self, growth: Growth) -> bool:
        """Whether it is worth while, and possible, that the attempt ends for these nodes now."""
        left = self.asking.time_left
        if left is not None and left < self.request.grace + _RESERVE + STARTING:
            return False
        if not growth.elsewhere:
            return True
        if self._refused or self.asking.others_wait:
            return False
        try:
            scheduler.refuse_impossible(self._runner, self.request, self._post.program)
        except GpumeshError as failure:
            self._refused = True
            _say(f"the run stays in this job: {failure}")
            return False
        self._least = len(self._run.attempts[-1].nodes)
        return True

    def take_progress(self, watch: Watch, speed: Optional[float]) -> None:
        """Record the progress of the attempt in run.json. Raises DismissedError."""
        now = watch.progress()
        last = self._run.attempts[-1]
        saved = now.checkpoint is not None and now.checkpoint != last.checkpoint
        last = last._replace(
            first=watch.first,
            last=last.last if now.step is None else now.step,
            checkpoint=last.checkpoint if now.checkpoint is None else now.checkpoint,
            stragglers=tuple(watch.pace.stragglers),
            stepping=watch.stepping,
        )
        nan_since = self._run.nan_since
        if now.nan and nan_since is None:
            nan_since = now.step
        elif now.loss is not None:
            nan_since = None
        self._save(
            self._run._replace(
                attempts=(*self._run.attempts[:-1], last),
                step=self._run.step if now.step is None else now.step,
                steps=self._run.steps if now.steps is None else now.steps,
                loss=self._run.loss if now.loss is None else now.loss,
                steps_per_second=speed,
                checkpoint_at=time.time() if saved else self._run.checkpoint_at,
                detail=watch.staging(),
                nan_since=nan_since,
                busy=now.busy or "",
                longest_gap=round(watch.limits.gap, 1),
                longest_start=round(watch.limits.start, 1),
                watched=watch.watched,
            )
        )

    def _replace_last(self, attempt: Attempt) -> None:
        self._save(self._run._replace(attempts=(*self._run.attempts[:-1], attempt)))

    def _note_action(self, decision: decide.Decision) -> None:
        if self._run.attempts:
            restarted = f"restarted on {', '.join(decision.nodes)}"
            action = restarted if decision.action == "restart" else _ENDS[decision.action][1]
            last = self._run.attempts[-1]
            out = []
            if decision.action in ("restart", "resubmit"):
                out = decide.left_out(self._counted(), last.nodes, self.asking.unfit)
            self._replace_last(last._replace(action="; ".join([action, *out])))
            for text in out:
                _say(text)
            if out and decide.barred(self._counted()):
                # Only administrators can have a node examined, or drain it.
                scheduler.note(self._runner, self._post.job, f"gpumesh-train: {'; '.join(out)}")

    def _save(self, new: Run) -> bool:
        """Write run.json.

        Returns whether that worked. If not, a later write may, and the run must not end because of it. Raises
        DismissedError.
        """
        self._require_charge()
        self._run = new = new._replace(updated=time.time())
        try:
            self._folder.write(new)
        except OSError as failure:
            _say(f"run.json cannot be written now: {failure}")
            self._had_no_room |= failure.errno in NO_ROOM
            return False
        return True


class Course:
    """A running attempt."""

    def __init__(self, supervisor: Supervisor, step: Step, watch: Watch) -> None:
        self._supervisor = supervisor
        self._step = step
        self._watch = watch
        self._decoder = lines.Decoder()
        self._past: Deque[Tuple[float, int]] = deque()
        self._warned: Optional[Cause] = None
        self._warned_at = 0.0
        self._staged = False
        self._stopped = 0.0
        self._noted = 0.0
        self._asked = 0.0
        self._over_at: Optional[float] = None
        self._growing = supervisor.growing()
        self._queue_asked = 0.0

    def follow(self) -> Cause:
        """Monitor the attempt until it has ended, or has to. Raises DismissedError."""
        while True:
            self._listen(time.monotonic() + _SPACING)
            now = time.monotonic()
            self._resume(now)
            cause = self._end(now)
            if cause is not None:
                self._supervisor.take_progress(self._watch, self._speed(now))
                return cause
            if self._watch.staged() and not self._staged:
                self._staged = True
                self._step.order("start")
            self._warn(now)
            self._ask(now)
            for slow in self._watch.pace.look(now, time.time()):
                _say(show.slow(slow))
            if now - self._noted > _NOTE:
                self._noted = now
                self._supervisor.take_progress(self._watch, self._speed(now))
                if time.monotonic() - now > _BLOCKED:
                    self._watch.excuse(time.monotonic())

    def _resume(self, now: float) -> None:
        """Blame nobody for the time in which this process was stopped."""
        seconds = self._step.stopped - self._stopped
        if seconds > STOPPED:
            self._stopped += seconds
            _say(f"the supervisor was stopped for {seconds:.0f} s")
            self._watch.resume(now, seconds)

    def _listen(self, deadline: float) -> None:
        """Process the messages that have arrived, and those that arrive before the deadline."""
        while True:
            try:
                came, line = self._step.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            said = self._decoder.feed(line)
            if said is not None:
                self._watch.hear(said, came)
            elif line.strip() and not lines.is_message(line):
                _say(line.rstrip())

    def _end(self, now: float) -> Optional[Cause]:
        """Why the attempt has ended, or has to end."""
        if self._supervisor.cancelled:
            return self._supervisor.explained(Cause("cancelled", "the job was cancelled"))
        cause = self._watch.verdict(now)
        if cause is not None:
            return self._supervisor.explained(cause)
        if self._supervisor.request.stop_on_nan and self._watch.progress().nan:
            return Cause("diverged", "the loss is not a number (--stop-on-nan)")
        if self._warned is not None and now - self._warned_at > self._supervisor.request.grace:
            return self._warned
        if self._step.over():
            self._over_at = self._over_at or now
            if now - self._over_at > _ARRIVAL:
                return self._watch.without_step()
        return None

    def _warn(self, now: float) -> None:
        if self._warned is None:
            self._warned = self._supervisor.interruption(self._watch.nodes) or self._growth(now)
            if self._warned is not None:
                self._warned_at = now
                self._watch.warn(self._warned)
                _say(f"{self._warned.detail}: the ranks are asked for a checkpoint")
                self._step.order("warn")

    def _growth(self, now: float) -> Optional[Cause]:
        """Why the attempt should end, if nodes can be used again that were away."""
        asking, growing = self._supervisor.asking, self._growing
        while not asking.revisited.empty():
            growing.tell(*asking.revisited.get())
        for node in growing.due(now, asking.states):
            asking.revisit(node)
        growth = growing.possible(asking.states)
        if growth and growth.elsewhere and now - self._queue_asked > _ASK:
            self._queue_asked = now
            asking.queue()
        ripe = growing.ripe(growth, self._watch.first, self._watch.progress().checkpoint)
        return growth.cause if growth and ripe and self._supervisor.grows(growth) else None

    def _ask(self, now: float) -> None:
        asking = self._supervisor.asking
        if now - self._asked > _ASK:
            self._asked = now
            asking.controller()
        if self._watch.asks(now):
            self._step.order("look")
        silent = self._watch.silent(now)
        for node in silent:
            asking.node(node)
        while not asking.answers.empty():
            node, there = asking.answers.get()
            # It may have been reported in the meantime.
            if node in silent and there:
                self._watch.answers(node, now)
            elif node in silent:
                self._watch.lost[node] = "no longer responds"

    def _speed(self, now: float) -> Optional[float]:
        """The recent rate, in steps per second."""
        step = self._watch.progress().step
        if step is None:
            return None
        self._past.append((now, step))
        while now - self._past[0][0] > _SPAN:
            self._past.popleft()
        took, made = now - self._past[0][0], step - self._past[0][1]
        return round(made / took, 3) if took > 0 else None

    def end(self) -> None:
        """End the ranks, whether their nodes respond or not. Their agents stay until the next attempt begins."""
        # Agents of an older version know only the second word.
        for word in ("rest", "end"):
            self._step.order(word)
        deadline = time.monotonic() + _ENDING
        while not self._step.over() and not self._watch.over(time.monotonic()) and time.monotonic() < deadline:
            self._listen(time.monotonic() + 0.2)
        self._supervisor.keep(self._step)


def _may_pass(refusal: GpumeshError) -> bool:
    """Whether another job may be submitted later, since the volume can be written to then, or Slurm accepts one."""
    return isinstance(refusal.__cause__, OSError) or scheduler.may_pass(refusal.message)


def _say(text: str) -> None:
    """Write to supervisor.log. It is on the shared volume: if that is full, the run goes on without the line.

    Nothing is buffered, since Python would write it again later, and fail then.
    """
    with contextlib.suppress(OSError):
        write_all(1, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n".encode("utf-8", "replace"))


def _refuse_foreign(folder: Folder) -> None:
    """Before the request is read, whose command then runs. An heir takes over from a process that has done this.

    Raises GpumeshError, OSError.
    """
    own = os.geteuid()
    # A full volume, which does not tell who this user is to it, does not end a run.
    with contextlib.suppress(OSError):
        own = folder.writer()
    folder.refuse_foreign(own)


def _await_volume(folder: Folder, post: Post, volumes: Sequence[str]) -> bool:
    """Wait for the volume, and write to the log of the run from then on.

    Returns False if it has taken too long: then the job is requeued, and gives its nodes to others for some minutes. Raises
    GpumeshError.
    """
    notes: List[str] = []

    def tell(text: str) -> None:
        notes.append(text)
        scheduler.note(run, post.job, f"gpumesh-train: {text}")

    began = time.monotonic()
    try:
        log = volume.arrived(folder, volumes, _refuse_foreign, _FULL, tell)
    except TimeoutError:
        scheduler.requeue(run, post.job)
        return False
    null = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, number)
    if notes:
        _say(f"the volume has answered after {time.monotonic() - began:.0f} s")
        scheduler.note(run, post.job, "")
    return True


def main(folder: Folder, post: Post, volumes: Sequence[str] = ()) -> int:
    """The main function of the batch script, or of an heir. ``volumes``: where they are mounted. Raises GpumeshError."""
    limit = Limit(run, post.job)
    if not post.ends:
        limit.begin()
    try:
        return _supervise(folder, post, volumes, limit)
    finally:
        limit.settle()


def _supervise(folder: Folder, post: Post, volumes: Sequence[str], limit: Limit) -> int:
    announced: List[int] = []
    if not post.inherited:
        signal.signal(signal.SIGUSR1, lambda number, _frame: announced.append(number))
        if not _await_volume(folder, post, volumes):
            return 1
    supervisor = Supervisor(folder, post)

    def cancel(number: int, frame: Any) -> None:
        # A job that ends already is not requeued.
        limit.settle()
        supervisor.cancel(number, frame)

    signal.signal(signal.SIGUSR1, supervisor.preempt)
    signal.signal(signal.SIGTERM, cancel)
    if announced:
        supervisor.preempt(signal.SIGUSR1, None)
    return supervisor.supervise()
