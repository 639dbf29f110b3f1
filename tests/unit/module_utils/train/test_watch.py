# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When an attempt has ended, and why, from the agents' messages."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.lines import Said
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Cause, Request
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.watch import MEMORY, STARTING, Watch

NODES = ["n1", "n2", "n3"]
REQUEST = Request(name="nano", command=["true"], folder="/x/nano", nodes=3, hang_timeout=60)


def said(event: str, node: str, **values: Any) -> Said:
    return Said(event, node, values)


def ended(rank: int, status: int, at: float = 1.0, tail: str = "", **progress: Any) -> Said:
    return said("ended", NODES[rank], rank=rank, status=status, at=at, tail=tail, **progress)


def beat(rank: int, step: int | None = None, **more: Any) -> Said:
    ranks = {} if step is None else {str(rank): {"step": step, "steps": 100, "loss": 2.0, "checkpoint": None, **more}}
    return said("beat", NODES[rank], ranks=ranks)


@pytest.fixture
def watch() -> Watch:
    made = Watch(REQUEST, NODES, 0.0)
    for rank, node in enumerate(NODES):
        made.hear(said("started", node, ranks=[rank]), 1.0)
    return made


def test_it_goes_on_while_ranks_live(watch: Watch) -> None:
    watch.hear(ended(0, 0), 5.0)
    assert watch.verdict(6.0) is None


def test_it_has_finished_when_all_ranks_have(watch: Watch) -> None:
    for rank in range(3):
        watch.hear(ended(rank, 0), 5.0)
    cause = watch.verdict(5.0)
    assert cause is not None and cause.kind == "finished"


def test_others_are_awaited_before_one_is_blamed(watch: Watch) -> None:
    watch.hear(ended(0, 1, 9.0, "RuntimeError: [pair.cc:534] Connection closed by peer"), 10.0)
    assert watch.verdict(11.0) is None
    watch.hear(ended(2, -9, 9.5), 12.0)
    for rank in range(3):
        watch.hear(beat(rank), 13.0)
    cause = watch.verdict(13.5)
    assert cause is not None
    assert (cause.kind, cause.rank, cause.node) == ("crash", 2, "n3")


def test_a_silent_node_is_named_but_not_one_whose_ranks_have_ended(watch: Watch) -> None:
    for now in range(2, 30):
        watch.hear(beat(0), float(now))
    watch.hear(said("gone", "n2"), 15.0)
    assert watch.silent(29.0) == ["n3"]
    watch.lost["n3"] = "no longer responds"
    cause = watch.verdict(29.0)
    assert cause is not None and (cause.kind, cause.node) == ("node", "n3")


def test_a_run_that_tells_of_no_steps_never_hangs(watch: Watch) -> None:
    watch.hear(beat(0), 5.0)
    assert not watch.hangs(1e6)


def test_a_hang_is_looked_into_once_and_then_judged(watch: Watch) -> None:
    for rank in range(3):
        watch.hear(beat(rank, 40), 10.0)
    assert not watch.hangs(69.0)
    assert watch.asks(71.0)
    assert not watch.asks(72.0)
    watch.hear(said("state", "n2", rank=1, stopped="stopped (SIGSTOP)", place=""), 72.0)
    assert watch.verdict(72.0) is None
    cause = watch.verdict(77.0)
    assert cause is not None and (cause.kind, cause.rank, cause.node) == ("hang", 1, "n2")


def test_one_that_hangs_when_all_others_have_ended_is_to_blame(watch: Watch) -> None:
    for rank in range(3):
        watch.hear(beat(rank, 100), 10.0)
    for rank in (0, 2):
        watch.hear(ended(rank, 0), 11.0)
    assert not watch.asks(70.0)
    assert watch.asks(72.0)
    cause = watch.verdict(78.0)
    assert cause is not None and (cause.kind, cause.rank) == ("hang", 1)
    assert cause.detail == "rank 1 on n2 is still running, although all others have ended"


