# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate the messages of an attempt's agents. Nothing here waits or runs anything."""

from __future__ import annotations

import math
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import attribution as causes
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.liveness import (
    START_ALLOWANCE,
    UNKNOWN_LIMITS,
    OutputActivity,
    PauseLimits,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    Cause,
    Progress,
    RankEnd,
    RunRequest,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.protocol import AgentMessage
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.stragglers import StragglerDetector

#: Seconds of silence after which a node is queried, normally and after a failure, and seconds to start an agent.
_SILENCE_LIMIT = 6.0
_SHORT_SILENCE = 3.0
_AGENT_START_TIMEOUT = 60.0
#: Seconds without a keepalive after which an agent is considered lost, although its node responds.
_AGENT_GONE_AFTER = 20.0
#: Seconds in which a query of a silent node has a result, on a busy machine as well.
_QUERY_TIMEOUT = 10.0
#: Seconds after the first failure in which others are waited for, since the rank to blame may report later.
_SETTLING_TIME = 3.0
#: Seconds for the ranks to report why they hang, or why their peers have given up waiting for them.
_REPORT_TIMEOUT = 5.0
#: Seconds of reports after which their absence means something, although the program prints.
_REGULAR_SPAN = 10.0
#: The message that Slurm has killed processes of a node since the memory of the job was used up.
OOM_EVENT = "memory"


class AttemptMonitor:
    """One attempt. Times are in seconds of a monotonic clock.

    ``reports_steps``: the program has reported steps before, so a hang is also noticed before its first one.
    ``limits``: the pauses that were normal in earlier attempts.
    """

    def __init__(
        self,
        request: RunRequest,
        nodes: Sequence[str],
        now: float,
        reports_steps: bool = False,
        limits: PauseLimits = UNKNOWN_LIMITS,
    ) -> None:
        self._request = request
        self.limits = limits
        self._rank_output = OutputActivity()
        self.nodes = nodes
        self._started_at = now
        self._ranks_started_at = now
        self._heard_at: Dict[str, float] = {}
        self._rank_ends: Dict[int, RankEnd] = {}
        self._progress_by_rank: Dict[int, Progress] = {}
        self._node_by_rank: Dict[int, str] = {}
        self._stop_reasons: Dict[int, str] = {}
        self._locations: Dict[int, str] = {}
        self._errors: Dict[int, str] = {}
        #: Nodes on which a job's memory was used up, according to Slurm.
        self._oom_nodes: Set[str] = set()
        self._failed_at: Optional[float] = None
        self._progressed_at: Optional[float] = now if reports_steps else None
        #: The time since which reports have come within the limit of each other.
        self._reports_since = now
        #: The time when the shared volume answered again after an outage.
        self._volume_answered_at = now
        self._reports_requested_at: Optional[float] = None
        self._search_started_at: Optional[float] = None
        self._start_failure: Optional[Cause] = None
        self._finished_nodes: Set[str] = set()
        self._warning_cause: Optional[Cause] = None
        #: The time when this process resumed, how long it was stopped, and the nodes not heard from since.
        self._resumed_at = now
        self._seconds_stopped = 0.0
        self._unheard_nodes: Set[str] = set()
        self._staging_by_node: Dict[str, Tuple[int, int, bool]] = {}
        #: Nodes on which no rank runs any more, and why; those that respond can be used again.
        self.lost_nodes: Dict[str, str] = {}
        self.responding_nodes: Set[str] = set()
        #: The first step that was made, and when the first and the last one were reported.
        self.first_step: Optional[int] = None
        self._first_step_at = 0.0
        self._last_step_at = 0.0
        self.straggler_detector = StragglerDetector(self.world_size)

    @property
    def world_size(self) -> int:
        """The number of ranks of the attempt."""
        return len(self.nodes) * self._request.ranks_per_node

    @property
    def all_agents_heard(self) -> bool:
        """Whether the agents of all nodes have sent a message, and so have received their task."""
        return all(node in self._heard_at for node in self.nodes)

    def record_warning(self, cause: Cause) -> None:
        """Record that the ranks were asked to save a checkpoint and end, for this cause."""
        self._warning_cause = cause

    def process_message(self, message: AgentMessage, now: float) -> None:
        """Process a message."""
        if message.node not in self.nodes:
            return
        if message.event == OOM_EVENT:
            # The message is from srun, not from the node.
            self._oom_nodes.add(message.node)
            return
        self._heard_at[message.node] = now
        if now - self._resumed_at > _SHORT_SILENCE:
            # An earlier message may have been sent before the agent gave up its supervisor.
            self._unheard_nodes.discard(message.node)
        handlers = {
            "beat": self._process_heartbeat,
            "ended": self._process_rank_end,
            "started": self._process_start,
            "state": self._process_rank_state,
            "staging": self._process_staging,
        }
        if message.event in handlers:
            handlers[message.event](message, now)
        elif message.event == "load":
            self.straggler_detector.add_load(message.node, message.payload)
        elif message.event == "failed":
            reason = str(message.payload.get("reason"))
            if message.payload.get("of_node"):
                self.lost_nodes[message.node] = reason
            else:
                self._start_failure = Cause("start", f"on {message.node}: {reason}", None, message.node)
        elif message.event == "gone":
            self._finished_nodes.add(message.node)

    def _process_heartbeat(self, message: AgentMessage, now: float) -> None:
        if self._reports_requested_at is None:
            # Hanging ranks print their stacks after a request for reports, which is not output of the program.
            self._rank_output.record_output(message.node, int(message.payload.get("printed") or 0), now)
        for rank, report in message.payload["ranks"].items():
            previous_step = self._progress_by_rank.get(int(rank), Progress()).step
            self._record_progress(int(rank), report, now)
            self._record_life(now)
            progress = self._progress_by_rank.get(int(rank), Progress())
            if progress.step != previous_step:
                self.straggler_detector.add_report(int(rank), message.node, progress, now)

    def _process_start(self, message: AgentMessage, _now: float) -> None:
        self._node_by_rank.update({int(rank): message.node for rank in message.payload["ranks"]})

    def _process_staging(self, message: AgentMessage, now: float) -> None:
        values = message.payload
        self._staging_by_node[message.node] = (int(values["done"]), int(values["total"]), bool(values["ready"]))
        # Ranks that have not started cannot hang.
        self._ranks_started_at = now
        if self._progressed_at is not None:
            self._progressed_at = now

    def is_staged(self) -> bool:
        """Whether all nodes have their copy of the data, so that the ranks can start."""
        return len(self._staging_by_node) == len(self.nodes) and all(
            ready for _copied, _size, ready in self._staging_by_node.values()
        )

    def format_staging(self) -> str:
        """The progress of the copies of the data; empty if none are needed."""
        if not self._staging_by_node or self.is_staged():
            return ""
        ready_count = sum(1 for node_staging in self._staging_by_node.values() if node_staging[2])
        copied_bytes = sum(node_staging[0] for node_staging in self._staging_by_node.values())
        total_bytes = max(node_staging[1] for node_staging in self._staging_by_node.values()) * len(self.nodes)
        return f"staging: {ready_count} of {len(self.nodes)} nodes have the data, {copied_bytes / 1e9:.1f} of {total_bytes / 1e9:.1f} GB"

    def _process_rank_state(self, message: AgentMessage, _now: float) -> None:
        rank = int(message.payload["rank"])
        self._stop_reasons.pop(rank, None)
        if message.payload["stopped"]:
            self._stop_reasons[rank] = str(message.payload["stopped"])
        if message.payload["place"]:
            self._locations[rank] = str(message.payload["place"])
        self._errors.pop(rank, None)
        if message.payload.get("error"):
            self._errors[rank] = str(message.payload["error"])

    def _process_rank_end(self, message: AgentMessage, now: float) -> None:
        values = message.payload
        rank, exit_status = int(values["rank"]), int(values["status"])
        # The pause before the end of a rank may be a hang, and does not count as normal.
        normal_limits = self.limits
        if self._record_progress(rank, values, now):
            self._record_life(now)
        self.limits = normal_limits
        out_of_memory = bool(values.get("memory"))
        self._rank_ends[rank] = RankEnd(
            rank, message.node, exit_status, float(values["at"]), str(values["tail"]), out_of_memory
        )
        if exit_status and self._failed_at is None:
            self._failed_at = now
        if self._progressed_at is not None:
            self._progressed_at = now

    def _record_life(self, now: float) -> None:
        """Process a sign of life: a report, whatever it contains."""
        if self._progressed_at is None or now - self._progressed_at > self._request.hang_timeout:
            self._reports_since = now
        self._progressed_at = now

    @property
    def _reports_regularly(self) -> bool:
        """Whether reports have come within the limit of each other for a while, so that their absence is significant."""
        return self._progressed_at is not None and self._progressed_at - self._reports_since >= _REGULAR_SPAN

    def _record_progress(self, rank: int, report: Mapping[str, Any], now: float) -> bool:
        """Process a report of a rank. Return whether it contains progress."""
        progress = Progress(**{name: report.get(name) for name in Progress._fields})
        if self.first_step is not None and self._progressed_at is not None and not self._busy_limits():
            self.limits = self.limits.with_gap(now - self._progressed_at)
        if progress == Progress():
            return False
        if progress.step is not None and progress.step != self._progress_by_rank.get(rank, Progress()).step:
            if self.first_step is None:
                self.limits = self.limits.with_start(now - self._ranks_started_at)
                self._first_step_at = now
            first_made = progress.step if progress.first is None else progress.first
            self.first_step = first_made if self.first_step is None else min(self.first_step, first_made)
            self._last_step_at = now
        self._progress_by_rank[rank] = progress
        return True

    def _busy_limits(self) -> Dict[str, float]:
        """Return the activities of ranks instead of steps, with the seconds that each may take."""
        limit_by_activity = {
            progress.busy: progress.limit or 0.0 for progress in self._progress_by_rank.values() if progress.busy
        }
        return {activity: limit for activity, limit in limit_by_activity.items() if activity}

    def excuse(self, now: float) -> None:
        """Excuse the time until now, since the shared volume did not answer: ranks may have waited for it as well."""
        self._volume_answered_at = now

    def resume(self, now: float, seconds: float) -> None:
        """Restart all timeouts, since this process was stopped for so many seconds.

        An agent without its supervisor ends its ranks. So a node that is silent from now on is not to blame.
        """
        self._resumed_at, self._seconds_stopped = now, seconds
        self._unheard_nodes = set(self.nodes) - self._finished_nodes
        self._heard_at = dict.fromkeys(self._heard_at, now)
        self._started_at = self._ranks_started_at = now
        self._progressed_at = None if self._progressed_at is None else now
        self._failed_at = None if self._failed_at is None else now
        self._reports_requested_at = None
        self._rank_output.forgive_gap(now)
        self.excuse(now)

    def _agents_gave_up(self, now: float) -> bool:
        """Whether an agent has ended its ranks because this process was stopped."""
        remaining_nodes = self._unheard_nodes - self._finished_nodes
        return any(self._is_overdue(node, now, _SILENCE_LIMIT) for node in remaining_nodes)

    @property
    def seconds_stepping(self) -> Optional[float]:
        """The seconds from the first step to the last; None without steps."""
        return None if self.first_step is None else self._last_step_at - self._first_step_at

    @property
    def hang_evidence(self) -> str:
        """The evidence by which a hang is noticed: steps or output; empty for none."""
        if self._progressed_at is not None:
            return "steps"
        return "output" if self._rank_output.is_regular(self._request.hang_timeout) else ""

    def silent_nodes(self, now: float) -> List[str]:
        """Nodes that have been silent for long, and are not finished."""
        silence_limit = _SILENCE_LIMIT if self._failed_at is None else _SHORT_SILENCE
        return [node for node in self.nodes if self._is_overdue(node, now, silence_limit)]

    def _seconds_silent(self, node: str, now: float) -> float:
        """Return the seconds without a message from a node that is not finished."""
        return 0.0 if node in self._finished_nodes else now - self._heard_at.get(node, self._started_at)

    def _is_overdue(self, node: str, now: float, silence_limit: float) -> bool:
        """Whether a node has been silent for longer than it may be, or than its agent may take to start."""
        return self._seconds_silent(node, now) > (silence_limit if node in self._heard_at else _AGENT_START_TIMEOUT)

    def record_response(self, node: str, now: float) -> None:
        """Record that a silent node has answered a query; its agent may still be lost."""
        if self._seconds_silent(node, now) > max(
            _AGENT_GONE_AFTER, _AGENT_START_TIMEOUT if node not in self._heard_at else 0.0
        ):
            self.lost_nodes[node] = "responds, but its ranks do not report"
            self.responding_nodes.add(node)

    def is_hanging(self, now: float) -> bool:
        """Whether no rank has shown a sign of life, or ended, within the allowed time, which includes that to start.

        A program that reports nothing, or seldom, is judged by its output, if it has printed regularly.
        """
        if self._failed_at is not None or len(self._rank_ends) == self.world_size:
            return False
        hang_timeout = self._request.hang_timeout
        if self._progressed_at is None:
            return self._rank_output.has_stopped(hang_timeout, now, self._volume_answered_at)
        progressed_at = max(self._progressed_at, self._volume_answered_at)
        if now - progressed_at <= self._allowed_pause:
            return False
        return (
            self._reports_regularly
            or not self._rank_output.is_regular(hang_timeout)
            or self._rank_output.has_stopped(hang_timeout, now, progressed_at)
        )

    @property
    def _allowed_pause(self) -> float:
        hang_timeout = self._request.hang_timeout
        if self._progressed_at is None:
            return hang_timeout
        usual_pause = (
            self.limits.gap_limit(hang_timeout)
            if self.first_step is not None
            else self.limits.start_limit(hang_timeout + START_ALLOWANCE)
        )
        return max([usual_pause, *self._busy_limits().values()])

    def needs_reports(self, now: float) -> bool:
        """Whether the agents should report the state of their ranks now: once when the program hangs, and once when all
        failed ranks only name their peers.
        """
        if self._search_started_at is None and self._names_only_peers(now):
            self._search_started_at = now
            return True
        if not self.is_hanging(now):
            self._reports_requested_at = None
            return False
        if self._reports_requested_at is not None:
            return False
        self._reports_requested_at = now
        return True

    def is_over(self, now: float) -> bool:
        """Whether all reachable agents have reported that no process of the attempt remains on their nodes."""
        return all(
            node in self._finished_nodes or node in self.lost_nodes or self._seconds_silent(node, now) > _SHORT_SILENCE
            for node in self.nodes
        )

    def verdict(self, now: float) -> Optional[Cause]:
        """Return why the attempt has ended or has to end; None while it continues."""
        if self._start_failure:
            return self._start_failure
        oom_nodes = [node for node in self._oom_nodes if self._seconds_silent(node, now) > _SHORT_SILENCE]
        if oom_nodes:
            # The kernel has killed the agent together with its ranks.
            return _oom_cause(oom_nodes)
        if self.lost_nodes:
            node = min(self.lost_nodes)
            return Cause("node", f"{node} {self.lost_nodes[node]}", None, node)
        all_ended = len(self._rank_ends) == self.world_size
        if self._failed_at is not None and (all_ended or self._has_settled(now - self._failed_at, now)):
            return self._find_failure(now, now - self._failed_at)
        if all_ended and self._failed_at is None:
            return Cause("finished") if self._warning_cause is None or self._is_complete() else self._warning_cause
        if self._agents_gave_up(now):
            failure = None if self._failed_at is None else self._find_failure(now, now - self._failed_at)
            return failure or Cause("supervisor", f"the supervisor was stopped for {self._seconds_stopped:.0f} s")
        if (
            self._reports_requested_at is not None
            and now - self._reports_requested_at > _REPORT_TIMEOUT
            and self.is_hanging(now)
        ):
            return causes.attribute_hang(self._observations(), self._allowed_pause)
        return None

    def cause_without_step(self) -> Cause:
        """Return why the attempt has ended if srun has, but not all ranks."""
        if self._oom_nodes:
            # Slurm without control groups ends the whole step.
            return _oom_cause(self._oom_nodes)
        if self._heard_at:
            return Cause("crash", "srun ended before the ranks: see supervisor.log")
        return Cause("start", "srun exited before any rank reported: see supervisor.log")

    def _observations(self) -> causes.StallSnapshot:
        steps = {rank: progress.step for rank, progress in self._progress_by_rank.items()}
        errors = {rank: error for rank, error in self._errors.items() if rank not in self._rank_ends}
        return causes.StallSnapshot(
            self._node_by_rank, steps, self._stop_reasons, self._locations, sorted(self._rank_ends), errors
        )

    def _names_only_peers(self, now: float) -> bool:
        """Whether all failed ranks only name their peers, so that a live one may be to blame."""
        is_waiting = self._failed_at is not None and self._has_settled(now - self._failed_at, now)
        return (
            is_waiting
            and len(self._rank_ends) < self.world_size
            and causes.all_consequences(list(self._rank_ends.values()))
        )

    def _find_crash(self, now: float) -> Optional[Cause]:
        """Return the cause with the rank to blame for the failure; None while it is unknown."""
        rank_ends = list(self._rank_ends.values())
        if not self._names_only_peers(now):
            return causes.attribute_crash(rank_ends)
        if self._search_started_at is None or now - self._search_started_at <= _REPORT_TIMEOUT:
            return None
        return causes.blame_survivor(rank_ends, self._observations()) or causes.attribute_crash(rank_ends)

    def _find_failure(self, now: float, seconds_passed: float) -> Optional[Cause]:
        """Return the cause of an attempt whose ranks failed so many seconds ago; None while it is unknown."""
        if self._aborts_at_exit():
            if len(self._rank_ends) == self.world_size:
                return Cause("finished", self._exit_warning())
            if seconds_passed <= self._allowed_pause:
                # The others may still save their results.
                return None
        # A program that was asked to end may report that with its status.
        return self._warning_cause or self._find_crash(now)

    def _aborts_at_exit(self) -> bool:
        """Whether ranks have only failed while they exited: all ranks have reported their last step before.

        Destructors of C++, such as those of gloo and NCCL, abort processes that are complete.
        """
        complete_count = sum(1 for progress in self._progress_by_rank.values() if _reached_last_step(progress))
        return complete_count == self.world_size and causes.only_aborts(list(self._rank_ends.values()))

    def _exit_warning(self) -> str:
        failure = causes.attribute_crash(list(self._rank_ends.values()))
        return f"warning: after the last step, {failure.detail}" if failure else ""

    def _has_settled(self, seconds_passed: float, now: float) -> bool:
        """Whether the rank to blame for the first failure has had time to report it, or is silent for good.

        When a node fails, ranks on other nodes fail before that is known. So silent nodes are queried first, and a node
        whose agent is lost is blamed before the ranks that have noticed it.
        """
        any_silent = any(self._seconds_silent(node, now) > _SHORT_SILENCE for node in self.nodes)
        return seconds_passed > (_AGENT_GONE_AFTER + _QUERY_TIMEOUT if any_silent else _SETTLING_TIME)

    def _is_complete(self) -> bool:
        """Whether the program has reported its last step.

        After a warning, an exit status of 0 may only mean that a checkpoint has been saved. A program that is complete,
        and did not report it, exits at once in the next job.
        """
        return _reached_last_step(self.progress())

    def progress(self) -> Progress:
        """Return the progress of the attempt: the last step of all ranks, and the loss of the first rank with one.

        In a pipeline, that is the last rank.
        """
        rank_progress = [progress for _rank, progress in sorted(self._progress_by_rank.items())]
        reported_steps: Set[int] = {progress.step for progress in rank_progress if progress.step is not None}
        checkpoints = [progress.checkpoint for progress in rank_progress if progress.checkpoint is not None]
        losses = (
            progress.loss for progress in rank_progress if progress.loss is not None and math.isfinite(progress.loss)
        )
        return Progress(
            min(reported_steps) if reported_steps else None,
            next((progress.steps for progress in rank_progress if progress.steps is not None), None),
            next(losses, None),
            max(checkpoints) if checkpoints else None,
            busy=", ".join(sorted(self._busy_limits())) or None,
            nan=any(progress.nan for progress in rank_progress) or None,
        )


def _reached_last_step(progress: Progress) -> bool:
    return progress.step is not None and progress.steps is not None and progress.step >= progress.steps


def _oom_cause(nodes: Collection[str]) -> Cause:
    """The cause if the memory of the job was used up on these nodes."""
    return Cause("crash", f"{min(nodes)}: {causes.OUT_OF_MEMORY}", None, min(nodes))
