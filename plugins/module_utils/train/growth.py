# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide when an attempt with too few nodes ends, so that the next one uses nodes again that were away.

That costs a start, so it is done right after a checkpoint. Nodes that are still in the job are asked whether they answer.
A node that Slurm has taken out of the job, such as one that has rebooted, can be used by another job only. Nothing here
waits or runs anything.
"""

from __future__ import annotations

from typing import Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import decide, scheduler
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt, Cause, Request

#: Seconds between two queries of a node: twice as many each time that it does not answer, up to the second number.
_SOON = 15.0
_SELDOM = 600.0
#: The state of a node on which no job runs.
_IDLE = "idle"


class Growth(NamedTuple):
    """Nodes that can be used again. ``elsewhere``: by another job, since Slurm has taken them out of this one."""

    nodes: Tuple[str, ...]
    elsewhere: bool

    @property
    def cause(self) -> Cause:
        """Why the attempt ends: nobody is to blame."""
        verb = "is" if len(self.nodes) == 1 else "are"
        instead = ", and another job can have all nodes" if self.elsewhere else ""
        return Cause("grown", f"{', '.join(self.nodes)} {verb} back{instead}")


def possible(
    request: Request,
    attempts: Sequence[Attempt],
    allocated: Sequence[str],
    states: Mapping[str, str],
    answering: Collection[str],
) -> Optional[Growth]:
    """The nodes that the next attempt could use in addition to those of the last one; None if there are none.

    ``allocated``: the nodes that the job has had when it began; ``states``: those in Slurm; ``answering``: nodes of the
    job that are not used, answer and are healthy. Nodes that were excluded for a fault of their own stay so. For another
    job, all missing nodes must be there: one that is given up for too few might wait.
    """
    current, out = attempts[-1].nodes, decide.barred(attempts)
    missing = request.nodes - len(current)
    if missing <= 0:
        return None
    able = [node for node in _spare(attempts, allocated) if node in answering and _held(states.get(node, ""))]
    if able:
        return Growth(tuple(able[:missing]), False)
    known = {node for attempt in attempts for node in (*attempt.nodes, *attempt.allocated)}
    idle = sorted(node for node in known.difference(current, out) if states.get(node) == _IDLE)
    return Growth(tuple(idle[:missing]), True) if len(idle) >= missing else None


def _spare(attempts: Sequence[Attempt], allocated: Sequence[str]) -> List[str]:
    """The nodes of the job that the last attempt does not use, and a later one may."""
    out = decide.barred(attempts)
    return [node for node in allocated if node not in attempts[-1].nodes and node not in out]


def _held(state: str) -> bool:
    """Whether a node in this state may be in the job and run something. One that is idle is in none."""
    return bool(state) and state != _IDLE and scheduler.fit(state)


class Growing:
    """What is known during an attempt of nodes that were away. Times are in seconds of a monotonic clock."""

    def __init__(self, request: Request, attempts: Sequence[Attempt], allocated: Sequence[str], now: float) -> None:
        self._request = request
        self._attempts = attempts
        self._allocated = allocated
        #: When each node is asked next, and the seconds until it is asked again.
        self._asked: Dict[str, Tuple[float, float]] = dict.fromkeys(_spare(attempts, allocated), (now + _SOON, _SOON))
        self._answering: Set[str] = set()
        #: What could be used, and the last checkpoint when that was first known.
        self._seen: Optional[Growth] = None
        self._before: Optional[int] = None

    def due(self, now: float, states: Mapping[str, str]) -> List[str]:
        """The nodes to ask now whether they answer and are healthy."""
        if len(self._attempts[-1].nodes) >= self._request.nodes:
            return []
        found = []
        for node, (at, pause) in self._asked.items():
            if _held(states.get(node, "")) and at <= now and node not in self._answering:
                self._asked[node] = (now + pause, min(2 * pause, _SELDOM))
                found.append(node)
        return found

    def tell(self, node: str, healthy: bool) -> None:
        """Record the answer of a node."""
        if healthy:
            self._answering.add(node)

    def possible(self, states: Mapping[str, str]) -> Optional[Growth]:
        """What could be used now."""
        return possible(self._request, self._attempts, self._allocated, states, self._answering)

    def ripe(self, growth: Optional[Growth], first: Optional[int], checkpoint: Optional[int]) -> bool:
        """Whether the attempt should end for these nodes: since they are known, it has saved a checkpoint.

        ``first``: its first step; ``checkpoint``: the step of its last checkpoint.
        """
        if growth != self._seen:
            self._seen, self._before = growth, checkpoint
        if growth is None or first is None or checkpoint is None or checkpoint < first or checkpoint == self._before:
            return False
        # If it does not end now, it does after the next one.
        self._before = checkpoint
        return True
