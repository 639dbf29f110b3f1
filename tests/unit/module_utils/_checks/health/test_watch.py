# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watch of the kernel log, of which a pipe plays the part: it has one record for each line, too."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import look_lock, watch
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import kernel_log

LOST = "NVRM: Xid (PCI:0000:3d:00): 79, pid=1, GPU has fallen off the bus."
NEEDS_RESET = "NVRM: Xid (PCI:0000:3d:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
NEEDS_NOTHING = (
    "NVRM: Xid (PCI:0000:3d:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
)


class FakeLog:
    """A log, and the looks for which it was the reason. ``outcomes`` are those of the first ones."""

    def __init__(self, path: Path, *outcomes: bool) -> None:
        os.mkfifo(path)
        self.writer = os.open(path, os.O_RDWR)
        self.reader = kernel_log.open_log(str(path))
        self.outcomes, self.looks, self.now = list(outcomes), [], 1000.0

    def write(self, *messages: str, facility: int = 0) -> None:
        for message in messages:
            os.write(self.writer, f"{8 * facility + 3},1,1,-;{message}\n".encode())

    def look(self) -> bool:
        self.looks.append(self.now)
        return self.outcomes.pop(0) if self.outcomes else True

    def close(self) -> None:
        os.close(self.writer)
        assert self.reader is not None
        os.close(self.reader)


@pytest.fixture(name="log")
def _log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLog]:
    log = FakeLog(tmp_path / "kmsg")
    monkeypatch.setattr(watch, "_BATCH_SECONDS", 0.0)
    yield log
    log.close()


def begin(log: FakeLog) -> watch.LogWatcher:
    assert log.reader is not None
    return watch.LogWatcher(log.reader, log.look, lambda: log.now)


def advance(log: FakeLog, watcher: watch.LogWatcher, seconds: float) -> None:
    """Let the time pass, in which something wakes the watcher each second."""
    for _second in range(int(seconds)):
        log.now += 1.0
        log.write("usb 1-1: new device")
        watcher.wait_once()


def test_a_fault_in_the_log_has_the_node_looked_at_once_it_has_settled(log: FakeLog) -> None:
    log.write(LOST)
    watcher = begin(log)
    advance(log, watcher, 10)
    assert log.looks == [], "slurmd has looked at what was there before"
    # Neither do programs that write to the log, nor a user's crashed program, nor an Xid of a program.
    log.write("NVRM: Xid (PCI:0000:4d:00): 79, pid=1", facility=1)
    log.write("NVRM: Xid (PCI:0000:4d:00): 13, pid=1, Graphics Exception", LOST)
    advance(log, watcher, 10)
    assert log.looks == []
    storm = log.now
    log.write(*(LOST.replace("3d", f"{number:02x}") for number in range(64, 80)))
    advance(log, watcher, 2)
    log.write(NEEDS_RESET)
    advance(log, watcher, 20)
    assert log.looks == [storm + 4], "one for all of them"
    # A repeated fault is no news.
    log.write(NEEDS_RESET)
    advance(log, watcher, 60)
    assert len(log.looks) == 1
    log.write(NEEDS_NOTHING)
    advance(log, watcher, 5)
    assert len(log.looks) == 2, "the node may return"
    log.write(NEEDS_RESET)
    advance(log, watcher, 60)
    assert log.looks[2] == log.looks[1] + 30


@pytest.mark.parametrize(
    ("message", "is_fault"),
    [
        ("Memory failure: 0xe16677: recovery action for dirty LRU page: Recovered", True),
        ("nvidia 0000:3d:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer", True),
        ("pcieport 0000:3c:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer", True),
        ("snd_hda_intel 0000:05:00.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer", False),
        ("pcieport 0000:3c:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer", False),
    ],
)
def test_faults_of_the_host_are_watched_too(log: FakeLog, message: str, is_fault: bool) -> None:
    assert log.reader is not None
    addresses = ("0000:3c:00.0", "0000:3d:00.0")
    watcher = watch.LogWatcher(log.reader, log.look, lambda: log.now, addresses)
    log.write(message)
    advance(log, watcher, 10)
    assert bool(log.looks) == is_fault


def test_a_look_that_cannot_be_made_is_repeated_a_few_times(tmp_path: Path, log: FakeLog) -> None:
    log.outcomes = [False] * 9
    watcher = begin(log)
    log.write(LOST)
    advance(log, watcher, 200)
    first, *others = log.looks
    assert others == [first + 30, first + 60]


def test_the_watcher_sleeps_while_the_log_is_quiet(log: FakeLog) -> None:
    watcher = begin(log)
    waiting = threading.Thread(target=watcher.wait_once, daemon=True)
    before = time.process_time()
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    assert time.process_time() - before < 0.2
    log.write("usb 1-1: new device")
    waiting.join(10)
    assert not waiting.is_alive()


def test_other_devices_are_no_log() -> None:
    """Some containers have a link to /dev/null for a log."""
    assert kernel_log.open_log("/dev/null") is None
    assert not kernel_log.can_read("/dev/zero")


def test_overwritten_records_do_not_end_the_watch(log: FakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = begin(log)
    read, failures = os.read, [OSError(errno.EPIPE, "Broken pipe")]

    def read_after_overrun(*given: Any) -> bytes:
        if failures:
            raise failures.pop()
        return read(*given)

    log.write(LOST)
    monkeypatch.setattr(kernel_log.os, "read", read_after_overrun)
    watcher.wait_once()
    assert not failures
    advance(log, watcher, 5)
    assert len(log.looks) == 1


def test_a_log_that_fails_ends_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(HostStateError, match="cannot be read any more: Is a directory"):
        watch.watch_log("/bin/true", str(tmp_path / "folder"))

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt(seconds)

    # A log that cannot be opened is tried again, which costs nothing.
    monkeypatch.setattr(watch.time, "sleep", stop)
    with pytest.raises(KeyboardInterrupt, match="300"):
        watch.watch_log("/bin/true", str(tmp_path / "none"))


@pytest.mark.parametrize(("status", "judged"), [(0, True), (1, True), (2, False)])
def test_a_look_is_what_slurmd_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], status: int, judged: bool
) -> None:
    program = tmp_path / "gpumesh-node-health"
    program.write_text(f'#!/bin/sh\necho "n1: drain: y$*"\nexit {status}\n')
    program.chmod(0o755)
    assert watch.make_look(str(program)) == judged
    assert capfd.readouterr().out == "n1: drain: y\n"


def test_a_look_that_does_not_end_or_start_was_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "gpumesh-node-health"
    assert not watch.make_look(str(program))
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    assert not watch.make_look(str(program), 0.3)
    output = capsys.readouterr().out
    assert "cannot be started: No such file" in output and "did not end within 0.3 s" in output


def test_a_look_waits_for_another_one(tmp_path: Path) -> None:
    folder = str(tmp_path / "health")
    with look_lock.exclusive_look(folder, 0.0):
        assert (tmp_path / "health").stat().st_mode & 0o777 == 0o700
        # One that hangs in the kernel must not keep a broken node in service.
        started = time.monotonic()
        with look_lock.exclusive_look(folder, 0.3):
            assert time.monotonic() - started >= 0.3
        held = subprocess.run(["flock", "--nonblock", folder, "true"], check=False)
        assert held.returncode == 1
    with look_lock.exclusive_look(folder, 0.0):
        pass
    # What cannot be locked, such as on a read-only disk, does not keep a broken node in service.
    (tmp_path / "file").touch()
    with look_lock.exclusive_look(str(tmp_path / "file/health"), 0.0):
        pass
