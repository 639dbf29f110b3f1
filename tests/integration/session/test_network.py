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
from ansible_collections.gpumesh.cluster.tests.support.namespaces import call, joined

HOSTS = {"gmh-a": "10.0.0.1", "gmh-b": "10.0.0.2"}
OUTSIDE = "203.0.113.7"
KILLS = 50
#: Seconds until nothing is left, on a busy machine.
PATIENCE = 180.0
#: Seconds until the watching process has removed the files.
REMOVAL = 300.0
NOBODY = 65534
_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
except OSError as failure:
    print(type(failure).__name__, failure.errno)
else:
    print("connected")
"""
_LISTEN = """
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
_SEND = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=100)
said = peer.recv(64).decode()
peer.sendall(bytes(8 << 20))
peer.shutdown(socket.SHUT_WR)
print(said, len(peer.recv(1)))
"""
_DATAGRAM = """
import socket, sys
socket.socket(type=socket.SOCK_DGRAM).sendto(b"x" * 64, (sys.argv[1], int(sys.argv[2])))
"""
#: A program that sends a node what a peer would. Arguments: the identifier of a container, its hardware address and
#: that of a peer, the address of its node, and both addresses in the session.
_FORGE = """
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
_DATAGRAMS = """
import socket, sys
receiving = socket.socket(type=socket.SOCK_DGRAM)
receiving.bind(("", int(sys.argv[1])))
print("listening", flush=True)
while True:
    print(receiving.recvfrom(64)[1][0], flush=True)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's to make")


def settings(host: str) -> SessionSettings:
    return SessionSettings(
        host, "gmh-a", "eth0", HOSTS, ["10.192.0.0/10"], ["10.0.0.0/24"], True, [], [], [], "/var/tmp/gpumesh-{user}"
    )


def on(host: str):  # type: ignore[no-untyped-def]
    """Return a function that runs commands on a host."""

    def run(argv: Sequence[str], **options: object) -> CommandResult:
        return run_command(["nsenter", f"--net=/run/netns/{host}", *argv], **options)  # type: ignore[arg-type]

    return run


def inside(space: str, *argv: str) -> str:
    return call("ip", "netns", "exec", space, *argv)


@pytest.fixture(name="hosts", scope="module")
def _hosts() -> Iterator[None]:
    with joined(*HOSTS):
        for host, address in HOSTS.items():
            call("ip", "-n", host, "address", "add", f"{address}/24", "dev", "eth0")
            call("ip", "-n", host, "link", "set", "eth0", "up")
            on(host)(["nft", "--file", "-"], stdin=network.format_table(settings(host)))
            inside(host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        call("ip", "-n", "gmh-b", "address", "add", f"{OUTSIDE}/32", "dev", "lo")
        call("ip", "-n", "gmh-a", "route", "add", f"{OUTSIDE}/32", "via", HOSTS["gmh-b"])
        yield


def session(job: int, slot: int, count: int = 2) -> list[tuple[str, Container]]:
    """Create a session with so many containers on each host. Returns its namespaces and containers."""
    token = plan.parse_token(f"+;demo;main,sub;1,{count - 1}+0,{count}")
    places = plan.place_containers(token, slot, list(HOSTS), HOSTS, settings("gmh-a").pools)
    made = []
    # Hosts create their own namespaces; here they share one directory of names.
    for one in places:
        own = one._replace(local=one.local + 100 * list(HOSTS).index(one.node))
        node.create_namespace(on(one.node), job, own, places, settings(one.node))
        made.append((network.namespace_name(job, own.local), one))
    return made


@pytest.fixture(name="two", scope="module")
def _two(hosts: None) -> Iterator[list[list[tuple[str, Container]]]]:
    try:
        yield [session(900100, 7), session(900200, 8)]
    finally:
        for job in (900100, 900200):
            node.remove_job(run_command, job)


Two = list[list[tuple[str, Container]]]


@contextmanager
def listening(space: str, port: int) -> Iterator[None]:
    argv = ["ip", "netns", "exec", space, sys.executable, "-c", _LISTEN, str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield
        finally:
            process.kill()


def first_datagram(
    space: str, port: int, senders: Sequence[str], address: str, before: Callable[[], object] = lambda: None
) -> str:
    """Return the source of the first datagram: either from what is done before, or from one of these namespaces."""
    argv = ["ip", "netns", "exec", space, sys.executable, "-c", _DATAGRAMS, str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            before()
            for sender in senders:
                inside(sender, sys.executable, "-c", _DATAGRAM, address, str(port))
            return process.stdout.readline().strip()
        finally:
            process.kill()


def attempt(space: str, address: str, port: int) -> str:
    return inside(space, sys.executable, "-c", _CONNECT, address, str(port)).strip()


def received(space: str) -> int:
    (link,) = json.loads(call("ip", "-n", space, "-s", "-j", "link", "show", "dev", "eth0"))
    return int(link["stats64"]["rx"]["packets"])


def test_every_pair_of_a_session_has_large_packets_and_streams(two: Two) -> None:
    own = two[0]
    for space, one in own:
        with listening(space, 4242):
            for other, peer in own:
                if peer.name != one.name:
                    inside(other, "ping", "-c1", "-w60", "-M", "do", "-s", "1422", one.address)
                    assert inside(other, sys.executable, "-c", _SEND, one.address, "4242").split() == [
                        peer.address,
                        "0",
                    ]


def test_nothing_passes_from_one_session_to_another(two: Two) -> None:
    before = [received(space) for space, _one in two[1]]
    for space, _one in two[0]:
        for _other, victim in two[1]:
            assert attempt(space, victim.address, 4242) != "connected"
            subprocess.run(
                ["ip", "netns", "exec", space, "ping", "-c5", "-i0.01", "-W1", victim.address],
                check=False,
                capture_output=True,
            )
    assert [received(space) for space, _one in two[1]] == before


@pytest.mark.parametrize("port", [22, 111, 2049, 6817, 6818])
def test_a_session_does_not_reach_the_hosts(two: Two, port: int) -> None:
    for host, address in HOSTS.items():
        with listening(host, port):
            other = next(name for name in HOSTS if name != host)
            assert attempt(other, address, port) == "connected"
            for space, _one in two[0]:
                assert attempt(space, address, port).startswith(("ConnectionRefused", "OSError 113", "PermissionError"))
                assert attempt(space, "169.254.1.1", port) != "connected"


def test_the_hosts_do_not_reach_a_session(two: Two) -> None:
    space, one = two[0][0]
    with listening(space, 4242):
        for host in HOSTS:
            assert attempt(host, one.address, 4242) != "connected"


def test_a_session_reaches_others_with_its_hosts_address(two: Two) -> None:
    with listening("gmh-b", 8080):
        space = next(space for space, one in two[0] if one.node == "gmh-a")
        assert inside(space, sys.executable, "-c", _SEND, OUTSIDE, "8080").split() == [HOSTS["gmh-a"], "0"]


def test_users_of_a_host_cannot_put_packets_into_a_session(two: Two) -> None:
    send = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x' * 64, ('10.0.0.2', 8474)); print('sent')"
    before = [received(space) for space, _one in two[0]]
    argv = [
        "ip",
        "netns",
        "exec",
        "gmh-a",
        "setpriv",
        f"--reuid={NOBODY}",
        "--clear-groups",
        "/usr/bin/python3",
        "-c",
        send,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr
    assert [received(space) for space, _one in two[0]] == before


def test_a_job_with_the_slot_of_a_session_cannot_put_packets_into_it(two: Two) -> None:
    """Nodes without that session do not refuse its containers, which have the session's identifiers."""
    (space, first), (other, last) = two[0][0], two[0][-1]
    token = plan.parse_token("+;demo;main,sub;1,0+0,4")
    places = plan.place_containers(token, 7, list(HOSTS), HOSTS, settings("gmh-a").pools)
    # The host has made sub2 and sub3 of the session, and cannot make their identifiers again.
    forged = places[4]
    assert forged.name == "sub4" and forged.vni not in {one.vni for _space, one in two[0]}
    assert places[0]._replace(local=0) == first
    try:
        node.create_namespace(on("gmh-b"), 900400, forged, places, settings("gmh-b"))
        senders = [network.namespace_name(900400, forged.local), other]
        assert first_datagram(space, 4242, senders, first.address) == last.address
    finally:
        node.remove_job(run_command, 900400)


