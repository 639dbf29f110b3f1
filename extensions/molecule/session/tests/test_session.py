# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions on three real hosts: their containers, their network, and what remains after they end."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from lab_hosts import WAIT_TIMEOUT
from session_lab import (
    DEMO_ROLES,
    HOSTS,
    LAB,
    MANAGER,
    PARTITION,
    REGISTRY_IMAGE,
    SECOND_IMAGE,
    assert_clean,
    find_containers,
    find_job_id,
    find_leftovers,
    make_role,
    power_on,
    run_as,
    run_in_container,
    run_in_containers,
    start_session,
)

#: Run in all containers at once: each accepts connections from all others on every port, and connects to them, by TCP
#: and UDP.
_PAIRS = """
import os, socket, sys, threading, time
names = os.environ["BACKENDAI_CLUSTER_HOSTS"].split(",")
own, ports = os.environ["BACKENDAI_CLUSTER_HOST"], [int(word) for word in sys.argv[1:]]
told, told_me = set(), set()

def stream(port):
    listening = socket.create_server(("", port))
    while True:
        peer, _address = listening.accept()
        threading.Thread(target=answer, args=(peer,), daemon=True).start()

def answer(peer):
    data = b""
    while not data.endswith(b"."):
        part = peer.recv(1 << 16)
        if not part:
            return
        data += part
    peer.sendall(f"{own} {len(data)}".encode())
    peer.close()
    if data.startswith(b"done "):
        told_me.add(data[5:-1].decode())

def datagrams(port):
    bound = socket.socket(type=socket.SOCK_DGRAM)
    bound.bind(("", port))
    while True:
        data, address = bound.recvfrom(1 << 16)
        bound.sendto(f"{own} {len(data)}".encode(), address)

def ask(name, port, data):
    end = time.monotonic() + 180
    while True:
        try:
            with socket.create_connection((name, port), timeout=30) as peer:
                peer.sendall(data)
                return peer.recv(100).decode()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)

def ask_datagram(name, port, size):
    asking = socket.socket(type=socket.SOCK_DGRAM)
    asking.setsockopt(socket.IPPROTO_IP, 10, 2)  # Not in fragments.
    asking.settimeout(2)
    for _attempt in range(20):
        asking.sendto(b"x" * size, (name, port))
        try:
            return asking.recv(100).decode()
        except OSError:
            time.sleep(0.2)

for port in ports:
    for work in (stream, datagrams):
        threading.Thread(target=work, args=(port,), daemon=True).start()
for name in names:
    for port in ports:
        said = ask(name, port, b"x" * 199999 + b".")
        assert said == f"{name} 200000", said
        # An address, a port and a checksum are 28 bytes, and the way between hosts takes 50 of their 1500.
        said = ask_datagram(name, port, 1422)
        assert said == f"{name} 1422", said
for name in names:
    ask(name, ports[0], f"done {own}.".encode())
while len(told_me) < len(names):
    time.sleep(0.1)
print("reached", len(names) * len(ports))
"""
_CONNECT = """
import socket, sys
for word in sys.argv[1:]:
    address, _colon, port = word.rpartition(":")
    try:
        socket.create_connection((address, int(port)), timeout=2).close()
        print(word, "connected")
    except OSError as failure:
        print(word, type(failure).__name__)
"""
_LISTEN = """
import select, socket
streams = [socket.create_server(("", port)) for port in (4242, 5353)]
for port in (4242, 5353):
    bound = socket.socket(type=socket.SOCK_DGRAM)
    bound.bind(("", port))
    streams.append(bound)
while True:
    for ready in select.select(streams, [], [])[0]:
        ready.accept() if ready.type == socket.SOCK_STREAM else ready.recv(100)
"""
_SEND = """
import socket, sys
for address in sys.argv[1:]:
    for port in (4242, 5353):
        sending = socket.socket(type=socket.SOCK_DGRAM)
        for _time in range(5):
            try:
                sending.sendto(b"x", (address, port))
            except OSError:
                pass
        try:
            socket.create_connection((address, port), timeout=1)
            print("reached", address, port)
        except OSError:
            pass
"""
_ALL_REDUCE = """
import os
os.environ["USE_LIBUV"] = "0"  # Debian's build has none.
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="env://", rank=int(os.environ["WORLD_RANK"]), world_size=4)
one = torch.tensor([float(dist.get_rank() + 1)] * 100000)
dist.all_reduce(one)
print(one[-1].item())
"""


