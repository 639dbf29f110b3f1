# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network of sessions on two hosts that are network namespaces: who reaches whom, counted in packets, and what a
killed prolog leaves."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from program_builds import build_zipapp
from waiting import wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run as run_command
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import (
    network,
    node,
    plan,
    program,
    trash,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import Container, SessionSettings
from ansible_collections.gpumesh.cluster.tests.support.namespaces import create_joined_namespaces, run_checked

ADDRESS_BY_HOST = {"gmh-a": "10.0.0.1", "gmh-b": "10.0.0.2"}
OUTSIDE_ADDRESS = "203.0.113.7"
KILL_COUNT = 50
NOBODY_UID = 65534
_CONNECT_PROGRAM = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
except OSError as failure:
    print(type(failure).__name__, failure.errno)
else:
    print("connected")
"""
_LISTEN_PROGRAM = """
import socket, sys
listening = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
while True:
    peer, address = listening.accept()
    peer.sendall(address[0].encode())
    while peer.recv(1 << 16):
        pass
    peer.close()
"""
_SEND_PROGRAM = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=100)
said = peer.recv(64).decode()
peer.sendall(bytes(8 << 20))
peer.shutdown(socket.SHUT_WR)
print(said, len(peer.recv(1)))
"""
_DATAGRAM_PROGRAM = """
import socket, sys
socket.socket(type=socket.SOCK_DGRAM).sendto(b"x" * 64, (sys.argv[1], int(sys.argv[2])))
"""
#: A program that sends a node what a peer would. Arguments: the identifier of a container, its hardware address and
#: that of a peer, the address of its node, and both addresses in the session.
_FORGE_PROGRAM = """
import socket, struct, sys
vni, target, source, to, sender, receiver, port = sys.argv[1:]
address = lambda text: bytes.fromhex(text.replace(":", ""))
inner = struct.pack("!4H", 4242, int(port), 9, 0) + b"x"
ends = socket.inet_aton(sender) + socket.inet_aton(receiver)
header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(inner), 0, 0, 64, 17, 0) + ends
total = sum(struct.unpack("!10H", header))
total = (total & 0xffff) + (total >> 16)
checksum = 0xffff - ((total & 0xffff) + (total >> 16))
frame = address(target) + address(source) + b"\\x08\\0" + header[:10] + struct.pack("!H", checksum) + ends + inner
packet = struct.pack("!II", 8 << 24, int(vni) << 8) + frame
sending = socket.socket(type=socket.SOCK_DGRAM)
sending.connect((to, 8474))
for _attempt in range(3):
    try:
        sending.send(packet)
    except OSError as failure:
        print(failure)
"""
#: A program that prints the source of each datagram.
_DATAGRAM_LISTENER = """
import socket, sys
receiving = socket.socket(type=socket.SOCK_DGRAM)
receiving.bind(("", int(sys.argv[1])))
print("listening", flush=True)
while True:
    print(receiving.recvfrom(64)[1][0], flush=True)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's to make")


def host_settings(host: str) -> SessionSettings:
    return SessionSettings(
        host,
        "gmh-a",
        "eth0",
        ADDRESS_BY_HOST,
        ["10.192.0.0/10"],
        ["10.0.0.0/24"],
        True,
        [],
        [],
        [],
        "/var/tmp/gpumesh-{user}",
    )


def runner_on(host: str):  # type: ignore[no-untyped-def]
    """Return a function that runs commands on a host."""

    def run(argv: Sequence[str], **options: object) -> CommandResult:
        return run_command(["nsenter", f"--net=/run/netns/{host}", *argv], **options)  # type: ignore[arg-type]

    return run


def run_in_namespace(namespace: str, *argv: str) -> str:
    return run_checked("ip", "netns", "exec", namespace, *argv)


@pytest.fixture(name="hosts", scope="module")
def _hosts() -> Iterator[None]:
    with create_joined_namespaces(*ADDRESS_BY_HOST):
        for host, address in ADDRESS_BY_HOST.items():
            run_checked("ip", "-n", host, "address", "add", f"{address}/24", "dev", "eth0")
            run_checked("ip", "-n", host, "link", "set", "eth0", "up")
            runner_on(host)(["nft", "--file", "-"], stdin=network.format_table(host_settings(host)))
            run_in_namespace(host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        run_checked("ip", "-n", "gmh-b", "address", "add", f"{OUTSIDE_ADDRESS}/32", "dev", "lo")
        run_checked("ip", "-n", "gmh-a", "route", "add", f"{OUTSIDE_ADDRESS}/32", "via", ADDRESS_BY_HOST["gmh-b"])
        yield


def create_session(job: int, slot: int, count_per_host: int = 2) -> list[tuple[str, Container]]:
    """Create a session with so many containers on each host. Returns its namespaces and containers."""
    token = plan.parse_token(f"+;demo;main,sub;1,{count_per_host - 1}+0,{count_per_host}")
    containers = plan.place_containers(
        token, slot, list(ADDRESS_BY_HOST), ADDRESS_BY_HOST, host_settings("gmh-a").pools
    )
    namespaces_and_containers = []
    # Hosts create their own namespaces; here they share one directory of names.
    for container in containers:
        local_container = container._replace(local=container.local + 100 * list(ADDRESS_BY_HOST).index(container.node))
        node.create_namespace(
            runner_on(container.node), job, local_container, containers, host_settings(container.node)
        )
        namespaces_and_containers.append((network.namespace_name(job, local_container.local), container))
    return namespaces_and_containers


@pytest.fixture(name="two", scope="module")
def _two(hosts: None) -> Iterator[list[list[tuple[str, Container]]]]:
    try:
        yield [create_session(900100, 7), create_session(900200, 8)]
    finally:
        for job in (900100, 900200):
            node.remove_job(run_command, job)


TwoSessions = list[list[tuple[str, Container]]]


@contextmanager
def start_listener(namespace: str, port: int) -> Iterator[None]:
    argv = ["ip", "netns", "exec", namespace, sys.executable, "-c", _LISTEN_PROGRAM, str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield
        finally:
            process.kill()


def first_datagram_source(
    namespace: str, port: int, senders: Sequence[str], address: str, before: Callable[[], object] = lambda: None
) -> str:
    """Return the source of the first datagram: either from what is done before, or from one of these namespaces."""
    argv = ["ip", "netns", "exec", namespace, sys.executable, "-c", _DATAGRAM_LISTENER, str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            before()
            for sender in senders:
                run_in_namespace(sender, sys.executable, "-c", _DATAGRAM_PROGRAM, address, str(port))
            return process.stdout.readline().strip()
        finally:
            process.kill()


def try_connect(namespace: str, address: str, port: int) -> str:
    return run_in_namespace(namespace, sys.executable, "-c", _CONNECT_PROGRAM, address, str(port)).strip()


def received_packets(namespace: str) -> int:
    (interface_state,) = json.loads(run_checked("ip", "-n", namespace, "-s", "-j", "link", "show", "dev", "eth0"))
    return int(interface_state["stats64"]["rx"]["packets"])


def test_containers_of_a_session_exchange_large_packets_and_streams(two: TwoSessions) -> None:
    containers = two[0]
    for namespace, container in containers:
        with start_listener(namespace, 4242):
            for peer_namespace, peer in containers:
                if peer.name != container.name:
                    run_in_namespace(peer_namespace, "ping", "-c1", "-w60", "-M", "do", "-s", "1422", container.address)
                    assert run_in_namespace(
                        peer_namespace, sys.executable, "-c", _SEND_PROGRAM, container.address, "4242"
                    ).split() == [
                        peer.address,
                        "0",
                    ]


def test_sessions_are_isolated_from_each_other(two: TwoSessions) -> None:
    before = [received_packets(namespace) for namespace, _container in two[1]]
    for namespace, _container in two[0]:
        for _namespace, victim in two[1]:
            assert try_connect(namespace, victim.address, 4242) != "connected"
            subprocess.run(
                ["ip", "netns", "exec", namespace, "ping", "-c5", "-i0.01", "-W1", victim.address],
                check=False,
                capture_output=True,
            )
    assert [received_packets(namespace) for namespace, _container in two[1]] == before


@pytest.mark.parametrize("port", [22, 111, 2049, 6817, 6818])
def test_session_does_not_reach_the_hosts(two: TwoSessions, port: int) -> None:
    for host, address in ADDRESS_BY_HOST.items():
        with start_listener(host, port):
            other_host = next(name for name in ADDRESS_BY_HOST if name != host)
            assert try_connect(other_host, address, port) == "connected"
            for namespace, _container in two[0]:
                assert try_connect(namespace, address, port).startswith(
                    ("ConnectionRefused", "OSError 113", "PermissionError")
                )
                assert try_connect(namespace, "169.254.1.1", port) != "connected"


def test_hosts_do_not_reach_a_session(two: TwoSessions) -> None:
    namespace, container = two[0][0]
    with start_listener(namespace, 4242):
        for host in ADDRESS_BY_HOST:
            assert try_connect(host, container.address, 4242) != "connected"


def test_session_reaches_outside_with_address_of_its_host(two: TwoSessions) -> None:
    with start_listener("gmh-b", 8080):
        namespace = next(namespace for namespace, container in two[0] if container.node == "gmh-a")
        assert run_in_namespace(namespace, sys.executable, "-c", _SEND_PROGRAM, OUTSIDE_ADDRESS, "8080").split() == [
            ADDRESS_BY_HOST["gmh-a"],
            "0",
        ]


def test_host_users_cannot_send_into_a_session(two: TwoSessions) -> None:
    send_program = (
        "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x' * 64, ('10.0.0.2', 8474)); print('sent')"
    )
    before = [received_packets(namespace) for namespace, _container in two[0]]
    argv = [
        "ip",
        "netns",
        "exec",
        "gmh-a",
        "setpriv",
        f"--reuid={NOBODY_UID}",
        "--clear-groups",
        "/usr/bin/python3",
        "-c",
        send_program,
    ]
    completed = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "PermissionError" in completed.stderr
    assert [received_packets(namespace) for namespace, _container in two[0]] == before


def test_job_with_the_same_slot_cannot_send_into_a_session(two: TwoSessions) -> None:
    """Nodes without that session do not refuse its containers, which have the session's identifiers."""
    (namespace, first), (last_namespace, last) = two[0][0], two[0][-1]
    token = plan.parse_token("+;demo;main,sub;1,0+0,4")
    containers = plan.place_containers(token, 7, list(ADDRESS_BY_HOST), ADDRESS_BY_HOST, host_settings("gmh-a").pools)
    # The host has made sub2 and sub3 of the session, and cannot make their identifiers again.
    forged = containers[4]
    assert forged.name == "sub4" and forged.vni not in {container.vni for _space, container in two[0]}
    assert containers[0]._replace(local=0) == first
    try:
        node.create_namespace(runner_on("gmh-b"), 900400, forged, containers, host_settings("gmh-b"))
        senders = [network.namespace_name(900400, forged.local), last_namespace]
        assert first_datagram_source(namespace, 4242, senders, first.address) == last.address
    finally:
        node.remove_job(run_command, 900400)


def forge(sender: str, node_address: str, victim: Container, peer: Container) -> None:
    """Send a node of another session what a peer of its container would, from elsewhere."""
    run_in_namespace(
        sender,
        sys.executable,
        "-c",
        _FORGE_PROGRAM,
        *(str(victim.vni), network.container_mac(900100, victim), network.container_mac(900100, peer)),
        *(node_address, peer.address, victim.address, "4242"),
    )


@pytest.mark.parametrize("address", [OUTSIDE_ADDRESS, ADDRESS_BY_HOST["gmh-b"]])
def test_container_cannot_send_into_another_session(two: TwoSessions, address: str) -> None:
    """The packets go to any address of another node. They would leave with the address of a member, that of its own
    node.
    """
    (victim_space, victim), peers = two[0][-1], two[0][:-1]
    attacker = next(namespace for namespace, container in two[1] if container.node == "gmh-a")
    assert victim.node == "gmh-b"
    first = first_datagram_source(
        victim_space,
        4242,
        [peers[1][0]],
        victim.address,
        before=lambda: forge(attacker, address, victim, peers[0][1]),
    )
    assert first == peers[1][1].address


@pytest.fixture(name="neighbour")
def _neighbour(hosts: None) -> Iterator[str]:
    """A namespace behind a node that masquerades for it, as for a container of Docker or a virtual machine."""
    name = "gmh-docker"
    masquerade = "chain outwards { type nat hook postrouting priority srcnat; ip saddr 172.17.0.0/16 masquerade; }"
    try:
        run_checked("ip", "netns", "add", name)
        run_checked(
            "ip", "-n", "gmh-a", "link", "add", "docker0", "type", "veth", "peer", "name", "eth0", "netns", name
        )
        for namespace, device, address in (("gmh-a", "docker0", "172.17.0.1"), (name, "eth0", "172.17.0.2")):
            run_checked("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", device)
            run_checked("ip", "-n", namespace, "link", "set", device, "up")
        run_checked("ip", "-n", name, "route", "add", "default", "via", "172.17.0.1")
        runner_on("gmh-a")(["nft", "--file", "-"], stdin=f"table ip docker {{ {masquerade}; }}\n")
        yield name
    finally:
        runner_on("gmh-a")(["nft", "delete", "table", "ip", "docker"], check=False)
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def test_hosts_behind_a_node_cannot_send_into_a_session(two: TwoSessions, neighbour: str) -> None:
    (victim_space, victim), peers = two[0][-1], two[0][:-1]
    with start_listener("gmh-b", 8080):
        assert run_in_namespace(
            neighbour, sys.executable, "-c", _SEND_PROGRAM, ADDRESS_BY_HOST["gmh-b"], "8080"
        ).split() == [ADDRESS_BY_HOST["gmh-a"], "0"]
    first = first_datagram_source(
        victim_space,
        4242,
        [peers[1][0]],
        victim.address,
        before=lambda: forge(neighbour, ADDRESS_BY_HOST["gmh-b"], victim, peers[0][1]),
    )
    assert first == peers[1][1].address


def test_session_subnet_has_no_broadcast(two: TwoSessions) -> None:
    """Packets are not flooded: there is no entry for an address that is not a peer's."""
    for namespace, _container in two[0]:
        entries = json.loads(run_checked("bridge", "-n", namespace, "-j", "fdb", "show", "dev", "vx0"))
        peers = {network.container_mac(900100, peer) for _namespace, peer in two[0] if peer.name != _container.name}
        assert {entry["mac"] for entry in entries if "dst" in entry} == peers
        assert not [entry for entry in entries if entry["mac"] == "00:00:00:00:00:00"]


# --- Kills


def find_job_state(job: int) -> list[str]:
    """Return everything that has the job's number, and what its namespaces had on the host."""
    names = [name for name in os.listdir("/run/netns") if network.namespace_job(name) == job]
    names += [path for path in (node.job_directory(job), node.storage_directory(job)) if os.path.exists(path)]
    links = json.loads(run_checked("ip", "-n", "gmh-a", "-j", "link", "show"))
    routes = json.loads(run_checked("ip", "-n", "gmh-a", "-j", "route", "show"))
    pools = host_settings("gmh-a").pools
    slot = plan.session_slot(plan.parse_token("+;demo;main;1"), job, pools)
    subnet = str(plan.slot_subnet(pools, slot)).rpartition(".")[0]
    return [*names, *(link["ifname"] for link in links if link["ifname"].startswith(f"gms{slot:04x}"))] + [
        route["dst"] for route in routes if route["dst"].startswith(f"{subnet}.")
    ]


def await_no_state(job: int, situation: str) -> None:
    """Wait until nothing is left: the kernel takes a moment to remove what a namespace had."""
    wait_until(f"nothing is left: {situation}", lambda: not find_job_state(job))


@pytest.fixture(name="installed")
def _installed(hosts: None, tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "gpumesh-session"
    program_archive.zipapp_change(
        str(path), build_zipapp(sys.executable, program.__name__, host_settings("gmh-a")._asdict())
    ).apply()
    yield str(path)
    for job in node.leftover_jobs():
        if job == 900300:
            node.remove_job(run_command, job)


def start_program(path: str, verb: str) -> subprocess.Popen[bytes]:
    slurm_variables = {
        "SLURM_JOB_ID": "900300",
        "SLURM_JOB_UID": str(NOBODY_UID),
        "SLURM_JOB_NODELIST": "gmh-a",
        node.SESSION_VARIABLE: "+;demo;main,sub;1,2",
    }
    return subprocess.Popen(["nsenter", "--net=/run/netns/gmh-a", path, verb], env={**os.environ, **slurm_variables})


def test_rerun_of_a_killed_prolog_or_epilog_leaves_nothing(installed: str) -> None:
    started_at = time.monotonic()
    assert start_program(installed, "prolog").wait() == 0
    prolog_seconds = time.monotonic() - started_at
    assert node.read_plan(900300)["here"] == ["main1", "sub1", "sub2"]
    assert start_program(installed, "epilog").wait() == 0
    await_no_state(900300, "undisturbed")
    random_source = random.Random(19)
    for number in range(KILL_COUNT):
        verb = "prolog" if number % 2 else "epilog"
        if verb == "epilog":
            assert start_program(installed, "prolog").wait() == 0
        process = start_program(installed, verb)
        time.sleep(random_source.uniform(0.03, prolog_seconds))
        process.send_signal(signal.SIGKILL)
        process.wait()
        # Processes that the program has started may end after it.
        assert start_program(installed, "epilog").wait() == 0
        await_no_state(900300, f"{verb}, kill {number}")
    assert start_program(installed, "prolog").wait() == 0
    assert node.read_plan(900300)["here"] == ["main1", "sub1", "sub2"]


def test_open_namespace_of_a_user_keeps_no_network_state(installed: str) -> None:
    """A process in the namespace may have passed it to one elsewhere."""
    assert start_program(installed, "prolog").wait() == 0
    open_descriptors = [os.open(f"/run/netns/gms900300.{local}", os.O_RDONLY) for local in range(3)]
    try:
        assert start_program(installed, "epilog").wait() == 0
        await_no_state(900300, "held open")
        assert start_program(installed, "prolog").wait() == 0
        assert node.read_plan(900300)["here"] == ["main1", "sub1", "sub2"]
    finally:
        for descriptor in open_descriptors:
            os.close(descriptor)


def test_leftovers_of_a_job_are_removed_soon(installed: str) -> None:
    """The watching process removes it, also where a user has mounted something."""
    assert start_program(installed, "prolog").wait() == 0
    mount_point = Path(node.storage_directory(900300), "0", "mount")
    mount_point.mkdir()
    run_checked("mount", "-t", "tmpfs", "gpumesh-test", str(mount_point))
    assert start_program(installed, "epilog").wait() == 0
    await_no_state(900300, "mounted")
    folders = [node.RUN_DIRECTORY, node.STORAGE_ROOT]
    wait_until(
        "its discarded files are removed",
        lambda: not [path for path in trash.list_discarded(folders) if "-900300-" in path],
    )
    assert "gpumesh-test" not in Path("/proc/self/mountinfo").read_text()
