# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the controller still exists, determined from the processes of a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.lease import (
    Lease,
    Process,
    as_text,
    connection_of,
    from_text,
)


class Host:
    """An artificial /proc, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = Tree(str(root))
        self.now = 1000.0

    def start(self, number: int, name: str, parent: int, started: int, state: str = "S") -> None:
        folder = self.root / "proc" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        rest = " ".join(["0"] * 17)
        (folder / "stat").write_text(f"{number} ({name}) {state} {parent} {rest} {started} 0 0\n")

    def end(self, number: int) -> None:
        (self.root / "proc" / str(number) / "stat").unlink()

    def lease(self, connection: Process | None) -> Lease:
        return Lease(300, connection, self.tree)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr("time.monotonic", lambda: made.now)
    made.start(1, "systemd", 0, 1)
    made.start(80, "sshd", 1, 5)
    made.start(90, "sshd-session", 80, 7)
    made.start(91, "sh", 90, 8)
    made.start(92, "a) S 1 (sudo", 91, 9)
    made.start(93, "python3", 92, 10)
    made.start(70, "python3", 1, 6)
    return made


def test_the_nearest_server_of_a_connection_is_the_controllers(host: Host) -> None:
    assert connection_of(host.tree, 93) == Process(90, 7)
    assert connection_of(host.tree, 70) is None
    assert connection_of(host.tree, 4711) is None


@pytest.mark.parametrize("text", ["", "1", "1 2 3", "x 2", "-1 2", "² 3"])
def test_noise_is_no_connection(text: str) -> None:
    assert from_text(text) is None


def test_a_connection_survives_its_text() -> None:
    assert from_text(as_text(Process(90, 7))) == Process(90, 7)
    assert from_text(as_text(None)) is None


def test_it_lasts_as_long_as_the_connection_and_a_part_of_the_lifetime(host: Host) -> None:
    lease = host.lease(Process(90, 7))
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


def test_another_process_of_the_same_number_is_not_the_connection(host: Host) -> None:
    lease = host.lease(Process(90, 7))
    host.start(90, "sshd-session", 80, 4711)
    host.now += 80
    assert lease.is_over()


def test_a_dead_process_that_nobody_has_asked_for_is_not_the_connection(host: Host) -> None:
    lease = host.lease(Process(90, 7))
    host.start(90, "sshd-session", 80, 7, "Z")
    host.now += 80
    assert lease.is_over()


def test_without_a_connection_the_kernel_ends_it(host: Host) -> None:
    lease = host.lease(None)
    host.now += 10000
    assert not lease.is_over()


def test_it_follows_those_who_come_later(host: Host) -> None:
    lease = host.lease(Process(90, 7))
    host.start(95, "sshd", 80, 20)
    host.end(90)
    lease.follow(Process(95, 20))
    host.now += 200
    assert not lease.is_over()


def test_it_yields_to_its_own_controller_and_where_its_own_is_gone(host: Host) -> None:
    lease = host.lease(Process(90, 7))
    host.start(95, "sshd", 80, 20)
    assert lease.yields_to(Process(90, 7))
    assert not lease.yields_to(Process(95, 20))
    assert not lease.yields_to(None)
    host.end(90)
    assert lease.yields_to(Process(95, 20))
    assert host.lease(None).yields_to(Process(95, 20))
