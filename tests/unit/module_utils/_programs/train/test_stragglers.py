# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rank that delays the others is named while all run, and none is for a moment of noise."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from statistics import median

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import stragglers
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Progress, Straggler
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.stragglers import StragglerDetector

WALL = 1_800_000_000.0


class Simulated:
    """Four nodes with one rank each, which make their steps together; time is simulated."""

    def __init__(self, nodes: Sequence[str] = ("n1", "n2", "n3", "n4"), ranks_per_node: int = 1) -> None:
        self.nodes = [node for node in nodes for _rank in range(ranks_per_node)]
        self.pace = StragglerDetector(len(self.nodes))
        self.now = 100.0
        self.made = [0.0] * len(self.nodes)
        self.waited = [0.0] * len(self.nodes)
        self.held: dict[int, float] = {}
        self.trips: dict[frozenset[str], float] = {}
        self.seconds_per_step: dict[int, float] = {}
        self.idle: dict[int, float] | None = None
        self.chance = random.Random(7)
        self.named: list[tuple[float, Straggler]] = []

    def advance(self, seconds: int, step: float = 0.5) -> Simulated:
        for second in range(seconds):
            self.now += 1.0
            for rank, node in enumerate(self.nodes):
                took = self.seconds_per_step.get(rank, step)
                self.made[rank] += 1.0 / took
                if self.idle is not None:
                    self.waited[rank] += self.idle.get(rank, 0.5) + self.chance.uniform(-0.1, 0.1)
                told = Progress(int(self.made[rank]), waited=None if self.idle is None else self.waited[rank])
                self.pace.add_report(rank, node, told, self.now + self.chance.uniform(0, 0.3))
            if second % 5 == 0:
                self.measure()
            self.named += [(self.now, one) for one in self.pace.evaluate(self.now, WALL + self.now)]
        return self

    def measure(self) -> None:
        for node in dict.fromkeys(self.nodes):
            held = {
                str(rank): max(0.0, self.held.get(rank, 0.1) + self.chance.uniform(-0.1, 0.1))
                for rank, own in enumerate(self.nodes)
                if own == node
            }
            others = {
                other: self.trips.get(frozenset((node, other)), 0.2) * self.chance.uniform(1, 3)
                for other in dict.fromkeys(self.nodes)
                if other != node
            }
            self.pace.add_load(node, {"held": held, "trips": others})

    def slow(self) -> list[tuple[int | None, str]]:
        return [(one.rank, one.node) for one in self.pace.stragglers if one.until is None]


