# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that were away are used again after a checkpoint, in this job or in another one."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import decide
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.growth import (
    Growth,
    GrowthTracker,
    OfferRequest,
    find_growth,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Attempt, Cause, RunRequest

REQUEST = RunRequest(name="nano", command=["true"], folder="/mnt/shared/runs/nano", nodes=3, min_nodes=1)
THREE_NODES = ("n1", "n2", "n3")
NODE_LOST = Cause("node", "n3 no longer responds", None, "n3")
#: In Slurm, a node of the job is allocated, or mixed if the job does not have all of it.
STATES_IN_JOB = dict.fromkeys(THREE_NODES, "allocated")


def attempt(number: int, nodes: tuple[str, ...], cause: Cause | None = None, excluded: str = "") -> Attempt:
    return Attempt(number, 41, nodes, 3, "n1", 0.0, cause=cause, excluded=excluded, allocated=THREE_NODES)


SHRUNK_ATTEMPTS = [attempt(1, THREE_NODES, NODE_LOST), attempt(2, ("n1", "n2"))]


def test_responding_node_of_job_is_used_again() -> None:
    assert find_growth(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, STATES_IN_JOB, []) is None
    growth = find_growth(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, STATES_IN_JOB, ["n3"])
    assert growth == Growth(("n3",), False)
    assert growth.cause == Cause("grown", "n3 is back")
    assert find_growth(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, {**STATES_IN_JOB, "n3": "mixed"}, ["n3"]) == growth
    for state in ("down*", "draining", "allocated*", "idle", ""):
        # With one of the missing nodes, no other job begins.
        assert (
            find_growth(REQUEST._replace(nodes=4), SHRUNK_ATTEMPTS, THREE_NODES, {**STATES_IN_JOB, "n3": state}, ["n3"])
            is None
        ), state


def test_attempt_with_all_nodes_keeps_its_spare() -> None:
    whole = [attempt(1, ("n1", "n2", "n4"), NODE_LOST), attempt(2, THREE_NODES)]
    assert find_growth(REQUEST, whole, (*THREE_NODES, "n4"), {**STATES_IN_JOB, "n4": "allocated"}, ["n4"]) is None
    assert (
        GrowthTracker(REQUEST, whole, (*THREE_NODES, "n4"), 0.0).nodes_to_query(
            1e6, {**STATES_IN_JOB, "n4": "allocated"}
        )
        == []
    )


def test_excluded_node_remains_excluded() -> None:
    crash = Cause("crash", "rank 2 on n3: CUDA error: uncorrectable ECC error", 2, "n3", hardware=True)
    out = [attempt(1, THREE_NODES, crash, excluded="n3"), attempt(2, ("n1", "n2"))]
    assert find_growth(REQUEST, out, THREE_NODES, STATES_IN_JOB, ["n3"]) is None
    assert find_growth(REQUEST, out, THREE_NODES, {**STATES_IN_JOB, "n3": "idle"}, [], ["n3"]) is None
    assert GrowthTracker(REQUEST, out, THREE_NODES, 0.0).nodes_to_query(1e6, STATES_IN_JOB) == []
    often = [*(attempt(number, THREE_NODES, NODE_LOST) for number in (1, 2, 3)), attempt(4, ("n1", "n2"))]
    assert find_growth(REQUEST, often, THREE_NODES, STATES_IN_JOB, ["n3"]) is None


def test_another_job_needs_all_missing_nodes() -> None:
    states = {**STATES_IN_JOB, "n3": "idle"}
    growth = find_growth(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, states, [], ["n3"])
    assert growth == Growth(("n3",), True)
    assert growth.cause.detail == "n3 is back, and another job can have all nodes"
    four = REQUEST._replace(nodes=4)
    assert find_growth(four, SHRUNK_ATTEMPTS, THREE_NODES, states, [], ["n3"]) is None
    # It may lack what the run needs, or somebody else has it by now.
    assert find_growth(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, states, [], []) is None
    assert find_growth(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, {**states, "n3": "allocated"}, [], ["n3"]) is None
    # The job may have begun with fewer nodes than an earlier one.
    later = [*SHRUNK_ATTEMPTS[:1], attempt(2, ("n1", "n2"))._replace(job=42, allocated=("n1", "n2"))]
    assert find_growth(REQUEST, later, ("n1", "n2"), states, [], ["n3"]) == growth


def test_node_that_the_run_has_never_had_does_as_well() -> None:
    states = {**STATES_IN_JOB, "n3": "down*", "n9": "idle"}
    growth = find_growth(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, states, [], ["n9"])
    assert growth == Growth(("n9",), True, former=False)
    assert growth.cause.detail == "n9 is idle, and another job can have all nodes"
    # This job would not end, and the next one not start, before Slurm has given up the dead node.
    assert find_growth(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, {**states, "n3": "allocated*"}, [], ["n9"]) is None


def test_slurm_is_asked_for_nodes_if_enough_are_idle_and_less_and_less_often() -> None:
    growing = GrowthTracker(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, 0.0)
    assert growing.request_offer(1.0, STATES_IN_JOB) is None
    states = {**STATES_IN_JOB, "n3": "down*", "n9": "idle"}
    asked = [now for now in range(2000) if growing.request_offer(float(now), states)]
    assert asked == [0, 15, 45, 105, 225, 465, 945, 1545]
    growing.record_offer(["n9"])
    assert growing.find_growth(states) == Growth(("n9",), True, former=False)
    # Others are idle now, which may suit better or not at all.
    assert growing.request_offer(2000.0, {**states, "n8": "idle"}) == OfferRequest(1, ["n1", "n2", "n3"])
    assert growing.find_growth({**states, "n8": "idle"}) is None
    four = GrowthTracker(REQUEST._replace(nodes=4), SHRUNK_ATTEMPTS, THREE_NODES, 0.0)
    assert four.request_offer(1.0, states) is None
    assert four.request_offer(1.0, {**states, "n8": "idle"}) == OfferRequest(2, ["n1", "n2", "n3"])
    whole = GrowthTracker(REQUEST, SHRUNK_ATTEMPTS[:1], THREE_NODES, 0.0)
    assert whole.request_offer(1.0, states) is None


def test_nodes_that_cannot_be_used_are_away() -> None:
    growing = GrowthTracker(REQUEST, SHRUNK_ATTEMPTS, (*THREE_NODES, "n4"), 0.0)
    states = {**STATES_IN_JOB, "n4": "allocated"}
    assert growing.away_nodes({}, ["n3"]) == growing.away_nodes(states, ["n3"]) == ("n3",)
    for state in ("down*", "allocated*", "drained", "idle"):
        assert growing.away_nodes({**states, "n3": state}, []) == ("n3",), state
    growing.record_answer("n3", True)
    assert growing.away_nodes(states, ["n3"]) == ()


def test_unresponsive_node_is_queried_less_and_less_often() -> None:
    growing = GrowthTracker(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, 0.0)
    asked = [now for now in range(4000) if growing.nodes_to_query(float(now), STATES_IN_JOB)]
    assert asked == [15, 30, 60, 120, 240, 480, 960, 1560, 2160, 2760, 3360, 3960]
    growing.record_answer("n3", False)
    assert growing.find_growth(STATES_IN_JOB) is None
    growing.record_answer("n3", True)
    assert growing.find_growth(STATES_IN_JOB) == Growth(("n3",), False)
    assert growing.nodes_to_query(1e6, STATES_IN_JOB) == []


@pytest.mark.parametrize("state", ["down*", "idle", "drained", ""])
def test_node_that_is_down_or_outside_the_job_is_not_queried(state: str) -> None:
    assert (
        GrowthTracker(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, 0.0).nodes_to_query(1e6, {**STATES_IN_JOB, "n3": state})
        == []
    )


def test_attempt_ends_after_first_checkpoint_since_node_is_back() -> None:
    growth = Growth(("n3",), False)
    growing = GrowthTracker(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, 0.0)
    # The one from which it has resumed, and the last one before.
    assert not growing.should_end_attempt(None, 51, 50)
    assert not growing.should_end_attempt(growth, 51, 60)
    assert not growing.should_end_attempt(growth, 51, 60)
    assert growing.should_end_attempt(growth, 51, 70)
    # It has not ended: that would now cost the steps since.
    assert not growing.should_end_attempt(growth, 51, 70)
    assert growing.should_end_attempt(growth, 51, 80)
    # One that is away again does not count.
    assert not growing.should_end_attempt(None, 51, 90)
    assert not growing.should_end_attempt(growth, 51, 90)


def test_attempt_without_checkpoint_continues() -> None:
    growth = Growth(("n3",), False)
    growing = GrowthTracker(REQUEST, SHRUNK_ATTEMPTS, THREE_NODES, 0.0)
    assert not any(
        growing.should_end_attempt(growth, first, saved) for first, saved in ((None, None), (51, None), (51, 50))
    )
    assert growing.should_end_attempt(growth, 51, 60)


def test_growth_blames_nobody_and_counts_no_restart() -> None:
    grown = attempt(2, ("n1", "n2"), Growth(("n3",), False).cause)
    assert decide.verdict(REQUEST._replace(max_restarts=1), [SHRUNK_ATTEMPTS[0], *[grown] * 5]) is None
    assert decide.suspect_nodes([grown]) == []
    assert decide.choose_placement(REQUEST, [SHRUNK_ATTEMPTS[0], grown], THREE_NODES, THREE_NODES).nodes == THREE_NODES
