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
from pod_library import CONNECT_TIMEOUT, MEMBER_ADDRESS, NOBODY_UID, POD_ADDRESS, PodProgramRunner

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="another account is needed, which only root can take")

LISTEN_PROGRAM = """
listener = socket.create_server(("", 0))
print(listener.getsockname()[1])
peer, address = listener.accept()
print(address[0], peer.getpeername()[0], peer.getsockname()[0])
"""


def read_accepted(pod: PodProgramRunner, connect: Callable[[int], socket.socket | subprocess.Popen[str]]) -> list[str]:
    """Return what a program of the pod learns of a connection: the peer by accept and by getpeername, and its own
    address.

    ``connect`` is called with the port.
    """
    with pod.start_program(LISTEN_PROGRAM) as program:
        assert program.stdout
        with connect(int(program.stdout.readline())) as client:
            reported_addresses = program.stdout.read().split()
            if isinstance(client, subprocess.Popen):
                client.kill()
    return reported_addresses


class TestDial:
    """Connections to members."""

    def test_member_is_reached_through_the_proxy(self, pod: PodProgramRunner) -> None:
        program = """
peer = socket.create_connection((MEMBER, 6818))
print(peer.recv(5).decode(), peer.getpeername(), peer.getsockname()[0])
peer.sendall(b"over")
print(peer.recv(4).decode())
"""
        assert pod.run_program(program) == [f"hello ('{MEMBER_ADDRESS}', 6818) {POD_ADDRESS}", "over"]
        assert pod.daemon.requested == [(MEMBER_ADDRESS, 6818)]

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
    def test_non_blocking_connection(self, pod: PodProgramRunner, program: str) -> None:
        assert pod.run_program(program) == ["0", f"hello {MEMBER_ADDRESS}"]

    def test_ipv6_socket(self, pod: PodProgramRunner) -> None:
        program = """
peer = socket.socket(socket.AF_INET6)
peer.connect(("::ffff:" + MEMBER, 5))
print(peer.getpeername()[0], peer.getsockname()[0])
"""
        assert pod.run_program(program) == [f"::ffff:{MEMBER_ADDRESS} ::ffff:{POD_ADDRESS}"]

    def test_failure_is_reported_and_socket_can_retry(self, pod: PodProgramRunner) -> None:
        program = """
peer = socket.socket()
print(peer.connect_ex((MEMBER, 7)))
sys.stdin.readline()
print(peer.connect_ex((MEMBER, 7)), peer.recv(5).decode())
"""
        success_reply, pod.daemon.proxy_reply = pod.daemon.proxy_reply, bytes([5, 1, 0, 1, 0, 0, 0, 0, 0, 0])
        with pod.start_program(program) as process:
            assert process.stdin and process.stdout
            assert process.stdout.readline() == "111\n"
            pod.daemon.proxy_reply = success_reply
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.read() == "0 hello\n"

    def test_slow_tunnel_is_awaited_until_the_timeout(self, pod: PodProgramRunner) -> None:
        pod.daemon.slow_request_count = 2
        assert pod.run_program("print(socket.socket().connect_ex((MEMBER, 7)))") == ["0"]
        assert len(pod.daemon.requested) == 3
        pod.daemon.slow_request_count = 99
        assert pod.run_program("print(socket.socket().connect_ex((MEMBER, 7)))") == ["110"]

    def test_hanging_proxy_times_out(self, pod: PodProgramRunner) -> None:
        pod.daemon.proxy_reply = b""
        started = time.monotonic()
        assert pod.run_program("print(socket.socket().connect_ex((MEMBER, 7)))") == ["110"]
        assert time.monotonic() - started >= CONNECT_TIMEOUT

    @needs_root
    def test_proxy_of_another_account_is_rejected(self, pod: PodProgramRunner) -> None:
        pod.daemon.close()
        serve = "server = socket.create_server(('127.0.0.2', int(sys.argv[1]))); print('up'); time.sleep(60)"
        with pod.start_program(serve, pod.daemon.port, uid=NOBODY_UID) as stranger:
            assert stranger.stdout and stranger.stdout.readline() == "up\n"
            assert pod.run_program("print(socket.socket().connect_ex((MEMBER, 7)))") == ["101"]
            stranger.kill()

    def test_other_addresses_bypass_the_proxy(self, pod: PodProgramRunner) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            program = "print(socket.create_connection(('127.0.0.1', int(sys.argv[1]))).getpeername()[0])"
            assert pod.run_program(program, port) == ["127.0.0.1"]
        assert pod.daemon.requested == []

    def test_datagrams_to_members_are_refused(self, pod: PodProgramRunner) -> None:
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
        assert pod.run_program(program) == ["113", "113", f"{POD_ADDRESS} ('{MEMBER_ADDRESS}', 9)"]

    def test_connected_datagrams_do_not_reach_local_services(self, pod: PodProgramRunner) -> None:
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
        assert pod.run_program(program) == ["111", "True", "nothing", "b'own'"]

    def test_sendmmsg_to_members_is_refused(self, pod: PodProgramRunner) -> None:
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
        assert pod.run_program(program) == ["1 b'x'", "-1 113"]