def test_a_step_in_the_meantime_ends_the_suspicion(watch: Watch) -> None:
    watch.hear(beat(0, 40), 10.0)
    assert watch.asks(71.0)
    watch.hear(beat(0, 41), 73.0)
    assert watch.verdict(80.0) is None


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"step": 40, "steps": 100}, "warned"),
        ({"step": 100, "steps": 100}, "finished"),
        ({"step": 40}, "warned"),
        ({"steps": 100}, "warned"),
        ({}, "warned"),
    ],
)
def test_after_a_warning_it_is_through_only_at_its_last_step(watch: Watch, told: dict[str, int], kind: str) -> None:
    watch.warn(Cause("warned", "the time limit is near"))
    for rank in range(3):
        watch.hear(ended(rank, 0, **told), 5.0)
    cause = watch.verdict(5.0)
    assert cause is not None and cause.kind == kind


#: What gloo prints when a pair is destroyed while its peer has left.
GLOO = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:169] . remove failed\n"
)


def exits(watch: Watch, statuses: tuple[int, ...], now: float, step: int = 100, tail: str = GLOO) -> None:
    """Ranks, from the first one on, have reported this step, and end with these statuses."""
    for rank in range(3):
        watch.hear(beat(rank, step), now)
    for rank, status in enumerate(statuses):
        watch.hear(ended(rank, status, now, tail if status else "", step=step, steps=100), now)


@pytest.mark.parametrize("statuses", [(0, -6, 0), (-11, -6, -6), (134, 0, 0)])
def test_a_rank_that_aborts_at_its_exit_after_the_last_step_of_all_does_not_restart_the_run(
    watch: Watch, statuses: tuple[int, ...]
) -> None:
    exits(watch, statuses, 10.0)
    cause = watch.verdict(10.0)
    assert cause is not None and (cause.kind, cause.rank, cause.node) == ("finished", None, "")
    assert cause.detail.startswith("warning: after the last step, rank ") and "remove failed" in cause.detail


def test_nor_do_those_that_then_miss_their_peer(watch: Watch) -> None:
    exits(watch, (0, -6), 10.0)
    watch.hear(ended(2, 1, 11.0, "RuntimeError: [pair.cc:534] Connection closed by peer", step=100, steps=100), 11.0)
    cause = watch.verdict(11.0)
    assert cause is not None and cause.kind == "finished"
    assert cause.detail.startswith("warning: after the last step, rank 1 on n2: killed by SIGABRT")


def test_the_others_may_finish_their_work_after_one_has_aborted(watch: Watch) -> None:
    exits(watch, (0, -6), 10.0)
    for now in range(11, 69):
        beats(watch, float(now))
        assert watch.verdict(float(now)) is None
    watch.hear(ended(2, 0, 69.0, step=100, steps=100), 69.0)
    cause = watch.verdict(69.0)
    assert cause is not None and cause.kind == "finished"


def test_but_not_for_ever(watch: Watch) -> None:
    exits(watch, (0, -6), 10.0)
    beats(watch, 71.0)
    cause = watch.verdict(71.0)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 1)


@pytest.mark.parametrize(
    ("statuses", "step", "tail"),
    [
        ((0, -6, 0), 99, GLOO),
        (
            (0, 1, 0),
            100,
            'Traceback (most recent call last):\n  File "t.py", line 1\nOSError: [Errno 28] No space left',
        ),
        ((0, -9, 0), 100, ""),
        ((0, -6, -9), 100, ""),
    ],
)
def test_before_the_last_step_or_with_another_error_it_is_a_crash(
    watch: Watch, statuses: tuple[int, ...], step: int, tail: str
) -> None:
    exits(watch, statuses, 10.0, step, tail)
    cause = watch.verdict(10.0)
    assert cause is not None and cause.kind == "crash"


def test_a_rank_that_has_not_reported_the_last_step_keeps_the_abort_of_another_a_crash(watch: Watch) -> None:
    for rank, status in ((0, 0), (1, -6), (2, 0)):
        told = {} if rank == 2 else {"step": 100, "steps": 100}
        watch.hear(ended(rank, status, 10.0, GLOO if status else "", **told), 10.0)
    cause = watch.verdict(10.0)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 1)


def test_progress_is_that_of_the_slowest_rank_and_the_newest_checkpoint(watch: Watch) -> None:
    watch.hear(beat(0, 41, checkpoint=30), 5.0)
    watch.hear(beat(1, 40, checkpoint=40), 5.0)
    now = watch.progress()
    assert (now.step, now.steps, now.loss, now.checkpoint) == (40, 100, 2.0, 40)


