# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change of keys between two hosts in memory, whose announcements use the loopback interface."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import rotation
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.interface import WireguardHost
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.wireguard import (
    DesiredInterface,
    DesiredPeer,
    make_desired,
)
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._layers.mesh.hosts import FakeWireguardHost, key

#: The port differs from WireGuard's own, so that the test can run beside a real tunnel.
PORT = 45820


def make_interface(number: int, peer: int, peer_key: str) -> DesiredInterface:
    """The interface of 127.0.0.<number> with one peer."""
    entry = {
        "machine": f"n{peer}",
        "public_key": peer_key,
        "endpoint": f"203.0.113.{peer}:51820",
        "allowed_ips": [f"127.0.0.{peer}/32"],
    }
    return make_desired("gpumesh0", f"127.0.0.{number}/8", PORT, 1420, [entry])


def running_host(number: int, peer: int, handshake: int) -> FakeWireguardHost:
    fake = FakeWireguardHost()
    fake.up, fake.private, fake.port = True, key(f"private of n{number}"), PORT
    fake.addresses = [f"127.0.0.{number}/8"]
    fake.peers = {
        key(f"n{peer}"): {
            "endpoint": f"198.51.100.{peer}:4000",
            "allowed": [f"127.0.0.{peer}/32"],
            "handshake": handshake,
            "keepalive": 0,
        }
    }
    return fake


@contextmanager
def armed_host(
    fake: FakeWireguardHost, desired_interface: DesiredInterface, folder: Path
) -> Iterator[rotation.AnnouncementHandler]:
    """The process in the background, as a thread."""
    watch = rotation.AnnouncementHandler(desired_interface.peers)
    ears = rotation._open_listener(desired_interface)
    thread = threading.Thread(
        target=rotation._handle_announcements,
        args=(WireguardHost(fake.run, False, str(folder)), "gpumesh0", ears, watch),
        daemon=True,
    )
    thread.start()
    yield watch
    thread.join(60)
    ears.close()


@pytest.fixture(autouse=True)
def _shorten_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("_READY_SECONDS", 1.0),
        ("_IDLE_READY_SECONDS", 0.3),
        ("_SESSION_WAIT", 0.3),
        ("_ARMED_SECONDS", 2.0),
    ):
        monkeypatch.setattr(rotation, name, seconds)


def make_host(fake: FakeWireguardHost, folder: Path) -> WireguardHost:
    folder.mkdir(exist_ok=True)
    (folder / "gpumesh0.key").write_text(fake.private + "\n", encoding="utf-8")
    return WireguardHost(fake.run, False, str(folder))


def test_a_member_changes_its_key_in_step_with_its_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The other thread may respond late on a busy machine.
    for name, seconds in (("_READY_SECONDS", 60.0), ("_SESSION_WAIT", 2.0), ("_ARMED_SECONDS", 120.0)):
        monkeypatch.setattr(rotation, name, seconds)
    now = int(time.time())
    mine, theirs = running_host(1, 2, now), running_host(2, 1, now)
    mine.sessions_after_key = 1
    host = make_host(mine, tmp_path / "one")
    changed, next_key = rotation.prepare_key(host, "gpumesh0")
    assert changed and next_key
    assert rotation.prepare_key(host, "gpumesh0") == (False, next_key), "an earlier run's next key is used"
    assert stat.S_IMODE((tmp_path / "one" / "gpumesh0.key.next").stat().st_mode) == 0o600
    with armed_host(theirs, make_interface(2, 1, next_key), tmp_path) as watch:
        switched = rotation.switch_key(host, make_interface(1, 2, key("n2")))
        wait_until("the key is replaced", lambda: watch.all_replaced)
    assert switched == rotation.SwitchResult(next_key, ())
    assert key(mine.private) == next_key
    assert not (tmp_path / "one" / "gpumesh0.key.next").exists()
    # The new peer has the addresses, and the endpoint from which the old one was last heard.
    assert {name: (peer["allowed"], peer["endpoint"]) for name, peer in theirs.peers.items()} == {
        next_key: (["127.0.0.1/32"], "198.51.100.1:4000")
    }
    commands = [command[1] for command in theirs.commands if command[1] in ("addconf", "set")]
    assert commands == ["addconf", "set"], "the new one first, then the old one goes"
    assert key("private 1") not in repr(mine.commands)


# The peer has another key than the one that this host knows in the middle of a rotation.
@pytest.mark.parametrize("machine", ["n2", "n2 before"])
def test_unresponsive_peer_prevents_the_key_change(tmp_path: Path, machine: str) -> None:
    mine = running_host(1, 2, int(time.time()))
    host = make_host(mine, tmp_path / "one")
    rotation.prepare_key(host, "gpumesh0")
    with pytest.raises(HostStateError, match=f"n2 did not answer on UDP port {PORT + 1}"):
        rotation.switch_key(host, make_interface(1, 2, key(machine)))
    assert mine.private == key("private of n1")
    assert (tmp_path / "one" / "gpumesh0.key.next").exists()


def test_a_peer_that_is_down_does_not_stop_the_others(tmp_path: Path) -> None:
    mine = running_host(1, 2, 0)
    host = make_host(mine, tmp_path / "one")
    _changed, next_key = rotation.prepare_key(host, "gpumesh0")
    assert rotation.switch_key(host, make_interface(1, 2, key("n2"))) == rotation.SwitchResult(str(next_key), ())
    assert key(mine.private) == next_key


def test_without_a_next_key_nothing_is_changed(tmp_path: Path) -> None:
    mine = running_host(1, 2, 0)
    with pytest.raises(HostStateError, match="no next key"):
        rotation.switch_key(make_host(mine, tmp_path / "one"), make_interface(1, 2, key("n2")))
    assert mine.private == key("private of n1")


def make_handler() -> tuple[rotation.AnnouncementHandler, DesiredPeer]:
    peer = DesiredPeer("n1", key("next"), None, ("10.99.0.1/32",), 0)
    return rotation.AnnouncementHandler([peer]), peer


def test_peer_is_replaced_once_shortly_after_the_announcement() -> None:
    watch, peer = make_handler()
    assert watch.handle_message(
        rotation.build_message(rotation.READY, peer.public_key), "10.99.0.1", 0.0
    ) == rotation.build_message(rotation.ACK, peer.public_key)
    assert watch.take_due_peers(100.0) == [], "being ready is not going"
    for moment in (100.0, 100.1):
        assert watch.handle_message(rotation.build_message(rotation.GO, peer.public_key), "10.99.0.1", moment) is None
    assert watch.take_due_peers(100.0) == []
    assert watch.seconds_until_due(100.0, 200.0) == pytest.approx(0.3)
    assert watch.take_due_peers(100.31) == [peer]
    assert watch.take_due_peers(101.0) == [] and watch.all_replaced


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (rotation.build_message(rotation.GO, key("next")), "10.99.0.9"),  # another host announces n1's key
        (rotation.build_message(rotation.GO, key("other")), "10.99.0.1"),
        (b"\xff", "10.99.0.1"),
        (b"[]", "10.99.0.1"),
        (b"null", "10.99.0.1"),
        (b"", "10.99.0.1"),
    ],
)
def test_other_messages_are_ignored(data: bytes, source: str) -> None:
    watch, _peer = make_handler()
    assert watch.handle_message(data, source, 0.0) is None
    assert watch.take_due_peers(1000.0) == [] and not watch.all_replaced


def test_announcement_port_differs_from_the_wireguard_port() -> None:
    assert (rotation.announcement_port(51820), rotation.announcement_port(65535)) == (51821, 65534)
