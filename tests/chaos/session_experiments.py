# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chaos experiments on a session, as data: what is hit, when and where, and how the output of the hosts is read.

This module runs nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

MANAGER = "gpu1"
NODES = ("gpu1", "gpu2", "gpu3")
_PROGRAM_PATTERN = r"^\S*python\S* -IS /usr/local/bin/gpumesh-session"
#: The kinds, with their descriptions.
KILL_KINDS = {
    "prolog": "SIGKILL of gpumesh-session while it creates the network of a job",
    "epilog": "SIGKILL of gpumesh-session while it cleans up after a job",
    "task": "SIGKILL of gpumesh-session in the step of a container",
    "podman": "SIGKILL of podman",
    "conmon": "SIGKILL of conmon, which watches a container for podman",
    "batch": "SIGKILL of the batch script of the session",
    "slurmd": "slurmd is restarted",
    "node": "the power of a node is cut",
}
#: The number of times that each kind is drawn in a round.
_KIND_WEIGHTS = {"prolog": 4, "epilog": 4, "task": 3, "podman": 3, "conmon": 3, "batch": 1, "slurmd": 2, "node": 1}
#: The pattern with which pgrep finds what is hit. slurmd is restarted while a container starts.
PROCESS_PATTERNS = {
    "prolog": f"{_PROGRAM_PATTERN} prolog$",
    "epilog": f"{_PROGRAM_PATTERN} epilog$",
    "task": f"{_PROGRAM_PATTERN} container [0-9]+$",
    "podman": r"^\S*podman --log-level=error .* run --rm --name=session",
    "conmon": r"^\S*conmon .* -n session ",
    "batch": f"{_PROGRAM_PATTERN} supervise$",
    "slurmd": f"{_PROGRAM_PATTERN} container [0-9]+$",
}
#: Slurm's plugin runs these again when they are killed, this many times in all.
REPEATED_KINDS, MAX_ATTEMPTS = ("prolog", "epilog"), 3
#: Seconds after the start of all other kinds in which they are hit: a container needs about two to run.
LATEST_HIT = 6.0

_EXPERIMENT_PATTERN = re.compile(r"([a-z]+):([01]\.\d{3})@(gpu[123])(?:x(\d))?")


class SessionExperiment(NamedTuple):
    """One session, and one hit on this node. ``moment`` is the fraction, from 0 to 1, of the time in which the hit can
    occur; ``hit_count`` is how often a program that is run again is killed.
    """

    kind: str
    moment: float
    node: str
    hit_count: int = 1

    def __str__(self) -> str:
        return f"{self.kind}:{self.moment:.3f}@{self.node}" + (f"x{self.hit_count}" if self.hit_count > 1 else "")

    @classmethod
    def parse(cls, text: str) -> SessionExperiment:
        match = _EXPERIMENT_PATTERN.fullmatch(text)
        if match is None or match[1] not in KILL_KINDS or (match[1] == "node" and match[3] == MANAGER):
            raise ValueError(
                f"unknown experiment '{text}'. Give KIND:MOMENT@NODE, such as prolog:0.250@gpu2, and x3 for three times. "
                f"The power of {MANAGER}, the manager, is not cut."
            )
        return cls(match[1], float(match[2]), match[3], int(match[4] or 1))

    def hit_delay(self, duration_by_program: Mapping[tuple[str, str], float]) -> float:
        """Return the seconds from the start of a process to the hit.

        ``duration_by_program``: the seconds that a prolog and an epilog take on a node.
        """
        return self.moment * duration_by_program.get((self.kind, self.node), LATEST_HIT)

    @property
    def process_index(self) -> int:
        """The number of the process to hit, modulo the number of processes that could be hit."""
        return int(self.moment * 1000)


def draw_experiments(random_source: random.Random, count: int, kinds: Sequence[str]) -> list[SessionExperiment]:
    """Draw random experiments, with all kinds in each round."""
    kind_order: list[str] = []
    while len(kind_order) < count:
        round_kinds = [kind for kind in kinds for _time in range(_KIND_WEIGHTS[kind])]
        kind_order += random_source.sample(round_kinds, len(round_kinds))
    return [_draw_experiment(random_source, kind) for kind in kind_order[:count]]


