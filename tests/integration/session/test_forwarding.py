# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packets that a node with a session forwards, seen by a host on its LAN that is not a member, but its gateway.

The node has a LAN, a second gateway, a mesh, and containers behind a bridge with masquerading, as Docker has them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from program_builds import build_zipapp
from waiting import wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import network, node, plan, program
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings
from ansible_collections.gpumesh.cluster.tests.support.namespaces import run_checked

NODE_SPACE, MEMBER_SPACE, STRANGER_SPACE, GATEWAY_SPACE, DOCKER_SPACE = (
    "gmf-node",
    "gmf-member",
    "gmf-stranger",
    "gmf-gateway",
    "gmf-docker",
)
LAN_ADDRESS, MESH_ADDRESS, SERVER_ADDRESS = "192.0.2.1", "10.99.0.1", "203.0.113.7"
SUBNET_POOL = "10.192.0.0/10"
JOB_ID = 900500
#: The address of the first container.
CONTAINER_ADDRESS = str(
    plan.slot_subnet([SUBNET_POOL], plan.session_slot(plan.parse_token("+;demo;main;1"), JOB_ID, [SUBNET_POOL]))[1]
)
NOBODY_UID = 65534
NODE_SETTINGS = SessionSettings(
    "node",
    "node",
    "wg0",
    {"node": MESH_ADDRESS, "member": "10.99.0.2"},
    [SUBNET_POOL],
    ["10.99.0.0/24", LAN_ADDRESS],
    True,
    [],
    [],
    [],
    "/var/tmp/gpumesh-{user}",
    mesh="wg0",
)
#: A program that prints the peer's address and port of each connection and datagram.
_LISTEN_PROGRAM = """
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
_REQUEST_PROGRAM = """
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
_ATTACK_PROGRAM = """
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
_DOCKER_RULES = """
table ip docker {
  chain published { type nat hook prerouting priority dstnat; iifname "eth0" tcp dport 8088 dnat to 172.17.0.2:8080; }
  chain outwards { type nat hook postrouting priority srcnat; ip saddr 172.17.0.0/16 oifname != "docker0" masquerade; }
}
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's to make")


def run_in_namespace(namespace: str, *argv: str) -> str:
    return run_checked("ip", "netns", "exec", namespace, *argv)


def run_ip(namespace: str, line: str) -> None:
    run_checked("ip", "-n", namespace, *line.split())


def load_rules(namespace: str, text: str) -> None:
    run_checked("ip", "netns", "exec", namespace, "nft", "--file", "-", stdin=text)


def request_answer(
    namespace: str,
    server: str,
    port: int,
    protocol: str = "tcp",
    source_address: str = "0.0.0.0",
    source_port: int = 0,
    timeout: float = 60,
) -> str:
    argv = (source_address, str(source_port), server, str(port), protocol, str(timeout))
    return run_in_namespace(namespace, sys.executable, "-c", _REQUEST_PROGRAM, *argv).strip()