def test_where_a_node_has_fallen_silent_nobody_is_blamed_until_it_is_known(watch: Watch) -> None:
    for now in (10.0, 11.0, 12.0, 13.0, 14.0):
        watch.hear(beat(1, 5), now)
        watch.hear(beat(0, 5), now)
    watch.hear(ended(0, 1, 11.0, "EOFError"), 11.0)
    watch.hear(beat(0, 5), 14.5)
    assert watch.verdict(14.5) is None
    assert watch.silent(14.5) == ["n3"]
    watch.lost["n3"] = "no longer responds"
    cause = watch.verdict(14.6)
    assert cause is not None and (cause.kind, cause.node) == ("node", "n3")


def test_a_node_that_answers_without_its_agent_is_lost_in_the_end(watch: Watch) -> None:
    watch.answers("n3", 20.0)
    assert watch.lost == {}
    watch.answers("n3", 40.0)
    assert set(watch.lost) == watch.alive == {"n3"}


def test_it_is_over_when_each_agent_is_gone_or_silent(watch: Watch) -> None:
    for node in NODES[:2]:
        watch.hear(said("gone", node), 2.0)
    assert not watch.over(3.0)
    assert watch.over(6.0)


def test_a_program_that_has_told_of_steps_before_hangs_also_before_the_first() -> None:
    watch = Watch(REQUEST, NODES, 0.0, tells=True)
    # It also gets the time to start.
    assert not watch.hangs(STARTING + 59.0)
    assert watch.hangs(STARTING + 61.0)


def test_an_agent_that_cannot_start_its_ranks_says_why(watch: Watch) -> None:
    watch.hear(said("failed", "n2", reason="[Errno 2] No such file or directory: 'python9'"), 2.0)
    cause = watch.verdict(2.0)
    assert cause is not None and (cause.kind, cause.node) == ("start", "n2")
    assert "python9" in cause.detail


def staging(node: str, done: int, ready: bool = False) -> Said:
    return said("staging", node, done=done, total=2_000_000_000, ready=ready)


def test_the_ranks_start_when_all_nodes_have_the_data() -> None:
    watch = Watch(REQUEST, NODES, 0.0, tells=True)
    assert not watch.staged() and watch.staging() == ""
    for now in range(100):
        watch.hear(staging("n1", 2_000_000_000, ready=True), float(now))
        watch.hear(staging("n2", 500_000_000), float(now))
    assert watch.staging() == "staging: 1 of 3 nodes have the data, 2.5 of 6.0 GB"
    # Ranks that have not started cannot hang.
    assert not watch.hangs(100.0) and not watch.staged()
    for node in ("n2", "n3"):
        watch.hear(staging(node, 2_000_000_000, ready=True), 100.0)
    assert watch.staged() and watch.staging() == ""


def test_a_full_disk_is_the_nodes_and_missing_data_is_not(watch: Watch) -> None:
    watch.hear(said("failed", "n2", reason="cannot copy the data: no room", of_node=True), 2.0)
    assert watch.verdict(2.0) == Cause("node", "n2 cannot copy the data: no room", None, "n2")
    # The next attempt is on another node.
    assert set(watch.lost) - watch.alive == {"n2"}


def test_data_that_has_changed_is_not_the_fault_of_a_node(watch: Watch) -> None:
    watch.hear(said("failed", "n2", reason="it has changed", of_node=False), 2.0)
    assert watch.verdict(2.0) == Cause("start", "on n2: it has changed", None, "n2")
    assert not watch.lost


TIMED_OUT = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 15000ms for recv operation to complete"


def state(rank: int, stopped: str = "", place: str = "", error: str = "") -> Said:
    return said("state", NODES[rank], rank=rank, stopped=stopped, place=place, error=error)


def beats(watch: Watch, now: float) -> None:
    for rank in range(3):
        watch.hear(beat(rank), now)


@pytest.fixture(name="given_up")
def _given_up(watch: Watch) -> Watch:
    """Two ranks have given up waiting for rank 1, and the agents have been asked what it does."""
    for rank in (0, 2):
        watch.hear(ended(rank, -6 if rank else 1, 10.0 + rank, TIMED_OUT), 10.0)
    beats(watch, 13.0)
    assert not watch.asks(12.0)
    assert watch.verdict(13.5) is None
    assert watch.asks(13.5)
    assert not watch.asks(14.0)
    return watch