@pytest.mark.parametrize("held", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("idle", [None, {}])
def test_no_straggler_among_equally_loaded_ranks(held: float, idle: dict[int, float] | None) -> None:
    run = Simulated()
    run.held, run.idle = dict.fromkeys(range(4), held), idle
    assert run.advance(3600).pace.stragglers == []


def test_a_starved_rank_is_a_straggler_until_it_has_a_processor_again() -> None:
    run = Simulated().advance(60)
    run.held[2] = 0.85
    began = run.now
    run.advance(60, step=1.5)
    ((at, named),) = run.named
    assert at - began <= 40
    assert (named.rank, named.node) == (2, "n3") and "waiting for a processor" in named.detail
    assert began - 10 < named.since - WALL < began + 10
    # Measured against the earlier pace.
    assert named.cost == pytest.approx(2 / 3, abs=0.1)
    del run.held[2]
    run.advance(60)
    (past,) = run.pace.stragglers
    assert past.until is not None and run.slow() == []
    assert len(run.named) == 1


def test_occasional_disturbances_are_not_reported() -> None:
    run = Simulated()
    for _time in range(20):
        run.held[1] = 0.9
        run.advance(12)
        run.held[1] = 0.1
        run.advance(10)
    assert run.pace.stragglers == []


def test_the_rank_that_never_waits_is_the_straggler() -> None:
    run = Simulated()
    run.idle = dict.fromkeys(range(4), 0.6)
    run.advance(60)
    run.idle[3] = 0.15
    run.held[3] = 0.8
    run.advance(50)
    ((_at, named),) = run.named
    assert (named.rank, named.node) == (3, "n4") and 0.3 < named.cost < 0.6
    assert "the others wait for it 4" in named.detail and "waiting for a processor" in named.detail


def test_reported_wait_times_of_zero_clear_all_ranks() -> None:
    run = Simulated()
    run.idle = {}
    run.held[3] = 0.9
    assert run.advance(120).pace.stragglers == []


def test_half_of_the_nodes_are_not_stragglers() -> None:
    run = Simulated()
    run.held.update({1: 0.9, 2: 0.9})
    assert run.advance(120).pace.stragglers == []


def test_the_slowest_rank_of_a_slow_node_is_named() -> None:
    run = Simulated(["n1", "n2", "n3"], 4)
    run.held.update({4: 0.6, 5: 0.9, 6: 0.6, 7: 0.6})
    assert run.advance(60).slow() == [(5, "n2")]


def test_on_one_node_ranks_are_compared_with_each_other() -> None:
    run = Simulated(["n1"], 4)
    run.held[1] = 0.9
    assert run.advance(60).slow() == [(1, "n1")]


def test_a_single_rank_is_never_a_straggler() -> None:
    run = Simulated(["n1"])
    run.held[0] = 0.9
    assert run.advance(120).pace.stragglers == []


@pytest.mark.parametrize("node", ["n1", "n3"])
def test_a_node_whose_round_trips_rise_with_the_step_time_is_named(node: str) -> None:
    run = Simulated().advance(60)
    run.trips = {frozenset((node, other)): 100.0 for other in {"n1", "n2", "n3", "n4"} - {node}}
    began = run.now
    run.advance(60, step=1.0)
    ((at, named),) = run.named
    assert at - began <= 40
    assert (named.rank, named.node, named.cost) == (None, node, pytest.approx(0.5, abs=0.1))
    assert "its round trips take 1" in named.detail


def test_constant_or_harmless_round_trips_are_not_reported() -> None:
    run = Simulated()
    far = {frozenset(("n1", other)): 80.0 for other in ("n2", "n3", "n4")}
    run.trips = far
    assert run.advance(120).pace.stragglers == []
    run = Simulated().advance(60)
    run.trips = far
    assert run.advance(120).pace.stragglers == []


def test_steps_that_slow_down_on_all_ranks_have_no_straggler() -> None:
    assert Simulated().advance(60).advance(300, step=2.0).pace.stragglers == []


def test_ranks_that_do_not_wait_for_each_other_are_compared_by_their_steps() -> None:
    run = Simulated()
    run.seconds_per_step[1] = 1.4
    assert run.advance(60).slow() == [(1, "n2")]
    assert run.pace.stragglers[0].detail.startswith("a step takes 1.")


def test_long_steps_are_evaluated() -> None:
    run = Simulated()
    run.held[2] = 0.9
    assert run.advance(200, step=20.0).slow() == [(2, "n3")]


def test_ranks_without_steps_are_not_evaluated() -> None:
    run = Simulated()
    run.held[2] = 0.9
    assert run.advance(200, step=1e6).pace.stragglers == []


def pairs(**times: float) -> Mapping[frozenset[str], float]:
    return {frozenset(name.split("_")): trip for name, trip in times.items()}


@pytest.mark.parametrize(
    ("now", "blamed"),
    [
        (pairs(a_b=100, b_c=100, a_c=1), {"b"}),
        (pairs(a_b=100, b_c=1, a_c=1), set()),
        # The node of a pair that is far from all others.
        (pairs(a_b=100, a_c=1), {"b"}),
        (pairs(a_b=100), set()),
        (pairs(a_b=100, b_c=100, a_c=100), set()),
        (pairs(a_b=1, b_c=1, a_c=1), set()),
    ],
)
def test_the_node_common_to_all_slower_pairs_is_distant(now: Mapping[frozenset[str], float], blamed: set[str]) -> None:
    before = dict.fromkeys(now, 1.0)
    assert set(stragglers.find_distant_node(now, before, 0.5)) == blamed
    assert stragglers.find_distant_node(now, before, 0.1) == {}


class Compared:
    """Collects the values of ranks with those that they are compared with."""

    def __init__(self) -> None:
        self.pairs: list[tuple[float, float]] = []

    def __call__(self, own: float, others: float) -> stragglers.Slowdown | None:
        self.pairs.append((own, others))
        return None


@pytest.mark.parametrize("ranks_per_node", [1, 3, 40])
def test_a_rank_is_compared_with_the_median_of_the_other_nodes(ranks_per_node: int) -> None:
    chance = random.Random(ranks_per_node)
    for ranks in range(1, 41):
        nodes = {rank: f"n{rank // ranks_per_node}" for rank in range(ranks)}
        steps = {rank: chance.choice((1.0, 1.1, 1.3, 9.0)) for rank in nodes}
        alone = len(set(nodes.values())) == 1
        compared = Compared()
        stragglers._find_outliers(steps, nodes, compared)
        expected = []
        for rank, own in steps.items():
            others = [steps[one] for one in nodes if one != rank and (alone or nodes[one] != nodes[rank])]
            expected += [(own, median(others))] if others else []
        assert compared.pairs == expected


def test_evaluating_a_thousand_nodes_is_fast() -> None:
    nodes = {rank: f"n{rank // 8}" for rank in range(8000)}
    steps = {rank: 1.0 + rank % 97 / 1000 for rank in nodes}
    steps[4321] = 9.0
    begun = time.process_time()
    assert [sign.rank for sign in stragglers.find_slow_ranks(steps, nodes).values()] == [4321]
    assert time.process_time() - begun < 2.0
