# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When an attempt has ended, and why, from the agents' messages."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Cause, RunRequest
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.protocol import AgentMessage
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.watch import (
    OOM_EVENT,
    START_ALLOWANCE,
    AttemptMonitor,
)

NODES = ["n1", "n2", "n3"]
REQUEST = RunRequest(name="nano", command=["true"], folder="/x/nano", nodes=3, hang_timeout=60)


def message(event: str, node: str, **values: Any) -> AgentMessage:
    return AgentMessage(event, node, values)


def ended(rank: int, status: int, at: float = 1.0, tail: str = "", **progress: Any) -> AgentMessage:
    return message("ended", NODES[rank], rank=rank, status=status, at=at, tail=tail, **progress)


def beat(rank: int, step: int | None = None, **more: Any) -> AgentMessage:
    ranks = {} if step is None else {str(rank): {"step": step, "steps": 100, "loss": 2.0, "checkpoint": None, **more}}
    return message("beat", NODES[rank], ranks=ranks)


@pytest.fixture
def watch() -> AttemptMonitor:
    made = AttemptMonitor(REQUEST, NODES, 0.0)
    for rank, node in enumerate(NODES):
        made.process_message(message("started", node, ranks=[rank]), 1.0)
    return made


def test_the_attempt_continues_while_ranks_live(watch: AttemptMonitor) -> None:
    watch.process_message(ended(0, 0), 5.0)
    assert watch.verdict(6.0) is None


def test_the_attempt_finishes_with_all_ranks(watch: AttemptMonitor) -> None:
    for rank in range(3):
        watch.process_message(ended(rank, 0), 5.0)
    cause = watch.verdict(5.0)
    assert cause is not None and cause.kind == "finished"


def test_other_ranks_may_report_before_one_is_blamed(watch: AttemptMonitor) -> None:
    watch.process_message(ended(0, 1, 9.0, "RuntimeError: [pair.cc:534] Connection closed by peer"), 10.0)
    assert watch.verdict(11.0) is None
    watch.process_message(ended(2, -9, 9.5), 12.0)
    for rank in range(3):
        watch.process_message(beat(rank), 13.0)
    cause = watch.verdict(13.5)
    assert cause is not None
    assert (cause.kind, cause.rank, cause.node) == ("crash", 2, "n3")


def test_a_silent_node_is_reported_unless_its_ranks_have_ended(watch: AttemptMonitor) -> None:
    for now in range(2, 30):
        watch.process_message(beat(0), float(now))
    watch.process_message(message("gone", "n2"), 15.0)
    assert watch.silent_nodes(29.0) == ["n3"]
    watch.lost_nodes["n3"] = "no longer responds"
    cause = watch.verdict(29.0)
    assert cause is not None and (cause.kind, cause.node) == ("node", "n3")


def test_a_run_without_steps_never_hangs(watch: AttemptMonitor) -> None:
    watch.process_message(beat(0), 5.0)
    assert not watch.is_hanging(1e6)


def test_a_hang_is_examined_once(watch: AttemptMonitor) -> None:
    for rank in range(3):
        watch.process_message(beat(rank, 40), 10.0)
    assert not watch.is_hanging(69.0)
    assert watch.needs_reports(71.0)
    assert not watch.needs_reports(72.0)
    watch.process_message(message("state", "n2", rank=1, stopped="stopped (SIGSTOP)", place=""), 72.0)
    assert watch.verdict(72.0) is None
    cause = watch.verdict(77.0)
    assert cause is not None and (cause.kind, cause.rank, cause.node) == ("hang", 1, "n2")


def test_the_last_running_rank_is_blamed_for_a_hang(watch: AttemptMonitor) -> None:
    for rank in range(3):
        watch.process_message(beat(rank, 100), 10.0)
    for rank in (0, 2):
        watch.process_message(ended(rank, 0), 11.0)
    assert not watch.needs_reports(70.0)
    assert watch.needs_reports(72.0)
    cause = watch.verdict(78.0)
    assert cause is not None and (cause.kind, cause.rank) == ("hang", 1)
    assert cause.detail == "rank 1 on n2 is still running, although all others have ended"


