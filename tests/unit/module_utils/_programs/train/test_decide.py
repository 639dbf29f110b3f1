# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a failure, a run continues if possible, in another job if necessary, and stops if the program is to blame."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.attribution import OUT_OF_MEMORY
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.decide import (
    choose_excluded_node,
    choose_placement,
    describe_excluded_nodes,
    fruitless_jobs,
    suspect_nodes,
    unreliable_nodes,
    verdict,
    volume_failure_count,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Attempt, Cause, RunRequest

REQUEST = RunRequest(name="nano", command=["python3", "train.py"], folder="/mnt/shared/runs/nano", nodes=3, min_nodes=2)
FOUR_NODES = ["n1", "n2", "n3", "n4"]


def attempt(
    number: int, cause: Cause | None, last: int | None = 10, nodes: tuple[str, ...] = ("n1", "n2", "n3")
) -> Attempt:
    return Attempt(number, 41, nodes, 3, "n1", 0.0, 1.0, 0, last, None, cause)


def crashes(*steps: int | None, error: str = "ValueError: bad", node: str = "n3", **values: Any) -> list[Attempt]:
    return [
        attempt(i, Cause("crash", f"rank {i} on {node}: {error}", i, node, **values), step)
        for i, step in enumerate(steps, 1)
    ]


def node_failure(node: str, number: int = 1) -> Attempt:
    return attempt(number, Cause("node", f"{node} does not answer", None, node), last=number * 10)


def decided_action(attempts: list[Attempt], request: RunRequest = REQUEST) -> str:
    found = verdict(request, attempts)
    return "" if found is None else found.action


def test_first_attempt_uses_requested_nodes_and_keeps_spare() -> None:
    assert verdict(REQUEST, []) is None
    assert choose_placement(REQUEST, [], FOUR_NODES, FOUR_NODES).nodes == ("n1", "n2", "n3")


def test_lost_node_is_replaced_by_spare() -> None:
    decision = choose_placement(REQUEST, [node_failure("n2")], FOUR_NODES, ["n1", "n3", "n4"])
    assert (decision.action, decision.nodes) == ("restart", ("n1", "n3", "n4"))


def test_run_continues_with_fewer_nodes_without_spare() -> None:
    decision = choose_placement(REQUEST, [node_failure("n2")], FOUR_NODES[:3], ["n1", "n3"])
    assert (decision.action, decision.nodes) == ("restart", ("n1", "n3"))
    assert "2 of 3" in decision.reason


def test_cut_off_nodes_need_another_job_unless_enough_nodes_remain() -> None:
    decision = choose_placement(REQUEST, [node_failure("n2")], FOUR_NODES[:3], ["n1"], ["n3"])
    assert (decision.action, decision.excluded_nodes) == ("resubmit", ("n2",))
    assert "starts nothing on n3 for it any more" in decision.reason
    # With as many as the job may have at least, but fewer than there are.
    assert choose_placement(REQUEST, [node_failure("n3")], FOUR_NODES[:3], ["n1", "n2"], ["n4"]).action == "resubmit"
    assert choose_placement(REQUEST, [node_failure("n2")], FOUR_NODES, ["n1", "n2", "n3"], ["n4"]).action == "restart"


def test_run_is_resubmitted_with_too_few_nodes() -> None:
    decision = choose_placement(REQUEST, [node_failure("n2")], FOUR_NODES[:3], ["n3"])
    assert (decision.action, decision.excluded_nodes) == ("resubmit", ("n1", "n2"))


def test_nodes_of_last_attempt_are_reused() -> None:
    before = attempt(1, Cause("crash", "rank 0 on n4: x", 0, "n4"), nodes=("n2", "n3", "n4"))
    assert choose_placement(REQUEST, [before], FOUR_NODES, FOUR_NODES).nodes == ("n2", "n3", "n4")


def test_node_is_barred_after_three_failures() -> None:
    attempts = [node_failure("n3", number) for number in (1, 2, 3)]
    assert unreliable_nodes(attempts[:2]) == []
    assert unreliable_nodes(attempts) == ["n3"]
    assert choose_placement(REQUEST, attempts, FOUR_NODES, FOUR_NODES).nodes == ("n1", "n2", "n4")


def test_excluded_nodes_are_described_with_reasons() -> None:
    attempts = [node_failure("n3", number) for number in (1, 2, 3)]
    unfit = {"n2": "is drained: gpumesh health: health.gpu_ecc: 12 errors", "n4": "does not answer"}
    assert describe_excluded_nodes(attempts, ["n1", "n2", "n3"], unfit) == [
        "n2 is drained: gpumesh health: health.gpu_ecc: 12 errors",
        "n3 is no longer used: it has failed 3 times in this run",
    ]
    assert describe_excluded_nodes(attempts[:2], ["n1", "n3"], {}) == []


def test_culprit_nodes_are_suspects() -> None:
    warned = attempt(3, Cause("warned", "n1 is to be drained", None, "n1"))
    assert suspect_nodes([*crashes(10), node_failure("n2", 2), warned, attempt(4, Cause("finished"))]) == ["n2", "n3"]


def test_same_failure_at_same_step_three_times_is_blamed_on_program() -> None:
    assert decided_action(crashes(10, 10)) == ""
    assert decided_action(crashes(10, 10, 10)) == "fail"
    assert decided_action(crashes(10, 10, 20)) == ""
    other = crashes(10, error="KeyError: 'x'")
    assert decided_action([*crashes(10, 10), *other]) == ""


def test_node_failures_at_same_step_are_not_blamed_on_program() -> None:
    assert decided_action([attempt(i, Cause("node", f"n{i} does not answer", None, f"n{i}")) for i in (1, 2, 3)]) == ""


def test_restarts_are_limited_and_time_limits_do_not_count() -> None:
    request = REQUEST._replace(max_restarts=2)
    assert decided_action(crashes(30, 20), request) == ""
    assert decided_action(crashes(30, 20, 10), request) == "fail"
    warned = [attempt(i, Cause("warned", "the time limit is near"), i * 10) for i in range(1, 6)]
    assert decided_action(warned, request) == "resubmit"
    assert decided_action([*warned, *crashes(60)], request) == ""


def test_draining_node_is_replaced_within_job() -> None:
    assert decided_action([attempt(1, Cause("warned", "n2 is to be drained", None, "n2"))]) == ""


def test_finished_and_cancelled_runs_end() -> None:
    assert decided_action([attempt(1, Cause("finished"))]) == "finish"
    assert decided_action([attempt(1, Cause("cancelled"))]) == "cancel"


def with_exclusion(attempts: list[Attempt], replaceable: bool = True) -> list[Attempt]:
    """The attempts, with the node that is excluded after the last one."""
    node = choose_excluded_node(attempts, lambda _node: replaceable)
    return [*attempts[:-1], attempts[-1]._replace(excluded=node)]


def test_node_is_excluded_before_program_is_blamed() -> None:
    attempts = with_exclusion(crashes(10, 10, 10))
    assert attempts[-1].excluded == "n3"
    assert decided_action(attempts) == ""
    assert choose_placement(REQUEST, attempts, FOUR_NODES, FOUR_NODES).nodes == ("n1", "n2", "n4")
    (text,) = describe_excluded_nodes(attempts, ["n1", "n2", "n3"], {})
    assert text == "n3 is no longer used: only there, so far: rank 3 on n3: ValueError: bad"


def test_error_that_moves_to_another_node_excludes_no_more_nodes() -> None:
    followed = [*with_exclusion(crashes(10, 10, 10)), *crashes(10, node="n4")]
    assert choose_excluded_node(followed, lambda _node: True) == ""
    assert decided_action(followed) == "fail"


MEMORY_ACCESS = "killed by SIGABRT: CUDA error: an illegal memory access was encountered"


def with_moved_error(attempts: list[Attempt], step: int | None, node: str, **values: Any) -> list[Attempt]:
    """The attempts, and one that fails with the same error on this node."""
    before = attempts[-1].cause
    assert before is not None
    detail = before.detail.replace(before.node, node)
    return [*attempts, attempt(len(attempts) + 1, before._replace(node=node, detail=detail), step)._replace(**values)]


@pytest.mark.parametrize("checkpoints", [(None, None, None), (10, 250, 790)])
def test_error_on_one_node_only_is_blamed_on_node_at_any_step(checkpoints: tuple[int | None, ...]) -> None:
    found: list[Attempt] = []
    broken = crashes(17, 260, 801, error=MEMORY_ACCESS)
    for one, checkpoint, other in zip(broken, checkpoints, ("n1", "n2", "n4"), strict=True):
        # What happens in between, such as the loss of another node, changes nothing.
        found = with_exclusion([*found, node_failure(other, 7), one._replace(checkpoint=checkpoint)])
    assert [one.excluded for one in found] == ["", "", "", "", "", "n3"]
    assert decided_action(found) == ""
    assert choose_placement(REQUEST, found, FOUR_NODES, FOUR_NODES).nodes == ("n1", "n2", "n4")


def test_error_on_one_node_only_is_blamed_on_node_without_steps() -> None:
    slow = [one._replace(end=600.0) for one in crashes(None, None, None, error=MEMORY_ACCESS)]
    assert with_exclusion(slow)[-1].excluded == "n3"
    # It follows to the node that has taken its place, with the rank.
    followed = with_moved_error(with_exclusion(slow), None, "n4", end=600.0)
    found = verdict(REQUEST, followed)
    assert found is not None and found.action == "fail"
    assert "has occurred on n3, then on n4 without it, so it comes from the program" in found.reason


def test_error_that_moves_with_its_rank_is_blamed_on_program() -> None:
    """Rank 0 fails at another step each time, and saves checkpoints in between."""
    found = [one._replace(checkpoint=one.last) for one in crashes(17, 260, 801, error=MEMORY_ACCESS, node="n1")]
    found = with_exclusion(found)
    assert choose_placement(REQUEST, found, FOUR_NODES, FOUR_NODES).nodes == ("n2", "n3", "n4")
    for step, node in ((900, "n2"), (1000, "n2"), (1100, "n2"), (1200, "n3"), (1300, "n1"), (1400, "n1"), (1500, "n1")):
        found = with_exclusion(with_moved_error(found, step, node, checkpoint=step))
        assert found[-1].excluded == "" and decided_action(found) == ""
        assert choose_placement(REQUEST, found, FOUR_NODES, FOUR_NODES).nodes in (
            ("n1", "n2", "n3"),
            ("n2", "n3", "n4"),
        )
        told = ["n1 may be used again: the same error occurred on n2"] if step == 900 else []
        assert describe_excluded_nodes(found, FOUR_NODES, {}) == told
    # As soon as it gets no further, it has failed.
    stuck = with_moved_error(found, 1501, "n2", checkpoint=1500)
    assert decided_action(stuck) == ""
    assert (
        decided_action(
            with_moved_error(with_moved_error(stuck, 1501, "n3", checkpoint=1500), 1501, "n2", checkpoint=1500)
        )
        == "fail"
    )


def test_moving_error_without_progress_fails_the_run_at_any_step() -> None:
    found = with_exclusion([one._replace(checkpoint=10) for one in crashes(17, 15, 19, error=MEMORY_ACCESS)])
    assert decided_action(with_moved_error(found, 13, "n4", checkpoint=10)) == "fail"
    # The same words for broken hardware on two nodes are no fault of the program.
    broken = with_exclusion(crashes(17, error="CUDA error: uncorrectable ECC error encountered", hardware=True))
    assert decided_action(with_moved_error(broken, 13, "n4")) == ""
    assert choose_placement(REQUEST, with_moved_error(broken, 13, "n4"), FOUR_NODES, FOUR_NODES).nodes == (
        "n1",
        "n2",
        "n4",
    )


@pytest.mark.parametrize(
    "error",
    [
        "killed by SIGKILL",
        "exit status 137 (SIGKILL): step 12",
        f"killed by SIGKILL: {OUT_OF_MEMORY}",
        f"exit status 1: {OUT_OF_MEMORY}: RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
    ],
)
def test_no_node_is_excluded_for_varied_kills_or_job_memory(error: str) -> None:
    assert with_exclusion(crashes(17, 260, 801, 900, error=error))[-1].excluded == ""


def test_node_is_excluded_for_kills_at_one_step() -> None:
    kills = [*crashes(5, error="killed by SIGKILL", node="n1"), *crashes(10, 10, 10, error="killed by SIGKILL")]
    found = with_exclusion(kills)
    assert found[-1].excluded == "n3"
    later = with_moved_error(found, 9, "n4")
    assert decided_action(later) == "" and choose_placement(REQUEST, later, FOUR_NODES, FOUR_NODES).nodes == (
        "n1",
        "n2",
        "n4",
    )
    assert decided_action(with_moved_error(later, 10, "n4")) == "fail"


def test_node_is_not_excluded_for_error_seen_on_another_node() -> None:
    found = crashes(5, error=MEMORY_ACCESS, node="n1")
    for step in (17, 260, 801, 900):
        found = with_exclusion(with_moved_error(found, step, "n3"))
        assert found[-1].excluded == ""


def test_error_on_several_nodes_or_without_replacement_is_blamed_on_program() -> None:
    assert choose_excluded_node([*crashes(10, node="n1"), *crashes(10, 10)], lambda _node: True) == ""
    alone = with_exclusion(crashes(10, 10, 10), replaceable=False)
    assert alone[-1].excluded == ""
    assert decided_action(alone) == "fail"


def test_hardware_error_excludes_its_node_at_once() -> None:
    broken = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    attempts = with_exclusion(crashes(10, error=broken, hardware=True))
    assert attempts[-1].excluded == "n3"
    assert decided_action(attempts) == ""
    everywhere = [*attempts, *crashes(12, error=broken, node="n4", hardware=True)]
    assert choose_excluded_node(everywhere, lambda _node: True) == ""


def test_each_error_can_exclude_a_node() -> None:
    first = with_exclusion(crashes(10, 10, 10))
    second = with_exclusion(
        [*first, *crashes(20, error="CUDA error: unspecified launch failure", node="n2", hardware=True)]
    )
    assert second[-1].excluded == "n2"
    assert choose_placement(REQUEST, second, FOUR_NODES, FOUR_NODES).nodes == ("n1", "n4")


def test_kills_without_steps_are_not_the_same_failure() -> None:
    assert decided_action(crashes(None, None, None, error="killed by SIGKILL")) == ""
    # With a step, they are at the same place of the program.
    assert decided_action(crashes(7, 7, 7, error="killed by SIGSEGV")) == "fail"


def test_run_fails_after_three_failed_starts() -> None:
    starts = crashes(None, None, None, error="exit status 1: ModuleNotFoundError: No module named 'tourch'")
    assert decided_action(starts) == "fail"
    assert decided_action([one._replace(end=3600.0) for one in starts]) == ""


def test_restarts_are_counted_since_last_new_checkpoint() -> None:
    request = REQUEST._replace(max_restarts=2)
    rising = [one._replace(checkpoint=one.last) for one in crashes(10, 20, 30, 40)]
    assert decided_action(rising, request) == ""
    stuck = [one._replace(checkpoint=40) for one in crashes(41, 42)]
    assert decided_action([*rising, *stuck], request) == "fail"
    # One that goes back to an older checkpoint, since the newest was damaged, has not got further.
    older = [one._replace(checkpoint=30) for one in crashes(35, 36)]
    assert decided_action([*rising, *older], request) == "fail"


def test_restarts_without_checkpoints_are_counted_since_furthest_step() -> None:
    apart = crashes(*range(10_000, 120_000, 10_000), error="killed by SIGKILL")
    assert len(apart) == 11
    assert decided_action(apart) == ""
    # From the beginning each time, and never further.
    again = crashes(*range(11, 0, -1), error="killed by SIGKILL")
    found = verdict(REQUEST, again)
    assert decided_action(again[:10]) == ""
    assert found is not None and found.reason.startswith("10 restarts since the furthest step were not enough")


def test_restarts_without_reports_are_counted_since_last_long_attempt() -> None:
    kills = crashes(*[None] * 11, error="killed by SIGKILL")
    assert decided_action([one._replace(end=4000.0) for one in kills]) == ""
    short = [one._replace(end=600.0) for one in kills]
    assert decided_action(short) == "fail"
    assert decided_action([*short[:10], short[10]._replace(end=4000.0)]) == ""
    assert decided_action([short[0]._replace(end=4000.0), *short[1:10]]) == ""
    assert decided_action([short[0]._replace(end=4000.0), *short[1:]]) == "fail"


def time_limited_jobs(*checkpoints: int | None, lasted: float = 3600.0, last: int | None = 500) -> list[Attempt]:
    """Jobs that have ended for their time limit."""
    cause = Cause("warned", "the time limit is near")
    return [
        attempt(i, cause, last)._replace(job=40 + i, checkpoint=checkpoint, end=lasted)
        for i, checkpoint in enumerate(checkpoints, 1)
    ]


def test_jobs_without_newer_checkpoint_fail_the_run() -> None:
    assert decided_action(time_limited_jobs(100, 100, 100)) == "resubmit"
    assert decided_action(time_limited_jobs(100, 200, 300, 400)) == "resubmit"
    found = verdict(REQUEST, time_limited_jobs(100, 100, None, 100))
    assert found is not None and found.action == "fail"
    for words in ("3 jobs in a row produced no newer checkpoint (42, 43, 44)", "--grace", "--time", "resume nano"):
        assert words in found.reason
    # Steps from the beginning in each job, and never a checkpoint.
    assert decided_action(time_limited_jobs(None, None, None, None)) == "fail"


def test_jobs_without_reports_or_time_do_not_fail_the_run() -> None:
    assert fruitless_jobs(REQUEST, time_limited_jobs(None, None, None, None, last=None)) == []
    assert decided_action(time_limited_jobs(100, 100, 100, 100, lasted=30.0)) == "resubmit"


def test_consecutive_volume_failures_are_counted_separately() -> None:
    full = [attempt(i, Cause("volume", "the shared volume is full: rank 0 on n3: x"), 10) for i in range(1, 13)]
    assert (
        decided_action(full) == ""
        and choose_excluded_node(full, lambda _node: True) == ""
        and suspect_nodes(full) == []
    )
    assert volume_failure_count([]) == 0 and volume_failure_count(full) == 12
    assert volume_failure_count([*full, attempt(13, None)]) == 12
    assert volume_failure_count([*full, *crashes(10)]) == 0
    # It had room for a checkpoint in between, also in the attempt that still runs.
    assert volume_failure_count([*full, full[0]._replace(last=20), full[0]]) == 2
    assert volume_failure_count([*full, attempt(13, None, last=20)]) == 0