_ASK_FROM = """
import socket, sys
asking = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=120, source_address=("", 700))
print(asking.recv(100).decode())
"""


def forwarding(host: str) -> list[str]:
    """Whether a host forwards between all interfaces, and what it receives on its own."""
    names = ("all", "default", "eth0")
    return LAB.run(host, "sysctl", "-n", *(f"net.ipv4.conf.{name}.forwarding" for name in names)).split()


@pytest.fixture(scope="module", autouse=True)
def _hosts_that_do_not_forward() -> None:
    """The engine of the lab has them forward, which other programs would have done on a real host."""
    assert_clean(WAIT_TIMEOUT)
    for host in HOSTS:
        LAB.run(host, "sysctl", "-qw", "net.ipv4.ip_forward=0")


@pytest.fixture(name="demo", scope="module")
def _demo() -> Iterator[dict[str, tuple[str, str]]]:
    start_session("alice", DEMO_ROLES)
    yield find_containers("alice")
    run_as("alice", "gpumesh-session", "stop", "demo", check=False)


Demo = dict[str, tuple[str, str]]


# --- The layer


@pytest.mark.parametrize("host", HOSTS)
def test_the_plugin_and_the_rules_are_on_every_node(host: str) -> None:
    assert "gpumesh_session.so" in LAB.run(host, "cat", "/etc/slurm/plugstack.conf.d/gpumesh.conf")
    assert "table inet gpumesh_session" in LAB.run(host, "nft", "list", "table", "inet", "gpumesh_session")


def test_jobs_that_are_no_sessions_are_as_ever() -> None:
    printed = LAB.run(MANAGER, "srun", f"--partition={PARTITION}", "--nodes=3", "--ntasks=3", "hostname")
    assert sorted(printed.split()) == ["gpu1", "gpu2", "gpu3"]


# --- One session with different roles


def test_roles_that_differ_share_nodes_and_have_images_of_their_own(demo: Demo) -> None:
    assert {name: node for name, (_address, node) in demo.items()} == {
        "main1": "gpu1",
        "sub1": "gpu2",
        "sub2": "gpu2",
        "sub3": "gpu3",
    }
    assert run_in_containers("alice", "cat", "/etc/image") == {
        "main1": ["one"],
        "sub1": ["two"],
        "sub2": ["two"],
        "sub3": ["two"],
    }


def test_the_log_is_where_show_says(demo: Demo) -> None:
    log = re.search(r"^log (\S+) on (\S+)$", run_as("alice", "gpumesh-session", "show", "demo"), re.MULTILINE)
    # Slurm writes it on the node of the batch script, which need not be that of main1.
    assert log and log[2] in {node for _address, node in demo.values()}
    LAB.run(log[2], "test", "-f", log[1])


def test_each_container_is_held_to_its_own_memory(demo: Demo) -> None:
    found = run_in_containers("alice", "cat", "/proc/1/cgroup")
    for name, (_address, node) in demo.items():
        # The limit of the step, with control groups of version 1, as in labs, or of version 2.
        groups = dict(line.split(":", 2)[1:] for line in found[name])
        step = re.sub(r"(/step_[0-9]+).*", r"\1", groups.get("memory") or groups[""])
        files = [f"/sys/fs/cgroup/memory{step}/memory.limit_in_bytes", f"/sys/fs/cgroup{step}/memory.max"]
        (limit,) = LAB.run(node, "cat", *files, check=False).split()
        assert int(limit) >> 20 == (512 if name == "main1" else 256), (name, step)


