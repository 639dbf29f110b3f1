# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agents of an attempt have said, and what follows from it. Nothing here waits or runs anything."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import cause as causes
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Cause, Progress, RankEnd, Request

#: Seconds without a sign of life after which a node is asked about, and so many to start an agent.
SILENCE = 10.0
_START = 60.0
#: Seconds after the first failure in which the others are awaited: the one to blame may be slower to say so.
_SETTLE = 3.0
#: Seconds for the ranks to say why they hang.
_LOOK = 5.0


class Said(NamedTuple):
    """One line of an agent."""

    event: str
    node: str
    values: Mapping[str, Any]


def parse_line(line: str, mark: str) -> Optional[Said]:
    """None for all that is not an agent's: srun, and programs that write to the terminal, say much. Raises nothing."""
    if not line.startswith(mark):
        return None
    try:
        values = from_json(line[len(mark) :])
    except ValueError:
        return None
    if (
        not isinstance(values, dict)
        or not isinstance(values.get("event"), str)
        or not isinstance(values.get("node"), str)
    ):
        return None
    return Said(values["event"], values["node"], values)


class Watch:
    """One attempt. Times in seconds of a clock that never goes back."""

    def __init__(self, request: Request, nodes: Sequence[str], now: float) -> None:
        self._request = request
        self._nodes = nodes
        self._began = now
        self._heard: Dict[str, float] = {}
        self._ends: Dict[int, RankEnd] = {}
        self._progress: Dict[int, Progress] = {}
        self._rank_nodes: Dict[int, str] = {}
        self._stopped: Dict[int, str] = {}
        self._failed_at: Optional[float] = None
        self._moved: Optional[float] = None
        self._looked: Optional[float] = None
        self._start_failure = ""
        self.warned = ""
        self.cancelled = False
        self.lost: Dict[str, str] = {}

    @property
    def world_size(self) -> int:
        """Ranks of the attempt."""
        return len(self._nodes) * self._request.ranks_per_node

    def hear(self, said: Said, now: float) -> None:
        """Take in one line."""
        if said.node not in self._nodes:
            return
        self._heard[said.node] = now
        if said.event == "beat" and isinstance(said.values.get("ranks"), dict):
            for rank, told in said.values["ranks"].items():
                self._tell(int(rank) if str(rank).isdecimal() else -1, said.node, told, now)
        elif said.event == "ended":
            rank = int(said.values["rank"])
            self._tell(rank, said.node, said.values, now)
            self._ends[rank] = RankEnd(
                rank, said.node, int(said.values["status"]), float(said.values["at"]), str(said.values["tail"])
            )
            if said.values["status"] and self._failed_at is None:
                self._failed_at = now
        elif said.event == "started":
            self._rank_nodes.update({int(rank): said.node for rank in said.values["ranks"]})
        elif said.event == "state" and said.values.get("stopped"):
            self._stopped[int(said.values["rank"])] = str(said.values["stopped"])
        elif said.event == "failed":
            self._start_failure = f"{said.node}: {said.values.get('reason')}"

    def _tell(self, rank: int, node: str, told: Mapping[str, Any], now: float) -> None:
        progress = Progress(**{name: told.get(name) for name in Progress._fields})
        before = self._progress.get(rank, Progress())
        if progress.step is not None and progress.step != before.step:
            self._moved = now
        if progress != Progress():
            self._progress[rank] = progress
            self._rank_nodes[rank] = node

    def silent(self, now: float) -> List[str]:
        """Nodes that have said nothing for long, and whose ranks have not all ended."""
        ended = {
            node
            for node in self._nodes
            if sum(1 for end in self._ends.values() if end.node == node) >= self._request.ranks_per_node
        }
        limit = {node: (SILENCE if node in self._heard else _START) for node in self._nodes}
        return [
            node for node in self._nodes if node not in ended and now - self._heard.get(node, self._began) > limit[node]
        ]

    def hangs(self, now: float) -> bool:
        """Whether no rank has made a step for the time that was allowed. A run that tells of no steps is not judged."""
        return self._moved is not None and not self._ends and now - self._moved > self._request.hang_timeout

    def asks(self, now: float) -> bool:
        """Whether the agents should say now which ranks do not run: once, when it hangs."""
        if self._looked is not None or not self.hangs(now):
            return False
        self._looked = now
        return True

    def verdict(self, now: float) -> Optional[Cause]:
        """Why the attempt has ended or has to end; None while it goes on."""
        if self._start_failure:
            return Cause("start", self._start_failure, None, self._start_failure.partition(":")[0])
        if self.lost:
            node = min(self.lost)
            return Cause("node", f"{node} {self.lost[node]}", None, node)
        if self._failed_at is not None and now - self._failed_at > _SETTLE:
            if self.cancelled:
                return Cause("cancelled")
            return self._after_warning() or causes.crash(list(self._ends.values()))
        if len(self._ends) == self.world_size and not any(end.status for end in self._ends.values()):
            # A program that was told to stop, did so and said so by its status, is not through.
            through = not self.warned or self._through()
            return Cause("finished") if through else self._after_warning()
        if self._looked is not None and now - self._looked > _LOOK and self.hangs(now):
            steps = {rank: progress.step for rank, progress in self._progress.items()}
            return causes.hang(self._stopped, self._rank_nodes, steps, self._request.hang_timeout)
        return None

    def _after_warning(self) -> Optional[Cause]:
        return Cause("warned", self.warned) if self.warned else None

    def _through(self) -> bool:
        now = self.progress()
        return now.step is None or now.steps is None or now.step >= now.steps

    def progress(self) -> Progress:
        """Of the whole attempt: the last step that all have told of, and what the first rank says of the rest."""
        told: Set[int] = {progress.step for progress in self._progress.values() if progress.step is not None}
        first = self._progress.get(0, Progress())
        checkpoints = [progress.checkpoint for progress in self._progress.values() if progress.checkpoint is not None]
        loss = first.loss if first.loss is not None and math.isfinite(first.loss) else None
        return Progress(min(told) if told else None, first.steps, loss, max(checkpoints) if checkpoints else None)
