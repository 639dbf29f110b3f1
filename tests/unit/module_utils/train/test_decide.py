# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a failure, a run continues if possible, in another job if necessary, and stops if the program is to blame."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.cause import USED_UP
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.decide import (
    exclusion,
    fruitless,
    left_out,
    placement,
    suspects,
    unreliable,
    verdict,
    volume_failures,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt, Cause, Request

REQUEST = Request(name="nano", command=["python3", "train.py"], folder="/mnt/shared/runs/nano", nodes=3, min_nodes=2)
FOUR = ["n1", "n2", "n3", "n4"]


def attempt(
    number: int, cause: Cause | None, last: int | None = 10, nodes: tuple[str, ...] = ("n1", "n2", "n3")
) -> Attempt:
    return Attempt(number, 41, nodes, 3, "n1", 0.0, 1.0, 0, last, None, cause)


def crashes(*steps: int | None, error: str = "ValueError: bad", node: str = "n3", **values: Any) -> list[Attempt]:
    return [
        attempt(i, Cause("crash", f"rank {i} on {node}: {error}", i, node, **values), step)
        for i, step in enumerate(steps, 1)
    ]


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


def test_nodes_that_only_another_job_finds_are_used_by_another_job_unless_there_are_enough() -> None:
    decision = placement(REQUEST, [lost("n2")], FOUR[:3], ["n1"], ["n3"])
    assert (decision.action, decision.excluded) == ("resubmit", ("n2",))
    assert "starts nothing on n3 for it any more" in decision.reason
    # With as many as the job may have at least, but fewer than there are.
    assert placement(REQUEST, [lost("n3")], FOUR[:3], ["n1", "n2"], ["n4"]).action == "resubmit"
    assert placement(REQUEST, [lost("n2")], FOUR, ["n1", "n2", "n3"], ["n4"]).action == "restart"


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
    assert action(crashes(30, 20), request) == ""
    assert action(crashes(30, 20, 10), request) == "fail"
    warned = [attempt(i, Cause("warned", "the time limit is near"), i * 10) for i in range(1, 6)]
    assert action(warned, request) == "resubmit"
    assert action([*warned, *crashes(60)], request) == ""


def test_a_node_that_is_to_be_drained_is_left_within_the_job() -> None:
    assert action([attempt(1, Cause("warned", "n2 is to be drained", None, "n2"))]) == ""


def test_what_has_ended_ends() -> None:
    assert action([attempt(1, Cause("finished"))]) == "finish"
    assert action([attempt(1, Cause("cancelled"))]) == "cancel"


def excluding(attempts: list[Attempt], replaceable: bool = True) -> list[Attempt]:
    """The attempts, with the node that is excluded after the last one."""
    node = exclusion(attempts, lambda _node: replaceable)
    return [*attempts[:-1], attempts[-1]._replace(excluded=node)]


def test_an_error_that_repeats_on_one_node_only_excludes_the_node_before_it_is_blamed_on_the_program() -> None:
    attempts = excluding(crashes(10, 10, 10))
    assert attempts[-1].excluded == "n3"
    assert action(attempts) == ""
    assert placement(REQUEST, attempts, FOUR, FOUR).nodes == ("n1", "n2", "n4")
    (text,) = left_out(attempts, ["n1", "n2", "n3"], {})
    assert text == "n3 is no longer used: only there, so far: rank 3 on n3: ValueError: bad"


def test_an_error_that_follows_the_program_to_another_node_excludes_no_further_one() -> None:
    followed = [*excluding(crashes(10, 10, 10)), *crashes(10, node="n4")]
    assert exclusion(followed, lambda _node: True) == ""
    assert action(followed) == "fail"


MEMORY_ACCESS = "killed by SIGABRT: CUDA error: an illegal memory access was encountered"


def moved(attempts: list[Attempt], step: int | None, node: str, **values: Any) -> list[Attempt]:
    """The attempts, and one that fails with the same error on this node."""
    before = attempts[-1].cause
    assert before is not None
    detail = before.detail.replace(before.node, node)
    return [*attempts, attempt(len(attempts) + 1, before._replace(node=node, detail=detail), step)._replace(**values)]


@pytest.mark.parametrize("checkpoints", [(None, None, None), (10, 250, 790)])
def test_an_error_on_one_node_only_is_that_of_the_node_at_whatever_step(checkpoints: tuple[int | None, ...]) -> None:
    found: list[Attempt] = []
    broken = crashes(17, 260, 801, error=MEMORY_ACCESS)
    for one, checkpoint, other in zip(broken, checkpoints, ("n1", "n2", "n4"), strict=True):
        # What happens in between, such as the loss of another node, changes nothing.
        found = excluding([*found, lost(other, 7), one._replace(checkpoint=checkpoint)])
    assert [one.excluded for one in found] == ["", "", "", "", "", "n3"]
    assert action(found) == ""
    assert placement(REQUEST, found, FOUR, FOUR).nodes == ("n1", "n2", "n4")


def test_an_error_on_one_node_only_of_a_program_without_steps_is_that_of_the_node() -> None:
    slow = [one._replace(end=600.0) for one in crashes(None, None, None, error=MEMORY_ACCESS)]
    assert excluding(slow)[-1].excluded == "n3"
    # It follows to the node that has taken its place, with the rank.
    followed = moved(excluding(slow), None, "n4", end=600.0)
    found = verdict(REQUEST, followed)
    assert found is not None and found.action == "fail"
    assert "has occurred on n3, then on n4 without it, so it is that of the program" in found.reason


def test_a_program_whose_error_moves_with_its_rank_loses_one_node_for_a_while_and_is_blamed() -> None:
    """Rank 0 fails at another step each time, and saves checkpoints in between."""
    found = [one._replace(checkpoint=one.last) for one in crashes(17, 260, 801, error=MEMORY_ACCESS, node="n1")]
    found = excluding(found)
    assert placement(REQUEST, found, FOUR, FOUR).nodes == ("n2", "n3", "n4")
    for step, node in ((900, "n2"), (1000, "n2"), (1100, "n2"), (1200, "n3"), (1300, "n1"), (1400, "n1"), (1500, "n1")):
        found = excluding(moved(found, step, node, checkpoint=step))
        assert found[-1].excluded == "" and action(found) == ""
        assert placement(REQUEST, found, FOUR, FOUR).nodes in (("n1", "n2", "n3"), ("n2", "n3", "n4"))
        told = ["n1 may be used again: its error has followed to n2"] if step == 900 else []
        assert left_out(found, FOUR, {}) == told
    # As soon as it gets no further, it has failed.
    stuck = moved(found, 1501, "n2", checkpoint=1500)
    assert action(stuck) == ""
    assert action(moved(moved(stuck, 1501, "n3", checkpoint=1500), 1501, "n2", checkpoint=1500)) == "fail"


def test_a_program_whose_error_follows_and_that_gets_no_further_has_failed_at_whatever_step() -> None:
    found = excluding([one._replace(checkpoint=10) for one in crashes(17, 15, 19, error=MEMORY_ACCESS)])
    assert action(moved(found, 13, "n4", checkpoint=10)) == "fail"
    # The same words for broken hardware on two nodes are no fault of the program.
    broken = excluding(crashes(17, error="CUDA error: uncorrectable ECC error encountered", hardware=True))
    assert action(moved(broken, 13, "n4")) == ""
    assert placement(REQUEST, moved(broken, 13, "n4"), FOUR, FOUR).nodes == ("n1", "n2", "n4")


@pytest.mark.parametrize(
    "error",
    [
        "killed by SIGKILL",
        "exit status 137 (SIGKILL): step 12",
        f"killed by SIGKILL: {USED_UP}",
        f"exit status 1: {USED_UP}: RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
    ],
)
def test_no_node_is_excluded_for_kills_at_several_steps_or_for_the_memory_of_the_job(error: str) -> None:
    assert excluding(crashes(17, 260, 801, 900, error=error))[-1].excluded == ""


def test_kills_at_one_step_on_one_node_exclude_it_whatever_was_killed_elsewhere_at_another_step() -> None:
    kills = [*crashes(5, error="killed by SIGKILL", node="n1"), *crashes(10, 10, 10, error="killed by SIGKILL")]
    found = excluding(kills)
    assert found[-1].excluded == "n3"
    later = moved(found, 9, "n4")
    assert action(later) == "" and placement(REQUEST, later, FOUR, FOUR).nodes == ("n1", "n2", "n4")
    assert action(moved(later, 10, "n4")) == "fail"


def test_a_node_is_not_excluded_for_an_error_that_has_occurred_elsewhere_before() -> None:
    found = crashes(5, error=MEMORY_ACCESS, node="n1")
    for step in (17, 260, 801, 900):
        found = excluding(moved(found, step, "n3"))
        assert found[-1].excluded == ""


def test_an_error_on_several_nodes_or_without_another_node_is_that_of_the_program() -> None:
    assert exclusion([*crashes(10, node="n1"), *crashes(10, 10)], lambda _node: True) == ""
    alone = excluding(crashes(10, 10, 10), replaceable=False)
    assert alone[-1].excluded == ""
    assert action(alone) == "fail"


def test_an_error_of_the_hardware_excludes_its_node_at_once_and_once() -> None:
    broken = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    attempts = excluding(crashes(10, error=broken, hardware=True))
    assert attempts[-1].excluded == "n3"
    assert action(attempts) == ""
    everywhere = [*attempts, *crashes(12, error=broken, node="n4", hardware=True)]
    assert exclusion(everywhere, lambda _node: True) == ""


def test_a_node_is_excluded_for_each_of_its_errors() -> None:
    first = excluding(crashes(10, 10, 10))
    second = excluding([*first, *crashes(20, error="CUDA error: unspecified launch failure", node="n2", hardware=True)])
    assert second[-1].excluded == "n2"
    assert placement(REQUEST, second, FOUR, FOUR).nodes == ("n1", "n4")


def test_kills_of_a_program_that_reports_no_steps_are_not_the_same_failure() -> None:
    assert action(crashes(None, None, None, error="killed by SIGKILL")) == ""
    # With a step, they are at the same place of the program.
    assert action(crashes(7, 7, 7, error="killed by SIGSEGV")) == "fail"


def test_a_program_that_fails_at_its_start_three_times_fails_and_one_that_ran_for_long_goes_on() -> None:
    starts = crashes(None, None, None, error="exit status 1: ModuleNotFoundError: No module named 'tourch'")
    assert action(starts) == "fail"
    assert action([one._replace(end=3600.0) for one in starts]) == ""


def test_restarts_are_counted_since_the_last_new_checkpoint() -> None:
    request = REQUEST._replace(max_restarts=2)
    rising = [one._replace(checkpoint=one.last) for one in crashes(10, 20, 30, 40)]
    assert action(rising, request) == ""
    stuck = [one._replace(checkpoint=40) for one in crashes(41, 42)]
    assert action([*rising, *stuck], request) == "fail"
    # One that goes back to an older checkpoint, since the newest was damaged, has not got further.
    older = [one._replace(checkpoint=30) for one in crashes(35, 36)]
    assert action([*rising, *older], request) == "fail"


def test_restarts_of_a_program_without_checkpoints_are_counted_since_its_furthest_step() -> None:
    apart = crashes(*range(10_000, 120_000, 10_000), error="killed by SIGKILL")
    assert len(apart) == 11
    assert action(apart) == ""
    # From the beginning each time, and never further.
    again = crashes(*range(11, 0, -1), error="killed by SIGKILL")
    found = verdict(REQUEST, again)
    assert action(again[:10]) == ""
    assert found is not None and found.reason.startswith("10 restarts since the furthest step were not enough")


def test_restarts_of_a_program_that_reports_nothing_are_counted_since_it_last_ran_for_long() -> None:
    kills = crashes(*[None] * 11, error="killed by SIGKILL")
    assert action([one._replace(end=4000.0) for one in kills]) == ""
    short = [one._replace(end=600.0) for one in kills]
    assert action(short) == "fail"
    assert action([*short[:10], short[10]._replace(end=4000.0)]) == ""
    assert action([short[0]._replace(end=4000.0), *short[1:10]]) == ""
    assert action([short[0]._replace(end=4000.0), *short[1:]]) == "fail"


def jobs(*checkpoints: int | None, lasted: float = 3600.0, last: int | None = 500) -> list[Attempt]:
    """Jobs that have ended for their time limit."""
    cause = Cause("warned", "the time limit is near")
    return [
        attempt(i, cause, last)._replace(job=40 + i, checkpoint=checkpoint, end=lasted)
        for i, checkpoint in enumerate(checkpoints, 1)
    ]


def test_jobs_without_a_newer_checkpoint_stop_the_run_and_the_reason_is_told() -> None:
    assert action(jobs(100, 100, 100)) == "resubmit"
    assert action(jobs(100, 200, 300, 400)) == "resubmit"
    found = verdict(REQUEST, jobs(100, 100, None, 100))
    assert found is not None and found.action == "fail"
    for words in ("3 jobs in a row have brought no newer checkpoint (42, 43, 44)", "--grace", "--time", "resume nano"):
        assert words in found.reason
    # Steps from the beginning in each job, and never a checkpoint.
    assert action(jobs(None, None, None, None)) == "fail"


def test_jobs_of_which_nothing_is_known_or_that_had_no_time_do_not_stop_the_run() -> None:
    assert fruitless(REQUEST, jobs(None, None, None, None, last=None)) == []
    assert action(jobs(100, 100, 100, 100, lasted=30.0)) == "resubmit"


def test_failures_of_the_volume_count_for_nothing_and_are_counted_in_a_row_since_the_run_got_further() -> None:
    full = [attempt(i, Cause("volume", "the shared volume is full: rank 0 on n3: x"), 10) for i in range(1, 13)]
    assert action(full) == "" and exclusion(full, lambda _node: True) == "" and suspects(full) == []
    assert volume_failures([]) == 0 and volume_failures(full) == 12
    assert volume_failures([*full, attempt(13, None)]) == 12
    assert volume_failures([*full, *crashes(10)]) == 0
    # It had room for a checkpoint in between, also in the attempt that still runs.
    assert volume_failures([*full, full[0]._replace(last=20), full[0]]) == 2
    assert volume_failures([*full, attempt(13, None, last=20)]) == 0