def test_steps_have_the_cpus_of_their_roles(demo: Demo) -> None:
    shown = LAB.run(MANAGER, "scontrol", "--oneliner", "show", "step", str(find_job_id("alice")))
    steps = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in shown.splitlines()]
    running = sorted((one["NodeList"], one["CPUs"]) for one in steps if one["Name"] == "gpumesh-session")
    assert running == [("gpu1", "2"), ("gpu2", "1"), ("gpu[2-3]", "2")], shown


def test_every_pair_has_streams_and_large_datagrams_by_name(demo: Demo) -> None:
    ports = ["1", "80", "1023", "4242", "15000", "24999", "32768", "60999", "65535"]
    assert run_in_containers("alice", "python3", "-c", _PAIRS, *ports) == {name: ["reached 36"] for name in demo}


def test_ssh_from_each_to_each(demo: Demo) -> None:
    command = "for one in main1 sub1 sub2 sub3; do ssh $one hostname; done"
    assert run_in_containers("alice", "sh", "-c", command) == {name: list(demo) for name in demo}


def test_the_key_is_in_no_log_and_no_list_of_processes_and_nobody_else_reads_it(demo: Demo) -> None:
    key = run_in_container("alice", "main1", "cat", "/etc/gpumesh-ssh/key")
    # All OpenSSH keys of a kind begin with the same line.
    secret = [line for line in key.splitlines() if len(line) == 70 and not line.startswith("b3BlbnNzaC1r")]
    assert secret
    shown = run_as("alice", "gpumesh-session", "show", "demo") + LAB.run(
        MANAGER, "scontrol", "show", "job", str(find_job_id("alice"))
    )
    logs = "find /var/log /var/spool/slurmd -xdev -type f -not -path '*/journal/*' -exec cat {} +"
    for host in HOSTS:
        processes = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ"
        shown += LAB.run(
            host, "sh", "-c", f"({processes}; journalctl --no-pager --output=cat; {logs}) 2>/dev/null; true"
        )
        grep = f"grep -rlaF -e '{secret[0]}' /etc /var /run /tmp /home /dev/shm 2>/dev/null; true"
        found = LAB.run(host, "sh", "-c", grep).split()
        assert found and all(path.startswith("/run/gpumesh/session/") for path in found), (host, found)
        for path in found:
            assert "Permission denied" in run_as("bob", "cat", path, host=host, check=False), (host, path)
    assert not [line for line in secret if line in shown]


def test_the_environment_is_that_of_the_tables(demo: Demo) -> None:
    dump = "import json, os; print(json.dumps(dict(os.environ)))"
    found = run_in_containers("alice", "python3", "-c", dump)
    hosts = [f"{name}:12345" for name in demo]
    for rank, (name, (address, _node)) in enumerate(demo.items()):
        environment = json.loads(found[name][0])
        wanted = {
            "BACKENDAI_CLUSTER_SIZE": "4",
            "BACKENDAI_CLUSTER_HOSTS": "main1,sub1,sub2,sub3",
            "BACKENDAI_CLUSTER_REPLICAS": "main:1,sub:3",
            "BACKENDAI_CLUSTER_HOST": name,
            "BACKENDAI_CLUSTER_IDX": name[-1],
            "BACKENDAI_CLUSTER_ROLE": name[:-1],
            "BACKENDAI_CLUSTER_LOCAL_RANK": str(rank),
            "WORLD_SIZE": "4",
            "WORLD_RANK": str(rank),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "main1",
            "MASTER_PORT": "12345",
            "DSTACK_NODES_IPS": "\n".join(address for address, _node in demo.values()),
            "DSTACK_MASTER_NODE_IP": demo["main1"][0],
            "DSTACK_NODE_RANK": str(rank),
            "DSTACK_NODES_NUM": "4",
            "SKYPILOT_NODE_IPS": "\n".join(address for address, _node in demo.values()),
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NUM_NODES": "4",
            "PRIMARY_ADDR": "main1",
            "NODE_ADDR": address,
            "NODE_RANK": str(rank),
            "NUM_NODES": "4",
        }
        assert {key: environment.get(key) for key in wanted} == wanted
        assert json.loads(environment["TF_CONFIG"]) == {
            "cluster": {"worker": hosts},
            "task": {"type": "worker", "index": rank},
        }


