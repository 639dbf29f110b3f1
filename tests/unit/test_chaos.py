# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make chaos` can be repeated with a seed or with two words, and each experiment starts in a suitable state."""

from __future__ import annotations

import random

import pytest

from ansible_collections.gpumesh.cluster.tests.chaos import experiments
from ansible_collections.gpumesh.cluster.tests.chaos.experiments import (
    KILL_KINDS,
    MACHINES,
    OPERATION_KINDS,
    VARIANTS,
    ClusterOperation,
    ClusterState,
    KillExperiment,
    KillMoment,
    RecordedTask,
)

EVERYBODY = frozenset(MACHINES)
STATES = [
    ClusterState(),
    ClusterState(EVERYBODY),
    ClusterState(EVERYBODY, "c3", "two"),
    ClusterState(EVERYBODY - {"c3"}),
    ClusterState(EVERYBODY - {"c1"}, "c2", "two"),
    ClusterState(image="host"),
    ClusterState(EVERYBODY, image="host"),
]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("operation", VARIANTS, ids=str)
def test_there_is_a_way_to_each_operation(state: ClusterState, operation: ClusterOperation) -> None:
    for step in experiments.find_path(state, operation.state_before(state)):
        assert step.state_before(state) == state
        state = step.state_after(state)
    assert operation.state_before(state) == state
    assert operation.state_after(state) != ClusterState() or operation.name == "delete"


@pytest.mark.parametrize("seed", range(50))
def test_a_sample_is_six_in_a_row_of_at_least_four_kinds(seed: int) -> None:
    found = experiments.draw_sample(random.Random(seed))
    assert found == experiments.draw_sample(random.Random(seed))
    assert len(found) == 6 and len({experiment.operation.name for experiment in found}) >= 4
    state = ClusterState()
    for experiment in found:
        assert experiment.operation.state_before(state) == state
        state = experiment.operation.state_after(state)
    assert state == ClusterState()


def test_what_is_printed_repeats_it() -> None:
    for experiment in experiments.draw_experiments(random.Random(3), 200, OPERATION_KINDS, KILL_KINDS, {}):
        words = str(experiment).split()
        assert KillExperiment(ClusterOperation.parse(words[1]), KillMoment.parse(words[3])) == experiment


def test_a_member_that_is_away_is_neither_killed_nor_part_of_the_operation() -> None:
    found = experiments.draw_experiments(random.Random(5), 40, ["away"], KILL_KINDS, {})
    assert {experiment.operation.away_member for experiment in found} == {"c2", "c3"}
    for operation, kill in found:
        before = operation.state_before(ClusterState())
        assert operation.away_member in before.members & operation.state_after(before).members
        assert operation.away_member not in {operation.machine, operation.manager, operation.leaving_machine, kill.host}
        assert not any(step.away_member for step in experiments.find_path(ClusterState(), before))
        # The former manager has left, and cannot confirm its successor.
        assert operation.trusted_machine == (
            "" if operation.state_after(before).manager == operation.manager else operation.machine
        )


@pytest.mark.parametrize("state", STATES)
def test_packages_are_only_installed_on_hosts_that_never_had_them(state: ClusterState) -> None:
    install = ClusterOperation.parse("install")
    steps = list(experiments.find_path(state, install.state_before(state)))
    assert [str(step) for step in steps] == ([] if state == ClusterState(image="host") else ["rebuild:host"])
    installed = install.state_after(install.state_before(state))
    assert [str(step) for step in experiments.find_path(installed, ClusterState())] == ["rebuild:prepared"]


@pytest.mark.parametrize("text", ["boundary:x", "module:3", "host:3+1@c9", "power:3", "controller:"])
def test_an_unknown_kill_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unknown kill"):
        KillMoment.parse(text)


def test_boundaries_are_after_what_changed_something() -> None:
    tasks = [
        RecordedTask("look", 0, False),
        RecordedTask("write", 1, True),
        RecordedTask("look", 2, False),
        RecordedTask("run", 3, True),
    ]
    assert experiments.find_boundaries(tasks) == [3]
    planned = experiments.list_boundary_experiments(
        ["join"], {ClusterOperation.parse("join:c3"): tasks, ClusterOperation("delete"): tasks}
    )
    assert [str(experiment) for experiment in planned] == ["--operation join:c3 --kill boundary:3"]
    task, delay = experiments.draw_moment(random.Random(1), tasks, "join")
    assert 1 <= task <= 4 and 0 <= delay <= 1


@pytest.mark.parametrize("kind", KILL_KINDS)
def test_a_kill_that_came_too_late_is_drawn_again_from_what_ran(kind: str) -> None:
    tasks = [
        RecordedTask("look", 0.0, False),
        RecordedTask("write", 1.0, True),
        RecordedTask("start", 3.0, True),
        RecordedTask("look again", 4.0, False),
    ]
    late = KillExperiment(
        ClusterOperation("storage"), KillMoment(kind, 40, 0.5, "" if kind in ("boundary", "controller") else "c2")
    )
    for seed in range(20):
        again = experiments.redraw_kill(random.Random(seed), late, tasks)
        assert again == experiments.redraw_kill(random.Random(seed), late, tasks)
        assert (again.operation, again.kill.kind) == (late.operation, kind)
        assert again.kill.task in ((3, 4) if kind == "boundary" else (1, 2, 3))
