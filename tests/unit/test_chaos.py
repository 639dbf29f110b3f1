# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make chaos` can be repeated with a seed or with two words, and each experiment starts in a suitable state."""

from __future__ import annotations

import random

import pytest

from ansible_collections.gpumesh.cluster.tests.chaos import experiments
from ansible_collections.gpumesh.cluster.tests.chaos.experiments import (
    KILLS,
    KINDS,
    MACHINES,
    VARIANTS,
    Experiment,
    Kill,
    Operation,
    State,
    Task,
)

EVERYBODY = frozenset(MACHINES)
STATES = [
    State(),
    State(EVERYBODY),
    State(EVERYBODY, "c3", "two"),
    State(EVERYBODY - {"c3"}),
    State(EVERYBODY - {"c1"}, "c2", "two"),
    State(image="host"),
    State(EVERYBODY, image="host"),
]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("operation", VARIANTS, ids=str)
def test_there_is_a_way_to_each_operation(state: State, operation: Operation) -> None:
    for step in experiments.way(state, operation.before(state)):
        assert step.before(state) == state
        state = step.after(state)
    assert operation.before(state) == state
    assert operation.after(state) != State() or operation.name == "delete"


@pytest.mark.parametrize("seed", range(50))
def test_a_sample_is_six_in_a_row_of_at_least_four_kinds(seed: int) -> None:
    found = experiments.sample(random.Random(seed))
    assert found == experiments.sample(random.Random(seed))
    assert len(found) == 6 and len({experiment.operation.name for experiment in found}) >= 4
    state = State()
    for experiment in found:
        assert experiment.operation.before(state) == state
        state = experiment.operation.after(state)
    assert state == State()


def test_what_is_printed_repeats_it() -> None:
    for experiment in experiments.draw(random.Random(3), 200, KINDS, KILLS, {}):
        words = str(experiment).split()
        assert Experiment(Operation.parse(words[1]), Kill.parse(words[3])) == experiment


def test_a_member_that_is_away_is_neither_killed_nor_part_of_the_operation() -> None:
    found = experiments.draw(random.Random(5), 40, ["away"], KILLS, {})
    assert {experiment.operation.away for experiment in found} == {"c2", "c3"}
    for operation, kill in found:
        before = operation.before(State())
        assert operation.away in before.members & operation.after(before).members
        assert operation.away not in {operation.machine, operation.manager, operation.leaving, kill.host}
        assert not any(step.away for step in experiments.way(State(), before))
        # The former manager has left, and cannot confirm its successor.
        assert operation.trusted == ("" if operation.after(before).manager == operation.manager else operation.machine)


@pytest.mark.parametrize("state", STATES)
def test_packages_are_only_installed_on_hosts_that_never_had_them(state: State) -> None:
    install = Operation.parse("install")
    steps = list(experiments.way(state, install.before(state)))
    assert [str(step) for step in steps] == ([] if state == State(image="host") else ["rebuild:host"])
    installed = install.after(install.before(state))
    assert [str(step) for step in experiments.way(installed, State())] == ["rebuild:prepared"]


@pytest.mark.parametrize("text", ["boundary:x", "module:3", "host:3+1@c9", "power:3", "controller:"])
def test_an_unknown_kill_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unknown kill"):
        Kill.parse(text)


def test_boundaries_are_after_what_changed_something() -> None:
    tasks = [Task("look", 0, False), Task("write", 1, True), Task("look", 2, False), Task("run", 3, True)]
    assert experiments.boundaries(tasks) == [3]
    planned = experiments.all_boundaries(["join"], {Operation.parse("join:c3"): tasks, Operation("delete"): tasks})
    assert [str(experiment) for experiment in planned] == ["--operation join:c3 --kill boundary:3"]
    task, delay = experiments.draw_moment(random.Random(1), tasks, "join")
    assert 1 <= task <= 4 and 0 <= delay <= 1


@pytest.mark.parametrize("kind", KILLS)
def test_a_kill_that_came_too_late_is_drawn_again_from_what_ran(kind: str) -> None:
    tasks = [
        Task("look", 0.0, False),
        Task("write", 1.0, True),
        Task("start", 3.0, True),
        Task("look again", 4.0, False),
    ]
    late = Experiment(Operation("storage"), Kill(kind, 40, 0.5, "" if kind in ("boundary", "controller") else "c2"))
    for seed in range(20):
        again = experiments.draw_again(random.Random(seed), late, tasks)
        assert again == experiments.draw_again(random.Random(seed), late, tasks)
        assert (again.operation, again.kill.kind) == (late.operation, kind)
        assert again.kill.task in ((3, 4) if kind == "boundary" else (1, 2, 3))