def test_a_new_step_ends_the_hang(watch: AttemptMonitor) -> None:
    watch.process_message(beat(0, 40), 10.0)
    assert watch.needs_reports(71.0)
    watch.process_message(beat(0, 41), 73.0)
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
def test_a_warned_program_is_finished_only_after_its_last_step(
    watch: AttemptMonitor, told: dict[str, int], kind: str
) -> None:
    watch.record_warning(Cause("warned", "the time limit is near"))
    for rank in range(3):
        watch.process_message(ended(rank, 0, **told), 5.0)
    cause = watch.verdict(5.0)
    assert cause is not None and cause.kind == kind


#: The message of gloo when a pair is destroyed after its peer has left.
GLOO = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:169] . remove failed\n"
)


def exits(watch: AttemptMonitor, statuses: tuple[int, ...], now: float, step: int = 100, tail: str = GLOO) -> None:
    """Ranks, from the first one on, have reported this step, and end with these statuses."""
    for rank in range(3):
        watch.process_message(beat(rank, step), now)
    for rank, status in enumerate(statuses):
        watch.process_message(ended(rank, status, now, tail if status else "", step=step, steps=100), now)


@pytest.mark.parametrize("statuses", [(0, -6, 0), (-11, -6, -6), (134, 0, 0)])
def test_an_abort_at_exit_after_the_last_step_does_not_restart_the_run(
    watch: AttemptMonitor, statuses: tuple[int, ...]
) -> None:
    exits(watch, statuses, 10.0)
    cause = watch.verdict(10.0)
    assert cause is not None and (cause.kind, cause.rank, cause.node) == ("finished", None, "")
    assert cause.detail.startswith("warning: after the last step, rank ") and "remove failed" in cause.detail


def test_ranks_that_lose_an_aborted_peer_at_exit_do_not_restart_the_run(watch: AttemptMonitor) -> None:
    exits(watch, (0, -6), 10.0)
    watch.process_message(
        ended(2, 1, 11.0, "RuntimeError: [pair.cc:534] Connection closed by peer", step=100, steps=100), 11.0
    )
    cause = watch.verdict(11.0)
    assert cause is not None and cause.kind == "finished"
    assert cause.detail.startswith("warning: after the last step, rank 1 on n2: killed by SIGABRT")


def test_other_ranks_may_finish_after_an_abort_at_exit(watch: AttemptMonitor) -> None:
    exits(watch, (0, -6), 10.0)
    for now in range(11, 69):
        beats(watch, float(now))
        assert watch.verdict(float(now)) is None
    watch.process_message(ended(2, 0, 69.0, step=100, steps=100), 69.0)
    cause = watch.verdict(69.0)
    assert cause is not None and cause.kind == "finished"


def test_other_ranks_may_not_take_forever_after_an_abort(watch: AttemptMonitor) -> None:
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
def test_an_abort_before_the_last_step_is_a_crash(
    watch: AttemptMonitor, statuses: tuple[int, ...], step: int, tail: str
) -> None:
    exits(watch, statuses, 10.0, step, tail)
    cause = watch.verdict(10.0)
    assert cause is not None and cause.kind == "crash"


def test_an_abort_is_a_crash_if_a_rank_has_not_reported_the_last_step(watch: AttemptMonitor) -> None:
    for rank, status in ((0, 0), (1, -6), (2, 0)):
        told = {} if rank == 2 else {"step": 100, "steps": 100}
        watch.process_message(ended(rank, status, 10.0, GLOO if status else "", **told), 10.0)
    cause = watch.verdict(10.0)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 1)


def test_progress_combines_the_slowest_rank_and_the_newest_checkpoint(watch: AttemptMonitor) -> None:
    watch.process_message(beat(0, 41, checkpoint=30), 5.0)
    watch.process_message(beat(1, 40, checkpoint=40), 5.0)
    now = watch.progress()
    assert (now.step, now.steps, now.loss, now.checkpoint) == (40, 100, 2.0, 40)


def test_no_rank_is_blamed_while_a_silent_node_is_checked(watch: AttemptMonitor) -> None:
    for now in (10.0, 11.0, 12.0, 13.0, 14.0):
        watch.process_message(beat(1, 5), now)
        watch.process_message(beat(0, 5), now)
    watch.process_message(ended(0, 1, 11.0, "EOFError"), 11.0)
    watch.process_message(beat(0, 5), 14.5)
    assert watch.verdict(14.5) is None
    assert watch.silent_nodes(14.5) == ["n3"]
    watch.lost_nodes["n3"] = "no longer responds"
    cause = watch.verdict(14.6)
    assert cause is not None and (cause.kind, cause.node) == ("node", "n3")