def _draw_experiment(random_source: random.Random, kind: str) -> SessionExperiment:
    moment = round(random_source.random(), 3)
    node = random_source.choice([node for node in NODES if kind != "node" or node != MANAGER])
    return SessionExperiment(
        kind, moment, node, random_source.choice((1, MAX_ATTEMPTS)) if kind in REPEATED_KINDS else 1
    )


def read_hits(text: str) -> int:
    """Return the number of hits: the script prints ``hit`` each time, and ``missed`` if the moment had passed."""
    return text.split().count("hit")


def read_seconds(text: str) -> float:
    """Return the seconds that the measuring script has printed, in nanoseconds; 0 if it found no process."""
    fields = text.split()
    return int(fields[-1]) / 1e9 if fields and fields[-1].isdecimal() else 0.0


def find_start_problem(text: str) -> str:
    """Return why a session has not started, by the output of gpumesh-session; empty for one that runs."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and re.search(r": job \d+, .* running on ", lines[-1]):
        return ""
    return lines[-1] if lines else "gpumesh-session has printed nothing"


def find_problems(
    hits: int, start_problem: str, leftovers_by_node: Mapping[str, Sequence[str]], next_problem: str
) -> list[str]:
    """Return what is wrong after an experiment.

    ``start_problem`` is why the session did not start, ``leftovers_by_node`` is what is left of it on each node after
    the time limit, and ``next_problem`` is what is wrong with the next session.
    """
    problems = (
        [f"nothing was hit, and the session has not started: {start_problem}"] if start_problem and not hits else []
    )
    problems += [
        f"left on {node}: {', '.join(leftovers)}" for node, leftovers in leftovers_by_node.items() if leftovers
    ]
    return [*problems, f"the next session: {next_problem}"] if next_problem else problems


def outcome_of(hits: int, problems: Sequence[str]) -> str:
    """Return ``failed``, ``missed`` or ``passed``."""
    return "failed" if problems else "passed" if hits else "missed"


def plan_parallel_sessions(count: int) -> list[tuple[str, str, int]]:
    """Return user and name of this many sessions that run at the same time, and how many containers each has besides
    main1.

    No session has two containers on a node.
    """
    return [(("alice", "bob")[number % 2], f"once{number + 1:02}", 1 + number // 2 % 2) for number in range(count)]


def count_fitting(text: str) -> int:
    """Return how many sessions fit at once, each with at most one CPU per node, by ``sinfo --Node --format=%N|%c``."""
    return min((int(line.strip().partition("|")[2]) for line in text.splitlines() if "|" in line), default=0)


def parse_stages(text: str) -> dict[str, str]:
    """Return the stage of each session by name, from ``squeue --format=%A|%j|%T|%k``.

    The stage is the one that gpumesh-session has written if the job runs, or if the session has failed, and Slurm's
    state otherwise. If several jobs have the same name, the last one counts.
    """
    stage_by_session: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        job, name, state, comment = line.strip().split("|", 3)
        stage = "".join(comment.split()[2:3])
        shown_stage = stage if stage and (stage == "failed" or state == "RUNNING") else state.lower()
        stage_by_session[name] = max(stage_by_session.get(name, (0, "")), (int(job), shown_stage))
    return {name: shown_stage for name, (_job, shown_stage) in stage_by_session.items()}


def compare_containers(
    before: Mapping[str, tuple[str, str]], after: Mapping[str, tuple[str, str]], dead_node: str
) -> list[str]:
    """Return what is wrong with the containers of a session that was restarted without ``dead_node``.

    ``before`` and ``after``: the address and the node of each container, by name.
    """
    problems = []
    if sorted(before) != sorted(after):
        problems.append(f"the names were {', '.join(before)} and are {', '.join(after)}")
    moved_names = [name for name in before if name in after and before[name][0] != after[name][0]]
    problems += [f"the address of {name} was {before[name][0]} and is {after[name][0]}" for name in moved_names]
    return problems + [
        f"{name} is on {dead_node}, which is off" for name, (_address, node) in after.items() if node == dead_node
    ]