def forge(sender: str, node_address: str, victim: Container, peer: Container) -> None:
    """Send a node of another session what a peer of its container would, from elsewhere."""
    inside(
        sender,
        sys.executable,
        "-c",
        _FORGE,
        *(str(victim.vni), network.container_mac(900100, victim), network.container_mac(900100, peer)),
        *(node_address, peer.address, victim.address, "4242"),
    )


@pytest.mark.parametrize("address", [OUTSIDE, HOSTS["gmh-b"]])
def test_a_container_cannot_put_packets_into_another_session(two: Two, address: str) -> None:
    """The packets go to any address of another node. They would leave with the address of a member, that of its own
    node.
    """
    (victim_space, victim), peers = two[0][-1], two[0][:-1]
    attacker = next(space for space, one in two[1] if one.node == "gmh-a")
    assert victim.node == "gmh-b"
    first = first_datagram(
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
        call("ip", "netns", "add", name)
        call("ip", "-n", "gmh-a", "link", "add", "docker0", "type", "veth", "peer", "name", "eth0", "netns", name)
        for space, device, own in (("gmh-a", "docker0", "172.17.0.1"), (name, "eth0", "172.17.0.2")):
            call("ip", "-n", space, "address", "add", f"{own}/24", "dev", device)
            call("ip", "-n", space, "link", "set", device, "up")
        call("ip", "-n", name, "route", "add", "default", "via", "172.17.0.1")
        on("gmh-a")(["nft", "--file", "-"], stdin=f"table ip docker {{ {masquerade}; }}\n")
        yield name
    finally:
        on("gmh-a")(["nft", "delete", "table", "ip", "docker"], check=False)
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def test_what_is_behind_a_node_cannot_put_packets_into_a_session(two: Two, neighbour: str) -> None:
    (victim_space, victim), peers = two[0][-1], two[0][:-1]
    with listening("gmh-b", 8080):
        assert inside(neighbour, sys.executable, "-c", _SEND, HOSTS["gmh-b"], "8080").split() == [HOSTS["gmh-a"], "0"]
    first = first_datagram(
        victim_space,
        4242,
        [peers[1][0]],
        victim.address,
        before=lambda: forge(neighbour, HOSTS["gmh-b"], victim, peers[0][1]),
    )
    assert first == peers[1][1].address


def test_a_subnet_on_its_own_node_has_no_broadcast(two: Two) -> None:
    """Packets are not flooded: there is no entry for an address that is not a peer's."""
    for space, _one in two[0]:
        entries = json.loads(call("bridge", "-n", space, "-j", "fdb", "show", "dev", "vx0"))
        peers = {network.container_mac(900100, peer) for _s, peer in two[0] if peer.name != _one.name}
        assert {entry["mac"] for entry in entries if "dst" in entry} == peers
        assert not [entry for entry in entries if entry["mac"] == "00:00:00:00:00:00"]


# --- Kills


def state(job: int) -> list[str]:
    """Return everything that has the job's number, and what its namespaces had on the host."""
    names = [name for name in os.listdir("/run/netns") if network.namespace_job(name) == job]
    names += [path for path in (node.job_directory(job), node.storage_directory(job)) if os.path.exists(path)]
    links = json.loads(call("ip", "-n", "gmh-a", "-j", "link", "show"))
    routes = json.loads(call("ip", "-n", "gmh-a", "-j", "route", "show"))
    pools = settings("gmh-a").pools
    slot = plan.session_slot(plan.parse_token("+;demo;main;1"), job, pools)
    subnet = str(plan.slot_subnet(pools, slot)).rpartition(".")[0]
    return [*names, *(link["ifname"] for link in links if link["ifname"].startswith(f"gms{slot:04x}"))] + [
        route["dst"] for route in routes if route["dst"].startswith(f"{subnet}.")
    ]


def await_nothing(job: int, when: str) -> None:
    """Wait until nothing is left: the kernel takes a moment to remove what a namespace had."""
    end = time.monotonic() + PATIENCE
    while state(job):
        assert time.monotonic() < end, f"{when}: {state(job)}"
        time.sleep(0.05)


@pytest.fixture(name="installed")
def _installed(hosts: None, tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "gpumesh-session"
    program_archive.zipapp_change(
        str(path), build_zipapp(sys.executable, program.__name__, settings("gmh-a")._asdict())
    ).apply()
    yield str(path)
    for job in node.leftover_jobs():
        if job == 900300:
            node.remove_job(run_command, job)


def begin(path: str, verb: str) -> subprocess.Popen[bytes]:
    given = {
        "SLURM_JOB_ID": "900300",
        "SLURM_JOB_UID": str(NOBODY),
        "SLURM_JOB_NODELIST": "gmh-a",
        node.SESSION_VARIABLE: "+;demo;main,sub;1,2",
    }
    return subprocess.Popen(["nsenter", "--net=/run/netns/gmh-a", path, verb], env={**os.environ, **given})


def test_a_killed_prolog_or_epilog_leaves_nothing_once_it_has_run_again(installed: str) -> None:
    began = time.monotonic()
    assert begin(installed, "prolog").wait() == 0
    whole = time.monotonic() - began
    assert node.read_plan(900300)["here"] == ["main1", "sub1", "sub2"]
    assert begin(installed, "epilog").wait() == 0
    await_nothing(900300, "undisturbed")
    chance = random.Random(19)
    for number in range(KILLS):
        verb = "prolog" if number % 2 else "epilog"
        if verb == "epilog":
            assert begin(installed, "prolog").wait() == 0
        process = begin(installed, verb)
        time.sleep(chance.uniform(0.03, whole))
        process.send_signal(signal.SIGKILL)
        process.wait()
        # Processes that the program has started may end after it.
        assert begin(installed, "epilog").wait() == 0
        await_nothing(900300, f"{verb}, kill {number}")
    assert begin(installed, "prolog").wait() == 0
    assert node.read_plan(900300)["here"] == ["main1", "sub1", "sub2"]


def test_a_namespace_that_a_user_holds_open_keeps_nothing_of_the_network(installed: str) -> None:
    """A process in the namespace may have passed it to one elsewhere."""
    assert begin(installed, "prolog").wait() == 0
    held = [os.open(f"/run/netns/gms900300.{local}", os.O_RDONLY) for local in range(3)]
    try:
        assert begin(installed, "epilog").wait() == 0
        await_nothing(900300, "held open")
        assert begin(installed, "prolog").wait() == 0
        assert node.read_plan(900300)["here"] == ["main1", "sub1", "sub2"]
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_what_a_job_leaves_is_removed_soon_after(installed: str) -> None:
    """The watching process removes it, also where a user has mounted something."""
    assert begin(installed, "prolog").wait() == 0
    place = Path(node.storage_directory(900300), "0", "mount")
    place.mkdir()
    call("mount", "-t", "tmpfs", "gpumesh-test", str(place))
    assert begin(installed, "epilog").wait() == 0
    await_nothing(900300, "mounted")
    end = time.monotonic() + REMOVAL
    while [path for path in trash.list_discarded([node.RUN_DIRECTORY, node.STORAGE_ROOT]) if "-900300-" in path]:
        assert time.monotonic() < end
        time.sleep(0.2)
    assert "gpumesh-test" not in Path("/proc/self/mountinfo").read_text()