@contextmanager
def start_listener(namespace: str, port: int) -> Iterator[subprocess.Popen[str]]:
    argv = ["ip", "netns", "exec", namespace, sys.executable, "-c", _LISTEN_PROGRAM, str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield process
        finally:
            process.kill()


def read_peer(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Return the peer of the next connection or datagram."""
    assert process.stdout is not None
    address, port = process.stdout.readline().split()
    return address, int(port)


def read_forwarding(interface: str) -> str:
    return run_in_namespace(NODE_SPACE, "sysctl", "-n", f"net.ipv4.conf.{interface}.forwarding").strip()


@pytest.fixture(name="hosts")
def _hosts() -> Iterator[None]:
    namespaces = (NODE_SPACE, MEMBER_SPACE, STRANGER_SPACE, GATEWAY_SPACE, DOCKER_SPACE)
    try:
        for namespace in namespaces:
            run_checked("ip", "netns", "add", namespace)
            run_ip(namespace, "link set lo up")
            # A new namespace has the settings of this machine.
            for setting in ("net.ipv4.ip_forward=0", "net.ipv4.conf.all.rp_filter=0"):
                run_in_namespace(namespace, "sysctl", "-qw", setting)
            run_in_namespace(namespace, "sysctl", "-qw", "net.ipv4.conf.default.rp_filter=0")
        for interface, address, peer_namespace, peer_address in (
            ("eth0", LAN_ADDRESS, STRANGER_SPACE, "192.0.2.66"),
            ("eth1", "198.51.100.1", GATEWAY_SPACE, "198.51.100.66"),
            ("wg0", MESH_ADDRESS, MEMBER_SPACE, "10.99.0.2"),
            ("docker0", "172.17.0.1", DOCKER_SPACE, "172.17.0.2"),
        ):
            run_ip(NODE_SPACE, f"link add {interface} type veth peer name eth0 netns {peer_namespace}")
            run_ip(NODE_SPACE, f"address add {address}/24 dev {interface}")
            run_ip(peer_namespace, f"address add {peer_address}/24 dev eth0")
            run_ip(NODE_SPACE, f"link set {interface} up")
            run_ip(peer_namespace, "link set eth0 up")
            run_ip(peer_namespace, f"route add default via {address}")
        run_ip(NODE_SPACE, "route add default via 192.0.2.66")
        # Both lead to the same server. The stranger also has addresses of sessions, and the node's in the mesh.
        for namespace in (STRANGER_SPACE, GATEWAY_SPACE):
            run_ip(namespace, f"address add {SERVER_ADDRESS}/32 dev lo")
        for address in ("10.192.9.9", "10.192.9.10", MESH_ADDRESS):
            run_ip(STRANGER_SPACE, f"address add {address}/32 dev lo")
        load_rules(NODE_SPACE, network.format_table(NODE_SETTINGS))
        # The member accepts from this peer only packets with its address, as WireGuard does.
        load_rules(
            MEMBER_SPACE,
            f"table ip peers {{ chain from {{ type filter hook input priority 0; ip saddr != {MESH_ADDRESS} drop; }}; }}",
        )
        yield
    finally:
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)


class NodeSession:
    """The program on the node, with a session of three containers."""

    def __init__(self, path: Path) -> None:
        self.program_path = path
        program_archive.zipapp_change(
            str(path), build_zipapp(sys.executable, program.__name__, NODE_SETTINGS._asdict())
        ).apply()

    def run_program(self, verb: str) -> subprocess.Popen[bytes]:
        slurm_variables = {
            "SLURM_JOB_ID": str(JOB_ID),
            "SLURM_JOB_UID": str(NOBODY_UID),
            "SLURM_JOB_NODELIST": "node",
            node.SESSION_VARIABLE: "+;demo;main,sub;1,2",
        }
        return subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{NODE_SPACE}", self.program_path, verb],
            env={**os.environ, **slurm_variables},
        )

    def start(self) -> None:
        assert self.run_program("prolog").wait() == 0
        assert node.read_plan(JOB_ID)["here"] == ["main1", "sub1", "sub2"]

    def stop(self) -> None:
        assert self.run_program("epilog").wait() == 0

    def find_watchers(self) -> list[int]:
        watcher_pids = []
        for pid in os.listdir("/proc"):
            if pid.isdecimal():
                try:
                    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if str(self.program_path).encode() in arguments and b"watch" in arguments:
                    watcher_pids.append(int(pid))
        return watcher_pids

    def kill_watchers(self) -> None:
        for pid in self.find_watchers():
            # One that was found may have ended since: a process that is about to become another program, for example.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until("the watching process is gone", lambda: not self.find_watchers())


@pytest.fixture(name="session")
def _session(hosts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeSession]:
    # Where systemd runs, the watching process would not start in the namespace.
    node_session = NodeSession(tmp_path / "gpumesh-session")
    yield node_session
    node_session.stop()
    node_session.kill_watchers()


CONTAINER_SPACE = network.namespace_name(JOB_ID, 0)


def start_docker() -> None:
    """Do what Docker does when it starts."""
    load_rules(NODE_SPACE, _DOCKER_RULES)
    run_in_namespace(NODE_SPACE, "sysctl", "-qw", "net.ipv4.ip_forward=1")


@pytest.mark.parametrize("docker_start", ["none", "before", "after"])
def test_non_member_gets_nothing_through_a_node(session: NodeSession, docker_start: str) -> None:
    if docker_start == "before":
        start_docker()
    session.start()
    if docker_start == "after":
        start_docker()
        wait_until(
            "the interfaces are the other's",
            lambda: json.loads(Path(node.forwarding_file()).read_text())["former"] == {},
        )
    with ExitStack() as stack:
        served = stack.enter_context(start_listener(STRANGER_SPACE, 8080))
        member, container, gateway_listener = (
            stack.enter_context(start_listener(namespace, 2049))
            for namespace in (MEMBER_SPACE, CONTAINER_SPACE, GATEWAY_SPACE)
        )
        assert request_answer(CONTAINER_SPACE, SERVER_ADDRESS, 8080) == "answer"
        assert read_peer(served)[0] == LAN_ADDRESS
        # The control: the same packets arrive from those who may send them.
        assert [request_answer(NODE_SPACE, "10.99.0.2", 2049, kind, source_port=999) for kind in ("tcp", "udp")] == [
            "answer"
        ] * 2
        assert [read_peer(member), read_peer(member)] == [(MESH_ADDRESS, 999)] * 2
        assert request_answer(GATEWAY_SPACE, "198.51.100.66", 2049) == "answer"
        assert read_peer(gateway_listener)
        source_addresses = ["10.192.9.9", "10.192.9.10", MESH_ADDRESS, "192.0.2.66"]
        run_in_namespace(
            STRANGER_SPACE,
            sys.executable,
            "-c",
            _ATTACK_PROGRAM,
            ",".join(source_addresses),
            f"10.99.0.2,{CONTAINER_ADDRESS}",
        )
        # A program that forwards for everybody lets the stranger reach other networks with its own address.
        run_in_namespace(
            STRANGER_SPACE,
            sys.executable,
            "-c",
            _ATTACK_PROGRAM,
            ",".join(source_addresses if docker_start == "none" else source_addresses[:2]),
            "198.51.100.66",
        )
        # Packets that have arrived would be read before the next of these.
        for process, namespace, address in (
            (member, NODE_SPACE, "10.99.0.2"),
            (container, CONTAINER_SPACE, "127.0.0.1"),
            (gateway_listener, GATEWAY_SPACE, "127.0.0.1"),
        ):
            assert request_answer(namespace, address, 2049, source_port=998) == "answer"
            assert read_peer(process) == (MESH_ADDRESS if namespace == NODE_SPACE else "127.0.0.1", 998)
        if docker_start != "none":
            assert_docker_works()
    session.stop()
    assert [read_forwarding(name) for name in ("all", "eth0")] == ["0" if docker_start == "none" else "1"] * 2
    if docker_start != "none":
        assert_docker_works()


def assert_docker_works() -> None:
    """Assert that containers of Docker reach others, and others their published ports."""
    with start_listener(STRANGER_SPACE, 8081), start_listener(DOCKER_SPACE, 8080):
        assert request_answer(DOCKER_SPACE, SERVER_ADDRESS, 8081) == "answer"
        assert request_answer(STRANGER_SPACE, LAN_ADDRESS, 8088) == "answer"


def test_former_settings_are_restored_after_last_session_and_crash(session: NodeSession) -> None:
    run_in_namespace(NODE_SPACE, "sysctl", "-qw", "net.ipv4.conf.eth1.forwarding=1")
    session.start()
    assert [read_forwarding(name) for name in ("all", "default", "eth0", "eth1")] == ["0", "0", "1", "1"]
    # An interface that forwarded before belongs to somebody else; nothing leads to wg0.
    assert json.loads(Path(node.forwarding_file()).read_text())["former"] == {"eth0": "0", "docker0": "0"}
    assert read_forwarding("wg0") == "0"
    session.kill_watchers()
    for container_number in range(3):
        run_checked("ip", "netns", "delete", network.namespace_name(JOB_ID, container_number))
    wait_until("the uplinks are gone", lambda: "gms" not in run_in_namespace(NODE_SPACE, "ip", "link"))
    session.stop()
    assert [read_forwarding(name) for name in ("all", "eth0", "eth1", "docker0")] == ["0", "0", "1", "0"]
    assert not os.path.exists(node.forwarding_file())


def test_new_default_route_is_used_and_the_old_one_closed(session: NodeSession) -> None:
    session.start()
    with start_listener(GATEWAY_SPACE, 8080) as served:
        run_ip(NODE_SPACE, "route delete 198.51.100.0/24 dev eth1")
        run_ip(NODE_SPACE, "address delete 198.51.100.1/24 dev eth1")
        wait_until("it does not forward any more", lambda: read_forwarding("eth1") == "0")
        run_ip(NODE_SPACE, "address add 198.51.100.1/24 dev eth1")
        run_ip(NODE_SPACE, "route replace default via 198.51.100.66")
        run_ip(NODE_SPACE, "route delete 192.0.2.0/24 dev eth0")
        wait_until(
            "sessions reach the server again",
            lambda: request_answer(CONTAINER_SPACE, SERVER_ADDRESS, 8080, timeout=2) == "answer",
        )
        assert read_peer(served)[0] == "198.51.100.1"
        wait_until("the old way is closed", lambda: read_forwarding("eth0") == "0")


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_container_never_leaves_from_a_port_below_1024(session: NodeSession, kind: str) -> None:
    session.start()
    server = "192.0.2.66"
    with start_listener(STRANGER_SPACE, 2049) as served:
        for port in (1, 700, 1023):
            assert request_answer(CONTAINER_SPACE, server, 2049, kind, source_port=port) == "answer"
            address, used = read_peer(served)
            assert (address, used >= 1024) == (LAN_ADDRESS, True)
        assert request_answer(CONTAINER_SPACE, server, 2049, kind, source_port=4242) == "answer"
        assert read_peer(served) == (LAN_ADDRESS, 4242)
    run_in_namespace(CONTAINER_SPACE, "ping", "-c1", "-w60", server)


def test_stranger_cannot_pose_as_a_mesh_member(session: NodeSession) -> None:
    """The stranger sends to the port of the containers' packets, with the address of another member."""
    with start_listener(NODE_SPACE, network.VXLAN_PORT) as served:
        run_ip(STRANGER_SPACE, "address add 10.99.0.2/32 dev lo")
        request_answer(STRANGER_SPACE, LAN_ADDRESS, network.VXLAN_PORT, "udp", "10.99.0.2", 4444, timeout=2)
        request_answer(MEMBER_SPACE, MESH_ADDRESS, network.VXLAN_PORT, "udp", "10.99.0.2", 4445)
        assert read_peer(served) == ("10.99.0.2", 4445)
