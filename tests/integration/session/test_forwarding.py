# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packets that a node with a session forwards, seen by a host on its LAN that is not a member, but its gateway.

The node has a LAN, a second gateway, a mesh, and containers behind a bridge with masquerading, as Docker has them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from program_builds import build_zipapp

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import network, node, plan, program
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings
from ansible_collections.gpumesh.cluster.tests.support.namespaces import call

NODE, MEMBER, STRANGER, GATEWAY, DOCKER = "gmf-node", "gmf-member", "gmf-stranger", "gmf-gateway", "gmf-docker"
LAN, MESH, SERVER = "192.0.2.1", "10.99.0.1", "203.0.113.7"
POOL = "10.192.0.0/10"
JOB = 900500
#: The address of the first container.
INSIDE = str(plan.slot_subnet([POOL], plan.session_slot(plan.parse_token("+;demo;main;1"), JOB, [POOL]))[1])
PATIENCE = 180.0
NOBODY = 65534
SETTINGS = SessionSettings(
    "node",
    "node",
    "wg0",
    {"node": MESH, "member": "10.99.0.2"},
    [POOL],
    ["10.99.0.0/24", LAN],
    True,
    [],
    [],
    [],
    "/var/tmp/gpumesh-{user}",
    mesh="wg0",
)
#: A program that prints the peer's address and port of each connection and datagram.
_LISTEN = """
import select, socket, sys
port = int(sys.argv[1])
stream, datagrams = socket.create_server(("", port)), socket.socket(type=socket.SOCK_DGRAM)
datagrams.bind(("", port))
print("listening", flush=True)
while True:
    for ready in select.select([stream, datagrams], [], [])[0]:
        if ready is stream:
            peer, address = stream.accept()
            peer.sendall(b"answer")
        else:
            data, address = datagrams.recvfrom(64)
            datagrams.sendto(b"answer", address)
        print(*address, flush=True)
"""
#: A program that prints the response of a server. Arguments: own address and port, those of the server, the protocol,
#: and the seconds to wait.
_ASK = """
import socket, sys
own, port, peer, other, kind, patience = sys.argv[1:]
asking = socket.socket(type=socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
asking.settimeout(float(patience))
asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    asking.bind((own, int(port)))
    asking.connect((peer, int(other)))
    if kind == "udp":
        asking.send(b"x")
    print(asking.recv(64).decode())
except OSError as failure:
    print(type(failure).__name__)
"""
#: A program that sends a datagram, and opens a connection, from a port below 1024. Arguments: the addresses to send
#: from, and those to send to.
_ATTACK = """
import socket, sys, time
kept = []
for own in sys.argv[1].split(","):
    for peer in sys.argv[2].split(","):
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            asking = socket.socket(type=kind)
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            asking.bind((own, 701))
            asking.setblocking(False)
            try:
                asking.connect((peer, 2049))
                asking.send(b"x")
            except OSError:
                pass
            kept.append(asking)
time.sleep(1)
"""
_DOCKER = """
table ip docker {
  chain published { type nat hook prerouting priority dstnat; iifname "eth0" tcp dport 8088 dnat to 172.17.0.2:8080; }
  chain outwards { type nat hook postrouting priority srcnat; ip saddr 172.17.0.0/16 oifname != "docker0" masquerade; }
}
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's to make")


def inside(space: str, *argv: str) -> str:
    return call("ip", "netns", "exec", space, *argv)


def ip(space: str, line: str) -> None:
    call("ip", "-n", space, *line.split())


def rules(space: str, text: str) -> None:
    call("ip", "netns", "exec", space, "nft", "--file", "-", stdin=text)


def ask(
    space: str,
    server: str,
    port: int,
    kind: str = "tcp",
    own: str = "0.0.0.0",
    own_port: int = 0,
    patience: float = 60,
) -> str:
    argv = (own, str(own_port), server, str(port), kind, str(patience))
    return inside(space, sys.executable, "-c", _ASK, *argv).strip()


@contextmanager
def listening(space: str, port: int) -> Iterator[subprocess.Popen[str]]:
    argv = ["ip", "netns", "exec", space, sys.executable, "-c", _LISTEN, str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield process
        finally:
            process.kill()


def seen(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Return the peer of the next connection or datagram."""
    assert process.stdout is not None
    address, port = process.stdout.readline().split()
    return address, int(port)


def forwarding(interface: str) -> str:
    return inside(NODE, "sysctl", "-n", f"net.ipv4.conf.{interface}.forwarding").strip()


