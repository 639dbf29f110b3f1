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
KILL_STEPS = range(3, 70)
#: The kinds, with their descriptions. Those without a culprit must not interrupt the run.
KILL_KINDS = {
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
SLOW_KINDS = {
    "cpu": "a rank gets 2 % of a processor",
    "link": "a node may send no more than 1 Mbit/s",
}
HARMLESS_KINDS = ("slurmd", "full")
#: The kinds in which a node is gone for a while: the run continues with a spare node, or with fewer nodes.
_NODE_LOSS_KINDS = ("node", "first", "network", "agent")
#: Kinds whose victim must not be the manager, which is also the controller of Slurm.
_MANAGER_SAFE_KINDS = ("node", "first", "network")
HANG_TIMEOUT = 20

_EXPERIMENT_PATTERN = re.compile(r"([a-z]+):(\d+)@(\d)(\+spare)?")


class TrainExperiment(NamedTuple):
    """One run, and one kill, of the rank ``rank`` at the step ``step``. ``use_spare``: whether the run has a spare
    node.
    """

    kind: str
    step: int
    rank: int
    use_spare: bool = False

    def __str__(self) -> str:
        return f"{self.kind}:{self.step}@{self.rank}" + ("+spare" if self.use_spare else "")

    @classmethod
    def parse(cls, text: str) -> TrainExperiment:
        match = _EXPERIMENT_PATTERN.fullmatch(text)
        if match is None or match[1] not in {**KILL_KINDS, **SLOW_KINDS}:
            raise ValueError(f"unknown experiment '{text}'. Give KIND:STEP@RANK, and +spare for a spare node.")
        return cls(match[1], int(match[2]), int(match[3]), bool(match[4]))

    @property
    def train_options(self) -> list[str]:
        """The options of gpumesh-train. Where the manager must survive, but would be rank 0, it is not among the nodes."""
        exclude_options = ["--sbatch", f"--exclude={MANAGER}"] if self.kind == "first" else []
        maximum = 3 if exclude_options else 4
        node_options = ["--nodes", str(maximum - 1), "--spare", "1"] if self.use_spare else ["--nodes", str(maximum)]
        minimum_options = ["--min-nodes", "2"] if self.kind in _NODE_LOSS_KINDS else []
        return [*node_options, *minimum_options, "--hang-timeout", str(HANG_TIMEOUT), *exclude_options]

    def choose_victim(self, nodes: Sequence[str]) -> int:
        """Return the rank to hit, among those on these nodes."""
        if self.kind in ("checkpoint", "first"):
            return 0
        eligible_ranks = [
            rank for rank, node in enumerate(nodes) if node != MANAGER or self.kind not in _MANAGER_SAFE_KINDS
        ]
        return eligible_ranks[self.rank % len(eligible_ranks)]


def draw_experiments(random_source: random.Random, count: int, kinds: Sequence[str]) -> list[TrainExperiment]:
    """Draw random experiments, with each kind equally often."""
    kind_order: list[str] = []
    while len(kind_order) < count:
        kind_order += random_source.sample(list(kinds), len(kinds))
    return [
        TrainExperiment(
            kind,
            random_source.choice(KILL_STEPS),
            random_source.randrange(4),
            kind in _NODE_LOSS_KINDS and random_source.random() < 0.5,
        )
        for kind in kind_order[:count]
    ]


def expected_causes(kind: str, rank: int, node: str) -> list[tuple[str, int | None, str]]:
    """Return the permitted causes, ranks and nodes of the attempt that was hit. Empty if the attempt must continue."""
    if kind in HARMLESS_KINDS:
        return []
    causes_by_kind: Mapping[str, list[tuple[str, int | None, str]]] = {
        "rank": [("crash", rank, node)],
        "checkpoint": [("crash", rank, node)],
        "stop": [("hang", rank, node)],
        # The agent is gone too, so the ranks may or may not be reported first.
        "agent": [("node", None, node), ("crash", rank, node)],
    }
    return causes_by_kind.get(kind, [("node", None, node)])


def find_problems(
    experiment: TrainExperiment, run_status: Mapping[str, Any], rank: int, node: str, interval: int
) -> list[str]:
    """Return what is wrong with a run that has ended, by its run.json."""
    attempts = run_status["attempts"]
    attempt_causes = [(cause["cause"]["kind"], cause["cause"]["rank"], cause["cause"]["node"]) for cause in attempts]
    problems = (
        [] if run_status["state"] == "finished" else [f"the run is {run_status['state']}: {run_status['detail']}"]
    )
    allowed_causes = expected_causes(experiment.kind, rank, node)
    # A node that answers again is used again, and nobody is to blame for that.
    reported_causes = [cause for cause in attempt_causes[:-1] if cause[0] != "grown"]
    if not allowed_causes and reported_causes:
        problems.append(f"nothing had to be named, and {reported_causes} was")
    if allowed_causes and (len(reported_causes) != 1 or reported_causes[0] not in allowed_causes):
        problems.append(f"{allowed_causes[0]} had to be named once, and {reported_causes} was")
    for previous, following in zip(attempts, attempts[1:]):
        if previous["last"] is not None and previous["last"] - following["first"] >= interval:
            problems.append(f"it went back from step {previous['last']} to {following['first']}")
    return problems
