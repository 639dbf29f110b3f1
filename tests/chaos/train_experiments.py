# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chaos experiments on a training run, as data: what is killed, at which step, and what the run must report.

This module runs nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MANAGER = "gpu1"
#: A run makes 120 steps; a kill comes early enough for the run to be still active.
MOMENTS = range(3, 70)
#: The kinds, with their descriptions. Those without a culprit must not interrupt the run.
KILLS = {
    "rank": "SIGKILL of one rank",
    "agent": "SIGKILL of all processes of the run on a node",
    "node": "the power of a node is cut",
    "first": "the power of the node of rank 0 and of the batch script is cut",
    "slurmd": "SIGKILL of slurmd on a node",
    "stop": "SIGSTOP of one rank",
    "network": "a node loses its network",
    "checkpoint": "SIGKILL of rank 0 while it writes a checkpoint",
    "full": "the shared volume is full for 20 s",
}
#: The kinds that are not killed, but named during the run.
SLOW = {
    "cpu": "a rank gets 2 % of a processor",
    "link": "a node may send no more than 1 Mbit/s",
}
HARMLESS = ("slurmd", "full")
#: The kinds in which a node is gone for a while: the run continues with a spare node, or with fewer nodes.
_GONE = ("node", "first", "network", "agent")
#: Kinds whose victim must not be the manager, which is also the controller of Slurm.
_NOT_MANAGER = ("node", "first", "network")
HANG_TIMEOUT = 20

_TEXT = re.compile(r"([a-z]+):(\d+)@(\d)(\+spare)?")


class Experiment(NamedTuple):
    """One run, and one kill, of the rank ``rank`` at the step ``step``. ``use_spare``: whether the run has a spare
    node.
    """

    kind: str
    step: int
    rank: int
    spare: bool = False

    def __str__(self) -> str:
        return f"{self.kind}:{self.step}@{self.rank}" + ("+spare" if self.spare else "")

    @classmethod
    def parse(cls, text: str) -> Experiment:
        found = _TEXT.fullmatch(text)
        if found is None or found[1] not in {**KILLS, **SLOW}:
            raise ValueError(f"unknown experiment '{text}'. Give KIND:STEP@RANK, and +spare for a spare node.")
        return cls(found[1], int(found[2]), int(found[3]), bool(found[4]))

    @property
    def options(self) -> list[str]:
        """The options of gpumesh-train. Where the manager must survive, but would be rank 0, it is not among the nodes."""
        without = ["--sbatch", f"--exclude={MANAGER}"] if self.kind == "first" else []
        most = 3 if without else 4
        nodes = ["--nodes", str(most - 1), "--spare", "1"] if self.spare else ["--nodes", str(most)]
        fewer = ["--min-nodes", "2"] if self.kind in _GONE else []
        return [*nodes, *fewer, "--hang-timeout", str(HANG_TIMEOUT), *without]

    def victim(self, nodes: Sequence[str]) -> int:
        """Return the rank to hit, among those on these nodes."""
        if self.kind in ("checkpoint", "first"):
            return 0
        able = [rank for rank, node in enumerate(nodes) if node != MANAGER or self.kind not in _NOT_MANAGER]
        return able[self.rank % len(able)]


def draw(chance: random.Random, count: int, kinds: Sequence[str]) -> list[Experiment]:
    """Draw random experiments, with each kind equally often."""
    order: list[str] = []
    while len(order) < count:
        order += chance.sample(list(kinds), len(kinds))
    return [
        Experiment(kind, chance.choice(MOMENTS), chance.randrange(4), kind in _GONE and chance.random() < 0.5)
        for kind in order[:count]
    ]


def expected(kind: str, rank: int, node: str) -> list[tuple[str, int | None, str]]:
    """Return the permitted causes, ranks and nodes of the attempt that was hit. Empty if the attempt must continue."""
    if kind in HARMLESS:
        return []
    found: Mapping[str, list[tuple[str, int | None, str]]] = {
        "rank": [("crash", rank, node)],
        "checkpoint": [("crash", rank, node)],
        "stop": [("hang", rank, node)],
        # The agent is gone too, so the ranks may or may not be reported first.
        "agent": [("node", None, node), ("crash", rank, node)],
    }
    return found.get(kind, [("node", None, node)])


def judge(experiment: Experiment, found: Mapping[str, Any], rank: int, node: str, interval: int) -> list[str]:
    """Return what is wrong with a run that has ended, by its run.json."""
    attempts = found["attempts"]
    causes = [(one["cause"]["kind"], one["cause"]["rank"], one["cause"]["node"]) for one in attempts]
    wrong = [] if found["state"] == "finished" else [f"the run is {found['state']}: {found['detail']}"]
    may = expected(experiment.kind, rank, node)
    # A node that answers again is used again, and nobody is to blame for that.
    named = [one for one in causes[:-1] if one[0] != "grown"]
    if not may and named:
        wrong.append(f"nothing had to be named, and {named} was")
    if may and (len(named) != 1 or named[0] not in may):
        wrong.append(f"{may[0]} had to be named once, and {named} was")
    for before, after in zip(attempts, attempts[1:]):
        if before["last"] is not None and before["last"] - after["first"] >= interval:
            wrong.append(f"it went back from step {before['last']} to {after['first']}")
    return wrong