def test_torch_reduces_over_the_address_of_main(demo: Demo) -> None:
    found = run_in_containers("alice", "python3", "-c", _ALL_REDUCE)
    assert {name: lines[-1] for name, lines in found.items()} == dict.fromkeys(demo, "10.0")


# --- Nothing else is reachable


def received(user: str) -> dict[str, int]:
    """The number of packets that each container has received."""
    lines = run_in_containers(user, "grep", "eth0", "/proc/net/dev")
    return {name: int(text[0].partition(":")[2].split()[1]) for name, text in lines.items()}


@pytest.fixture(name="other", scope="module")
def _other(demo: Demo) -> Iterator[Demo]:
    """A session of another user with the same names, on the same nodes."""
    command = ["python3", "-c", _LISTEN]
    start_session("bob", [make_role("main", command=command), make_role("sub", replicas=3, command=command)])
    yield find_containers("bob")
    run_as("bob", "gpumesh-session", "stop", "demo", check=False)


def test_no_packet_passes_between_the_sessions_of_two_users(demo: Demo, other: Demo) -> None:
    assert list(demo) == list(other)
    assert {node for _address, node in other.values()} == {node for _address, node in demo.values()}
    assert not {address.rpartition(".")[0] for address, _node in demo.values()} & {
        address.rpartition(".")[0] for address, _node in other.values()
    }
    before = received("alice"), received("bob")

    def send(user: str, victims: Demo) -> dict[str, list[str]]:
        return run_in_containers(user, "python3", "-c", _SEND, *(address for address, _node in victims.values()))

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(send, ("alice", "bob"), (other, demo))) == [{}, {}]
    assert (received("alice"), received("bob")) == before
    # The control: bob's containers do listen, and packets are counted.
    run_in_container("bob", "main1", "python3", "-c", _SEND, "sub3")
    assert received("bob")["sub3"] > before[1]["sub3"]


def test_a_session_does_not_reach_the_hosts_and_they_do_not_reach_it(demo: Demo, other: Demo) -> None:
    services = [f"{HOSTS[MANAGER]}:6817", *(f"{address}:{port}" for address in HOSTS.values() for port in (22, 6818))]
    words = LAB.run("gpu2", "python3", "-c", _CONNECT, *services).split()
    assert words[1::2] == ["connected"] * len(services)
    for lines in run_in_containers("alice", "python3", "-c", _CONNECT, *services).values():
        assert len(lines) == len(services)
        assert not [line for line in lines if "connected" in line]
    before = received("bob")
    for host in HOSTS:
        # From other hosts, a router towards other networks may answer for an unused address.
        targets = [f"{address}:4242" for address, node in other.values() if node == host]
        LAB.run(host, "python3", "-c", _SEND, *(address for address, _node in other.values()))
        assert "connected" not in LAB.run(host, "python3", "-c", _CONNECT, *targets)
    assert received("bob") == before


def test_sessions_reach_other_networks_from_ports_that_are_not_roots(demo: Demo) -> None:
    """A server on this machine sees the node's address."""
    links = json.loads(subprocess.run(["ip", "-4", "-json", "address"], check=True, capture_output=True).stdout)
    own = [one["local"] for link in links for one in link["addr_info"] if link["ifname"] != "lo"]
    subnet = HOSTS[MANAGER].rpartition(".")[0]
    address = next(one for one in own if one.rpartition(".")[0] != subnet)
    with socket.create_server((address, 0)) as server:
        server.settimeout(WAIT_TIMEOUT)

        def answer() -> tuple[str, int]:
            peer, seen = server.accept()
            peer.sendall(b"answer")
            peer.close()
            return str(seen[0]), int(seen[1])

        for name, (_address, node) in demo.items():
            with ThreadPoolExecutor() as pool:
                seen = pool.submit(answer)
                port = str(server.getsockname()[1])
                assert run_in_container("alice", name, "python3", "-c", _ASK_FROM, address, port).split() == ["answer"]
                found = seen.result()
            assert (found[0], found[1] >= 1024) == (HOSTS[node], True)
    for host in HOSTS:
        assert forwarding(host) == ["0", "0", "1"]


