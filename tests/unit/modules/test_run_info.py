# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules train_run_info and session_run_info as Ansible runs them, with squeue and the folder of a run in place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from module_runs import read_result, start_module, write_programs

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    RunRequest,
    Submission,
    TrainingRun,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory

#: squeue begins each line with the random mark of its format.
SESSION = 'format="${2#--format=}"; echo "${format%%|*}|7|alice|STATE||n/a|None|gpumesh-session 7;demo;main;1 running"'


def environment_with(folder: Path, squeue: str) -> dict[str, str]:
    programs = write_programs(folder / "bin", {"squeue": squeue})
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("run_state", "squeue", "summary", "ended"),
    [
        ("running", "echo 'RUNNING|None'", "nano: running", False),
        # Its job has ended without a word.
        ("running", "true", "nano: failed · job 41 has ended, but the run was not finished", True),
        ("failed", "exit 1", "nano: failed", True),
    ],
)
def test_a_run_is_shown_and_never_resumed(
    tmp_path: Path, run_state: str, squeue: str, summary: str, ended: bool
) -> None:
    folder = RunDirectory(str(tmp_path / "nano"))
    folder.create(RunRequest(name="nano", command=["true"], folder=str(folder.path)))
    folder.write_submission(Submission("token", 41))
    folder.write(TrainingRun("nano", run_state, "token", 41))
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.path.iterdir())
    shown = read_result(
        start_module("train_run_info", {"folder": str(folder.path)}, environment_with(tmp_path, squeue))
    )
    assert (shown["changed"], shown["ended"], shown["summary"]) == (False, ended, summary)
    assert shown["folder"] == str(folder.path)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in folder.path.iterdir()) == before


def test_all_runs_are_listed_and_one_is_cancelled(tmp_path: Path) -> None:
    runs_dir = tmp_path / "runs"
    folder = RunDirectory(str(runs_dir / "nano"))
    folder.create(RunRequest(name="nano", command=["true"], folder=str(folder.path)))
    folder.write_submission(Submission("token", 41))
    folder.write(TrainingRun("nano", "queued", "token", 41))
    programs = {"squeue": "echo 'PENDING|Resources'", "scancel": f'echo "$@" >> {tmp_path}/cancelled'}
    environment = {**os.environ, "PATH": f"{write_programs(tmp_path / 'bin', programs)}:{os.environ['PATH']}"}
    listed = read_result(start_module("train_runs_info", {"run_dir": str(runs_dir)}, environment))
    (shown,) = listed["runs"]
    assert (shown["name"], shown["folder"]) == ("nano", str(folder.path)) and shown["summary"].startswith(
        "nano: queued"
    )
    given = {"name": "nano", "state": "cancelled", "run_dir": str(runs_dir)}
    would = read_result(start_module("train_run", {**given, "_ansible_check_mode": True}, environment))
    assert would["changed"] and not (tmp_path / "cancelled").exists()
    done = read_result(start_module("train_run", given, environment))
    assert (done["changed"], done["action"], done["run"]["state"]) == (True, "cancelled", "cancelled")
    assert "41" in (tmp_path / "cancelled").read_text()
    again = read_result(start_module("train_run", given, environment))
    assert (again["changed"], again["action"]) == (False, "none")
    refused = read_result(start_module("train_run", {**given, "name": "other"}, environment))
    assert f"There is no run 'other' in {runs_dir}" in refused["msg"]


def test_a_run_that_is_gone_is_named(tmp_path: Path) -> None:
    refused = read_result(start_module("train_run_info", {"folder": str(tmp_path / "none")}, dict(os.environ)))
    assert refused["failed"] and f"There is no run in {tmp_path}/none." in refused["msg"]


@pytest.mark.parametrize(
    ("squeue", "state", "reason"),
    [
        (SESSION.replace("STATE", "PENDING"), "waiting", ""),
        (SESSION.replace("STATE", "RUNNING"), "running", ""),
        (SESSION.replace("STATE", "TIMEOUT"), "failed", "its job is timeout."),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "failed", "it has ended."),
    ],
)
def test_a_session_is_shown_by_its_job(tmp_path: Path, squeue: str, state: str, reason: str) -> None:
    shown = read_result(
        start_module("session_run_info", {"name": "demo", "job": 7}, environment_with(tmp_path, squeue))
    )
    assert (shown["changed"], shown["job"]) == (False, 7)
    assert (shown["session_state"], shown["reason"]) == (state, reason)
    assert shown["summary"].startswith("demo: ")
