# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that start while the shared volume is away."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import BUSY_MACHINE_TIMEOUT

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import volume
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setattr(volume, "_RETRY_INTERVAL", 0.01)
    monkeypatch.setattr(volume, "_SLOW_AFTER", 0.1)
    folder = RunDirectory(str(tmp_path / "volume" / "nano"))
    folder.create(RunRequest(name="nano", command=["true"], folder=str(folder.path)))
    return folder


def accept(_folder: RunDirectory) -> None:
    """The directory may be used."""


def make_unavailable(folder: RunDirectory, kind: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Have the volume be away. Returns what brings it back."""
    request, text = folder.path / "request.json", (folder.path / "request.json").read_text()
    if kind == "unmounted":
        mount = folder.path.parent
        kept = mount.rename(mount.with_name("kept"))
        mount.mkdir()
        return lambda: (mount.rmdir(), kept.rename(mount))
    if kind == "hard":
        # An access to a hard mount does not return before the server answers.
        request.unlink()
        os.mkfifo(request)
        return lambda: request.write_text(text)

    def fail(_path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    return monkeypatch.undo


@pytest.mark.parametrize("kind", ["soft", "hard", "unmounted"])
def test_a_job_waits_for_its_volume_and_says_so(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    back = make_unavailable(folder, kind, monkeypatch)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        threading.Timer(0.1, back).start()

    log = volume.wait_for_volume(folder, [], accept, 60.0, tell)
    os.write(log, b"here\n")
    os.close(log)
    assert told == [f"waiting for the volume of {folder.path}"]
    assert (folder.path / "supervisor.log").read_text(encoding="ascii") == "here\n"


@pytest.mark.parametrize("kind", ["soft", "hard", "unmounted"])
def test_waiting_for_the_volume_times_out(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    back = make_unavailable(folder, kind, monkeypatch)
    with pytest.raises(TimeoutError):
        volume.wait_for_volume(folder, [], accept, 0.3, lambda _text: None)
    back()


def test_a_volume_that_answers_is_not_waited_for(folder: RunDirectory) -> None:
    told: list[str] = []
    os.close(volume.wait_for_volume(folder, [], accept, 60.0, told.append))
    assert told == []


def test_a_deleted_run_is_not_waited_for_again(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The volume of the run is mounted."""
    monkeypatch.setattr(volume.os.path, "ismount", lambda path: path == str(folder.path.parent))
    (folder.path / "request.json").unlink()
    with pytest.raises(GpumeshError, match="There is no run in"):
        volume.wait_for_volume(folder, ["/mnt/other", str(folder.path.parent)], accept, 0.3, lambda _text: None)


def test_nothing_is_written_into_a_foreign_directory(folder: RunDirectory) -> None:
    def refuse(_folder: RunDirectory) -> None:
        raise InputError("others may rename what is in it")

    with pytest.raises(InputError, match="may rename"):
        volume.wait_for_volume(folder, [], refuse, 60.0, lambda _text: None)
    assert not (folder.path / "supervisor.log").exists()


def test_a_run_on_a_full_volume_continues_without_its_log(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def fill(path: str, flags: int, *mode: int) -> int:
        if path.endswith("supervisor.log"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, flags, *mode)

    monkeypatch.setattr(volume.os, "open", fill)
    log = volume.wait_for_volume(folder, [], accept, 60.0, lambda _text: None)
    assert os.path.sameopenfile(log, opened(os.devnull, os.O_WRONLY))


#: A batch script's supervisor, whose Slurm only notes what it is asked, and which waits a second for its volume.
WAITING = f"""
import sys
from {volume.__name__.rpartition(".")[0]} import supervisor
from {volume.__name__.rpartition(".")[0]}.store import RunDirectory
supervisor._VOLUME_TIMEOUT, supervisor.volume._SLOW_AFTER, supervisor.volume._RETRY_INTERVAL = float(sys.argv[2]), 0.1, 0.05
def run(argv, **_options):
    print(*argv, flush=True)
supervisor.run = run
supervisor.TimeLimitGuard.start = supervisor.EarlyStandbys.start = lambda self: None
supervisor.Supervisor.supervise = lambda self: print("preempted" if self._preempted else "none", file=sys.stderr)
sys.exit(supervisor.main(RunDirectory(sys.argv[1]), supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"])))
"""


def start_waiting(folder: RunDirectory, seconds: float) -> subprocess.Popen[str]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", WAITING, str(folder.path), str(seconds)]
    return subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, text=True)


def test_a_job_is_requeued_after_waiting_too_long(folder: RunDirectory) -> None:
    (folder.path / "request.json").rename(folder.path / "kept")
    process = start_waiting(folder, 1.0)
    said, _none = process.communicate(timeout=BUSY_MACHINE_TIMEOUT)
    note = f"scontrol update job=41 comment=gpumesh-train: waiting for the volume of {folder.path}"
    assert (process.returncode, said.splitlines()) == (1, [note, "scontrol requeue 41"])
    assert not (folder.path / "supervisor.log").exists()


def test_a_preemption_announced_while_waiting_is_kept(folder: RunDirectory) -> None:
    kept = (folder.path / "request.json").rename(folder.path / "kept")
    process = start_waiting(folder, 60.0)
    assert process.stdout is not None
    assert "waiting for the volume" in process.stdout.readline()
    process.send_signal(signal.SIGUSR1)
    kept.rename(folder.path / "request.json")
    assert process.communicate(timeout=BUSY_MACHINE_TIMEOUT)[0] == ""
    assert process.returncode == 0
    log = (folder.path / "supervisor.log").read_text(encoding="utf-8")
    assert "the volume answered after" in log
    assert log.endswith("scontrol update job=41 comment=\npreempted\n")


def test_the_log_contains_the_output_of_the_supervisor_and_its_commands(folder: RunDirectory) -> None:
    process = start_waiting(folder, 60.0)
    assert process.communicate(timeout=BUSY_MACHINE_TIMEOUT)[0] == ""
    assert (folder.path / "supervisor.log").read_text(encoding="utf-8") == "none\n"