class TestListen:
    """Connections from members, and from those who are none."""

    def test_forwarded_member_is_identified(self, pod: PodProgramRunner) -> None:
        assert read_accepted(pod, pod.daemon.open_forwarded) == [MEMBER_ADDRESS, MEMBER_ADDRESS, POD_ADDRESS]

    def test_member_is_identified_after_a_delay(self, pod: PodProgramRunner) -> None:
        pod.daemon.early_question_count = 2
        assert read_accepted(pod, pod.daemon.open_forwarded) == [MEMBER_ADDRESS, MEMBER_ADDRESS, POD_ADDRESS]

    def test_member_is_identified_after_accept(self, pod: PodProgramRunner) -> None:
        program = """
listener = socket.create_server(("", 0))
print(listener.getsockname()[1])
peer, address = listener.accept()
print(address[0])
print(peer.recv(1), peer.getpeername()[0], peer.getsockname()[0])
"""
        with pod.start_program(program) as process:
            assert process.stdout
            with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as client:
                assert process.stdout.readline() == "127.0.0.1\n"
                pod.daemon.member_by_port[client.getsockname()[1]] = MEMBER_ADDRESS
                client.sendall(b"x")
                assert process.stdout.read().split() == ["b'x'", MEMBER_ADDRESS, POD_ADDRESS]

    def test_unidentified_connections_do_not_delay_others(self, pod: PodProgramRunner) -> None:
        """Every connection is like one that tailscaled forwards before it has noted whose it is."""
        program = """
listener = socket.create_server(("", 0))
print(listener.getsockname()[1])
for _ in range(6):
    peer, address = listener.accept()
    print(address[0], peer.getpeername()[0], peer.getsockname()[0])
    peer.close()
"""
        with pod.start_program(program) as process, ExitStack() as clients:
            clients.callback(process.kill)
            assert process.stdout
            port = int(process.stdout.readline())
            for _attempt in range(5):
                clients.enter_context(socket.create_connection(("127.0.0.1", port)))
                assert process.stdout.readline().split() == ["127.0.0.1"] * 3
            # Programs query a connection four times, since Python does so too. The first accept alone has waited, with
            # pauses that double up to a second: 11 more questions.
            assert pod.daemon.question_count <= 5 * 4 + 11
            pod.daemon.member_by_port[None] = MEMBER_ADDRESS
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            assert process.stdout.read().split() == [MEMBER_ADDRESS, MEMBER_ADDRESS, POD_ADDRESS]

    @pytest.mark.parametrize("blocking", [True, False])
    def test_services_of_root_do_not_accept_proxy_connections(self, pod: PodProgramRunner, blocking: bool) -> None:
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
        with pod.start_program(program, blocking) as process, ExitStack() as clients:
            clients.callback(process.kill)
            assert process.stdout
            port = int(process.stdout.readline())
            for _attempt in range(3):
                stranger = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
                stranger.sendall(b"stranger")
                # The connection was closed unread, so the end may be a reset.
                with suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""
            member = clients.enter_context(pod.daemon.open_forwarded(port))
            member.sendall(b"member")
            assert process.stdout.read().split() == ["b'member'", MEMBER_ADDRESS]

    def test_services_of_root_accept_local_programs_of_root(self, pod: PodProgramRunner) -> None:
        program = """
listener = socket.create_server(("", 0))
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 600)
print(listener.getsockname()[1])
peer, address = listener.accept()
print(address[0], peer.getpeername()[0], peer.recv(9))
"""
        dial = "peer = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); peer.sendall(b'own'); time.sleep(60)"
        with pod.start_program(program) as process:
            assert process.stdout
            with pod.start_program(dial, int(process.stdout.readline())) as client:
                assert process.stdout.read().split() == ["127.0.0.1", "127.0.0.1", "b'own'"]
                client.kill()
        # The answer is remembered.
        assert pod.daemon.question_count == 1

    def test_inherited_socket_reports_the_member(self, pod: PodProgramRunner) -> None:
        program = """
import subprocess
listener = socket.create_server(("", 0))
print(listener.getsockname()[1])
peer, _ = listener.accept()
code = "import socket; print(socket.socket(fileno=0).getpeername()[0])"
subprocess.run([sys.executable, "-c", code], stdin=peer)
"""
        with pod.start_program(program) as process:
            assert process.stdout
            with pod.daemon.open_forwarded(int(process.stdout.readline())):
                assert process.stdout.read().split() == [MEMBER_ADDRESS]

    @needs_root
    def test_another_account_is_not_taken_for_a_member(self, pod: PodProgramRunner) -> None:
        """The port may be one behind which tailscaled has a member: two connections of a host can share one."""
        pod.daemon.member_by_port[None] = MEMBER_ADDRESS
        dial = "peer = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('there'); time.sleep(60)"
        reported_addresses = read_accepted(pod, lambda port: pod.start_program(dial, port, uid=NOBODY_UID))
        assert reported_addresses == ["127.0.0.1"] * 3

    @needs_root
    def test_closed_connection_of_another_account_is_no_member(self, pod: PodProgramRunner) -> None:
        """The kernel says root of a socket that no process has any more."""
        pod.daemon.member_by_port[None] = MEMBER_ADDRESS
        program = """
listener = socket.create_server(("", 0))
print(listener.getsockname()[1])
sys.stdin.readline()
peer, address = listener.accept()
print(address[0], peer.getpeername()[0])
"""
        with pod.start_program(program) as process:
            assert process.stdin and process.stdout
            port = process.stdout.readline().strip()
            with pod.start_program(
                "socket.create_connection(('127.0.0.1', sys.argv[1])).close()", port, uid=NOBODY_UID
            ) as dial:
                assert dial.wait(120) == 0
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.read().split() == ["127.0.0.1"] * 2

    @needs_root
    def test_whois_of_another_account_is_not_trusted(self, pod: PodProgramRunner, folder: Path) -> None:
        pod.daemon.api_socket.unlink()
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
        with pod.start_program(lie, pod.daemon.api_socket, uid=NOBODY_UID) as stranger:
            assert stranger.stdout and stranger.stdout.readline() == "up\n"
            assert read_accepted(pod, pod.daemon.open_forwarded) == ["127.0.0.1"] * 3
            stranger.kill()

    def test_address_is_unchanged_without_whois(self, pod: PodProgramRunner) -> None:
        pod.daemon.close()
        pod.daemon.api_socket.unlink()
        assert read_accepted(pod, lambda port: socket.create_connection(("127.0.0.1", port))) == ["127.0.0.1"] * 3

    def test_host_connects_to_its_own_mesh_address(self, pod: PodProgramRunner) -> None:
        program = """
listener = socket.create_server((OWN, 0))
print(listener.getsockname()[0])
peer = socket.create_connection((OWN, listener.getsockname()[1]))
taken, address = listener.accept()
print(address[0], taken.getsockname()[0], peer.getpeername()[0], peer.getsockname()[0])
"""
        assert pod.run_program(program) == [POD_ADDRESS, " ".join([POD_ADDRESS] * 4)]
        assert pod.daemon.requested == []


def test_mesh_is_listed_as_an_interface(pod: PodProgramRunner, folder: Path) -> None:
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
    assert f"tailscale0 {POD_ADDRESS}" in listed
    assert "lo 127.0.0.1" in listed


def test_library_depends_only_on_libc(pod: PodProgramRunner) -> None:
    needed = subprocess.run(["readelf", "-d", str(pod.library)], capture_output=True, text=True, check=True).stdout
    assert {line.rpartition("[")[2].rstrip("]") for line in needed.splitlines() if "NEEDED" in line} <= {
        "libc.so.6",
        "libdl.so.2",
    }, sys.version
