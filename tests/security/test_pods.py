# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An account of a pod connects to the pod's own services through tailscaled's proxy, to keep members away from them."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from pod_library import MEMBER_ADDRESS, NOBODY_UID, FakeProxyDaemon, PodProgramRunner, build_library

#: The connections of the attacker.
CONNECTION_COUNT = 30
#: A daemon that accepts one connection after the other, as slurmd does, and prints from whom each is. Its first
#: argument is the number of seconds for which it leaves a connection without data to the kernel, so that a test with
#: data does not depend on time.
DAEMON_PROGRAM = """
listener = socket.create_server(("", 0), backlog=128)
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(sys.argv[1]))
print(listener.getsockname()[1])
while True:
    peer, address = listener.accept()
    for _ in range(3):
        name = peer.getpeername()[0]
    print(address[0], name, flush=True)
    if name == MEMBER:
        break
"""


@pytest.fixture(name="pod")
def _pod() -> Iterator[PodProgramRunner]:
    with tempfile.TemporaryDirectory(prefix="gpumesh-pod-") as name:
        directory = Path(name)
        # Other accounts may enter, unlike pytest's own.
        directory.chmod(0o755)
        daemon = FakeProxyDaemon(directory)
        yield PodProgramRunner(build_library(directory, daemon.port), daemon)
        daemon.close()


def open_unidentified(pod: PodProgramRunner, port: int, attack: ExitStack, sent: bytes) -> list[socket.socket]:
    """Connect as tailscaled does for whoever asks its proxy for 127.0.0.1. It knows of no member behind these."""
    connections = [
        attack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        for _connection in range(CONNECTION_COUNT)
    ]
    for connection in connections:
        connection.sendall(sent)
    assert not pod.daemon.member_by_port
    return connections


@pytest.mark.parametrize("sent", [b"", b"x"], ids=["silent", "with data"])
def test_flood_through_the_proxy_does_not_block_members(pod: PodProgramRunner, sent: bytes) -> None:
    """A wait in each accept, or a query for each look at the peer, would keep slurmd from responding."""
    with pod.start_program(DAEMON_PROGRAM, 600 if sent else 0) as service, ExitStack() as attack:
        attack.callback(service.kill)
        assert service.stdout
        port = int(service.stdout.readline())
        open_unidentified(pod, port, attack, sent)
        attack.enter_context(pod.daemon.open_forwarded(port)).sendall(b"member")
        lines = service.stdout.read().splitlines()
    assert lines.pop() == f"{MEMBER_ADDRESS} {MEMBER_ADDRESS}"
    if sent:
        # The daemon is root's: it does not see them, and tailscaled was asked once about each, and about the member.
        assert lines == []
        assert pod.daemon.question_count == CONNECTION_COUNT + 1
    else:
        # Python itself looks at a peer a few times, each with a single question. A wait has twelve, since its pauses
        # double; there was one among all of them.
        assert lines == ["127.0.0.1 127.0.0.1"] * CONNECTION_COUNT
        assert pod.daemon.question_count < CONNECTION_COUNT * 10


def test_proxy_client_gets_nothing_from_a_daemon_of_root(pod: PodProgramRunner) -> None:
    """The connection is closed at once, although the daemon would have responded to everybody."""
    daemon = DAEMON_PROGRAM.replace("    print(", "    peer.sendall(b'answer')\n    print(")
    with pod.start_program(daemon, 600) as service, ExitStack() as attack:
        attack.callback(service.kill)
        assert service.stdout
        port = int(service.stdout.readline())
        connections = open_unidentified(pod, port, attack, b"attack")
        member = attack.enter_context(pod.daemon.open_forwarded(port))
        member.settimeout(60)
        member.sendall(b"member")
        assert member.recv(9) == b"answer"
        for connection in connections:
            # The connection was closed unread, so the end may be a reset.
            with suppress(ConnectionResetError):
                assert connection.recv(9) == b""


def test_service_of_an_account_remembers_unidentified_peers(pod: PodProgramRunner) -> None:
    """Programs of root alone close them. For others, the result is final once there is data."""
    with pod.start_program(DAEMON_PROGRAM, 600, uid=NOBODY_UID) as service, ExitStack() as attack:
        attack.callback(service.kill)
        assert service.stdout
        port = int(service.stdout.readline())
        open_unidentified(pod, port, attack, b"x")
        attack.enter_context(pod.daemon.open_forwarded(port)).sendall(b"member")
        lines = service.stdout.read().splitlines()
    assert lines == [*["127.0.0.1 127.0.0.1"] * CONNECTION_COUNT, f"{MEMBER_ADDRESS} {MEMBER_ADDRESS}"]
    assert pod.daemon.question_count == CONNECTION_COUNT + 1
