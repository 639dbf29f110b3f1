# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pause that is normal for a program is not taken for a hang, and a hang is found in the end."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.liveness import (
    START_ALLOWANCE,
    UNKNOWN_LIMITS,
    Keepalives,
    OutputActivity,
    PauseLimits,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.protocol import AgentMessage
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.watch import AttemptMonitor

NODES = ["n1", "n2"]
REQUEST = RunRequest(name="nano", command=["true"], folder="/x/nano", nodes=2, hang_timeout=60)


def started_watch(limits: PauseLimits = UNKNOWN_LIMITS) -> AttemptMonitor:
    watch = AttemptMonitor(REQUEST, NODES, 0.0, limits=limits)
    for rank, node in enumerate(NODES):
        watch.process_message(AgentMessage("started", node, {"ranks": [rank]}), 1.0)
    return watch


def send_report(watch: AttemptMonitor, now: float, rank: int = 0, printed: int = 0, **progress: Any) -> None:
    ranks = {str(rank): progress} if progress else {}
    watch.process_message(AgentMessage("beat", NODES[rank], {"ranks": ranks, "printed": printed}), now)


def test_report_of_same_step_is_a_sign_of_life() -> None:
    watch = started_watch()
    for now in range(10, 500, 10):
        send_report(watch, float(now), step=7)
    assert not watch.is_hanging(500.0)
    assert watch.is_hanging(560.0)


def test_report_without_step_is_a_sign_of_life() -> None:
    watch = started_watch()
    send_report(watch, 10.0, step=7)
    send_report(watch, 60.0, loss=1.0)
    assert not watch.is_hanging(200.0)
    assert watch.is_hanging(211.0)


def test_empty_report_is_a_sign_of_life() -> None:
    watch = started_watch()
    for now in range(10, 500, 10):
        watch.process_message(AgentMessage("beat", "n1", {"ranks": {"0": {}}, "printed": 0}), float(now))
    assert not watch.is_hanging(500.0)
    # Ranks that have made no step may yet be starting.
    assert watch.is_hanging(490.0 + 60.0 + START_ALLOWANCE + 1.0)


def test_output_counts_for_a_program_that_rarely_reports() -> None:
    watch = started_watch()
    for now in range(10, 1000, 10):
        send_report(watch, float(now), printed=now)
        if now == 300:
            send_report(watch, float(now), printed=now, checkpoint=100)
    assert not watch.is_hanging(1000.0)
    assert watch.is_hanging(1051.0)


def test_output_does_not_count_for_a_program_that_reports_steps() -> None:
    watch = started_watch()
    for now in range(10, 1000, 10):
        send_report(watch, float(now), printed=now, **({"step": now} if now <= 300 else {}))
    assert watch.is_hanging(361.0)


def test_loss_is_taken_from_the_rank_that_reports_it() -> None:
    """In a pipeline, only the last rank knows it."""
    watch = started_watch()
    send_report(watch, 10.0, 0, step=7)
    send_report(watch, 10.0, 1, step=7, steps=20, loss=0.5)
    assert (watch.progress().loss, watch.progress().steps, watch.progress().nan) == (0.5, 20, None)
    send_report(watch, 11.0, 1, step=8, nan=True)
    assert watch.progress().nan


def test_busy_program_may_use_its_announced_time() -> None:
    watch = started_watch()
    for rank in (0, 1):
        send_report(watch, 10.0, rank, step=7)
    send_report(watch, 11.0, step=7, busy="validation", limit=600.0)
    assert watch.progress().busy == "validation"
    assert not watch.is_hanging(600.0)
    assert watch.is_hanging(612.0)
    send_report(watch, 400.0, step=8)
    assert watch.progress().busy is None
    assert watch.is_hanging(461.0), "the pause that was announced does not count as a normal one"


def test_limits_follow_longest_pause_and_start() -> None:
    watch = started_watch()
    send_report(watch, 100.0, step=1)
    send_report(watch, 150.0, step=2)
    assert not watch.is_hanging(150.0 + 149.0)
    assert watch.is_hanging(150.0 + 151.0)
    assert watch.limits == PauseLimits(longest_gap=50.0, longest_start=100.0)
    later = AttemptMonitor(REQUEST, NODES, 0.0, reports_steps=True, limits=watch.limits)
    assert not later.is_hanging(299.0)
    assert later.is_hanging(301.0)


