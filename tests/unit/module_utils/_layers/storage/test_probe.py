# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The phases of a probe on a directory that stands for a volume, with a process for each member."""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.subprocess_deadline import run_with_deadline
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import holding, probe

MACHINES = ["n1", "n2"]
NO_MEASUREMENT = probe.ProbeLimits(0, 0, 5, 100)
SMALL_MEASUREMENT = probe.ProbeLimits(3 << 20, 20, 5, 100)


def write_volume(folder: Path, run: str, machine: str, limits: probe.ProbeLimits) -> dict[str, Any]:
    return run_with_deadline(partial(probe.write_and_measure, str(folder), run, machine, 2, limits), 60)


def compare_volume(folder: Path, run: str, machine: str, limits: probe.ProbeLimits = NO_MEASUREMENT) -> dict[str, Any]:
    neighbour = probe.other_machines(machine, MACHINES)
    return run_with_deadline(partial(probe.check_members, str(folder), run, neighbour, neighbour[0], limits), 60)


def take_released(folder: Path, run: str) -> dict[str, Any]:
    return run_with_deadline(partial(probe.take_released_lock, str(folder), run, "n2"), 60)


def test_volume_is_checked_measured_and_cleaned(tmp_path: Path) -> None:
    run = f"test-{os.getpid()}"
    written = {machine: write_volume(tmp_path, run, machine, SMALL_MEASUREMENT) for machine in MACHINES}
    assert all(value["write_mbps"] > 0 and value["files_per_second"] > 0 for value in written.values())
    assert (tmp_path / f".gpumesh-check-{run}-n1" / "data").stat().st_size == SMALL_MEASUREMENT.data_size
    assert holding.start_lock_owner(str(tmp_path), run, "n2", "data", 60) == ""
    compared = compare_volume(tmp_path, run, "n1", SMALL_MEASUREMENT)
    assert (compared["missing_members"], compared["lock"]) == ([], "busy")
    assert take_released(tmp_path, run) == {"released_lock": "granted"}
    assert compared["read_mbps"] > 0
    assert holding.explain_lost_lock("data", run, "n2") == "", "the first lock is held until the end"
    holding.end_lock_owner("data", run, "n2")
    assert "the process that held it has died" in holding.explain_lost_lock("data", run, "n2")
    for machine in MACHINES:
        run_with_deadline(partial(probe.remove_own_files, str(tmp_path), run, machine), 60)
    assert list(tmp_path.iterdir()) == []


def test_released_lock_that_stays_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_LOCK_TIMEOUT", 0.5)
    for machine in MACHINES:
        write_volume(tmp_path, "run", machine, NO_MEASUREMENT)
    with (tmp_path / ".gpumesh-check-run-n2" / "lock").open("r+b") as stream:
        # As a server keeps it whose client has released it.
        fcntl.lockf(stream, fcntl.LOCK_EX, 1, probe.RELEASED_BYTE)
        assert take_released(tmp_path, "run") == {"released_lock": "busy"}


def test_ineffective_lock_is_detected(tmp_path: Path) -> None:
    for machine in MACHINES:
        write_volume(tmp_path, "run", machine, NO_MEASUREMENT)
    assert compare_volume(tmp_path, "run", "n1")["lock"] == "granted"


def test_delegated_file_is_waited_for(tmp_path: Path) -> None:
    """The NFS server holds a lease for the client, and releases it when the client has written back its data."""
    (tmp_path / "token").write_text("here", encoding="ascii")
    folder, lease = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "token", os.O_RDWR)
    former = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(BlockingIOError):
            os.open(tmp_path / "token", os.O_RDONLY | os.O_NONBLOCK)
        threading.Timer(0.5, fcntl.fcntl, (lease, fcntl.F_SETLEASE, fcntl.F_UNLCK)).start()
        os.close(probe._open_safely("token", os.O_RDONLY, folder))
    finally:
        signal.signal(signal.SIGIO, former)
        os.close(lease)
        os.close(folder)


def test_other_filesystem_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_TOKEN_TIMEOUT", 0.1)
    for machine in MACHINES:
        (tmp_path / machine).mkdir()
        write_volume(tmp_path / machine, "run", machine, NO_MEASUREMENT)
    assert compare_volume(tmp_path / "n1", "run", "n1") == {"missing_members": ["n2"], "read_mbps": None, "lock": None}


def test_full_volume_is_not_measured(tmp_path: Path) -> None:
    full = write_volume(tmp_path, "run", "n1", SMALL_MEASUREMENT._replace(max_used_percent=0))
    assert full["write_mbps"] is None
    assert "2 files of 3 MiB would leave it" in full["refusal"]
    huge = write_volume(tmp_path, "run", "n2", SMALL_MEASUREMENT._replace(data_size=1 << 60))
    assert huge["write_mbps"] is None
    assert not (tmp_path / ".gpumesh-check-run-n2" / "data").exists()


def test_measurement_time_is_limited(tmp_path: Path) -> None:
    written = write_volume(tmp_path, "run", "n1", SMALL_MEASUREMENT._replace(data_size=64 << 20, max_seconds=0.0001))
    assert written["write_mbps"] > 0
    assert (tmp_path / ".gpumesh-check-run-n1" / "data").stat().st_size == 8 << 20


def test_leftovers_of_interrupted_runs_are_removed(tmp_path: Path) -> None:
    for machine in MACHINES:
        write_volume(tmp_path, "old", machine, NO_MEASUREMENT)
        os.utime(tmp_path / f".gpumesh-check-old-{machine}", (0, 0))
    write_volume(tmp_path, "new", "n1", NO_MEASUREMENT)
    assert {path.name for path in tmp_path.iterdir()} == {".gpumesh-check-old-n2", ".gpumesh-check-new-n1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="not checked: only root can be another user")
def test_unwritable_volume_is_reported_with_its_owner() -> None:
    def as_nobody(volume: str) -> dict[str, Any]:
        os.setegid(65534)
        os.seteuid(65534)
        return probe.write_and_measure(volume, "run", "n1", 1, NO_MEASUREMENT)

    with tempfile.TemporaryDirectory() as volume:
        os.chmod(volume, 0o755)
        refused = run_with_deadline(partial(as_nobody, volume), 60)
    assert refused["uid"] is None
    assert "user 0 with mode 0755" in refused["refusal"]


def test_ring_contains_each_machine_once() -> None:
    assert [probe.next_machine(machine, ["a", "b", "c"]) for machine in "abc"] == ["b", "c", "a"]
    assert probe.next_machine("a", ["a"]) is None
    assert probe.next_machine("z", ["a", "b"]) is None


def test_system_accounts_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"root": 0, "slurm": 64030, "alice": 1000, "nobody": 65534, "far": 200_001}
    entries = [pwd.struct_passwd((name, "x", number, 0, "", "/", "/bin/sh")) for name, number in numbers.items()]
    monkeypatch.setattr(probe.pwd, "getpwall", lambda: entries)
    assert probe.list_users() == {"alice": 1000, "far": 200_001}
