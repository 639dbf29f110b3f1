# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make chaos` for training runs can be repeated with a seed or a word, and is judged by run.json."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.chaos import train_experiments as experiments
from ansible_collections.gpumesh.cluster.tests.chaos.train_experiments import (
    KILL_KINDS,
    MANAGER,
    SLOW_KINDS,
    TrainExperiment,
)

NODES = ["gpu1", "gpu2", "gpu3", "gpu4"]


def attempt(kind: str, rank: int | None = None, node: str = "", first: int = 1, last: int = 40) -> dict[str, Any]:
    return {"cause": {"kind": kind, "rank": rank, "node": node}, "first": first, "last": last}


def run(*attempts: dict[str, Any], state: str = "finished") -> dict[str, Any]:
    return {"state": state, "detail": "why", "attempts": [*attempts, attempt("finished", first=31, last=120)]}


def test_the_same_seed_gives_the_same_experiments_of_all_kinds() -> None:
    found = experiments.draw_experiments(random.Random(7), 20, list(KILL_KINDS))
    assert found == experiments.draw_experiments(random.Random(7), 20, list(KILL_KINDS))
    assert len(found) == 20 and {one.kind for one in found} == set(KILL_KINDS)
    assert all(TrainExperiment.parse(str(one)) == one for one in found)


@pytest.mark.parametrize("text", ["rank", "power:3@1", "rank:x@1", "rank:3", "rank:3@1+more"])
def test_an_unknown_experiment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unknown experiment"):
        TrainExperiment.parse(text)


@pytest.mark.parametrize("kind", [*KILL_KINDS, *SLOW_KINDS])
@pytest.mark.parametrize("spare", [False, True])
def test_the_manager_is_never_taken_away(kind: str, spare: bool) -> None:
    for number in range(4):
        one = TrainExperiment(kind, 10, number, spare)
        nodes = [node for node in NODES if f"--exclude={node}" not in one.train_options][: int(one.train_options[1])]
        rank = one.choose_victim(nodes)
        assert nodes[rank] != MANAGER or kind not in ("node", "first", "network")
        assert kind not in ("first", "checkpoint") or rank == 0


@pytest.mark.parametrize(
    ("text", "found", "wrong"),
    [
        ("rank:9@2", run(attempt("crash", 2, "gpu3")), ""),
        ("rank:9@2", run(attempt("crash", 1, "gpu2")), "had to be named once"),
        ("rank:9@2", run(), "had to be named once"),
        ("rank:9@2", run(attempt("crash", 2, "gpu3"), attempt("node", None, "gpu4")), "had to be named once"),
        ("rank:9@2", run(attempt("crash", 2, "gpu3"), state="failed"), "the run is failed: why"),
        ("rank:9@2", run(attempt("crash", 2, "gpu3", last=41)), "it went back from step 41 to 31"),
        ("agent:9@2", run(attempt("node", None, "gpu3")), ""),
        ("node:9@1", run(attempt("node", None, "gpu3")), ""),
        ("stop:9@2", run(attempt("hang", 2, "gpu3")), ""),
        ("slurmd:9@2", run(), ""),
        ("full:9@2", run(attempt("crash", 2, "gpu3")), "nothing had to be named"),
    ],
)
def test_a_run_is_judged_by_what_it_says(text: str, found: dict[str, Any], wrong: str) -> None:
    said = experiments.find_problems(TrainExperiment.parse(text), found, 2, "gpu3", 10)
    assert (not said) if not wrong else wrong in "; ".join(said)