def test_a_lost_agent_is_blamed_before_the_rank_that_lost_its_connection(watch: AttemptMonitor) -> None:
    for node in (0, 1):
        watch.process_message(beat(node, 5), 10.0)
    watch.process_message(ended(0, 1, 11.0, "RuntimeError: Connection closed by peer"), 11.0)
    # On a busy machine, the result of the query comes when the agent has just been silent for long enough.
    watch.process_message(beat(0, 5), 31.2)
    assert watch.verdict(31.5) is None
    watch.record_response("n3", 31.6)
    cause = watch.verdict(31.7)
    assert cause is not None and (cause.kind, cause.node) == ("node", "n3")


def test_a_node_without_its_agent_is_lost(watch: AttemptMonitor) -> None:
    watch.record_response("n3", 20.0)
    assert watch.lost_nodes == {}
    watch.record_response("n3", 40.0)
    assert set(watch.lost_nodes) == watch.responding_nodes == {"n3"}


def test_the_attempt_is_over_when_all_agents_are_gone_or_silent(watch: AttemptMonitor) -> None:
    for node in NODES[:2]:
        watch.process_message(message("gone", node), 2.0)
    assert not watch.is_over(3.0)
    assert watch.is_over(6.0)


def test_a_program_that_reported_steps_before_can_hang_before_the_first() -> None:
    watch = AttemptMonitor(REQUEST, NODES, 0.0, reports_steps=True)
    # The limit also includes the time to start.
    assert not watch.is_hanging(START_ALLOWANCE + 59.0)
    assert watch.is_hanging(START_ALLOWANCE + 61.0)


def test_an_agent_reports_why_it_cannot_start_ranks(watch: AttemptMonitor) -> None:
    watch.process_message(message("failed", "n2", reason="[Errno 2] No such file or directory: 'python9'"), 2.0)
    cause = watch.verdict(2.0)
    assert cause is not None and (cause.kind, cause.node) == ("start", "n2")
    assert "python9" in cause.detail


def staging(node: str, copied_bytes: int, ready: bool = False) -> AgentMessage:
    return message("staging", node, done=copied_bytes, total=2_000_000_000, ready=ready)


def test_the_ranks_start_when_all_nodes_have_the_data() -> None:
    watch = AttemptMonitor(REQUEST, NODES, 0.0, reports_steps=True)
    assert not watch.is_staged() and watch.format_staging() == ""
    for now in range(100):
        watch.process_message(staging("n1", 2_000_000_000, ready=True), float(now))
        watch.process_message(staging("n2", 500_000_000), float(now))
    assert watch.format_staging() == "staging: 1 of 3 nodes have the data, 2.5 of 6.0 GB"
    # Ranks that have not started cannot hang.
    assert not watch.is_hanging(100.0) and not watch.is_staged()
    for node in ("n2", "n3"):
        watch.process_message(staging(node, 2_000_000_000, ready=True), 100.0)
    assert watch.is_staged() and watch.format_staging() == ""


def test_a_full_disk_is_blamed_on_the_node_but_missing_data_is_not(watch: AttemptMonitor) -> None:
    watch.process_message(message("failed", "n2", reason="cannot copy the data: no room", of_node=True), 2.0)
    assert watch.verdict(2.0) == Cause("node", "n2 cannot copy the data: no room", None, "n2")
    # The next attempt is on another node.
    assert set(watch.lost_nodes) - watch.responding_nodes == {"n2"}


def test_changed_data_is_not_blamed_on_a_node(watch: AttemptMonitor) -> None:
    watch.process_message(message("failed", "n2", reason="it has changed", of_node=False), 2.0)
    assert watch.verdict(2.0) == Cause("start", "on n2: it has changed", None, "n2")
    assert not watch.lost_nodes


TIMED_OUT = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 15000ms for recv operation to complete"


def state(rank: int, stopped: str = "", location: str = "", error: str = "") -> AgentMessage:
    return message("state", NODES[rank], rank=rank, stopped=stopped, place=location, error=error)


def beats(watch: AttemptMonitor, now: float) -> None:
    for rank in range(3):
        watch.process_message(beat(rank), now)


