# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The library of a pod with real sockets: programs that know nothing of it dial, listen and ask for addresses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from pod_library import LIMIT, MEMBER, NOBODY, OWN, Pod

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="another account is needed, which only root can take")

LISTEN = """
listener = socket.create_server(("", 0))
print(listener.getsockname()[1])
peer, address = listener.accept()
print(address[0], peer.getpeername()[0], peer.getsockname()[0])
"""


def accepted(pod: Pod, connect: Callable[[int], socket.socket | subprocess.Popen[str]]) -> list[str]:
    """Return what a program of the pod learns of a connection: the peer by accept and by getpeername, and its own
    address.

    ``connect`` is called with the port.
    """
    with pod.start(LISTEN) as program:
        assert program.stdout
        with connect(int(program.stdout.readline())) as client:
            words = program.stdout.read().split()
            if isinstance(client, subprocess.Popen):
                client.kill()
    return words


class TestDial:
    """Connections to members."""

    def test_a_member_is_reached_through_the_proxy_and_seen_as_itself(self, pod: Pod) -> None:
        program = """
peer = socket.create_connection((MEMBER, 6818))
print(peer.recv(5).decode(), peer.getpeername(), peer.getsockname()[0])
peer.sendall(b"over")
print(peer.recv(4).decode())
"""
        assert pod.run(program) == [f"hello ('{MEMBER}', 6818) {OWN}", "over"]
        assert pod.daemon.asked == [(MEMBER, 6818)]

    @pytest.mark.parametrize(
        "program",
        [
            """
peer = socket.socket()
peer.setblocking(False)
print(peer.connect_ex((MEMBER, 1)))
peer.setblocking(True)
print(peer.recv(5).decode(), peer.getpeername()[0])
""",
            """
import asyncio
async def main():
    peer, out = await asyncio.open_connection(MEMBER, 1)
    print(0)
    print((await peer.readexactly(5)).decode(), out.get_extra_info("peername")[0])
asyncio.run(main())
""",
        ],
        ids=["non-blocking", "asyncio"],
    )
    def test_without_blocking_too(self, pod: Pod, program: str) -> None:
        assert pod.run(program) == ["0", f"hello {MEMBER}"]

    def test_from_a_socket_of_ipv6(self, pod: Pod) -> None:
        program = """
peer = socket.socket(socket.AF_INET6)
peer.connect(("::ffff:" + MEMBER, 5))
print(peer.getpeername()[0], peer.getsockname()[0])
"""
        assert pod.run(program) == [f"::ffff:{MEMBER} ::ffff:{OWN}"]

    def test_a_failure_is_told_and_the_same_socket_can_try_again(self, pod: Pod) -> None:
        program = """
peer = socket.socket()
print(peer.connect_ex((MEMBER, 7)))
sys.stdin.readline()
print(peer.connect_ex((MEMBER, 7)), peer.recv(5).decode())
"""
        granted, pod.daemon.reply = pod.daemon.reply, bytes([5, 1, 0, 1, 0, 0, 0, 0, 0, 0])
        with pod.start(program) as process:
            assert process.stdin and process.stdout
            assert process.stdout.readline() == "111\n"
            pod.daemon.reply = granted
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.read() == "0 hello\n"

    def test_a_tunnel_that_takes_a_while_is_waited_for_within_the_limit(self, pod: Pod) -> None:
        pod.daemon.slow = 2
        assert pod.run("print(socket.socket().connect_ex((MEMBER, 7)))") == ["0"]
        assert len(pod.daemon.asked) == 3
        pod.daemon.slow = 99
        assert pod.run("print(socket.socket().connect_ex((MEMBER, 7)))") == ["110"]

    def test_a_proxy_that_hangs_hangs_nobody(self, pod: Pod) -> None:
        pod.daemon.reply = b""
        started = time.monotonic()
        assert pod.run("print(socket.socket().connect_ex((MEMBER, 7)))") == ["110"]
        assert time.monotonic() - started >= LIMIT

    @needs_root
    def test_a_proxy_of_another_account_is_not_used(self, pod: Pod) -> None:
        pod.daemon.close()
        serve = "server = socket.create_server(('127.0.0.2', int(sys.argv[1]))); print('up'); time.sleep(60)"
        with pod.start(serve, pod.daemon.port, user=NOBODY) as stranger:
            assert stranger.stdout and stranger.stdout.readline() == "up\n"
            assert pod.run("print(socket.socket().connect_ex((MEMBER, 7)))") == ["101"]
            stranger.kill()

    def test_other_addresses_are_left_alone(self, pod: Pod) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            program = "print(socket.create_connection(('127.0.0.1', int(sys.argv[1]))).getpeername()[0])"
            assert pod.run(program, port) == ["127.0.0.1"]
        assert pod.daemon.asked == []

    def test_datagrams_to_members_do_not_leave_the_pod(self, pod: Pod) -> None:
        program = """
line = socket.socket(type=socket.SOCK_DGRAM)
try:
    line.sendto(b"x", (MEMBER, 9))
except OSError as failure:
    print(failure.errno)
try:
    line.sendmsg([b"x"], [], 0, (MEMBER, 9))
except OSError as failure:
    print(failure.errno)
line.connect((MEMBER, 9))
print(line.getsockname()[0], line.getpeername())
"""
        # The second is how programs find out which address they have.
        assert pod.run(program) == ["113", "113", f"{OWN} ('{MEMBER}', 9)"]

    def test_datagrams_of_a_connected_socket_do_not_reach_the_services_of_this_pod(self, pod: Pod) -> None:
        program = """
import os
service = socket.socket(type=socket.SOCK_DGRAM)
service.bind(("", 0))
service.settimeout(0.2)
port = service.getsockname()[1]
line = socket.socket(type=socket.SOCK_DGRAM)
line.connect((MEMBER, port))
for write in (line.send, lambda data: os.write(line.fileno(), data), lambda data: line.sendmsg([data])):
    try:
        write(b"x")
    except OSError as failure:
        print(failure.errno)
print(line.getpeername() == (MEMBER, port))
try:
    print(service.recv(9))
except TimeoutError:
    print("nothing")
own = socket.socket(type=socket.SOCK_DGRAM)
own.connect((OWN, port))
own.send(b"own")
print(service.recv(9))
"""
        # A refusal arrives after a datagram, and is that of the next one.
        assert pod.run(program) == ["111", "True", "nothing", "b'own'"]

    def test_nor_do_several_at_once(self, pod: Pod) -> None:
        """QUIC sends several at once. One to this host arrives, the next one, to a member, is not sent."""
        program = """
import ctypes
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("size", ctypes.c_size_t)]
class Header(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("namelen", ctypes.c_uint32), ("vectors", ctypes.POINTER(Vector)),
                ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("length", ctypes.c_size_t), ("flags", ctypes.c_int)]
class Message(ctypes.Structure):
    _fields_ = [("header", Header), ("sent", ctypes.c_uint)]
def message(host, port):
    name = socket.AF_INET.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big") + socket.inet_aton(host) + bytes(8)
    return Message(Header(name, 16, ctypes.pointer(Vector(b"x", 1)), 1, None, 0, 0), 0)
libc = ctypes.CDLL(None, use_errno=True)
listener = socket.socket(type=socket.SOCK_DGRAM)
listener.bind((OWN, 0))
line = socket.socket(type=socket.SOCK_DGRAM)
own, member = message(OWN, listener.getsockname()[1]), message(MEMBER, 9)
print(libc.sendmmsg(line.fileno(), (Message * 2)(own, member), 2, 0), listener.recv(9))
print(libc.sendmmsg(line.fileno(), (Message * 2)(member, own), 2, 0), ctypes.get_errno())
"""
        assert pod.run(program) == ["1 b'x'", "-1 113"]


