# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users who look at the run of another user see only printable text, and read only files of that user."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import exit_status
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import logs, program, snapshot
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest, TrainingRun
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory

EVIL = "\x1b]0;pwned\x07\x1b[2J\x9b2J\u202e"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Create the runs of a user who has written everything in them."""
    run_directory = RunDirectory(f"{tmp_path}/nano")
    request = RunRequest(name="nano", command=[f"true{EVIL}"], folder=f"/x{EVIL}\nfake: finished", directory=f"/{EVIL}")
    run_directory.create(request._replace(folder=f"{tmp_path}/nano"))
    text = (tmp_path / "nano" / "request.json").read_text(encoding="utf-8")
    assert f'"{tmp_path}/nano"' in text
    evil = '"/x\\u001b]0;pwned\\u0007\\nfake: finished"'
    (tmp_path / "nano" / "request.json").write_text(text.replace(f'"{tmp_path}/nano"', evil), encoding="utf-8")
    run_directory.write(TrainingRun("nano", state="failed", detail=f"out of memory{EVIL}\nfake: finished"))
    run_directory.attempt_dir(1).mkdir(parents=True)
    return tmp_path


def run_train(capsys: pytest.CaptureFixture[str], runs: Path, *arguments: str) -> tuple[int, str]:
    status = program.main({"volumes": [], "run_dir": str(runs)}, arguments)
    captured = capsys.readouterr()
    return status, captured.out + captured.err


@pytest.mark.parametrize("arguments", [("list",), ("show", "nano"), ("cancel", "nano")])
def test_runs_are_printable(capsys: pytest.CaptureFixture[str], runs: Path, arguments: tuple[str, ...]) -> None:
    _status, output = run_train(capsys, runs, *arguments)
    assert "pwned" in output and printable(output) == output
    # The texts cannot add a line for a run that does not exist.
    assert not [line for line in output.splitlines() if line.startswith("fake")]


def test_logs_are_printable(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    log = RunDirectory(f"{runs}/nano").attempt_dir(1) / "rank-0.log"
    log.write_text(f"\x1b[31mloss\x1b[0m 2.3\r\n 10 %\r 20 %\r\n{EVIL}\n", encoding="utf-8", newline="")
    status, output = run_train(capsys, runs, "logs", "nano", "--attempt", "1")
    assert (status, output[:22]) == (0, "loss 2.3\n 10 %\n 20 %\n\ufffd")
    assert printable(output) == output


def test_errors_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise HostStateError(f"{EVIL} is damaged.", f"Move {EVIL} away.")

    assert exit_status("gpumesh-train", fail) == 2
    output = capsys.readouterr().err
    assert "pwned" in output and printable(output) == output


def test_log_without_line_ends_is_not_kept_in_memory(runs: Path) -> None:
    log = RunDirectory(f"{runs}/nano").attempt_dir(1) / "rank-0.log"
    with log.open("wb") as stream:
        stream.truncate(64 << 20)
    tracemalloc.start()
    logs.copy_logs(RunDirectory(f"{runs}/nano"), 0, 1, lambda _text: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_log_linked_to_a_file_of_another_user(
    capsys: pytest.CaptureFixture[str], runs: Path, attacker: pwd.struct_passwd
) -> None:
    secret = runs / "secret"
    secret.write_text("the secret", encoding="ascii")
    log = RunDirectory(f"{runs}/nano").attempt_dir(1) / "rank-0.log"
    log.symlink_to(secret)
    os.chown(log, attacker.pw_uid, attacker.pw_gid, follow_symlinks=False)
    status, output = run_train(capsys, runs, "logs", "nano", "--attempt", "1")
    assert status == 2 and "the secret" not in output and f"is a link of {attacker.pw_name}" in output
    # A link to what is the attacker's own is not a secret of anybody.
    os.chown(secret, attacker.pw_uid, attacker.pw_gid)
    assert run_train(capsys, runs, "logs", "nano", "--attempt", "1") == (0, "the secret")


#: A program that prints the files below a directory that can be read, and what others see of the runs in it.
_LOOK_PROGRAM = """
import os, sys
from pathlib import Path
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import runs, store
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import load
base = sys.argv[1]
run = f"{base}/nano"
print([path for at, _folders, files in os.walk(base) for path in files if os.access(f"{at}/{path}", os.R_OK)])
print(store.run_names(base), store.open_if_run(run))
request = RunRequest(name="nano", command=["true"], folder=run)
for look in (lambda: runs.find_run(base, "nano"), lambda: store.RunDirectory(run).create(request), lambda: load.find_trace_dir(run, 0)):
    try:
        look()
    except GpumeshError as failure:
        print(failure)
"""


def test_files_of_a_run_are_private_to_its_owner(tmp_path: Path, attacker: pwd.struct_passwd) -> None:
    """Its command, its logs and its code may contain secrets."""
    for path in (tmp_path, *tmp_path.parents[:-1]):
        path.chmod(path.stat().st_mode | 0o011)
    base, source = tmp_path / "runs", tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print()", encoding="utf-8")
    before = os.umask(0)
    try:
        run_directory = RunDirectory(str(base / "nano"))
        request = RunRequest(name="nano", command=["train", "--token=secret"], folder=str(run_directory.path))
        run_directory.create(request, lambda: snapshot.create_snapshot(str(source), request.folder, 1))
        run_directory.write(TrainingRun("nano", "running"))
        run_directory.claim(1, 0, "n1")
    finally:
        os.umask(before)
    base.chmod(0o1777)
    command = ["setpriv", f"--reuid={attacker.pw_uid}", f"--regid={attacker.pw_gid}", "--clear-groups"]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command += [sys.executable, "-c", _LOOK_PROGRAM, str(base)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", env=variables)
    readable_files, listed, *failures = completed.stdout.splitlines()
    assert (readable_files, listed) == ("[]", "[] None")
    assert "request.json cannot be read" in failures[0]
    assert failures[1] == f"{base}/nano belongs to another user. Choose another name."
    assert failures[2].startswith(f"{base}/nano cannot be read. Ask its owner")
    assert sorted(path.name for path in base.rglob("*") if path.is_file()) == [
        "heir-0",
        "request.json",
        "run.json",
        "train.py",
    ]