def until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.fixture(name="hosts")
def _hosts() -> Iterator[None]:
    spaces = (NODE, MEMBER, STRANGER, GATEWAY, DOCKER)
    try:
        for space in spaces:
            call("ip", "netns", "add", space)
            ip(space, "link set lo up")
            # A new namespace has the settings of this machine.
            for setting in ("net.ipv4.ip_forward=0", "net.ipv4.conf.all.rp_filter=0"):
                inside(space, "sysctl", "-qw", setting)
            inside(space, "sysctl", "-qw", "net.ipv4.conf.default.rp_filter=0")
        for own, address, other, peer in (
            ("eth0", LAN, STRANGER, "192.0.2.66"),
            ("eth1", "198.51.100.1", GATEWAY, "198.51.100.66"),
            ("wg0", MESH, MEMBER, "10.99.0.2"),
            ("docker0", "172.17.0.1", DOCKER, "172.17.0.2"),
        ):
            ip(NODE, f"link add {own} type veth peer name eth0 netns {other}")
            ip(NODE, f"address add {address}/24 dev {own}")
            ip(other, f"address add {peer}/24 dev eth0")
            ip(NODE, f"link set {own} up")
            ip(other, "link set eth0 up")
            ip(other, f"route add default via {address}")
        ip(NODE, "route add default via 192.0.2.66")
        # Both lead to the same server. The stranger also has addresses of sessions, and the node's in the mesh.
        for space in (STRANGER, GATEWAY):
            ip(space, f"address add {SERVER}/32 dev lo")
        for address in ("10.192.9.9", "10.192.9.10", MESH):
            ip(STRANGER, f"address add {address}/32 dev lo")
        rules(NODE, network.format_table(SETTINGS))
        # The member accepts from this peer only packets with its address, as WireGuard does.
        rules(
            MEMBER,
            f"table ip peers {{ chain from {{ type filter hook input priority 0; ip saddr != {MESH} drop; }}; }}",
        )
        yield
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