@pytest.mark.parametrize("limits", [PauseLimits(longest_gap=1e6, longest_start=1e6)])
def test_limits_have_an_upper_bound(limits: PauseLimits) -> None:
    assert limits.gap_limit(60.0) == 240.0
    assert limits.start_limit(60.0 + START_ALLOWANCE) == 720.0
    assert PauseLimits(longest_gap=1.0).gap_limit(60.0) == 60.0


def test_time_without_the_volume_is_not_counted() -> None:
    watch = started_watch()
    send_report(watch, 10.0, step=7)
    watch.excuse(100.0)
    # A message that had arrived meanwhile is processed afterwards.
    send_report(watch, 20.0, step=8)
    assert not watch.is_hanging(159.0)
    assert watch.is_hanging(161.0)


def test_output_lost_during_volume_outage_is_not_missed() -> None:
    watch = started_watch()
    for now in range(10, 100, 10):
        send_report(watch, float(now), printed=now)
    watch.excuse(200.0)
    assert not watch.is_hanging(259.0)
    assert watch.is_hanging(261.0)


def test_program_may_be_busy_before_first_step() -> None:
    watch = started_watch()
    send_report(watch, 10.0, busy="compiling", limit=3600.0)
    assert not watch.is_hanging(3600.0)
    assert watch.is_hanging(3611.0)


def test_pause_before_the_end_of_a_rank_does_not_raise_the_limit() -> None:
    watch = started_watch()
    send_report(watch, 10.0, step=7)
    watch.process_message(
        AgentMessage("ended", "n1", {"rank": 0, "status": 0, "at": 1.0, "tail": "", "step": 8}), 500.0
    )
    assert watch.limits.longest_gap == 0.0


def test_silent_program_that_printed_regularly_hangs() -> None:
    watch = started_watch()
    for now in range(10, 100, 10):
        send_report(watch, float(now), printed=now)
        send_report(watch, float(now), rank=1)
    assert watch.hang_evidence == "output"
    assert not watch.is_hanging(149.0)
    assert watch.needs_reports(151.0)
    # Asked what it does, it prints its stacks.
    send_report(watch, 152.0, printed=1000)
    send_report(watch, 156.5)
    send_report(watch, 156.5, rank=1)
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
def test_program_without_regular_output_is_not_judged(times: list[int]) -> None:
    watch = started_watch()
    for now in times:
        send_report(watch, float(now), printed=now)
    assert watch.hang_evidence == ""
    assert not watch.is_hanging(1e6)


def test_output_is_counted_for_each_node() -> None:
    output = OutputActivity()
    for now in range(0, 100, 5):
        output.record_output("n1", 1000 + now, float(now))
        output.record_output("n2", 7, float(now))
    assert output.is_regular(60.0)
    assert output.has_stopped(60.0, 156.0)
    assert not output.has_stopped(60.0, 154.0)


def test_first_step_is_the_first_completed_step() -> None:
    watch = started_watch()
    send_report(watch, 10.0, step=72, first=61)
    send_report(watch, 10.0, rank=1, step=73, first=61)
    assert watch.first_step == 61
    send_report(watch, 20.0, step=80, first=61)
    assert (watch.first_step, watch.seconds_stepping) == (61, 10.0)


def test_stopped_time_is_time_without_keepalives() -> None:
    keepalives = Keepalives(0.0)
    for now in (1.0, 2.0, 6.5):
        keepalives.record_sent(now)
    # On a busy machine, one comes late.
    assert keepalives.stopped_seconds(7.5) == 0.0
    # It is noticed before another one is sent, and remembered.
    assert keepalives.stopped_seconds(46.5) == 40.0
    keepalives.record_sent(46.5)
    keepalives.record_sent(47.5)
    assert keepalives.stopped_seconds(48.0) == 40.0
    keepalives.record_sent(67.5)
    assert keepalives.stopped_seconds(68.0) == 60.0
    keepalives.stop()
    assert keepalives.stopped_seconds(200.0) == 60.0


def test_unread_output_is_not_a_pause() -> None:
    output = OutputActivity()
    for now in (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0):
        output.record_output("n1", int(now) + 1, now)
    output.forgive_gap(100.0)
    output.record_output("n1", 200, 101.0)
    assert output.is_regular(60.0)
