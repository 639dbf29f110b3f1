# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""After each failure a run goes on where it can, is queued again where it has to wait, and stops where it is the program."""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.decide import decide, unreliable
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt, Cause, Request

REQUEST = Request(name="nano", command=["python3", "train.py"], folder="/mnt/shared/runs/nano", nodes=3, min_nodes=2)
FOUR = ["n1", "n2", "n3", "n4"]


def attempt(
    number: int, cause: Cause | None, last: int | None = 10, nodes: tuple[str, ...] = ("n1", "n2", "n3")
) -> Attempt:
    return Attempt(number, 41, nodes, 3, 0.0, 1.0, 0, last, None, cause)


def crashes(*steps: int) -> list[Attempt]:
    return [
        attempt(i, Cause("crash", "rank 2 on n3: ValueError: bad", 2, "n3"), step) for i, step in enumerate(steps, 1)
    ]


def test_the_first_attempt_takes_what_was_asked_for_and_keeps_the_spare() -> None:
    assert decide(REQUEST, [], FOUR, FOUR).nodes == ("n1", "n2", "n3")


def test_a_lost_node_is_replaced_by_the_spare() -> None:
    lost = attempt(1, Cause("node", "n2 does not answer", None, "n2"))
    decision = decide(REQUEST, [lost], FOUR, ["n1", "n3", "n4"])
    assert (decision.action, decision.nodes) == ("restart", ("n1", "n3", "n4"))


def test_without_a_spare_it_goes_on_with_fewer() -> None:
    lost = attempt(1, Cause("node", "n2 does not answer", None, "n2"))
    decision = decide(REQUEST, [lost], FOUR[:3], ["n1", "n3"])
    assert (decision.action, decision.nodes) == ("restart", ("n1", "n3"))
    assert "2 of 3" in decision.reason


def test_with_too_few_it_is_queued_again() -> None:
    lost = attempt(1, Cause("node", "n2 does not answer", None, "n2"))
    assert decide(REQUEST, [lost], FOUR[:3], ["n3"]).action == "requeue"


def test_a_node_that_fails_three_times_is_left_out() -> None:
    attempts = [attempt(i, Cause("node", "n3 does not answer", None, "n3"), last=i * 10) for i in (1, 2, 3)]
    assert unreliable(attempts) == ["n3"]
    assert decide(REQUEST, attempts, FOUR, FOUR).nodes == ("n1", "n2", "n4")
    assert decide(REQUEST, attempts, FOUR[:3], ["n3"]).excluded == ("n3",)


def test_the_same_failure_at_the_same_step_three_times_is_the_program() -> None:
    assert decide(REQUEST, crashes(10, 10), FOUR, FOUR).action == "restart"
    assert decide(REQUEST, crashes(10, 10, 10), FOUR, FOUR).action == "stop"
    assert decide(REQUEST, crashes(10, 10, 20), FOUR, FOUR).action == "restart"


def test_a_node_that_dies_at_the_same_step_is_not_the_program() -> None:
    attempts = [attempt(i, Cause("node", f"n{i} does not answer", None, f"n{i}")) for i in (1, 2, 3)]
    assert decide(REQUEST, attempts, [*FOUR, "n5", "n6"], ["n4", "n5", "n6"]).action == "restart"


def test_restarts_end_and_time_limits_do_not_count() -> None:
    request = REQUEST._replace(max_restarts=2)
    assert decide(request, crashes(10, 20, 30), FOUR, FOUR).action == "stop"
    warned = [attempt(i, Cause("warned", "the time limit is near"), i * 10) for i in range(1, 6)]
    assert decide(request, warned, FOUR, FOUR).action == "requeue"
    assert decide(request, [*warned, *crashes(60)], FOUR, FOUR).action == "restart"


def test_what_has_ended_ends() -> None:
    assert decide(REQUEST, [attempt(1, Cause("finished"))], FOUR, FOUR).action == "finish"
    assert decide(REQUEST, [attempt(1, Cause("cancelled"))], FOUR, FOUR).action == "stop"