class Session:
    """The program on the node, with a session of three containers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        program_archive.zipapp_change(
            str(path), build_zipapp(sys.executable, program.__name__, SETTINGS._asdict())
        ).apply()

    def call(self, verb: str) -> subprocess.Popen[bytes]:
        given = {
            "SLURM_JOB_ID": str(JOB),
            "SLURM_JOB_UID": str(NOBODY),
            "SLURM_JOB_NODELIST": "node",
            node.SESSION_VARIABLE: "+;demo;main,sub;1,2",
        }
        return subprocess.Popen(["nsenter", f"--net=/run/netns/{NODE}", self.path, verb], env={**os.environ, **given})

    def start(self) -> None:
        assert self.call("prolog").wait() == 0
        assert node.read_plan(JOB)["here"] == ["main1", "sub1", "sub2"]

    def stop(self) -> None:
        assert self.call("epilog").wait() == 0

    def watchers(self) -> list[int]:
        found = []
        for pid in os.listdir("/proc"):
            if pid.isdecimal():
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if str(self.path).encode() in words and b"watch" in words:
                    found.append(int(pid))
        return found

    def kill_watchers(self) -> None:
        for pid in self.watchers():
            os.kill(pid, signal.SIGKILL)
        until("the watching process is gone", lambda: not self.watchers())


@pytest.fixture(name="session")
def _session(hosts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    # Where systemd runs, the watching process would not start in the namespace.
    made = Session(tmp_path / "gpumesh-session")
    yield made
    made.stop()
    made.kill_watchers()


SPACE = network.namespace_name(JOB, 0)


def docker() -> None:
    """Do what Docker does when it starts."""
    rules(NODE, _DOCKER)
    inside(NODE, "sysctl", "-qw", "net.ipv4.ip_forward=1")


@pytest.mark.parametrize("others", ["none", "before", "after"])
def test_a_host_that_is_no_member_gets_nothing_through_a_node(session: Session, others: str) -> None:
    if others == "before":
        docker()
    session.start()
    if others == "after":
        docker()
        until(
            "the interfaces are the other's",
            lambda: json.loads(Path(node.forwarding_file()).read_text())["former"] == {},
        )
    with ExitStack() as stack:
        served = stack.enter_context(listening(STRANGER, 8080))
        member, container, beyond = (stack.enter_context(listening(space, 2049)) for space in (MEMBER, SPACE, GATEWAY))
        assert ask(SPACE, SERVER, 8080) == "answer"
        assert seen(served)[0] == LAN
        # The control: the same packets arrive from those who may send them.
        assert [ask(NODE, "10.99.0.2", 2049, kind, own_port=999) for kind in ("tcp", "udp")] == ["answer"] * 2
        assert [seen(member), seen(member)] == [(MESH, 999)] * 2
        assert ask(GATEWAY, "198.51.100.66", 2049) == "answer"
        assert seen(beyond)
        own = ["10.192.9.9", "10.192.9.10", MESH, "192.0.2.66"]
        inside(STRANGER, sys.executable, "-c", _ATTACK, ",".join(own), f"10.99.0.2,{INSIDE}")
        # A program that forwards for everybody lets the stranger reach other networks with its own address.
        inside(STRANGER, sys.executable, "-c", _ATTACK, ",".join(own if others == "none" else own[:2]), "198.51.100.66")
        # Packets that have arrived would be read before the next of these.
        for process, space, address in (
            (member, NODE, "10.99.0.2"),
            (container, SPACE, "127.0.0.1"),
            (beyond, GATEWAY, "127.0.0.1"),
        ):
            assert ask(space, address, 2049, own_port=998) == "answer"
            assert seen(process) == (MESH if space == NODE else "127.0.0.1", 998)
        if others != "none":
            assert_docker_works()
    session.stop()
    assert [forwarding(name) for name in ("all", "eth0")] == ["0" if others == "none" else "1"] * 2
    if others != "none":
        assert_docker_works()


def assert_docker_works() -> None:
    """Assert that containers of Docker reach others, and others their published ports."""
    with listening(STRANGER, 8081), listening(DOCKER, 8080):
        assert ask(DOCKER, SERVER, 8081) == "answer"
        assert ask(STRANGER, LAN, 8088) == "answer"


def test_the_former_settings_are_back_after_the_last_session_and_after_a_crash(session: Session) -> None:
    inside(NODE, "sysctl", "-qw", "net.ipv4.conf.eth1.forwarding=1")
    session.start()
    assert [forwarding(name) for name in ("all", "default", "eth0", "eth1")] == ["0", "0", "1", "1"]
    # An interface that forwarded before belongs to somebody else; nothing leads to wg0.
    assert json.loads(Path(node.forwarding_file()).read_text())["former"] == {"eth0": "0", "docker0": "0"}
    assert forwarding("wg0") == "0"
    session.kill_watchers()
    for local in range(3):
        call("ip", "netns", "delete", network.namespace_name(JOB, local))
    until("the uplinks are gone", lambda: "gms" not in inside(NODE, "ip", "link"))
    session.stop()
    assert [forwarding(name) for name in ("all", "eth0", "eth1", "docker0")] == ["0", "0", "1", "0"]
    assert not os.path.exists(node.forwarding_file())


def test_a_new_default_route_is_the_way_out_and_the_old_one_is_closed(session: Session) -> None:
    session.start()
    with listening(GATEWAY, 8080) as served:
        ip(NODE, "route delete 198.51.100.0/24 dev eth1")
        ip(NODE, "address delete 198.51.100.1/24 dev eth1")
        until("it does not forward any more", lambda: forwarding("eth1") == "0")
        ip(NODE, "address add 198.51.100.1/24 dev eth1")
        ip(NODE, "route replace default via 198.51.100.66")
        ip(NODE, "route delete 192.0.2.0/24 dev eth0")
        until("sessions reach the server again", lambda: ask(SPACE, SERVER, 8080, patience=2) == "answer")
        assert seen(served)[0] == "198.51.100.1"
        until("the old way is closed", lambda: forwarding("eth0") == "0")


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_container_never_leaves_from_a_port_below_1024(session: Session, kind: str) -> None:
    session.start()
    server = "192.0.2.66"
    with listening(STRANGER, 2049) as served:
        for port in (1, 700, 1023):
            assert ask(SPACE, server, 2049, kind, own_port=port) == "answer"
            address, used = seen(served)
            assert (address, used >= 1024) == (LAN, True)
        assert ask(SPACE, server, 2049, kind, own_port=4242) == "answer"
        assert seen(served) == (LAN, 4242)
    inside(SPACE, "ping", "-c1", "-w60", server)


def test_with_a_mesh_a_stranger_cannot_pose_as_a_member(session: Session) -> None:
    """The stranger sends to the port of the containers' packets, with the address of another member."""
    with listening(NODE, network.VXLAN_PORT) as served:
        ip(STRANGER, "address add 10.99.0.2/32 dev lo")
        ask(STRANGER, LAN, network.VXLAN_PORT, "udp", "10.99.0.2", 4444, patience=2)
        ask(MEMBER, MESH, network.VXLAN_PORT, "udp", "10.99.0.2", 4445)
        assert seen(served) == ("10.99.0.2", 4445)