def test_where_all_that_failed_name_their_peer_the_stopped_rank_is_to_blame(given_up: Watch) -> None:
    given_up.hear(state(1, "stopped (SIGSTOP)"), 14.0)
    beats(given_up, 18.0)
    assert given_up.verdict(18.0) is None
    cause = given_up.verdict(18.6)
    assert cause is not None and (cause.kind, cause.rank, cause.node) == ("hang", 1, "n2")
    assert cause.detail == (
        f"rank 1 on n2 is stopped (SIGSTOP); 2 other ranks gave up waiting for it: rank 0: exit status 1: {TIMED_OUT}"
    )


def test_or_the_one_that_has_failed_without_ending(given_up: Watch) -> None:
    given_up.hear(state(1, place="_shutdown (threading.py:1624)", error="ValueError: loss is nan"), 14.0)
    beats(given_up, 18.6)
    cause = given_up.verdict(18.6)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 1)
    assert cause.detail.startswith(
        "rank 1 on n2 is still there after its error: ValueError: loss is nan; 2 other ranks"
    )


def test_or_the_one_that_is_somewhere_else(given_up: Watch) -> None:
    given_up.hear(state(1, place="load (data.py:7)"), 14.0)
    beats(given_up, 18.6)
    cause = given_up.verdict(18.6)
    assert cause is not None and (cause.kind, cause.rank) == ("hang", 1)
    assert cause.detail.startswith("rank 1 on n2 is still running, in load (data.py:7); 2 other ranks gave up")


def test_but_not_one_that_waits_as_they_did(given_up: Watch) -> None:
    given_up.hear(state(1, place="all_reduce (distributed_c10d.py:2811)"), 14.0)
    beats(given_up, 18.6)
    cause = given_up.verdict(18.6)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 0)


def test_an_error_of_its_own_in_the_meantime_ends_the_search(given_up: Watch) -> None:
    given_up.hear(ended(1, 1, 14.0, "ValueError: bad sample 17"), 14.2)
    cause = given_up.verdict(14.2)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 1)
    assert "ValueError: bad sample 17 (2 other ranks failed after it)" in cause.detail


def test_of_those_that_live_the_one_behind_is_to_blame(watch: Watch) -> None:
    for rank, step in enumerate((41, 40, 41)):
        watch.hear(beat(rank, step), 5.0)
    watch.hear(ended(0, 1, 9.0, TIMED_OUT, step=41), 10.0)
    beats(watch, 13.2)
    assert watch.asks(13.2)
    beats(watch, 18.4)
    cause = watch.verdict(18.4)
    assert cause is not None and (cause.kind, cause.rank) == ("hang", 1)
    assert cause.detail.startswith("rank 1 on n2 is still running at step 40; 1 other rank gave up waiting for it")


def test_nobody_is_searched_for_when_a_rank_has_an_error_of_its_own(watch: Watch) -> None:
    watch.hear(ended(0, 1, 9.0, "ValueError: bad sample 17"), 10.0)
    beats(watch, 13.2)
    assert not watch.asks(13.2)
    cause = watch.verdict(13.2)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 0)


def test_a_program_that_was_told_to_end_is_not_searched(given_up: Watch) -> None:
    given_up.warn(Cause("warned", "the time limit is near"))
    cause = given_up.verdict(14.0)
    assert cause is not None and cause.kind == "warned"


def test_an_agent_that_was_killed_for_the_memory_of_the_job_is_not_a_node_that_is_lost(watch: Watch) -> None:
    watch.hear(said(MEMORY, "n2"), 5.0)
    assert watch.verdict(3.0) is None
    watch.hear(beat(0), 5.0)
    watch.hear(beat(2), 5.0)
    cause = watch.verdict(5.5)
    assert cause is not None and (cause.kind, cause.rank, cause.node) == ("crash", None, "n2")
    assert cause.detail == (
        "n2: the memory of the job on its node was used up (oom_kill). Request more with --sbatch --mem=SIZE"
    )