class TestListen:
    """Connections from members, and from those who are none."""

    def test_a_member_is_seen_behind_what_tailscaled_hands_on(self, pod: Pod) -> None:
        assert accepted(pod, pod.daemon.forward) == [MEMBER, MEMBER, OWN]

    def test_also_if_tailscaled_notes_it_a_moment_later(self, pod: Pod) -> None:
        pod.daemon.early = 2
        assert accepted(pod, pod.daemon.forward) == [MEMBER, MEMBER, OWN]

    def test_also_if_that_is_after_accept(self, pod: Pod) -> None:
        program = """
listener = socket.create_server(("", 0))
print(listener.getsockname()[1])
peer, address = listener.accept()
print(address[0])
print(peer.recv(1), peer.getpeername()[0], peer.getsockname()[0])
"""
        with pod.start(program) as process:
            assert process.stdout
            with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as client:
                assert process.stdout.readline() == "127.0.0.1\n"
                pod.daemon.forwarded[client.getsockname()[1]] = MEMBER
                client.sendall(b"x")
                assert process.stdout.read().split() == ["b'x'", MEMBER, OWN]

    def test_who_uses_the_proxy_to_reach_this_pod_does_not_hold_up_the_others(self, pod: Pod) -> None:
        """Every connection is like one that tailscaled forwards before it has noted whose it is."""
        program = """
listener = socket.create_server(("", 0))
print(listener.getsockname()[1])
for _ in range(6):
    peer, address = listener.accept()
    print(address[0], peer.getpeername()[0], peer.getsockname()[0])
    peer.close()
"""
        with pod.start(program) as process, ExitStack() as clients:
            clients.callback(process.kill)
            assert process.stdout
            port = int(process.stdout.readline())
            for _ in range(5):
                clients.enter_context(socket.create_connection(("127.0.0.1", port)))
                assert process.stdout.readline().split() == ["127.0.0.1"] * 3
            # Programs query a connection four times, since Python does so too. The first accept alone has waited, with
            # pauses that double up to a second: 11 more questions.
            assert pod.daemon.questions <= 5 * 4 + 11
            pod.daemon.forwarded[None] = MEMBER
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            assert process.stdout.read().split() == [MEMBER, MEMBER, OWN]

    @pytest.mark.parametrize("blocking", [True, False])
    def test_services_of_root_do_not_see_who_comes_from_the_proxy(self, pod: Pod, blocking: bool) -> None:
        program = """
import select
listener = socket.create_server(("", 0))
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 600)
listener.setblocking(sys.argv[1] == "True")
print(listener.getsockname()[1])
while True:
    select.select([listener], [], [])
    try:
        peer, address = listener.accept()
    except BlockingIOError:
        continue
    print(peer.recv(9), address[0])
    break
"""
        with pod.start(program, blocking) as process, ExitStack() as clients:
            clients.callback(process.kill)
            assert process.stdout
            port = int(process.stdout.readline())
            for _ in range(3):
                stranger = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
                stranger.sendall(b"stranger")
                # The connection was closed unread, so the end may be a reset.
                with suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""
            member = clients.enter_context(pod.daemon.forward(port))
            member.sendall(b"member")
            assert process.stdout.read().split() == ["b'member'", MEMBER]

    def test_but_they_see_other_programs_of_root_on_this_pod(self, pod: Pod) -> None:
        program = """
listener = socket.create_server(("", 0))
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 600)
print(listener.getsockname()[1])
peer, address = listener.accept()
print(address[0], peer.getpeername()[0], peer.recv(9))
"""
        dial = "peer = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); peer.sendall(b'own'); time.sleep(60)"
        with pod.start(program) as process:
            assert process.stdout
            with pod.start(dial, int(process.stdout.readline())) as other:
                assert process.stdout.read().split() == ["127.0.0.1", "127.0.0.1", "b'own'"]
                other.kill()
        # The answer is remembered.
        assert pod.daemon.questions == 1

    def test_a_program_that_takes_over_the_socket_sees_it_too(self, pod: Pod) -> None:
        program = """
import subprocess
listener = socket.create_server(("", 0))
print(listener.getsockname()[1])
peer, _ = listener.accept()
code = "import socket; print(socket.socket(fileno=0).getpeername()[0])"
subprocess.run([sys.executable, "-c", code], stdin=peer)
"""
        with pod.start(program) as process:
            assert process.stdout
            with pod.daemon.forward(int(process.stdout.readline())):
                assert process.stdout.read().split() == [MEMBER]

    @needs_root
    def test_another_account_does_not_pose_as_a_member(self, pod: Pod) -> None:
        """The port may be one behind which tailscaled has a member: two connections of a host can share one."""
        pod.daemon.forwarded[None] = MEMBER
        dial = "peer = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('there'); time.sleep(60)"
        words = accepted(pod, lambda port: pod.start(dial, port, user=NOBODY))
        assert words == ["127.0.0.1"] * 3

    @needs_root
    def test_nor_with_a_connection_that_it_has_closed(self, pod: Pod) -> None:
        """The kernel says root of a socket that no process has any more."""
        pod.daemon.forwarded[None] = MEMBER
        program = """
listener = socket.create_server(("", 0))
print(listener.getsockname()[1])
sys.stdin.readline()
peer, address = listener.accept()
print(address[0], peer.getpeername()[0])
"""
        with pod.start(program) as process:
            assert process.stdin and process.stdout
            port = process.stdout.readline().strip()
            with pod.start("socket.create_connection(('127.0.0.1', sys.argv[1])).close()", port, user=NOBODY) as dial:
                assert dial.wait(120) == 0
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.read().split() == ["127.0.0.1"] * 2

    @needs_root
    def test_the_answers_of_another_account_are_not_believed(self, pod: Pod, folder: Path) -> None:
        pod.daemon.api.unlink()
        folder.chmod(0o777)
        lie = r"""
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("up")
while True:
    peer, _ = server.accept()
    peer.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"Node":{"Addresses":["100.64.0.2/32"]}}')
    peer.close()
"""
        with pod.start(lie, pod.daemon.api, user=NOBODY) as stranger:
            assert stranger.stdout and stranger.stdout.readline() == "up\n"
            assert accepted(pod, pod.daemon.forward) == ["127.0.0.1"] * 3
            stranger.kill()

    def test_without_an_answer_the_address_stays(self, pod: Pod) -> None:
        pod.daemon.close()
        pod.daemon.api.unlink()
        assert accepted(pod, lambda port: socket.create_connection(("127.0.0.1", port))) == ["127.0.0.1"] * 3

    def test_this_host_listens_at_its_mesh_address_and_dials_it(self, pod: Pod) -> None:
        program = """
listener = socket.create_server((OWN, 0))
print(listener.getsockname()[0])
peer = socket.create_connection((OWN, listener.getsockname()[1]))
taken, address = listener.accept()
print(address[0], taken.getsockname()[0], peer.getpeername()[0], peer.getsockname()[0])
"""
        assert pod.run(program) == [OWN, " ".join([OWN] * 4)]
        assert pod.daemon.asked == []


