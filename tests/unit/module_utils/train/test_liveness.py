# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pause that is normal for a program is not taken for a hang, and a hang is found in the end."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.lines import Said
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.liveness import (
    STARTING,
    UNKNOWN,
    Keepalives,
    Limits,
    Output,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Request
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.watch import Watch

NODES = ["n1", "n2"]
REQUEST = Request(name="nano", command=["true"], folder="/x/nano", nodes=2, hang_timeout=60)


def watching(limits: Limits = UNKNOWN) -> Watch:
    made = Watch(REQUEST, NODES, 0.0, limits=limits)
    for rank, node in enumerate(NODES):
        made.hear(Said("started", node, {"ranks": [rank]}), 1.0)
    return made


def report(watch: Watch, now: float, rank: int = 0, printed: int = 0, **told: Any) -> None:
    ranks = {str(rank): told} if told else {}
    watch.hear(Said("beat", NODES[rank], {"ranks": ranks, "printed": printed}), now)


def test_a_report_of_the_same_step_is_a_sign_of_life() -> None:
    watch = watching()
    for now in range(10, 500, 10):
        report(watch, float(now), step=7)
    assert not watch.hangs(500.0)
    assert watch.hangs(560.0)


def test_a_report_without_a_step_is_a_sign_of_life() -> None:
    watch = watching()
    report(watch, 10.0, step=7)
    report(watch, 60.0, loss=1.0)
    assert not watch.hangs(200.0)
    assert watch.hangs(211.0)


def test_a_report_of_anything_is_a_sign_of_life() -> None:
    watch = watching()
    for now in range(10, 500, 10):
        watch.hear(Said("beat", "n1", {"ranks": {"0": {}}, "printed": 0}), float(now))
    assert not watch.hangs(500.0)
    # Ranks that have made no step may yet be starting.
    assert watch.hangs(490.0 + 60.0 + STARTING + 1.0)


def test_a_program_that_reports_seldom_is_judged_by_its_output_as_well() -> None:
    watch = watching()
    for now in range(10, 1000, 10):
        report(watch, float(now), printed=now)
        if now == 300:
            report(watch, float(now), printed=now, checkpoint=100)
    assert not watch.hangs(1000.0)
    assert watch.hangs(1051.0)


def test_the_output_of_a_program_that_reports_its_steps_says_nothing() -> None:
    watch = watching()
    for now in range(10, 1000, 10):
        report(watch, float(now), printed=now, **({"step": now} if now <= 300 else {}))
    assert watch.hangs(361.0)


def test_the_loss_is_that_of_the_rank_that_has_one_and_of_any_that_has_none() -> None:
    """In a pipeline, only the last rank knows it."""
    watch = watching()
    report(watch, 10.0, 0, step=7)
    report(watch, 10.0, 1, step=7, steps=20, loss=0.5)
    assert (watch.progress().loss, watch.progress().steps, watch.progress().nan) == (0.5, 20, None)
    report(watch, 11.0, 1, step=8, nan=True)
    assert watch.progress().nan


def test_a_program_that_says_it_is_busy_may_take_as_long_as_it_says() -> None:
    watch = watching()
    for rank in (0, 1):
        report(watch, 10.0, rank, step=7)
    report(watch, 11.0, step=7, busy="validation", limit=600.0)
    assert watch.progress().busy == "validation"
    assert not watch.hangs(600.0)
    assert watch.hangs(612.0)
    report(watch, 400.0, step=8)
    assert watch.progress().busy is None
    assert watch.hangs(461.0), "the pause that was announced does not count as a normal one"


def test_the_limits_follow_the_longest_pause_and_the_longest_start_of_the_run() -> None:
    watch = watching()
    report(watch, 100.0, step=1)
    report(watch, 150.0, step=2)
    assert not watch.hangs(150.0 + 149.0)
    assert watch.hangs(150.0 + 151.0)
    assert watch.limits == Limits(gap=50.0, start=100.0)
    later = Watch(REQUEST, NODES, 0.0, tells=True, limits=watch.limits)
    assert not later.hangs(299.0)
    assert later.hangs(301.0)


@pytest.mark.parametrize("limits", [Limits(gap=1e6, start=1e6)])
def test_a_hang_is_found_in_the_end(limits: Limits) -> None:
    assert limits.of_gap(60.0) == 240.0
    assert limits.of_start(60.0 + STARTING) == 720.0
    assert Limits(gap=1.0).of_gap(60.0) == 60.0


def test_a_time_in_which_the_volume_did_not_answer_is_not_counted() -> None:
    watch = watching()
    report(watch, 10.0, step=7)
    watch.excuse(100.0)
    # A message that had arrived meanwhile is processed afterwards.
    report(watch, 20.0, step=8)
    assert not watch.hangs(159.0)
    assert watch.hangs(161.0)


def test_output_that_could_not_be_written_is_not_missed() -> None:
    watch = watching()
    for now in range(10, 100, 10):
        report(watch, float(now), printed=now)
    watch.excuse(200.0)
    assert not watch.hangs(259.0)
    assert watch.hangs(261.0)


def test_a_program_may_be_busy_before_its_first_step() -> None:
    watch = watching()
    report(watch, 10.0, busy="compiling", limit=3600.0)
    assert not watch.hangs(3600.0)
    assert watch.hangs(3611.0)


def test_a_pause_that_a_rank_did_not_survive_is_not_a_normal_one() -> None:
    watch = watching()
    report(watch, 10.0, step=7)
    watch.hear(Said("ended", "n1", {"rank": 0, "status": 0, "at": 1.0, "tail": "", "step": 8}), 500.0)
    assert watch.limits.gap == 0.0


def test_a_program_that_reports_nothing_is_judged_by_its_output_if_it_prints_regularly() -> None:
    watch = watching()
    for now in range(10, 100, 10):
        report(watch, float(now), printed=now)
        report(watch, float(now), rank=1)
    assert watch.watched == "output"
    assert not watch.hangs(149.0)
    assert watch.asks(151.0)
    # Asked what it does, it prints its stacks.
    report(watch, 152.0, printed=1000)
    report(watch, 156.5)
    report(watch, 156.5, rank=1)
    cause = watch.verdict(157.0)
    assert cause is not None and (cause.kind, cause.detail) == ("hang", "no progress for 60 s")


@pytest.mark.parametrize(
    "times",
    [
        # Little, at the start only.
        [10, 11, 12, 13],
        # Not regularly.
        [10, 40, 70, 100, 130],
        [],
    ],
)
def test_a_program_whose_silence_means_nothing_is_not_judged(times: list[int]) -> None:
    watch = watching()
    for now in times:
        report(watch, float(now), printed=now)
    assert watch.watched == ""
    assert not watch.hangs(1e6)


def test_output_is_counted_by_node() -> None:
    output = Output()
    for now in range(0, 100, 5):
        output.tell("n1", 1000 + now, float(now))
        output.tell("n2", 7, float(now))
    assert output.regular(60.0)
    assert output.stopped(60.0, 156.0)
    assert not output.stopped(60.0, 154.0)


def test_the_first_step_is_the_one_that_was_made_first_not_the_one_that_was_seen_first() -> None:
    watch = watching()
    report(watch, 10.0, step=72, first=61)
    report(watch, 10.0, rank=1, step=73, first=61)
    assert watch.first == 61
    report(watch, 20.0, step=80, first=61)
    assert (watch.first, watch.stepping) == (61, 10.0)


def test_the_time_for_which_a_process_was_stopped_is_the_time_without_keepalives() -> None:
    keepalives = Keepalives(0.0)
    for now in (1.0, 2.0, 6.5):
        keepalives.sent(now)
    # On a busy machine, one comes late.
    assert keepalives.stopped(7.5) == 0.0
    # It is noticed before another one is sent, and remembered.
    assert keepalives.stopped(46.5) == 40.0
    keepalives.sent(46.5)
    keepalives.sent(47.5)
    assert keepalives.stopped(48.0) == 40.0
    keepalives.sent(67.5)
    assert keepalives.stopped(68.0) == 60.0
    keepalives.end()
    assert keepalives.stopped(200.0) == 60.0


def test_output_that_nobody_has_read_is_no_pause_of_the_program() -> None:
    output = Output()
    for now in (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0):
        output.tell("n1", int(now) + 1, now)
    output.excuse(100.0)
    output.tell("n1", 200, 101.0)
    assert output.regular(60.0)
