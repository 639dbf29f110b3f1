# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""run.json stores what is known about stragglers, and users see it."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import gpumesh_run, run_environment, show
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    Attempt,
    RunRequest,
    Straggler,
    TrainingRun,
    format_run,
    parse_run,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.protocol import AgentMessage
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.watch import AttemptMonitor

SLOW = Straggler(1, "n2", 1000.0, 0.51, "ready to run, but waiting for a processor 70% of the time")
PAST = Straggler(None, "n3", 1000.0, 0.3, "its round trips take 100 ms, up from 0.2 ms", until=1090.0)
RUN = TrainingRun("nano", "running", job=41, attempts=(Attempt(1, 41, ("n1", "n2", "n3"), 3, "n1", 900.0),))
REQUEST = RunRequest(name="nano", command=["true"], folder="/x/nano", nodes=3)


def with_stragglers(*stragglers: Straggler) -> TrainingRun:
    return RUN._replace(attempts=(RUN.attempts[0]._replace(stragglers=stragglers),))


def test_current_stragglers_are_in_the_line_and_past_ones_among_the_attempts() -> None:
    shown = show.format_details(REQUEST, with_stragglers(SLOW, PAST), 1200.0).splitlines()
    words = "rank 1 on n2 slows the run down by about 51%: ready to run, but waiting for a processor 70% of the time"
    assert shown[0] == f"nano: job 41 on n1, n2, n3 · {words}"
    assert shown[-2:] == [
        f"     {words} (for 3 min)",
        "     n3 slows the run down by about 30%: its round trips take 100 ms, up from 0.2 ms (for 90 s)",
    ]


def test_run_json_keeps_stragglers_and_is_readable_without_them() -> None:
    run = with_stragglers(SLOW, PAST)
    values = json.loads(json.dumps(format_run(run)))
    assert parse_run(values) == run
    del values["attempts"][0]["stragglers"]
    assert parse_run(values) == RUN


def test_reports_of_agents_identify_stragglers() -> None:
    watch = AttemptMonitor(REQUEST, ["n1", "n2", "n3"], 0.0)
    named = []
    for second in range(60):
        for rank, node in enumerate(watch.nodes):
            told = {"step": second, "steps": None, "loss": None, "checkpoint": None, "waited": None}
            watch.process_message(AgentMessage("beat", node, {"ranks": {str(rank): told}}), float(second))
            if second % 5 == 0:
                watch.process_message(
                    AgentMessage("load", node, {"held": {str(rank): 0.9 if rank == 1 else 0.1}, "trips": {}}), second
                )
        named += watch.straggler_detector.evaluate(float(second), 1000.0 + second)
    assert [(one.rank, one.node) for one in named] == [(1, "n2")]


def test_a_program_reports_its_wait_time(tmp_path: Path) -> None:
    program = """
import os, time, gpumesh_run
gpumesh_run.progress(1)
print(open(os.environ["GPUMESH_PROGRESS_FILE"]).read())
begun = time.monotonic()
with gpumesh_run.waiting():
    time.sleep(0.2)
try:
    with gpumesh_run.waiting():
        time.sleep(0.1)
        raise ValueError("lost")
except ValueError:
    gpumesh_run.progress(2)
print(open(os.environ["GPUMESH_PROGRESS_FILE"]).read())
print(time.monotonic() - begun)
"""
    (tmp_path / "gpumesh_run.py").write_text(inspect.getsource(gpumesh_run), encoding="utf-8")
    variables = {**os.environ, "GPUMESH_PROGRESS_FILE": str(tmp_path / "told"), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, check=True)
    *reports, took = done.stdout.splitlines()
    before, after = map(run_environment.parse_progress, reports)
    assert before is not None and (before.step, before.waited) == (1, None)
    assert after is not None and after.step == 2 and after.waited is not None
    # The two waits, of which neither is lost or counted twice.
    assert 0.29 < after.waited <= float(took) + 0.01


