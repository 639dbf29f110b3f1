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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh import rotation
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.interface import Host
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.wireguard import Desired, Peer, make_desired
from ansible_collections.gpumesh.cluster.tests.unit.module_utils.mesh.hosts import FakeHost, key

#: Not WireGuard's own port, so that the test can run beside a real tunnel.
PORT = 45820


def desired(number: int, peer: int, peer_key: str) -> Desired:
    """The interface of 127.0.0.<number> with one peer."""
    entry = {
        "machine": f"n{peer}",
        "public_key": peer_key,
        "endpoint": f"203.0.113.{peer}:51820",
        "allowed_ips": [f"127.0.0.{peer}/32"],
    }
    return make_desired("gpumesh0", f"127.0.0.{number}/8", PORT, 1420, [entry])


def running(number: int, peer: int, handshake: int) -> FakeHost:
    fake = FakeHost()
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
def armed(fake: FakeHost, wanted: Desired, folder: Path) -> Iterator[rotation.Watch]:
    """The process in the background, as a thread."""
    watch = rotation.Watch(wanted.peers)
    ears = rotation._listen(wanted)
    thread = threading.Thread(
        target=rotation._serve, args=(Host(fake.run, False, str(folder)), "gpumesh0", ears, watch), daemon=True
    )
    thread.start()
    yield watch
    thread.join(60)
    ears.close()


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_ASK_FOR", 1.0), ("_ASK_IDLE_FOR", 0.3), ("_SETTLE_FOR", 0.3), ("_PATIENCE", 2.0)):
        monkeypatch.setattr(rotation, name, seconds)


def host_of(fake: FakeHost, folder: Path) -> Host:
    folder.mkdir(exist_ok=True)
    (folder / "gpumesh0.key").write_text(fake.private + "\n", encoding="utf-8")
    return Host(fake.run, False, str(folder))


def test_a_member_changes_its_key_in_step_with_its_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, the other thread may answer late.
    for name, seconds in (("_ASK_FOR", 60.0), ("_SETTLE_FOR", 2.0), ("_PATIENCE", 120.0)):
        monkeypatch.setattr(rotation, name, seconds)
    now = int(time.time())
    mine, theirs = running(1, 2, now), running(2, 1, now)
    mine.sessions_after_key = 1
    host = host_of(mine, tmp_path / "one")
    changed, next_key = rotation.prepare(host, "gpumesh0")
    assert changed and next_key
    assert rotation.prepare(host, "gpumesh0") == (False, next_key), "an earlier run's next key is used"
    assert stat.S_IMODE((tmp_path / "one" / "gpumesh0.key.next").stat().st_mode) == 0o600
    with armed(theirs, desired(2, 1, next_key), tmp_path) as watch:
        switched = rotation.switch(host, desired(1, 2, key("n2")))
        deadline = time.monotonic() + 60
        while not watch.done and time.monotonic() < deadline:
            time.sleep(0.01)
    assert switched == rotation.Switched(next_key, ())
    assert key(mine.private) == next_key
    assert not (tmp_path / "one" / "gpumesh0.key.next").exists()
    # The new peer has the addresses, and the endpoint from which the old one was last heard.
    assert {name: (peer["allowed"], peer["endpoint"]) for name, peer in theirs.peers.items()} == {
        next_key: (["127.0.0.1/32"], "198.51.100.1:4000")
    }
    commands = [command[1] for command in theirs.commands if command[1] in ("addconf", "set")]
    assert commands == ["addconf", "set"], "the new one first, then the old one goes"
    assert key("private 1") not in repr(mine.commands)


# In the middle of a rotation, the peer has another key than the one that this host knows.
@pytest.mark.parametrize("told", ["n2", "n2 before"])
def test_a_peer_that_does_not_answer_stops_the_change_before_it_begins(tmp_path: Path, told: str) -> None:
    mine = running(1, 2, int(time.time()))
    host = host_of(mine, tmp_path / "one")
    rotation.prepare(host, "gpumesh0")
    with pytest.raises(HostStateError, match=f"n2 did not answer on UDP port {PORT + 1}"):
        rotation.switch(host, desired(1, 2, key(told)))
    assert mine.private == key("private of n1")
    assert (tmp_path / "one" / "gpumesh0.key.next").exists()


def test_a_peer_that_is_down_does_not_stop_the_others(tmp_path: Path) -> None:
    mine = running(1, 2, 0)
    host = host_of(mine, tmp_path / "one")
    _changed, next_key = rotation.prepare(host, "gpumesh0")
    assert rotation.switch(host, desired(1, 2, key("n2"))) == rotation.Switched(str(next_key), ())
    assert key(mine.private) == next_key


def test_without_a_next_key_nothing_is_changed(tmp_path: Path) -> None:
    mine = running(1, 2, 0)
    with pytest.raises(HostStateError, match="no next key"):
        rotation.switch(host_of(mine, tmp_path / "one"), desired(1, 2, key("n2")))
    assert mine.private == key("private of n1")


def watched() -> tuple[rotation.Watch, Peer]:
    peer = Peer("n1", key("next"), None, ("10.99.0.1/32",), 0)
    return rotation.Watch([peer]), peer


def test_a_peer_is_replaced_a_moment_after_the_word_and_once() -> None:
    watch, peer = watched()
    assert watch.receive(rotation.message(rotation.READY, peer.public_key), "10.99.0.1", 0.0) == rotation.message(
        rotation.ACK, peer.public_key
    )
    assert watch.due(100.0) == [], "being ready is not going"
    for moment in (100.0, 100.1):
        assert watch.receive(rotation.message(rotation.GO, peer.public_key), "10.99.0.1", moment) is None
    assert watch.due(100.0) == []
    assert watch.wait(100.0, 200.0) == pytest.approx(0.3)
    assert watch.due(100.31) == [peer]
    assert watch.due(101.0) == [] and watch.done


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (rotation.message(rotation.GO, key("next")), "10.99.0.9"),  # another host announces n1's key
        (rotation.message(rotation.GO, key("other")), "10.99.0.1"),
        (b"\xff", "10.99.0.1"),
        (b"[]", "10.99.0.1"),
        (b"null", "10.99.0.1"),
        (b"", "10.99.0.1"),
    ],
)
def test_other_words_are_not_heard(data: bytes, source: str) -> None:
    watch, _peer = watched()
    assert watch.receive(data, source, 0.0) is None
    assert watch.due(1000.0) == [] and not watch.done


def test_the_port_of_the_words_is_never_wireguards_own() -> None:
    assert (rotation.announcement_port(51820), rotation.announcement_port(65535)) == (51821, 65534)
