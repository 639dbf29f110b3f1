# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The phases of a probe on a folder that stands for a volume, with each member in a process of its own."""

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

from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import holding, probe
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.bounded import bounded

MACHINES = ["n1", "n2"]
NOTHING = probe.Limits(0, 0, 5, 100)
SMALL = probe.Limits(3 << 20, 20, 5, 100)


def write(folder: Path, run: str, machine: str, limits: probe.Limits) -> dict[str, Any]:
    return bounded(partial(probe.write, str(folder), run, machine, 2, limits), 60)


def compare(folder: Path, run: str, machine: str, limits: probe.Limits = NOTHING) -> dict[str, Any]:
    other = probe.others(machine, MACHINES)
    return bounded(partial(probe.compare, str(folder), run, other, other[0], limits), 60)


def test_a_volume_is_proven_and_measured_and_left_as_it_was(tmp_path: Path) -> None:
    run = f"test-{os.getpid()}"
    written = {machine: write(tmp_path, run, machine, SMALL) for machine in MACHINES}
    assert all(value["write_mbps"] > 0 and value["files_per_second"] > 0 for value in written.values())
    assert (tmp_path / f".gpumesh-check-{run}-n1" / "data").stat().st_size == SMALL.size
    assert holding.start(str(tmp_path), run, "n2", "data", 60) == ""
    compared = compare(tmp_path, run, "n1", SMALL)
    assert (compared["unseen"], compared["lock"]) == ([], "busy")
    assert compared["read_mbps"] > 0
    assert holding.release("data", run, "n2") == ""
    assert bounded(partial(probe.take, str(tmp_path), run, "n2"), 60) == {"lock": "granted"}
    for machine in MACHINES:
        bounded(partial(probe.clean, str(tmp_path), run, machine), 60)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_nobody_respects_is_seen(tmp_path: Path) -> None:
    for machine in MACHINES:
        write(tmp_path, "run", machine, NOTHING)
    assert compare(tmp_path, "run", "n1")["lock"] == "granted"


def test_a_file_that_is_delegated_to_a_client_is_waited_for(tmp_path: Path) -> None:
    """The NFS server holds a lease for the client, and releases it when the client has written back its data."""
    (tmp_path / "token").write_text("here", encoding="ascii")
    folder, lease = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "token", os.O_RDWR)
    former = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(BlockingIOError):
            os.open(tmp_path / "token", os.O_RDONLY | os.O_NONBLOCK)
        threading.Timer(0.5, fcntl.fcntl, (lease, fcntl.F_SETLEASE, fcntl.F_UNLCK)).start()
        os.close(probe._open("token", os.O_RDONLY, folder))
    finally:
        signal.signal(signal.SIGIO, former)
        os.close(lease)
        os.close(folder)


def test_another_file_system_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_TOKEN_SECONDS", 0.1)
    for machine in MACHINES:
        (tmp_path / machine).mkdir()
        write(tmp_path / machine, "run", machine, NOTHING)
    assert compare(tmp_path / "n1", "run", "n1") == {"unseen": ["n2"], "read_mbps": None, "lock": None}


def test_a_volume_is_never_filled(tmp_path: Path) -> None:
    full = write(tmp_path, "run", "n1", SMALL._replace(max_used_percent=0))
    assert full["write_mbps"] is None
    assert "2 files of 3 MiB would leave it" in full["refusal"]
    huge = write(tmp_path, "run", "n2", SMALL._replace(size=1 << 60))
    assert huge["write_mbps"] is None
    assert not (tmp_path / ".gpumesh-check-run-n2" / "data").exists()


def test_a_measurement_ends_in_time(tmp_path: Path) -> None:
    written = write(tmp_path, "run", "n1", SMALL._replace(size=64 << 20, seconds=0.0001))
    assert written["write_mbps"] > 0
    assert (tmp_path / ".gpumesh-check-run-n1" / "data").stat().st_size == 8 << 20


def test_what_a_run_has_left_goes_with_a_later_one(tmp_path: Path) -> None:
    for machine in MACHINES:
        write(tmp_path, "old", machine, NOTHING)
        os.utime(tmp_path / f".gpumesh-check-old-{machine}", (0, 0))
    write(tmp_path, "new", "n1", NOTHING)
    assert {path.name for path in tmp_path.iterdir()} == {".gpumesh-check-old-n2", ".gpumesh-check-new-n1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="not checked: only root can be another user")
def test_where_nobody_may_write_it_says_whose_the_volume_is() -> None:
    def as_nobody(volume: str) -> dict[str, Any]:
        os.setegid(65534)
        os.seteuid(65534)
        return probe.write(volume, "run", "n1", 1, NOTHING)

    with tempfile.TemporaryDirectory() as volume:
        os.chmod(volume, 0o755)
        refused = bounded(partial(as_nobody, volume), 60)
    assert refused["uid"] is None
    assert "user 0 with mode 0755" in refused["refusal"]


def test_the_ring_has_everybody_once() -> None:
    assert [probe.neighbour_of(machine, ["a", "b", "c"]) for machine in "abc"] == ["b", "c", "a"]
    assert probe.neighbour_of("a", ["a"]) is None
    assert probe.neighbour_of("z", ["a", "b"]) is None


def test_people_are_told_from_the_accounts_of_services(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"root": 0, "slurm": 64030, "alice": 1000, "nobody": 65534, "far": 200_001}
    entries = [pwd.struct_passwd((name, "x", number, 0, "", "/", "/bin/sh")) for name, number in numbers.items()]
    monkeypatch.setattr(probe.pwd, "getpwall", lambda: entries)
    assert probe.users() == {"alice": 1000, "far": 200_001}