def test_a_full_disk_does_not_stop_progress_reports(tmp_path: Path) -> None:
    (tmp_path / "gpumesh_run.py").write_text(inspect.getsource(gpumesh_run), encoding="utf-8")
    (tmp_path / "told.new").symlink_to("/dev/full")
    variables = {**os.environ, "GPUMESH_PROGRESS_FILE": str(tmp_path / "told"), "PYTHONPATH": str(tmp_path)}
    program = """
import os, gpumesh_run
gpumesh_run.progress(1)
os.unlink("told.new")
gpumesh_run.progress(2)
print(open("told").read())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    told = run_environment.parse_progress(done.stdout.encode())
    assert told is not None and told.step == 2, done.stderr


def running(**values: Any) -> TrainingRun:
    attempt = Attempt(1, 41, ("n1",), 1, "n1", 1000.0, first=1, last=10)
    return TrainingRun(
        "nano", "running", "token", 41, attempts=(attempt,), **{"updated": 2000.0, "watched": "steps", **values}
    )


def test_a_loss_that_is_not_a_number_is_shown() -> None:
    text = show.format_line(running(step=6000, loss=2.31, nan_since=5001), 2001.0)
    assert "loss nan since step 5001" in text and "2.31" not in text


def test_an_outdated_speed_is_not_shown() -> None:
    run = running(step=6000, steps_per_second=14.2)
    assert "14.2 steps/s" in show.format_line(run, 2059.0)
    text = show.format_line(run, 2000.0 + 600.0)
    assert "steps/s" not in text and "last heard of 10 min ago" in text


def test_the_line_names_the_activity_and_missing_hang_detection() -> None:
    assert " · validation" in show.format_line(running(step=6, busy="validation"), 2001.0)
    assert "so a hang would not be noticed" in show.format_line(running(watched=""), 2001.0)
    assert "a hang is noticed by its output" in show.format_line(running(watched="output"), 2001.0)
    for run in (running(), running(step=6, watched="")):
        assert "reports no steps" not in show.format_line(run, 2001.0)
    # The attempt has just started.
    assert "reports no steps" not in show.format_line(running(watched="", updated=1010.0), 1010.0)


def test_goodput_counts_the_time_in_steps_that_no_later_attempt_repeats() -> None:
    first = Attempt(1, 41, ("n1", "n2"), 2, "n1", 0.0, 100.0, first=1, last=80, allocated=("n1", "n2"), stepping=80.0)
    second = Attempt(
        2, 41, ("n1", "n2"), 2, "n1", 110.0, 200.0, first=61, last=140, allocated=("n1", "n2"), stepping=80.0
    )
    share = show.goodput(TrainingRun("nano", "finished", attempts=(first, second)), 300.0)
    # 60 of the first 80 steps count; the nodes were held for 200 seconds, those between the attempts included.
    assert share == pytest.approx((60 + 80) / 200)
    spare = show.goodput(
        TrainingRun("nano", "finished", attempts=(second._replace(allocated=("n1", "n2", "n3", "n4")),)), 300.0
    )
    assert spare == pytest.approx(80 / 180)
    assert (
        show.goodput(TrainingRun("nano", "finished", attempts=(first._replace(first=None, last=None),)), 300.0) is None
    )


def test_a_program_reports_its_first_step_and_what_it_is_busy_with(tmp_path: Path) -> None:
    program = (
        "import gpumesh_run, json, os\n"
        "def told(): print(open(os.environ['GPUMESH_PROGRESS_FILE']).read())\n"
        "gpumesh_run.progress(61, 100, loss=float('nan'), checkpoint=60)\n"
        "gpumesh_run.progress(62, 100, loss=2.0)\n"
        "with gpumesh_run.busy('validation', 600):\n"
        "    told()\n"
        "    with gpumesh_run.busy('saving', 60): told()\n"
        "    told()\n"
        "told()\n"
    )
    (tmp_path / "gpumesh_run.py").write_text(inspect.getsource(gpumesh_run), encoding="utf-8")
    variables = {**os.environ, "GPUMESH_PROGRESS_FILE": str(tmp_path / "progress"), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    reports = [run_environment.parse_progress(text.encode()) for text in done.stdout.splitlines()]
    assert [(report.busy, report.limit) for report in reports if report] == [
        ("validation", 600.0),
        ("saving", 60.0),
        ("validation", 600.0),
        (None, None),
    ]
    assert all(report and (report.first, report.step, report.nan) == (61, 62, None) for report in reports)
    not_a_number = run_environment.parse_progress(b'{"step": 61, "loss": NaN}')
    assert not_a_number is not None and (not_a_number.loss, not_a_number.nan) == (None, True)


def test_idle_nodes_of_the_job_are_named() -> None:
    run = running(step=6)
    assert "held idle" not in show.format_line(run, 2001.0)
    more = run._replace(attempts=(run.attempts[0]._replace(allocated=("n1", "n4")),))
    assert " · held idle: n4" in show.format_line(more, 2001.0)
    assert parse_run(json.loads(json.dumps(format_run(more)))) == more
    gone = more._replace(attempts=(more.attempts[0]._replace(away=("n4",)),))
    assert "held idle" not in show.format_line(gone, 2001.0) and " · away: n4" in show.format_line(gone, 2001.0)
    assert parse_run(json.loads(json.dumps(format_run(gone)))) == gone


@pytest.mark.parametrize("end", [None, 1000.0])
def test_an_outdated_state_is_marked(end: float | None) -> None:
    """Whether an attempt runs or has ended."""
    run = RUN._replace(attempts=(RUN.attempts[0]._replace(end=end),), updated=1000.0, steps_per_second=4.99)
    heard = " · last heard of 32 min ago"
    assert heard in show.format_line(run, 1000.0 + 32 * 60) and "steps/s" not in show.format_line(run, 1000.0 + 32 * 60)
    assert heard not in show.format_line(run, 1030.0)
