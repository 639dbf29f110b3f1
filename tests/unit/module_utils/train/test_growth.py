# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that were away are used again after a checkpoint, in this job or in another one."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import decide
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.growth import Growing, Growth, possible
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt, Cause, Request

REQUEST = Request(name="nano", command=["true"], folder="/mnt/shared/runs/nano", nodes=3, min_nodes=1)
THREE = ("n1", "n2", "n3")
LOST = Cause("node", "n3 no longer responds", None, "n3")
#: In Slurm, a node of the job is allocated, or mixed if the job does not have all of it.
IN_JOB = dict.fromkeys(THREE, "allocated")


def attempt(number: int, nodes: tuple[str, ...], cause: Cause | None = None, excluded: str = "") -> Attempt:
    return Attempt(number, 41, nodes, 3, "n1", 0.0, cause=cause, excluded=excluded, allocated=THREE)


SHRUNK = [attempt(1, THREE, LOST), attempt(2, ("n1", "n2"))]


def test_a_node_of_the_job_that_answers_again_is_used_again() -> None:
    assert possible(REQUEST, SHRUNK, THREE, IN_JOB, []) is None
    growth = possible(REQUEST, SHRUNK, THREE, IN_JOB, ["n3"])
    assert growth == Growth(("n3",), False)
    assert growth.cause == Cause("grown", "n3 is back")
    assert possible(REQUEST, SHRUNK, THREE, {**IN_JOB, "n3": "mixed"}, ["n3"]) == growth
    for state in ("down*", "draining", "allocated*", "idle", ""):
        # With one of the missing nodes, no other job begins.
        assert possible(REQUEST._replace(nodes=4), SHRUNK, THREE, {**IN_JOB, "n3": state}, ["n3"]) is None, state


def test_an_attempt_with_all_nodes_holds_its_spare() -> None:
    whole = [attempt(1, ("n1", "n2", "n4"), LOST), attempt(2, THREE)]
    assert possible(REQUEST, whole, (*THREE, "n4"), {**IN_JOB, "n4": "allocated"}, ["n4"]) is None
    assert Growing(REQUEST, whole, (*THREE, "n4"), 0.0).due(1e6, {**IN_JOB, "n4": "allocated"}) == []


def test_a_node_that_was_excluded_for_a_fault_of_its_own_stays_so() -> None:
    crash = Cause("crash", "rank 2 on n3: CUDA error: uncorrectable ECC error", 2, "n3", hardware=True)
    out = [attempt(1, THREE, crash, excluded="n3"), attempt(2, ("n1", "n2"))]
    assert possible(REQUEST, out, THREE, IN_JOB, ["n3"]) is None
    assert possible(REQUEST, out, THREE, {**IN_JOB, "n3": "idle"}, []) is None
    assert Growing(REQUEST, out, THREE, 0.0).due(1e6, IN_JOB) == []
    often = [*(attempt(number, THREE, LOST) for number in (1, 2, 3)), attempt(4, ("n1", "n2"))]
    assert possible(REQUEST, often, THREE, IN_JOB, ["n3"]) is None


def test_for_nodes_that_slurm_has_taken_out_of_the_job_another_job_needs_all_that_are_missing() -> None:
    states = {**IN_JOB, "n3": "idle"}
    growth = possible(REQUEST, SHRUNK, THREE, states, [])
    assert growth == Growth(("n3",), True)
    assert growth.cause.detail == "n3 is back, and another job can have all nodes"
    four = REQUEST._replace(nodes=4)
    assert possible(four, SHRUNK, THREE, states, []) is None
    # One of another user, or that the run has never had, does not count: it may lack what the run needs.
    assert possible(four, SHRUNK, THREE, {**states, "n9": "idle"}, []) is None
    # The job may have begun with fewer nodes than an earlier one.
    later = [*SHRUNK[:1], attempt(2, ("n1", "n2"))._replace(job=42, allocated=("n1", "n2"))]
    assert possible(REQUEST, later, ("n1", "n2"), states, []) == growth


def test_a_node_that_does_not_answer_is_asked_ever_more_seldom() -> None:
    growing = Growing(REQUEST, SHRUNK, THREE, 0.0)
    asked = [now for now in range(4000) if growing.due(float(now), IN_JOB)]
    assert asked == [15, 30, 60, 120, 240, 480, 960, 1560, 2160, 2760, 3360, 3960]
    growing.tell("n3", False)
    assert growing.possible(IN_JOB) is None
    growing.tell("n3", True)
    assert growing.possible(IN_JOB) == Growth(("n3",), False)
    assert growing.due(1e6, IN_JOB) == []


@pytest.mark.parametrize("state", ["down*", "idle", "drained", ""])
def test_a_node_that_slurm_knows_to_be_away_or_that_has_left_the_job_is_not_asked(state: str) -> None:
    assert Growing(REQUEST, SHRUNK, THREE, 0.0).due(1e6, {**IN_JOB, "n3": state}) == []


def test_the_attempt_ends_after_a_checkpoint_that_is_made_once_the_node_is_back() -> None:
    growth = Growth(("n3",), False)
    growing = Growing(REQUEST, SHRUNK, THREE, 0.0)
    # The one from which it has resumed, and the last one before.
    assert not growing.ripe(None, 51, 50)
    assert not growing.ripe(growth, 51, 60)
    assert not growing.ripe(growth, 51, 60)
    assert growing.ripe(growth, 51, 70)
    # It has not ended: that would now cost the steps since.
    assert not growing.ripe(growth, 51, 70)
    assert growing.ripe(growth, 51, 80)
    # One that is away again does not count.
    assert not growing.ripe(None, 51, 90)
    assert not growing.ripe(growth, 51, 90)


def test_a_program_that_has_saved_nothing_yet_goes_on() -> None:
    growth = Growth(("n3",), False)
    growing = Growing(REQUEST, SHRUNK, THREE, 0.0)
    assert not any(growing.ripe(growth, first, saved) for first, saved in ((None, None), (51, None), (51, 50)))
    assert growing.ripe(growth, 51, 60)


def test_nobody_is_blamed_and_the_restart_is_not_counted() -> None:
    grown = attempt(2, ("n1", "n2"), Growth(("n3",), False).cause)
    assert decide.verdict(REQUEST._replace(max_restarts=1), [SHRUNK[0], *[grown] * 5]) is None
    assert decide.suspects([grown]) == []
    assert decide.placement(REQUEST, [SHRUNK[0], grown], THREE, THREE).nodes == THREE