def test_the_mesh_is_an_interface(pod: Pod, folder: Path) -> None:
    source = folder / "list.c"
    source.write_text(
        """
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <stdio.h>
int main(void)
{
    struct ifaddrs *list, *one;
    if (getifaddrs(&list) != 0)
        return 1;
    for (one = list; one != NULL; one = one->ifa_next)
        if (one->ifa_addr != NULL && one->ifa_addr->sa_family == AF_INET)
            printf("%s %s\\n", one->ifa_name, inet_ntoa(((struct sockaddr_in *)one->ifa_addr)->sin_addr));
    freeifaddrs(list);
    return 0;
}
"""
    )
    subprocess.run(["cc", "-o", str(folder / "list"), str(source)], check=True)
    listed = subprocess.run(
        [str(folder / "list")], env={"LD_PRELOAD": str(pod.library)}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert f"tailscale0 {OWN}" in listed
    assert "lo 127.0.0.1" in listed


def test_the_library_needs_libc_alone(pod: Pod) -> None:
    needed = subprocess.run(["readelf", "-d", str(pod.library)], capture_output=True, text=True, check=True).stdout
    assert {line.rpartition("[")[2].rstrip("]") for line in needed.splitlines() if "NEEDED" in line} <= {
        "libc.so.6",
        "libdl.so.2",
    }, sys.version
