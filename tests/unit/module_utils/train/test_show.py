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

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import contract, gpumesh_run, show
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.lines import Said
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import (
    Attempt,
    Request,
    Run,
    Straggler,
    as_values,
    from_values,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.watch import Watch

SLOW = Straggler(1, "n2", 1000.0, 0.51, "ready to run, but waiting for a processor 70% of the time")
PAST = Straggler(None, "n3", 1000.0, 0.3, "its round trips take 100 ms, up from 0.2 ms", until=1090.0)
RUN = Run("nano", "running", job=41, attempts=(Attempt(1, 41, ("n1", "n2", "n3"), 3, "n1", 900.0),))
REQUEST = Request(name="nano", command=["true"], folder="/x/nano", nodes=3)


def with_stragglers(*stragglers: Straggler) -> Run:
    return RUN._replace(attempts=(RUN.attempts[0]._replace(stragglers=stragglers),))


def test_a_straggler_is_in_the_line_while_it_is_one_and_among_the_attempts_afterwards() -> None:
    shown = show.full(REQUEST, with_stragglers(SLOW, PAST), 1200.0).splitlines()
    words = "rank 1 on n2 slows the run down by about 51%: ready to run, but waiting for a processor 70% of the time"
    assert shown[0] == f"nano: job 41 on n1, n2, n3 · {words}"
    assert shown[-2:] == [
        f"     {words} (for 3 min)",
        "     n3 slows the run down by about 30%: its round trips take 100 ms, up from 0.2 ms (for 90 s)",
    ]


def test_run_json_keeps_stragglers_and_one_without_any_can_be_read() -> None:
    run = with_stragglers(SLOW, PAST)
    values = json.loads(json.dumps(as_values(run)))
    assert from_values(values) == run
    del values["attempts"][0]["stragglers"]
    assert from_values(values) == RUN


def test_agents_tell_what_stragglers_are_known_by() -> None:
    watch = Watch(REQUEST, ["n1", "n2", "n3"], 0.0)
    named = []
    for second in range(60):
        for rank, node in enumerate(watch.nodes):
            told = {"step": second, "steps": None, "loss": None, "checkpoint": None, "waited": None}
            watch.hear(Said("beat", node, {"ranks": {str(rank): told}}), float(second))
            if second % 5 == 0:
                watch.hear(Said("load", node, {"held": {str(rank): 0.9 if rank == 1 else 0.1}, "trips": {}}), second)
        named += watch.pace.look(float(second), 1000.0 + second)
    assert [(one.rank, one.node) for one in named] == [(1, "n2")]


def test_a_program_tells_how_long_it_has_waited(tmp_path: Path) -> None:
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
    before, after = map(contract.parse_progress, reports)
    assert before is not None and (before.step, before.waited) == (1, None)
    assert after is not None and after.step == 2 and after.waited is not None
    # The two waits, of which neither is lost or counted twice.
    assert 0.29 < after.waited <= float(took) + 0.01


def test_a_full_disk_does_not_stop_a_program_that_reports_its_progress(tmp_path: Path) -> None:
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
    told = contract.parse_progress(done.stdout.encode())
    assert told is not None and told.step == 2, done.stderr
