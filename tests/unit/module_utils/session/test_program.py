# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A command in all containers, with an srun that is a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.session import job, program
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import spec as specs
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import PATH

_SETTINGS = {
    "machine": "n1",
    "manager": "n1",
    "interface": "eth0",
    "members": {"n1": "10.0.0.1", "n2": "10.0.0.2"},
    "pools": ["10.192.0.0/10"],
    "closed": [],
    "nat": True,
    "allow": [],
    "volumes": [],
    "mounts_allowed": [],
    "storage": "/var/tmp",
}
_QUEUE = "7|alice|RUNNING|n[1-2]|n1|None|gpumesh-session +;demo;main,sub;1,0+0,1 running"
_MAIN = f"""
import sys
from {program.__name__} import main
sys.exit(main({_SETTINGS!r}, ["run", "demo", "--", "true"]))
"""


@pytest.fixture(name="bin_folder")
def _bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # Before the fields is the prefix in the format.
    written(tmp_path, "squeue", f'echo "$2" | sed "s/^--format=//; s/|.*//" | sed \'s/$/|{_QUEUE}/\'')
    return tmp_path


def written(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_each_line_has_its_container(bin_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    written(bin_folder, "srun", 'echo "of $GPUMESH_SESSION_PLACE"')
    assert program.main(_SETTINGS, ["run", "demo", "--", "true"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["main1: of 0", "sub1: of 1"]


def test_one_that_a_signal_has_ended_is_a_failure(bin_folder: Path) -> None:
    written(bin_folder, "srun", 'test "$GPUMESH_SESSION_PLACE" = 0 || kill -9 $$')
    assert program.main(_SETTINGS, ["run", "demo", "--", "true"]) == 9


def test_shows_where_the_log_is(bin_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = specs.parse({"name": "demo", "roles": [{"name": "main", "image": "debian"}]})
    (bin_folder / "script").write_text(job.script(PATH, spec, "/mnt/shared/al ice"))
    written(bin_folder, "scontrol", f'test "$*" = "write batch_script 7 -" && cat {bin_folder}/script')
    assert program.main(_SETTINGS, ["show", "demo"]) == 0
    log = "/mnt/shared/al ice/gpumesh-session-demo-7.log"
    assert capfd.readouterr().out.splitlines()[-1] == f"log {log} on n1"


def test_shows_a_session_whose_script_slurm_does_not_have(bin_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    written(bin_folder, "scontrol", "exit 1")
    assert program.main(_SETTINGS, ["show", "demo"]) == 0
    assert "log" not in capfd.readouterr().out


def test_nobody_reads_on(bin_folder: Path) -> None:
    written(bin_folder, "srun", "exec yes")
    with subprocess.Popen([sys.executable, "-c", _MAIN], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert (process.wait(30), process.stderr.read()) == (1, b"")
