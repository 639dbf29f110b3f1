# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When an attempt has ended, and why, from the agents' messages."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.lines import Said
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Cause, Request
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.watch import STARTING, Watch

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
    watch.hear(ended(0, 1, 9.0, "RuntimeError: Connection closed by peer"), 10.0)
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


@pytest.mark.parametrize(("step", "kind"), [(40, "warned"), (100, "finished")])
def test_after_a_warning_it_is_through_only_at_its_last_step(watch: Watch, step: int, kind: str) -> None:
    watch.warn(Cause("warned", "the time limit is near"))
    for rank in range(3):
        watch.hear(ended(rank, 0, step=step, steps=100), 5.0)
    cause = watch.verdict(5.0)
    assert cause is not None and cause.kind == kind


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