@pytest.fixture(name="given_up")
def _given_up(watch: AttemptMonitor) -> AttemptMonitor:
    """Two ranks have given up waiting for rank 1, and the agents have been asked what it does."""
    for rank in (0, 2):
        watch.process_message(ended(rank, -6 if rank else 1, 10.0 + rank, TIMED_OUT), 10.0)
    beats(watch, 13.0)
    assert not watch.needs_reports(12.0)
    assert watch.verdict(13.5) is None
    assert watch.needs_reports(13.5)
    assert not watch.needs_reports(14.0)
    return watch


def test_the_stopped_rank_is_blamed_if_all_failures_name_their_peers(given_up: AttemptMonitor) -> None:
    given_up.process_message(state(1, "stopped (SIGSTOP)"), 14.0)
    beats(given_up, 18.0)
    assert given_up.verdict(18.0) is None
    cause = given_up.verdict(18.6)
    assert cause is not None and (cause.kind, cause.rank, cause.node) == ("hang", 1, "n2")
    assert cause.detail == (
        f"rank 1 on n2 is stopped (SIGSTOP); 2 other ranks gave up waiting for it: rank 0: exit status 1: {TIMED_OUT}"
    )


def test_the_rank_that_failed_without_ending_is_blamed(given_up: AttemptMonitor) -> None:
    given_up.process_message(state(1, location="_shutdown (threading.py:1624)", error="ValueError: loss is nan"), 14.0)
    beats(given_up, 18.6)
    cause = given_up.verdict(18.6)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 1)
    assert cause.detail.startswith(
        "rank 1 on n2 is still there after its error: ValueError: loss is nan; 2 other ranks"
    )


def test_the_rank_outside_the_collective_is_blamed(given_up: AttemptMonitor) -> None:
    given_up.process_message(state(1, location="load (data.py:7)"), 14.0)
    beats(given_up, 18.6)
    cause = given_up.verdict(18.6)
    assert cause is not None and (cause.kind, cause.rank) == ("hang", 1)
    assert cause.detail.startswith("rank 1 on n2 is still running, in load (data.py:7); 2 other ranks gave up")


def test_a_rank_in_the_same_collective_is_not_blamed(given_up: AttemptMonitor) -> None:
    given_up.process_message(state(1, location="all_reduce (distributed_c10d.py:2811)"), 14.0)
    beats(given_up, 18.6)
    cause = given_up.verdict(18.6)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 0)


def test_a_primary_error_ends_the_search(given_up: AttemptMonitor) -> None:
    given_up.process_message(ended(1, 1, 14.0, "ValueError: bad sample 17"), 14.2)
    cause = given_up.verdict(14.2)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 1)
    assert "ValueError: bad sample 17 (2 other ranks failed after it)" in cause.detail


def test_the_live_rank_that_is_behind_is_blamed(watch: AttemptMonitor) -> None:
    for rank, step in enumerate((41, 40, 41)):
        watch.process_message(beat(rank, step), 5.0)
    watch.process_message(ended(0, 1, 9.0, TIMED_OUT, step=41), 10.0)
    beats(watch, 13.2)
    assert watch.needs_reports(13.2)
    beats(watch, 18.4)
    cause = watch.verdict(18.4)
    assert cause is not None and (cause.kind, cause.rank) == ("hang", 1)
    assert cause.detail.startswith("rank 1 on n2 is still running at step 40; 1 other rank gave up waiting for it")


def test_a_primary_error_needs_no_search(watch: AttemptMonitor) -> None:
    watch.process_message(ended(0, 1, 9.0, "ValueError: bad sample 17"), 10.0)
    beats(watch, 13.2)
    assert not watch.needs_reports(13.2)
    cause = watch.verdict(13.2)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 0)


def test_a_warned_program_is_not_searched(given_up: AttemptMonitor) -> None:
    given_up.record_warning(Cause("warned", "the time limit is near"))
    cause = given_up.verdict(14.0)
    assert cause is not None and cause.kind == "warned"


def test_an_agent_killed_for_memory_is_not_a_lost_node(watch: AttemptMonitor) -> None:
    watch.process_message(message(OOM_EVENT, "n2"), 5.0)
    assert watch.verdict(3.0) is None
    watch.process_message(beat(0), 5.0)
    watch.process_message(beat(2), 5.0)
    cause = watch.verdict(5.5)
    assert cause is not None and (cause.kind, cause.rank, cause.node) == ("crash", None, "n2")
    assert cause.detail == (
        "n2: the memory of the job on its node was used up (oom_kill). Request more with --sbatch --mem=SIZE"
    )