def test_rules_that_somebody_removes_are_loaded_again(demo: Demo) -> None:
    LAB.run("gpu2", "nft", "flush", "ruleset")

    def opened() -> bool:
        return '"eth0"' in LAB.run("gpu2", "nft", "list", "set", "inet", "gpumesh_session", "opened", check=False)

    LAB.wait_until("the rules are there again", opened, WAIT_TIMEOUT)
    chain = ("nft", "list", "chain", "inet", "gpumesh_session", "to_host")
    LAB.wait_until("that of the sessions is, too", lambda: "gms" in LAB.run("gpu2", *chain, check=False), WAIT_TIMEOUT)


def test_nobody_enters_the_session_of_another_user(demo: Demo) -> None:
    job = find_job_id("alice")
    assert "There is no session 'demo'" in run_as("carol", "gpumesh-session", "enter", "demo", check=False)
    said = run_as("carol", "srun", f"--jobid={job}", "--overlap", "hostname", check=False)
    assert "denied" in said or "Invalid" in said, said
    space = LAB.run("gpu1", "sh", "-c", f"ls /run/netns | grep '^gms{job}[.]'").split()[0]
    assert "not permitted" in run_as("carol", "nsenter", f"--net=/run/netns/{space}", "true", check=False)
    # Even a step by the owner of the session runs nowhere but in a container's slot.
    said = run_as(
        "alice", "srun", f"--jobid={job}", "--overlap", "--mem=0", "--ntasks=1", "--nodes=1", "id", check=False
    )
    assert "uid=" not in said, said


def test_a_job_cannot_claim_more_containers_than_it_has_cpus() -> None:
    """Whatever a user submits: its prolog would keep those of others waiting."""
    shown = "cat /run/gpumesh/session/$SLURM_JOB_ID/error; findmnt --noheadings --output=FSTYPE /run/gpumesh/session/$SLURM_JOB_ID"
    job = ["--nodes=1", "--nodelist=gpu2", "--ntasks=1", "--cpus-per-task=1", "--chdir=/tmp", "--output=/tmp/claimed"]
    run_as("carol", "env", "GPUMESH_SESSION=-;x;main;9", "sbatch", "--wait", *job, "--wrap", shown)
    printed = LAB.run("gpu2", "cat", "/tmp/claimed")
    assert "too few for 9 containers on one of them" in printed
    assert printed.split()[-1] == "tmpfs"


# --- Refused before anything starts


