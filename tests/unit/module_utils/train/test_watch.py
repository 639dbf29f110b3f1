# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what the agents say follows when an attempt has ended, and why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import agent
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Request
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.watch import Said, Watch, parse_line

NODES = ["n1", "n2", "n3"]
REQUEST = Request(name="nano", command=["true"], folder="/x/nano", nodes=3, hang_timeout=60)


def said(event: str, node: str, **values: Any) -> Said:
    return Said(event, node, {"event": event, "node": node, **values})


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
    cause = watch.verdict(13.5)
    assert cause is not None
    assert (cause.kind, cause.rank, cause.node) == ("crash", 2, "n3")


def test_a_silent_node_is_named_but_not_one_whose_ranks_have_ended(watch: Watch) -> None:
    for now in range(2, 30):
        watch.hear(beat(0), float(now))
    watch.hear(ended(1, 0), 15.0)
    assert watch.silent(29.0) == ["n3"]
    watch.lost["n3"] = "does not answer any more"
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
    watch.hear(said("state", "n2", rank=1, stopped="stopped (SIGSTOP)"), 72.0)
    assert watch.verdict(72.0) is None
    cause = watch.verdict(77.0)
    assert cause is not None and (cause.kind, cause.rank, cause.node) == ("hang", 1, "n2")


def test_a_step_in_the_meantime_ends_the_suspicion(watch: Watch) -> None:
    watch.hear(beat(0, 40), 10.0)
    assert watch.asks(71.0)
    watch.hear(beat(0, 41), 73.0)
    assert watch.verdict(80.0) is None


@pytest.mark.parametrize(("step", "kind"), [(40, "warned"), (100, "finished")])
def test_after_a_warning_it_is_through_only_at_its_last_step(watch: Watch, step: int, kind: str) -> None:
    watch.warned = "the time limit is near"
    for rank in range(3):
        watch.hear(ended(rank, 0, step=step, steps=100), 5.0)
    cause = watch.verdict(5.0)
    assert cause is not None and cause.kind == kind


def test_progress_is_that_of_the_slowest_rank_and_the_newest_checkpoint(watch: Watch) -> None:
    watch.hear(beat(0, 41, checkpoint=30), 5.0)
    watch.hear(beat(1, 40, checkpoint=40), 5.0)
    now = watch.progress()
    assert (now.step, now.steps, now.loss, now.checkpoint) == (40, 100, 2.0, 40)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "@gpumesh ",
        "@gpumesh [1]",
        "@gpumesh {",
        '@gpumesh {"event": 1, "node": "n1"}',
        "srun: error: n2: gone",
    ],
)
def test_what_is_not_an_agents_is_no_word_of_one(line: str) -> None:
    assert parse_line(line, agent.MARK) is None


def test_a_word_of_an_agent() -> None:
    found = parse_line(agent.MARK + json.dumps({"event": "beat", "node": "n1", "ranks": {}}), agent.MARK)
    assert found is not None and (found.event, found.node) == ("beat", "n1")
