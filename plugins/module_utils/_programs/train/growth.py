# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide when an attempt with too few nodes ends, so that the next one has the requested number again.

The restart costs time, so an attempt ends right after a checkpoint. Nodes that are still in the job are queried. Any
other node, such as one that has rebooted and that Slurm has taken out of the job, can be used by another job only. Slurm
itself is asked which nodes suit. Nothing here waits or runs anything.
"""

from __future__ import annotations

from typing import Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import decide, scheduler
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Attempt, Cause, RunRequest

#: Seconds until the first query of a node, which double each time that it does not answer, and their maximum.
_FIRST_QUERY_DELAY = 15.0
_MAX_QUERY_DELAY = 600.0
#: The state of a node on which no job runs.
_IDLE_STATE = "idle"


class Growth(NamedTuple):
    """Nodes that can be used in addition.

    ``needs_new_job``: only another job can use them, since they are not in this one. ``former``: the run has had all of
    them before.
    """

    nodes: Tuple[str, ...]
    needs_new_job: bool
    former: bool = True

    @property
    def cause(self) -> Cause:
        """The cause by which the attempt ends, which blames nobody."""
        verb = "is" if len(self.nodes) == 1 else "are"
        job_clause = ", and another job can have all nodes" if self.needs_new_job else ""
        state = "back" if self.former else "idle"
        return Cause("grown", f"{', '.join(self.nodes)} {verb} {state}{job_clause}")


class OfferRequest(NamedTuple):
    """The question which nodes Slurm would give the run: how many, and without which ones."""

    node_count: int
    excluded_nodes: List[str]


def find_growth(
    request: RunRequest,
    attempts: Sequence[Attempt],
    allocated_nodes: Sequence[str],
    node_states: Mapping[str, str],
    responding_nodes: Collection[str],
    offered_nodes: Collection[str] = (),
) -> Optional[Growth]:
    """Return the nodes that the next attempt could use in addition to those of the last one; None if there are none.

    ``allocated_nodes``: the nodes of the job when it started; ``node_states``: their states in Slurm;
    ``responding_nodes``: unused nodes of the job that respond and are healthy; ``offered_nodes``: other nodes that Slurm
    would give the run. Nodes that were excluded for their own fault remain excluded. Another job needs all missing
    nodes: it might otherwise wait in the queue for the others.
    """
    missing_count = request.nodes - len(attempts[-1].nodes)
    if missing_count <= 0:
        return None
    usable_nodes = [
        node
        for node in _spare_nodes(attempts, allocated_nodes)
        if node in responding_nodes and _can_run(node_states.get(node, ""))
    ]
    if usable_nodes:
        return Growth(tuple(usable_nodes[:missing_count]), False)
    former_nodes = {node for attempt in attempts for node in (*attempt.nodes, *attempt.allocated)}
    idle_nodes = sorted(set(offered_nodes).intersection(_idle_nodes(attempts, node_states)))[:missing_count]
    if len(idle_nodes) < missing_count or any(_is_lost(node_states.get(node, "")) for node in allocated_nodes):
        return None
    return Growth(tuple(idle_nodes), True, former_nodes.issuperset(idle_nodes))


def _idle_nodes(attempts: Sequence[Attempt], node_states: Mapping[str, str]) -> List[str]:
    """Return the nodes on which no job runs, and that the run may use."""
    unavailable_nodes = {*attempts[-1].nodes, *decide.barred_nodes(attempts)}
    return [node for node, state in node_states.items() if state == _IDLE_STATE and node not in unavailable_nodes]


def _spare_nodes(attempts: Sequence[Attempt], allocated_nodes: Sequence[str]) -> List[str]:
    """Return the nodes of the job that the last attempt does not use, and a later one may."""
    barred_nodes = decide.barred_nodes(attempts)
    return [node for node in allocated_nodes if node not in attempts[-1].nodes and node not in barred_nodes]


def _is_lost(node_state: str) -> bool:
    """Whether Slurm has not taken a node that does not respond out of its job yet, which delays the end of the job."""
    return node_state.endswith("*") and not node_state.startswith("down")


def _can_run(node_state: str) -> bool:
    """Whether a node in this state may be in the job and run steps. An idle node is in no job."""
    return bool(node_state) and node_state != _IDLE_STATE and scheduler.is_usable(node_state)


class GrowthTracker:
    """Track the nodes that were away during an attempt. Times are in seconds of a monotonic clock."""

    def __init__(
        self, request: RunRequest, attempts: Sequence[Attempt], allocated_nodes: Sequence[str], now: float
    ) -> None:
        self._request = request
        self._attempts = attempts
        self._allocated_nodes = allocated_nodes
        #: The time of the next query of each node, and the seconds until the query after that.
        self._next_queries: Dict[str, Tuple[float, float]] = dict.fromkeys(
            _spare_nodes(attempts, allocated_nodes), (now + _FIRST_QUERY_DELAY, _FIRST_QUERY_DELAY)
        )
        self._responding_nodes: Set[str] = set()
        #: The nodes that Slurm offers for another job, those that were idle then, and the time of the next question.
        self._offered_nodes: Tuple[str, ...] = ()
        self._idle_nodes: List[str] = []
        self._next_offer, self._offer_delay = now, _FIRST_QUERY_DELAY
        #: The last growth, and the last checkpoint when it was first possible.
        self._last_growth: Optional[Growth] = None
        self._last_checkpoint: Optional[int] = None

    def nodes_to_query(self, now: float, node_states: Mapping[str, str]) -> List[str]:
        """Return the nodes to query now whether they respond and are healthy."""
        if len(self._attempts[-1].nodes) >= self._request.nodes:
            return []
        due_nodes = []
        for node, (query_time, query_delay) in self._next_queries.items():
            if _can_run(node_states.get(node, "")) and query_time <= now and node not in self._responding_nodes:
                self._next_queries[node] = (now + query_delay, min(2 * query_delay, _MAX_QUERY_DELAY))
                due_nodes.append(node)
        return due_nodes

    def request_offer(self, now: float, node_states: Mapping[str, str]) -> Optional[OfferRequest]:
        """Return what Slurm should be asked now; None if there are too few idle nodes, or it was asked recently."""
        missing_count = self._request.nodes - len(self._attempts[-1].nodes)
        idle_nodes = _idle_nodes(self._attempts, node_states)
        if missing_count <= 0 or len(idle_nodes) < missing_count:
            return None
        if idle_nodes != self._idle_nodes:
            self._idle_nodes, self._offered_nodes = idle_nodes, ()
            self._next_offer, self._offer_delay = now, _FIRST_QUERY_DELAY
        if now < self._next_offer:
            return None
        self._next_offer, self._offer_delay = now + self._offer_delay, min(2 * self._offer_delay, _MAX_QUERY_DELAY)
        return OfferRequest(missing_count, sorted(set(node_states).difference(idle_nodes)))

    def record_offer(self, nodes: Sequence[str]) -> None:
        """Record which nodes Slurm would give the run."""
        self._offered_nodes = tuple(nodes)

    def record_answer(self, node: str, is_healthy: bool) -> None:
        """Record the answer of a node."""
        if is_healthy:
            self._responding_nodes.add(node)

    def away_nodes(self, node_states: Mapping[str, str], unusable_nodes: Collection[str]) -> Tuple[str, ...]:
        """Return the nodes of the job that the attempt does not use and could not use.

        ``unusable_nodes``: those that could not be used before the attempt.
        """
        away = [
            node
            for node in self._allocated_nodes
            if node not in self._attempts[-1].nodes
            and node not in self._responding_nodes
            and (node in unusable_nodes or (node in node_states and not _can_run(node_states[node])))
        ]
        return tuple(away)

    def find_growth(self, node_states: Mapping[str, str]) -> Optional[Growth]:
        """Return the nodes that could be used now."""
        return find_growth(
            self._request,
            self._attempts,
            self._allocated_nodes,
            node_states,
            self._responding_nodes,
            self._offered_nodes,
        )

    def should_end_attempt(
        self, growth: Optional[Growth], first_step: Optional[int], last_checkpoint: Optional[int]
    ) -> bool:
        """Whether the attempt should end for these nodes, since it has saved a checkpoint after they came back.

        ``first_step``: its first step; ``last_checkpoint``: the step of its last checkpoint.
        """
        if growth != self._last_growth:
            self._last_growth, self._last_checkpoint = growth, last_checkpoint
        if (
            growth is None
            or first_step is None
            or last_checkpoint is None
            or last_checkpoint < first_step
            or last_checkpoint == self._last_checkpoint
        ):
            return False
        # An attempt that does not end now will end after the next checkpoint.
        self._last_checkpoint = last_checkpoint
        return True