@pytest.mark.parametrize(
    ("roles", "more", "said"),
    [
        ([make_role("main", colour="red")], {}, "unknown field 'colour'"),
        ([make_role("main", gpus=1)], {}, "Slurm refuses the session"),
        ([make_role("main", "docker-archive:/mnt/shared/none.tar")], {}, "there is no image /mnt/shared/none.tar"),
        ([make_role("main", mounts=["/etc:/etc"])], {}, "the mount of /etc is not allowed"),
        (DEMO_ROLES, {}, "There is already a session 'demo'"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_starts(
    demo: Demo, roles: list[dict[str, object]], more: dict[str, object], said: str
) -> None:
    before = run_as("alice", "squeue", "--noheader", "--format=%A").split()
    if said != "There is already a session 'demo'":
        more = {**more, "session_name": "wrong"}
    printed = start_session("alice", roles, check=False, **more)
    assert printed.startswith("gpumesh-session: ") and said in printed, printed
    # A job of an earlier session may end meanwhile.
    assert set(run_as("alice", "squeue", "--noheader", "--format=%A").split()) <= set(before)


@pytest.mark.parametrize(
    ("image", "reason"),
    [("127.0.0.1:9/none:1", "refused"), (REGISTRY_IMAGE.replace(":1", ":none"), "manifest unknown")],
)
def test_an_image_that_cannot_be_fetched_ends_the_session_with_the_reason(demo: Demo, image: str, reason: str) -> None:
    printed = start_session("alice", [make_role("main", image)], check=False, session_name="none")
    assert re.search(rf"The image {image} cannot be fetched on gpu\d: .*{reason}", printed), printed


def fetched() -> Counter[tuple[str, str]]:
    """How often each host has fetched each layer of the image, by the registry's log."""
    log = LAB.run(MANAGER, "journalctl", "--unit=docker-registry", "--boot", "--output=cat")
    return Counter(re.findall(r'^(\S+) .*"GET /v2/pulled/blobs/(\S+) HTTP', log, re.MULTILINE))


def test_an_image_of_a_registry_is_fetched_once_by_each_node(demo: Demo) -> None:
    for _time in range(2):
        start_session(
            "alice",
            [make_role("main", REGISTRY_IMAGE), make_role("sub", REGISTRY_IMAGE, replicas=3)],
            session_name="pulled",
        )
        found = run_in_containers("alice", "cat", "/etc/image", name="pulled")
        assert sorted(found) == ["main1", "sub1", "sub2", "sub3"]
        assert [lines for lines in found.values() if lines != ["pulled"]] == []
        run_as("alice", "gpumesh-session", "stop", "pulled")
    # The journal has the lines of the registry a moment later.
    LAB.wait_until(
        "each has fetched it", lambda: {host for host, _part in fetched()} == set(HOSTS.values()), WAIT_TIMEOUT
    )
    assert set(fetched().values()) == {1}, fetched()
    assert REGISTRY_IMAGE in run_as("alice", "gpumesh-session", "images", host="gpu2")
    # The session demo needs its images.
    refused = run_as("alice", "gpumesh-session", "images", "--remove", REGISTRY_IMAGE, host="gpu2", check=False)
    assert "gpu2 runs the session" in refused, refused


# --- Ends


def test_what_is_stopped_leaves_nothing(demo: Demo, other: Demo) -> None:
    assert all(find_leftovers(host) for host in HOSTS)
    run_as("alice", "gpumesh-session", "stop", "demo")
    job = find_job_id("bob")
    run_as("bob", "scancel", str(job))
    assert_clean(WAIT_TIMEOUT)
    for host in HOSTS:
        LAB.wait_until(
            f"{host} does not forward any more", lambda host=host: forwarding(host) == ["0"] * 3, WAIT_TIMEOUT
        )


def test_a_session_ends_with_its_first_container() -> None:
    roles = [make_role("main", command="sleep 3"), make_role("sub", replicas=3, command="sleep 600")]
    start_session("alice", roles)
    LAB.wait_until("the session has ended", lambda: not run_as("alice", "squeue", "--noheader"), WAIT_TIMEOUT)
    assert_clean(WAIT_TIMEOUT)
    assert " · ended\n" in run_as("alice", "gpumesh-session", "show", "demo")


def test_images_are_removed_from_a_node() -> None:
    run_as("alice", "gpumesh-session", "images", "--remove", REGISTRY_IMAGE, host="gpu2")
    assert REGISTRY_IMAGE not in run_as("alice", "gpumesh-session", "images", host="gpu2")
    # By the name in the session's file, although podman knows an image from a file by none.
    assert "removed" in run_as("alice", "gpumesh-session", "images", "--remove", SECOND_IMAGE, host="gpu2")


def test_the_command_of_a_container_that_fails_is_told() -> None:
    command = ["sh", "-c", "echo there is no data >&2; exit 3"]
    printed = start_session("alice", [make_role("main"), make_role("sub", command=command)], check=False)
    assert re.search("sub1 on gpu[123] ended with status 3: there is no data\\.", printed), printed
    assert_clean(WAIT_TIMEOUT)
    # Later, from its log.
    said = r"failed: sub1 on gpu[123] ended with status 3: there is no data\."
    for words in (["show", "demo"], ["show"]):
        shown = run_as("alice", "gpumesh-session", *words)
        assert re.match(rf"demo: job \d+ · .* · {said}\nlog /mnt/shared/alice/", shown), shown


def test_a_container_that_takes_more_memory_than_its_role_ends() -> None:
    command = ["python3", "-c", "import time; kept = b'x' * (400 << 20); time.sleep(600)"]
    start_session("alice", [make_role("main", memory="1G"), make_role("sub", command=command)], check=False)
    LAB.wait_until("the session has ended", lambda: not run_as("alice", "squeue", "--noheader"), WAIT_TIMEOUT)
    assert re.search(r"demo;main,sub;\S+ failed ", run_as("alice", "squeue", "--states=FAILED", "--format=%A %k"))
    assert_clean(WAIT_TIMEOUT)


def registered() -> dict[str, str]:
    """When the slurmd of each node that last registered was started."""
    shown = LAB.run(MANAGER, "scontrol", "--oneliner", "show", "nodes")
    found = dict(re.findall(r"NodeName=(\S+) .*?SlurmdStartTime=(\S+)", shown))
    return {host: found[host] for host in HOSTS}


def listens(port: int) -> bool:
    """Whether alice publishes a port of a session on the manager."""
    found = LAB.run(MANAGER, "ss", "-Htlne", f"sport = :{port}")
    return "uid:2001" in found and HOSTS[MANAGER] in found


def test_slurmd_starts_again_while_a_session_runs() -> None:
    start_session("alice", DEMO_ROLES, session_ports=[8888])
    # The image that was removed is fetched again.
    assert run_in_containers("alice", "cat", "/etc/image")["sub1"] == ["two"]
    before = find_containers("alice")
    started = registered()
    # As after a reboot of the manager, which may be without containers of the session.
    LAB.run(MANAGER, "sh", "-c", "pkill -u alice -f '[f]orward [0-9]'; pkill -u alice -x ssh; true")
    LAB.wait_until("the port is closed", lambda: not listens(8888), WAIT_TIMEOUT)
    for host in HOSTS:
        LAB.run(host, "systemctl", "restart", "slurmd")
    # When a node registers, the controller ends the jobs that it does not find there.
    LAB.wait_until("all have registered", lambda: not started.items() & registered().items(), WAIT_TIMEOUT)
    assert find_containers("alice") == before
    LAB.wait_until("the port is published again", lambda: listens(8888), WAIT_TIMEOUT)
    assert run_in_container("alice", "main1", "ssh", "sub3", "hostname").strip() == "sub3"
    run_as("alice", "gpumesh-session", "stop", "demo")
    assert_clean(WAIT_TIMEOUT)


def test_a_node_dies_and_the_session_starts_again_elsewhere_with_the_same_names() -> None:
    """A node other than gpu1, which runs the controller."""
    start_session("alice", [make_role("main", cpus=2), make_role("sub", SECOND_IMAGE, cpus=2)], session_name="again")
    before = find_containers("alice", "again")
    nodes = {node for _address, node in before.values()}
    assert len(nodes) == 2
    # Slurm orders nodes as they registered, so these may be any two of the three.
    dead = max(nodes)
    left = {"gpu1", "gpu2", "gpu3"} - {dead}
    try:
        LAB.kill(dead)
        LAB.wait_until(
            "it runs again",
            lambda: (
                set(re.findall("gpu[123]", run_as("alice", "gpumesh-session", "list").partition("running on ")[2]))
                == left
            ),
            # Slurm notices it within 45 seconds, and starts the requeued job when its credentials have expired.
            900,
            2,
        )
        after = find_containers("alice", "again")
        assert {name: address for name, (address, _node) in after.items()} == {
            name: address for name, (address, _node) in before.items()
        }
        assert run_in_container("alice", "main1", "ssh", "sub1", "hostname", name="again").strip() == "sub1"
    finally:
        power_on(dead)
        run_as("alice", "gpumesh-session", "stop", "again", check=False)
    assert_clean(WAIT_TIMEOUT)
