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
from pod_library import MEMBER, NOBODY, Daemon, Pod, build

#: The connections of the attacker.
CONNECTIONS = 30
#: A daemon that accepts one connection after the other, as slurmd does, and prints from whom each is. Its first
#: argument is the number of seconds for which it leaves a connection without data to the kernel, so that a test with
#: data does not depend on time.
DAEMON = """
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
def _pod() -> Iterator[Pod]:
    with tempfile.TemporaryDirectory(prefix="gpumesh-pod-") as name:
        folder = Path(name)
        # Other accounts may enter, unlike pytest's own.
        folder.chmod(0o755)
        daemon = Daemon(folder)
        yield Pod(build(folder, daemon.port), daemon)
        daemon.close()


def squat(pod: Pod, port: int, attack: ExitStack, sent: bytes) -> list[socket.socket]:
    """Connect as tailscaled does for whoever asks its proxy for 127.0.0.1. It knows of no member behind these."""
    opened = [
        attack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(CONNECTIONS)
    ]
    for one in opened:
        one.sendall(sent)
    assert not pod.daemon.forwarded
    return opened


@pytest.mark.parametrize("sent", [b"", b"x"], ids=["silent", "with data"])
def test_who_floods_a_service_through_the_proxy_does_not_keep_members_away(pod: Pod, sent: bytes) -> None:
    """A wait in each accept, or a query for each look at the peer, would keep slurmd from responding."""
    with pod.start(DAEMON, 600 if sent else 0) as service, ExitStack() as attack:
        attack.callback(service.kill)
        assert service.stdout
        port = int(service.stdout.readline())
        squat(pod, port, attack, sent)
        attack.enter_context(pod.daemon.forward(port)).sendall(b"member")
        lines = service.stdout.read().splitlines()
    assert lines.pop() == f"{MEMBER} {MEMBER}"
    if sent:
        # The daemon is root's: it does not see them, and tailscaled was asked once about each, and about the member.
        assert lines == []
        assert pod.daemon.questions == CONNECTIONS + 1
    else:
        # Python itself looks at a peer a few times, each with a single question. A wait has twelve, since its pauses
        # double; there was one among all of them.
        assert lines == ["127.0.0.1 127.0.0.1"] * CONNECTIONS
        assert pod.daemon.questions < CONNECTIONS * 10


def test_who_comes_through_the_proxy_gets_nothing_from_a_daemon_of_root(pod: Pod) -> None:
    """The connection is closed at once, although the daemon would have responded to everybody."""
    daemon = DAEMON.replace("    print(", "    peer.sendall(b'answer')\n    print(")
    with pod.start(daemon, 600) as service, ExitStack() as attack:
        attack.callback(service.kill)
        assert service.stdout
        port = int(service.stdout.readline())
        opened = squat(pod, port, attack, b"attack")
        member = attack.enter_context(pod.daemon.forward(port))
        member.settimeout(60)
        member.sendall(b"member")
        assert member.recv(9) == b"answer"
        for one in opened:
            # The connection was closed unread, so the end may be a reset.
            with suppress(ConnectionResetError):
                assert one.recv(9) == b""


def test_a_service_of_an_account_remembers_that_there_is_no_member(pod: Pod) -> None:
    """Programs of root alone close them. For others, the result is final once there is data."""
    with pod.start(DAEMON, 600, user=NOBODY) as service, ExitStack() as attack:
        attack.callback(service.kill)
        assert service.stdout
        port = int(service.stdout.readline())
        squat(pod, port, attack, b"x")
        attack.enter_context(pod.daemon.forward(port)).sendall(b"member")
        lines = service.stdout.read().splitlines()
    assert lines == [*["127.0.0.1 127.0.0.1"] * CONNECTIONS, f"{MEMBER} {MEMBER}"]
    assert pod.daemon.questions == CONNECTIONS + 1