def test_of_a_step_that_has_ended_its_memory_is_told_or_that_its_ranks_had_not(watch: Watch) -> None:
    assert Watch(REQUEST, ["n1", "n2"], 0.0).without_step().kind == "start"
    watch.hear(beat(0, 40), 5.0)
    assert watch.without_step() == Cause("crash", "srun ended before the ranks: see supervisor.log")
    watch.hear(said(MEMORY, "n2"), 5.0)
    cause = watch.without_step()
    assert (cause.kind, cause.node) == ("crash", "n2") and "used up" in cause.detail


def test_a_rank_that_was_killed_for_its_memory_is_told_so(watch: Watch) -> None:
    watch.hear(ended(0, 1, 9.0, TIMED_OUT, memory=True), 10.0)
    watch.hear(ended(1, -9, 9.5, memory=True), 10.0)
    watch.hear(ended(2, 1, 9.0, TIMED_OUT), 10.0)
    cause = watch.verdict(10.0)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 1)
    assert "killed by SIGKILL: the memory of the job on its node was used up (oom_kill)" in cause.detail


def test_a_rank_that_has_failed_without_ending_is_to_blame_for_a_hang(watch: Watch) -> None:
    for rank in range(3):
        watch.hear(beat(rank, 40), 10.0)
    assert watch.asks(71.0)
    watch.hear(state(1, error="ValueError: loss is nan"), 72.0)
    cause = watch.verdict(77.0)
    assert cause is not None and (cause.kind, cause.rank) == ("hang", 1)
    assert "rank 1 on n2 is still there after its error: ValueError: loss is nan" in cause.detail


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    ("errors", "rank", "hardware"),
    [
        # The exit of JAX, for example, waits for the others.
        ({0: "ValueError: loss is nan", 1: ECC}, 1, True),
        ({1: "ValueError: loss is nan"}, 1, False),
        # What the ranks of two nodes say is not the hardware of one.
        ({0: ECC, 2: ECC}, 0, False),
    ],
)
def test_a_node_is_at_fault_for_its_hardware_also_if_its_rank_has_not_ended(
    watch: Watch, errors: dict[int, str], rank: int, hardware: bool
) -> None:
    for each in range(3):
        watch.hear(beat(each, 40), 10.0)
    assert watch.asks(71.0)
    for each, error in errors.items():
        watch.hear(state(each, error=error), 72.0)
    cause = watch.verdict(77.0)
    assert cause is not None and (cause.kind, cause.rank, cause.hardware) == ("hang", rank, hardware)


def test_nor_if_the_others_have_given_up(given_up: Watch) -> None:
    given_up.hear(state(1, place="_shutdown (threading.py:1624)", error=ECC), 14.0)
    beats(given_up, 18.6)
    cause = given_up.verdict(18.6)
    assert cause is not None and (cause.kind, cause.rank, cause.node, cause.hardware) == ("crash", 1, "n2", True)


def stopped(watch: Watch) -> None:
    """The supervisor is stopped for 40 s at second 11. Then it hears what the agents said before they gave it up."""
    for rank in range(3):
        watch.hear(beat(rank, 5), 11.0)
    watch.resume(51.0, 40.0)
    for rank in range(3):
        watch.hear(beat(rank, 6), 51.1)


def test_a_supervisor_that_was_stopped_gives_all_their_time_again(watch: Watch) -> None:
    stopped(watch)
    assert watch.silent(52.0) == [] and not watch.hangs(52.0)
    for now in range(53, 111):
        beats(watch, float(now))
        assert watch.verdict(float(now)) is None and watch.silent(float(now)) == []
    assert watch.hangs(112.0)
    # It is no excuse for a node that is lost much later.
    watch.lost["n3"] = "no longer responds"
    cause = watch.verdict(130.0)
    assert cause is not None and (cause.kind, cause.node) == ("node", "n3")


def test_agents_that_end_their_ranks_since_it_was_stopped_are_not_blamed(watch: Watch) -> None:
    stopped(watch)
    assert watch.verdict(57.0) is None
    assert watch.verdict(58.0) == Cause("supervisor", "the supervisor was stopped for 40 s")


def test_a_rank_that_has_crashed_before_is_blamed_all_the_same(watch: Watch) -> None:
    stopped(watch)
    watch.hear(ended(1, -9, 12.0), 51.1)
    cause = watch.verdict(58.0)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 1)


def test_the_pause_of_the_supervisor_is_not_taken_for_one_of_the_program(watch: Watch) -> None:
    stopped(watch)
    assert watch.limits.gap < 11.0