def test_the_cause_of_an_ended_step_is_memory_or_an_early_end(watch: AttemptMonitor) -> None:
    assert AttemptMonitor(REQUEST, ["n1", "n2"], 0.0).cause_without_step().kind == "start"
    watch.process_message(beat(0, 40), 5.0)
    assert watch.cause_without_step() == Cause("crash", "srun ended before the ranks: see supervisor.log")
    watch.process_message(message(OOM_EVENT, "n2"), 5.0)
    cause = watch.cause_without_step()
    assert (cause.kind, cause.node) == ("crash", "n2") and "used up" in cause.detail


def test_a_rank_killed_for_memory_is_reported_as_such(watch: AttemptMonitor) -> None:
    watch.process_message(ended(0, 1, 9.0, TIMED_OUT, memory=True), 10.0)
    watch.process_message(ended(1, -9, 9.5, memory=True), 10.0)
    watch.process_message(ended(2, 1, 9.0, TIMED_OUT), 10.0)
    cause = watch.verdict(10.0)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 1)
    assert "killed by SIGKILL: the memory of the job on its node was used up (oom_kill)" in cause.detail


def test_a_rank_that_failed_without_ending_is_blamed_for_a_hang(watch: AttemptMonitor) -> None:
    for rank in range(3):
        watch.process_message(beat(rank, 40), 10.0)
    assert watch.needs_reports(71.0)
    watch.process_message(state(1, error="ValueError: loss is nan"), 72.0)
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
        # An error that ranks of two nodes report is not caused by the hardware of one.
        ({0: ECC, 2: ECC}, 0, False),
    ],
)
def test_a_hardware_error_is_blamed_on_its_node_before_the_rank_ends(
    watch: AttemptMonitor, errors: dict[int, str], rank: int, hardware: bool
) -> None:
    for each in range(3):
        watch.process_message(beat(each, 40), 10.0)
    assert watch.needs_reports(71.0)
    for each, error in errors.items():
        watch.process_message(state(each, error=error), 72.0)
    cause = watch.verdict(77.0)
    assert cause is not None and (cause.kind, cause.rank, cause.hardware) == ("hang", rank, hardware)


def test_a_hardware_error_is_blamed_after_its_peers_gave_up(given_up: AttemptMonitor) -> None:
    given_up.process_message(state(1, location="_shutdown (threading.py:1624)", error=ECC), 14.0)
    beats(given_up, 18.6)
    cause = given_up.verdict(18.6)
    assert cause is not None and (cause.kind, cause.rank, cause.node, cause.hardware) == ("crash", 1, "n2", True)


def stopped(watch: AttemptMonitor) -> None:
    """The supervisor is stopped for 40 s at second 11. Then it hears what the agents said before they gave it up."""
    for rank in range(3):
        watch.process_message(beat(rank, 5), 11.0)
    watch.resume(51.0, 40.0)
    for rank in range(3):
        watch.process_message(beat(rank, 6), 51.1)


def test_a_pause_of_the_supervisor_restarts_all_timeouts(watch: AttemptMonitor) -> None:
    stopped(watch)
    assert watch.silent_nodes(52.0) == [] and not watch.is_hanging(52.0)
    for now in range(53, 111):
        beats(watch, float(now))
        assert watch.verdict(float(now)) is None and watch.silent_nodes(float(now)) == []
    assert watch.is_hanging(112.0)
    # The pause does not excuse a node that is lost much later.
    watch.lost_nodes["n3"] = "no longer responds"
    cause = watch.verdict(130.0)
    assert cause is not None and (cause.kind, cause.node) == ("node", "n3")


def test_agents_that_gave_up_during_a_pause_are_not_blamed(watch: AttemptMonitor) -> None:
    stopped(watch)
    assert watch.verdict(57.0) is None
    assert watch.verdict(58.0) == Cause("supervisor", "the supervisor was stopped for 40 s")


def test_a_crash_before_a_pause_is_still_blamed(watch: AttemptMonitor) -> None:
    stopped(watch)
    watch.process_message(ended(1, -9, 12.0), 51.1)
    cause = watch.verdict(58.0)
    assert cause is not None and (cause.kind, cause.rank) == ("crash", 1)


def test_a_pause_of_the_supervisor_is_not_a_pause_of_the_program(watch: AttemptMonitor) -> None:
    stopped(watch)
    assert watch.limits.longest_gap < 11.0
