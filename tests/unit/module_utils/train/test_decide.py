# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a failure, a run continues if possible, in another job if necessary, and stops if the program is to blame."""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.decide import (
    left_out,
    placement,
    suspects,
    unreliable,
    verdict,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt, Cause, Request

REQUEST = Request(name="nano", command=["python3", "train.py"], folder="/mnt/shared/runs/nano", nodes=3, min_nodes=2)
FOUR = ["n1", "n2", "n3", "n4"]


def attempt(
    number: int, cause: Cause | None, last: int | None = 10, nodes: tuple[str, ...] = ("n1", "n2", "n3")
) -> Attempt:
    return Attempt(number, 41, nodes, 3, "n1", 0.0, 1.0, 0, last, None, cause)


def crashes(*steps: int, error: str = "ValueError: bad") -> list[Attempt]:
    return [attempt(i, Cause("crash", f"rank {i} on n3: {error}", i, "n3"), step) for i, step in enumerate(steps, 1)]


def lost(node: str, number: int = 1) -> Attempt:
    return attempt(number, Cause("node", f"{node} does not answer", None, node), last=number * 10)


def action(attempts: list[Attempt], request: Request = REQUEST) -> str:
    found = verdict(request, attempts)
    return "" if found is None else found.action


def test_the_first_attempt_takes_what_was_asked_for_and_keeps_the_spare() -> None:
    assert verdict(REQUEST, []) is None
    assert placement(REQUEST, [], FOUR, FOUR).nodes == ("n1", "n2", "n3")


def test_a_lost_node_is_replaced_by_the_spare() -> None:
    decision = placement(REQUEST, [lost("n2")], FOUR, ["n1", "n3", "n4"])
    assert (decision.action, decision.nodes) == ("restart", ("n1", "n3", "n4"))


def test_without_a_spare_it_goes_on_with_fewer() -> None:
    decision = placement(REQUEST, [lost("n2")], FOUR[:3], ["n1", "n3"])
    assert (decision.action, decision.nodes) == ("restart", ("n1", "n3"))
    assert "2 of 3" in decision.reason


def test_with_too_few_it_goes_on_elsewhere() -> None:
    decision = placement(REQUEST, [lost("n2")], FOUR[:3], ["n3"])
    assert (decision.action, decision.excluded) == ("resubmit", ("n1", "n2"))


def test_nodes_of_the_last_attempt_are_taken_again() -> None:
    before = attempt(1, Cause("crash", "rank 0 on n4: x", 0, "n4"), nodes=("n2", "n3", "n4"))
    assert placement(REQUEST, [before], FOUR, FOUR).nodes == ("n2", "n3", "n4")


def test_a_node_that_fails_three_times_is_left_out() -> None:
    attempts = [lost("n3", number) for number in (1, 2, 3)]
    assert unreliable(attempts[:2]) == []
    assert unreliable(attempts) == ["n3"]
    assert placement(REQUEST, attempts, FOUR, FOUR).nodes == ("n1", "n2", "n4")


def test_it_says_which_nodes_are_left_out_and_why() -> None:
    attempts = [lost("n3", number) for number in (1, 2, 3)]
    unfit = {"n2": "is drained: gpumesh health: health.gpu_ecc: 12 errors", "n4": "does not answer"}
    assert left_out(attempts, ["n1", "n2", "n3"], unfit) == [
        "n2 is drained: gpumesh health: health.gpu_ecc: 12 errors",
        "n3 is no longer used: it has failed 3 times in this run",
    ]
    assert left_out(attempts[:2], ["n1", "n3"], {}) == []


def test_whoever_a_failure_came_from_is_looked_at() -> None:
    warned = attempt(3, Cause("warned", "n1 is to be drained", None, "n1"))
    assert suspects([*crashes(10), lost("n2", 2), warned, attempt(4, Cause("finished"))]) == ["n2", "n3"]


def test_the_same_failure_at_the_same_step_three_times_is_the_program() -> None:
    assert action(crashes(10, 10)) == ""
    assert action(crashes(10, 10, 10)) == "fail"
    assert action(crashes(10, 10, 20)) == ""
    other = crashes(10, error="KeyError: 'x'")
    assert action([*crashes(10, 10), *other]) == ""


def test_nodes_that_die_at_the_same_step_are_not_the_program() -> None:
    assert action([attempt(i, Cause("node", f"n{i} does not answer", None, f"n{i}")) for i in (1, 2, 3)]) == ""


def test_restarts_end_and_time_limits_do_not_count() -> None:
    request = REQUEST._replace(max_restarts=2)
    assert action(crashes(10, 20), request) == ""
    assert action(crashes(10, 20, 30), request) == "fail"
    warned = [attempt(i, Cause("warned", "the time limit is near"), i * 10) for i in range(1, 6)]
    assert action(warned, request) == "resubmit"
    assert action([*warned, *crashes(60)], request) == ""


def test_a_node_that_is_to_be_drained_is_left_within_the_job() -> None:
    assert action([attempt(1, Cause("warned", "n2 is to be drained", None, "n2"))]) == ""


def test_what_has_ended_ends() -> None:
    assert action([attempt(1, Cause("finished"))]) == "finish"
    assert action([attempt(1, Cause("cancelled"))]) == "cancel"
