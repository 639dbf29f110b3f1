# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate the messages of an attempt's agents. Nothing here waits or runs anything."""

from __future__ import annotations

import math
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import cause as causes
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.lines import Said
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.liveness import STARTING, UNKNOWN, Limits, Output
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.pace import Pace
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Cause, Progress, RankEnd, Request

#: Seconds of silence after which a node is queried; the same after a failure; and seconds to start an agent.
_SILENCE = 6.0
_QUIET = 3.0
_START = 60.0
#: Seconds without a keepalive after which an agent is considered gone, although its node responds.
_AGENT_GONE = 20.0
#: Seconds after the first failure in which others are waited for, since the rank to blame may report later.
_SETTLE = 3.0
#: Seconds for the ranks to report why they hang, or why their peers have given up waiting for them.
_LOOK = 5.0
#: Seconds of reports after which their absence means something, although the program prints.
_REGULAR = 10.0
#: The message that Slurm has killed processes of a node since the memory of the job was used up.
MEMORY = "memory"


class Watch:
    """One attempt. Times are in seconds of a monotonic clock.

    ``tells``: the program has reported steps before, so it is also judged before its first one. ``limits``: what is known
    of its pace from earlier attempts.
    """

    def __init__(
        self, request: Request, nodes: Sequence[str], now: float, tells: bool = False, limits: Limits = UNKNOWN
    ) -> None:
        self._request = request
        self.limits = limits
        self._output = Output()
        self.nodes = nodes
        self._began = now
        self._ranks_began = now
        self._heard: Dict[str, float] = {}
        self._ends: Dict[int, RankEnd] = {}
        self._progress: Dict[int, Progress] = {}
        self._rank_nodes: Dict[int, str] = {}
        self._stopped: Dict[int, str] = {}
        self._places: Dict[int, str] = {}
        self._errors: Dict[int, str] = {}
        #: Nodes on which a job's memory was used up, according to Slurm.
        self._used_up: Set[str] = set()
        self._failed_at: Optional[float] = None
        self._moved: Optional[float] = now if tells else None
        #: Since when reports have come within the limit of each other.
        self._reports_since = now
        #: When the shared volume answered again, if it did not for a while.
        self._answered = now
        self._looked: Optional[float] = None
        self._searched: Optional[float] = None
        self._start_failure: Optional[Cause] = None
        self._gone: Set[str] = set()
        self._warned: Optional[Cause] = None
        #: When this process went on after it was stopped, for how long it was, and the nodes not heard from since.
        self._resumed = now
        self._stopped_for = 0.0
        self._absent: Set[str] = set()
        self._staging: Dict[str, Tuple[int, int, bool]] = {}
        #: Nodes on which no rank runs any more, and why; those that respond can be used again.
        self.lost: Dict[str, str] = {}
        self.alive: Set[str] = set()
        #: The first step that was made, and when the first and the last one were reported.
        self.first: Optional[int] = None
        self._first_at = 0.0
        self._last_at = 0.0
        self.pace = Pace(self.world_size)

    @property
    def world_size(self) -> int:
        """The number of ranks of the attempt."""
        return len(self.nodes) * self._request.ranks_per_node

    def warn(self, cause: Cause) -> None:
        """Record that the ranks have been told to save a checkpoint and end, for this cause."""
        self._warned = cause

    def hear(self, said: Said, now: float) -> None:
        """Process a message."""
        if said.node not in self.nodes:
            return
        if said.event == MEMORY:
            # It is from srun, not from the node.
            self._used_up.add(said.node)
            return
        self._heard[said.node] = now
        if now - self._resumed > _QUIET:
            # What comes earlier may have been sent before the agent gave up its supervisor.
            self._absent.discard(said.node)
        hearers = {
            "beat": self._beat,
            "ended": self._ended,
            "started": self._started,
            "state": self._state,
            "staging": self._stage,
        }
        if said.event in hearers:
            hearers[said.event](said, now)
        elif said.event == "load":
            self.pace.load(said.node, said.values)
        elif said.event == "failed":
            reason = str(said.values.get("reason"))
            if said.values.get("of_node"):
                self.lost[said.node] = reason
            else:
                self._start_failure = Cause("start", f"on {said.node}: {reason}", None, said.node)
        elif said.event == "gone":
            self._gone.add(said.node)

    def _beat(self, said: Said, now: float) -> None:
        if self._looked is None:
            # Afterwards, ranks that hang print their stacks.
            self._output.tell(said.node, int(said.values.get("printed") or 0), now)
        for rank, told in said.values["ranks"].items():
            before = self._progress.get(int(rank), Progress()).step
            self._tell(int(rank), told, now)
            self._live(now)
            progress = self._progress.get(int(rank), Progress())
            if progress.step != before:
                self.pace.tell(int(rank), said.node, progress, now)

    def _started(self, said: Said, _now: float) -> None:
        self._rank_nodes.update({int(rank): said.node for rank in said.values["ranks"]})

    def _stage(self, said: Said, now: float) -> None:
        values = said.values
        self._staging[said.node] = (int(values["done"]), int(values["total"]), bool(values["ready"]))
        # Ranks that have not started cannot hang.
        self._ranks_began = now
        if self._moved is not None:
            self._moved = now

    def staged(self) -> bool:
        """Whether all nodes have their copy of the data, so that the ranks can start."""
        return len(self._staging) == len(self.nodes) and all(ready for _done, _total, ready in self._staging.values())

    def staging(self) -> str:
        """The progress of the copies of the data; empty if none are needed."""
        if not self._staging or self.staged():
            return ""
        ready = sum(1 for one in self._staging.values() if one[2])
        done = sum(one[0] for one in self._staging.values())
        total = max(one[1] for one in self._staging.values()) * len(self.nodes)
        return f"staging: {ready} of {len(self.nodes)} nodes have the data, {done / 1e9:.1f} of {total / 1e9:.1f} GB"

    def _state(self, said: Said, _now: float) -> None:
        rank = int(said.values["rank"])
        self._stopped.pop(rank, None)
        if said.values["stopped"]:
            self._stopped[rank] = str(said.values["stopped"])
        if said.values["place"]:
            self._places[rank] = str(said.values["place"])
        self._errors.pop(rank, None)
        if said.values.get("error"):
            self._errors[rank] = str(said.values["error"])

    def _ended(self, said: Said, now: float) -> None:
        values = said.values
        rank, status = int(values["rank"]), int(values["status"])
        # The pause before the end of a rank may be a hang, and says nothing about what is normal.
        normal = self.limits
        if self._tell(rank, values, now):
            self._live(now)
        self.limits = normal
        memory = bool(values.get("memory"))
        self._ends[rank] = RankEnd(rank, said.node, status, float(values["at"]), str(values["tail"]), memory)
        if status and self._failed_at is None:
            self._failed_at = now
        if self._moved is not None:
            self._moved = now

    def _live(self, now: float) -> None:
        """Process a sign of life: a report, whatever it contains."""
        if self._moved is None or now - self._moved > self._request.hang_timeout:
            self._reports_since = now
        self._moved = now

    @property
    def _reports_regularly(self) -> bool:
        """Whether its reports have come within the limit of each other for a while, so that their absence means something."""
        return self._moved is not None and self._moved - self._reports_since >= _REGULAR

    def _tell(self, rank: int, told: Mapping[str, Any], now: float) -> bool:
        """Process what a rank has reported. Returns whether it says anything about its progress."""
        progress = Progress(**{name: told.get(name) for name in Progress._fields})
        if self.first is not None and self._moved is not None and not self._busy():
            self.limits = self.limits.with_gap(now - self._moved)
        if progress == Progress():
            return False
        if progress.step is not None and progress.step != self._progress.get(rank, Progress()).step:
            if self.first is None:
                self.limits = self.limits.with_start(now - self._ranks_began)
                self._first_at = now
            made = progress.step if progress.first is None else progress.first
            self.first = made if self.first is None else min(self.first, made)
            self._last_at = now
        self._progress[rank] = progress
        return True

    def _busy(self) -> Dict[str, float]:
        """What ranks are busy with instead of steps, with the seconds that it may take."""
        busy = {progress.busy: progress.limit or 0.0 for progress in self._progress.values() if progress.busy}
        return {what: limit for what, limit in busy.items() if what}

    def excuse(self, now: float) -> None:
        """Do not count the time until now, since the shared volume did not answer: ranks may have waited for it as well."""
        self._answered = now

    def resume(self, now: float, seconds: float) -> None:
        """Give all nodes and ranks their time again, since this process was stopped for so many seconds.

        An agent that hears nothing for long ends its ranks. So the silence of a node from now on is not its fault.
        """
        self._resumed, self._stopped_for = now, seconds
        self._absent = set(self.nodes) - self._gone
        self._heard = dict.fromkeys(self._heard, now)
        self._began = self._ranks_began = now
        self._moved = None if self._moved is None else now
        self._failed_at = None if self._failed_at is None else now
        self._looked = None
        self._output.excuse(now)
        self.excuse(now)

    def _given_up(self, now: float) -> bool:
        """Whether an agent has ended its ranks since this process was stopped."""
        left = self._absent - self._gone
        return any(self._overdue(node, now, _SILENCE) for node in left)

    @property
    def stepping(self) -> Optional[float]:
        """The seconds from the first step to the last; None without steps."""
        return None if self.first is None else self._last_at - self._first_at

    @property
    def watched(self) -> str:
        """What shows that the program hangs: its steps, or its output; empty for nothing."""
        if self._moved is not None:
            return "steps"
        return "output" if self._output.regular(self._request.hang_timeout) else ""

    def silent(self, now: float) -> List[str]:
        """Nodes that have been silent for long, and are not finished."""
        silence = _SILENCE if self._failed_at is None else _QUIET
        return [node for node in self.nodes if self._overdue(node, now, silence)]

    def _unheard(self, node: str, now: float) -> float:
        """Seconds without a message from a node that is not finished."""
        return 0.0 if node in self._gone else now - self._heard.get(node, self._began)

    def _overdue(self, node: str, now: float, silence: float) -> bool:
        """Whether a node has been silent for longer than it may be, or than its agent may take to start."""
        return self._unheard(node, now) > (silence if node in self._heard else _START)

    def answers(self, node: str, now: float) -> None:
        """Record that a silent node has answered a query; its agent may still be gone."""
        if self._unheard(node, now) > max(_AGENT_GONE, _START if node not in self._heard else 0.0):
            self.lost[node] = "responds, but its ranks do not report"
            self.alive.add(node)

    def hangs(self, now: float) -> bool:
        """Whether no rank has shown a sign of life, or ended, within the allowed time; before the first step, it may start.

        A program that reports nothing, or seldom, is judged by its output, if it has printed regularly.
        """
        if self._failed_at is not None or len(self._ends) == self.world_size:
            return False
        limit = self._request.hang_timeout
        if self._moved is None:
            return self._output.stopped(limit, now, self._answered)
        since = max(self._moved, self._answered)
        if now - since <= self._allowed:
            return False
        return self._reports_regularly or not self._output.regular(limit) or self._output.stopped(limit, now, since)

    @property
    def _allowed(self) -> float:
        limit = self._request.hang_timeout
        if self._moved is None:
            return limit
        usual = self.limits.of_gap(limit) if self.first is not None else self.limits.of_start(limit + STARTING)
        return max([usual, *self._busy().values()])

    def asks(self, now: float) -> bool:
        """Whether the agents should now report what their ranks do: once, when the program hangs, and once when ranks
        have failed that only name their peers.
        """
        if self._searched is None and self._peers_only(now):
            self._searched = now
            return True
        if not self.hangs(now):
            self._looked = None
            return False
        if self._looked is not None:
            return False
        self._looked = now
        return True

    def over(self, now: float) -> bool:
        """Whether all reachable agents have reported that nothing of the attempt is left on their nodes."""
        return all(node in self._gone or node in self.lost or self._unheard(node, now) > _QUIET for node in self.nodes)

    def verdict(self, now: float) -> Optional[Cause]:
        """Why the attempt has ended or has to end; None while it continues."""
        if self._start_failure:
            return self._start_failure
        killed = [node for node in self._used_up if self._unheard(node, now) > _QUIET]
        if killed:
            # With its ranks, the kernel has killed the agent.
            return _memory(killed)
        if self.lost:
            node = min(self.lost)
            return Cause("node", f"{node} {self.lost[node]}", None, node)
        all_ended = len(self._ends) == self.world_size
        if self._failed_at is not None and (all_ended or self._settled(now - self._failed_at, now)):
            return self._failure(now, now - self._failed_at)
        if all_ended and self._failed_at is None:
            return Cause("finished") if self._warned is None or self._through() else self._warned
        if self._given_up(now):
            failure = None if self._failed_at is None else self._failure(now, now - self._failed_at)
            return failure or Cause("supervisor", f"the supervisor was stopped for {self._stopped_for:.0f} s")
        if self._looked is not None and now - self._looked > _LOOK and self.hangs(now):
            return causes.hang(self._seen(), self._allowed)
        return None

    def without_step(self) -> Cause:
        """Why the attempt has ended if srun has, but not all ranks."""
        if self._used_up:
            # Without control groups, Slurm ends the whole step.
            return _memory(self._used_up)
        if self._heard:
            return Cause("crash", "srun ended before the ranks: see supervisor.log")
        return Cause("start", "srun exited before any rank reported: see supervisor.log")

    def _seen(self) -> causes.Seen:
        steps = {rank: progress.step for rank, progress in self._progress.items()}
        errors = {rank: error for rank, error in self._errors.items() if rank not in self._ends}
        return causes.Seen(self._rank_nodes, steps, self._stopped, self._places, sorted(self._ends), errors)

    def _peers_only(self, now: float) -> bool:
        """Whether all ranks that have failed only name their peers, and one of those that live may be to blame."""
        waits = self._failed_at is not None and self._settled(now - self._failed_at, now)
        return waits and len(self._ends) < self.world_size and causes.only_follow(list(self._ends.values()))

    def _crash(self, now: float) -> Optional[Cause]:
        """Which rank is to blame for the failure; None while it is not known."""
        ends = list(self._ends.values())
        if not self._peers_only(now):
            return causes.crash(ends)
        if self._searched is None or now - self._searched <= _LOOK:
            return None
        return causes.left_behind(ends, self._seen()) or causes.crash(ends)

    def _failure(self, now: float, passed: float) -> Optional[Cause]:
        """How an attempt ends in which ranks have failed, so many seconds ago; None while it is not known."""
        if self._aborts_at_exit():
            if len(self._ends) == self.world_size:
                return Cause("finished", self._warning())
            if passed <= self._allowed:
                # The others may still save their results.
                return None
        # A program that was told to end may report that with its status.
        return self._warned or self._crash(now)

    def _aborts_at_exit(self) -> bool:
        """Whether ranks have only failed while they exited: all ranks have reported their last step before.

        Destructors of C++, such as those of gloo and NCCL, abort processes that are through.
        """
        through = sum(1 for told in self._progress.values() if _through(told))
        return through == self.world_size and causes.only_abort(list(self._ends.values()))

    def _warning(self) -> str:
        failure = causes.crash(list(self._ends.values()))
        return f"warning: after the last step, {failure.detail}" if failure else ""

    def _settled(self, passed: float, now: float) -> bool:
        """Whether the rank to blame for the first failure has had time to report it, or is silent for good.

        When a node fails, ranks on other nodes fail before that is known. So silent nodes are queried first.
        """
        quiet = any(self._unheard(node, now) > _QUIET for node in self.nodes)
        return passed > (_AGENT_GONE if quiet else _SETTLE)

    def _through(self) -> bool:
        """Whether the program has reported its last step.

        After a warning, an exit status of 0 may only mean that a checkpoint has been saved. A program that is through,
        and did not report it, exits at once in the next job.
        """
        return _through(self.progress())

    def progress(self) -> Progress:
        """The progress of the attempt: the last step reported by all ranks, and the loss of the first rank that has one.

        In a pipeline, that is the last rank.
        """
        ranks = [progress for _rank, progress in sorted(self._progress.items())]
        told: Set[int] = {progress.step for progress in ranks if progress.step is not None}
        checkpoints = [progress.checkpoint for progress in ranks if progress.checkpoint is not None]
        losses = (progress.loss for progress in ranks if progress.loss is not None and math.isfinite(progress.loss))
        return Progress(
            min(told) if told else None,
            next((progress.steps for progress in ranks if progress.steps is not None), None),
            next(losses, None),
            max(checkpoints) if checkpoints else None,
            busy=", ".join(sorted(self._busy())) or None,
            nan=any(progress.nan for progress in ranks) or None,
        )


def _through(progress: Progress) -> bool:
    return progress.step is not None and progress.steps is not None and progress.step >= progress.steps


def _memory(nodes: Collection[str]) -> Cause:
    """The cause if the memory of the job was used up on these nodes."""
    return Cause("crash", f"{min(nodes)}: {causes.USED_UP}", None, min(nodes))
