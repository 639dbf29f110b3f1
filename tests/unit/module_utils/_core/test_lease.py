# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the controller still exists, determined from the processes of a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.lease import (
    Lease,
    ProcessIdentity,
    find_connection,
    format_process,
    parse_process,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree


class FakeProcHost:
    """An artificial /proc, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = Tree(str(root))
        self.now = 1000.0

    def start(self, number: int, name: str, parent: int, started: int, state: str = "S") -> None:
        folder = self.root / "proc" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        stat_tail = " ".join(["0"] * 17)
        (folder / "stat").write_text(f"{number} ({name}) {state} {parent} {stat_tail} {started} 0 0\n")

    def end(self, number: int) -> None:
        (self.root / "proc" / str(number) / "stat").unlink()

    def lease(self, connection: ProcessIdentity | None) -> Lease:
        return Lease(300, connection, self.tree)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProcHost:
    fake_host = FakeProcHost(tmp_path)
    monkeypatch.setattr("time.monotonic", lambda: fake_host.now)
    fake_host.start(1, "systemd", 0, 1)
    fake_host.start(80, "sshd", 1, 5)
    fake_host.start(90, "sshd-session", 80, 7)
    fake_host.start(91, "sh", 90, 8)
    fake_host.start(92, "a) S 1 (sudo", 91, 9)
    fake_host.start(93, "python3", 92, 10)
    fake_host.start(70, "python3", 1, 6)
    return fake_host


def test_nearest_ssh_server_ancestor_is_the_connection(host: FakeProcHost) -> None:
    assert find_connection(host.tree, 93) == ProcessIdentity(90, 7)
    assert find_connection(host.tree, 70) is None
    assert find_connection(host.tree, 4711) is None


@pytest.mark.parametrize("text", ["", "1", "1 2 3", "x 2", "-1 2", "² 3"])
def test_unparsable_text_is_not_a_connection(text: str) -> None:
    assert parse_process(text) is None


def test_connection_round_trips_through_text() -> None:
    assert parse_process(format_process(ProcessIdentity(90, 7))) == ProcessIdentity(90, 7)
    assert parse_process(format_process(None)) is None


def test_lease_outlasts_the_connection_by_a_part_of_the_lifetime(host: FakeProcHost) -> None:
    lease = host.lease(ProcessIdentity(90, 7))
    host.now += 200
    assert not lease.is_over()
    host.end(90)
    host.now += 74
    assert not lease.is_over()
    lease.renew()
    host.now += 74
    assert not lease.is_over()
    host.now += 1
    assert lease.is_over()


def test_reused_process_id_is_not_the_connection(host: FakeProcHost) -> None:
    lease = host.lease(ProcessIdentity(90, 7))
    host.start(90, "sshd-session", 80, 4711)
    host.now += 80
    assert lease.is_over()


def test_zombie_is_not_the_connection(host: FakeProcHost) -> None:
    lease = host.lease(ProcessIdentity(90, 7))
    host.start(90, "sshd-session", 80, 7, "Z")
    host.now += 80
    assert lease.is_over()


def test_lease_without_a_connection_ends_only_with_its_lifetime(host: FakeProcHost) -> None:
    lease = host.lease(None)
    host.now += 10000
    assert not lease.is_over()


def test_lease_follows_a_later_connection(host: FakeProcHost) -> None:
    lease = host.lease(ProcessIdentity(90, 7))
    host.start(95, "sshd", 80, 20)
    host.end(90)
    lease.follow(ProcessIdentity(95, 20))
    host.now += 200
    assert not lease.is_over()


def test_lease_yields_to_its_own_controller_or_if_that_has_ended(host: FakeProcHost) -> None:
    lease = host.lease(ProcessIdentity(90, 7))
    host.start(95, "sshd", 80, 20)
    assert lease.yields_to(ProcessIdentity(90, 7))
    assert not lease.yields_to(ProcessIdentity(95, 20))
    assert not lease.yields_to(None)
    host.end(90)
    assert lease.yields_to(ProcessIdentity(95, 20))
    assert host.lease(None).yields_to(ProcessIdentity(95, 20))
