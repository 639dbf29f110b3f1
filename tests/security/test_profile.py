# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ranks of a run that is profiled listen on the cluster's network. Data and listeners of others have no effect."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import gpumesh_profile
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.gpumesh_profile import (
    ClockServer,
    Neighbours,
    PeerConnection,
)

PROFILE_KEY = "0f" * 32
#: More than all lines of a connection together.
LARGE_SIZE = 64 << 20


def test_endless_line_is_not_kept() -> None:
    server = ClockServer(("127.0.0.1", 0), 1, PROFILE_KEY)
    sent = 0
    with socket.create_connection(server.address, 30) as connection, contextlib.suppress(ConnectionError):
        while sent < LARGE_SIZE:
            sent += connection.send(bytes(1 << 16))
    server.close()
    # The buffers of two sockets take some MiB.
    assert sent < LARGE_SIZE


def test_strangers_can_neither_end_the_server_nor_redirect_ranks() -> None:
    server = ClockServer(("127.0.0.1", 0), 1, PROFILE_KEY)
    with socket.create_connection(server.address, 30) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"here 1 4444\nbye 1\nbye\n")
        with contextlib.suppress(ConnectionError):
            while connection.recv(1000):
                pass
    peer = PeerConnection(server.address, PROFILE_KEY)
    assert peer.ask("where 1") == "" and int(peer.ask("time"))
    peer.close()
    server.close()


def test_response_of_another_listener_is_limited_and_not_trusted() -> None:
    """The listener cannot send back the proof of the rank that asks either."""
    sent: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _peer = listening.accept()
            with connection, contextlib.suppress(ConnectionError):
                connection.sendall(b"00\n")
                _nonce, proof = connection.recv(1000).split()
                connection.sendall(proof + b"\n")
                while sum(sent) < LARGE_SIZE:
                    sent.append(connection.send(bytes(1 << 16)))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(gpumesh_profile.ForeignPeerError):
            PeerConnection(listening.getsockname()[:2], PROFILE_KEY)
        thread.join(30)
    assert sum(sent) < LARGE_SIZE


def test_connection_from_outside_the_run_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpumesh_profile, "resolve_nodes", lambda nodes: frozenset({"192.0.2.7"} if nodes else ()))
    server = ClockServer(("127.0.0.2", 0), 1, PROFILE_KEY, allowed_nodes=["n1"])
    with socket.create_connection(server.address, 30) as connection:
        assert connection.recv(100) == b""
    with socket.create_connection(server.address, 30, ("127.0.0.2", 0)) as connection:
        assert connection.recv(100)
    server.close()


def test_key_is_private_and_foreign_key_is_rejected(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        key = gpumesh_profile.write_key(str(tmp_path))
    finally:
        os.umask(previous)
    path = tmp_path / "key"
    assert gpumesh_profile.read_key(str(tmp_path)) == key and path.stat().st_mode & 0o777 == 0o600
    os.chown(path, 12345, 12345)
    with pytest.raises(gpumesh_profile.ForeignPeerError):
        gpumesh_profile.read_key(str(tmp_path))
    os.chown(path, 0, 0)
    path.chmod(0o640)
    with pytest.raises(gpumesh_profile.ForeignPeerError):
        gpumesh_profile.read_key(str(tmp_path))
    path.rename(tmp_path / "other")
    path.symlink_to("other")
    with pytest.raises(OSError, match="key"):
        gpumesh_profile.read_key(str(tmp_path))


def test_planted_key_is_replaced(tmp_path: Path) -> None:
    """Rank 0 does not use what is already there if others can write to the directory."""
    (tmp_path / "key").write_text("f" * 64, encoding="ascii")
    neighbours = Neighbours(0, 2, {"MASTER_ADDR": "127.0.0.1", "GPUMESH_PROFILE_DIR": str(tmp_path)})
    neighbours._clock_address = ("127.0.0.1", 0)
    neighbours.open()
    assert neighbours._server is not None
    neighbours._server.close()
    assert gpumesh_profile.read_key(str(tmp_path)) not in ("", "f" * 64)
