# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods as nodes: containers with only the engine's default capabilities, and a real tailscaled.

They join the cluster of test_tailnet.py. The tests run in the order of the file; each leaves the cluster as it found it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab_hosts import ROOT, Lab
from pods_lab import (
    LAB,
    MANAGER,
    MEMBERS,
    PATIENCE,
    PODS,
    STATE,
    as_user,
    await_all_idle,
    await_empty_queue,
    broadcast,
    join_pods,
    nodes,
    play,
    restart_pod,
    run_jobs_while_a_pod_dies,
    user_command,
)

#: Asks the proxy for a connection to a port of this pod, sends a word, and prints whether the connection was closed.
ASK_PROXY = """
import socket, sys
peer = socket.create_connection(("127.0.0.2", 1055), 60)
peer.sendall(bytes([5, 1, 0]))
assert peer.recv(2) == bytes([5, 0])
peer.sendall(bytes([5, 1, 0, 1]) + socket.inet_aton("127.0.0.1") + int(sys.argv[1]).to_bytes(2, "big"))
assert peer.recv(10)[1] == 0
peer.sendall(sys.argv[2].encode())
print("connected")
try:
    print(peer.recv(1) == b"")
except ConnectionResetError:
    print(True)
"""
#: A service of root: prints its port, and the first data and the address of each connection that it sees.
SERVE = """
import socket
listener = socket.create_server(("", 0))
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 600)
print(listener.getsockname()[1], flush=True)
data = b""
while data != b"end":
    peer, address = listener.accept()
    data = peer.recv(9)
    print(data.decode(), address[0], flush=True)
"""


@pytest.fixture(name="lab", scope="module", autouse=True)
def _lab() -> Lab:
    if set(nodes()) != set(MEMBERS):
        join_pods()
    return LAB


def test_the_pods_have_no_more_than_the_engine_gives(lab: Lab) -> None:
    for pod in PODS:
        assert "00000000a80425fb" in lab.run(pod, "grep", "CapEff", "/proc/1/status")
        assert lab.run(pod, "grep", "Seccomp:", "/proc/1/status").split() == ["Seccomp:", "2"]
        assert lab.run(pod, "sh", "-c", "ls /dev/net/tun /run/systemd/system", check=False) == ""


def test_all_members_are_nodes() -> None:
    await_all_idle()


def test_they_are_behind_one_address(lab: Lab) -> None:
    hosts = lab.inventory.read_text()
    assert hosts.count("ansible_host: 10.77.60.1\n") == 2
    assert "ansible_port: 2201" in hosts and "ansible_port: 2202" in hosts


def test_a_second_site_changes_nothing() -> None:
    run = play("site")
    assert run.code == 0, run.output[-6000:]
    assert run.changed == dict.fromkeys(MEMBERS, 0), run.changes
    assert "p1, p2: pods" in run.words and "sh -c .supervisord -c" in run.words.replace(chr(39), ".")


@pytest.mark.parametrize("host", [MANAGER, "p1"])
def test_srun_on_all_nodes_from_the_manager_and_from_a_pod(host: str) -> None:
    output = as_user(host, "srun -N4 sh -c 'echo $SLURMD_NODENAME $(id -u)'")
    assert sorted(output.splitlines()) == [f"{name} 65534" for name in sorted(MEMBERS)]


def test_the_controller_answers_a_pod(lab: Lab) -> None:
    assert "is UP" in lab.run("p1", "scontrol", "ping")


def test_jobs_on_pods_have_the_environment(lab: Lab) -> None:
    told = 'echo "$SLURM_PROCID $(hostname) $MASTER_ADDR $WORLD_SIZE $GLOO_SOCKET_IFNAME"'
    ranks = sorted(line.split() for line in as_user(MANAGER, f"srun -N2 -w p1,p2 sh -c '{told}'").splitlines())
    # Slurm orders nodes as they registered.
    address = lab.run("p1", "getent", "hosts", ranks[0][1]).split()[0]
    assert address.startswith("100.64.")
    assert [rank[:1] + rank[2:] for rank in ranks] == [[str(one), address, "2", "tailscale0"] for one in range(2)]
    assert {rank[1] for rank in ranks} == {"p1", "p2"}


def test_exit_codes_and_signals_come_back(lab: Lab) -> None:
    assert as_user(MANAGER, "srun -w p2 sh -c 'exit 7'; echo $?").split()[-1] == "7"
    assert as_user("p1", "srun -w p2 sh -c 'kill -9 $$'; echo $?").split()[-1] == "137"
    # Quietly: srun says on stderr, which is combined with stdout, that its job waits for the end of the former one.
    with lab.begin_command(MANAGER, *user_command("exec srun -Q -w p2 sh -c 'echo started; exec sleep 4711'")) as srun:
        assert srun.stdout and srun.stdout.readline() == "started\n"
        lab.run(MANAGER, "pkill", "-TERM", "-x", "-o", "srun")
        srun.wait(PATIENCE)
    await_empty_queue()
    assert lab.run("p2", "pgrep", "-f", "(^|/)sleep 4711$", check=False) == ""


def test_input_passes() -> None:
    assert as_user(MANAGER, "echo hello | srun -w p1 cat").strip() == "hello"


def test_batch_jobs_run_and_are_cancelled(lab: Lab) -> None:
    job = as_user("p1", "sbatch --parsable -w p2 -o /tmp/out-%j --wrap 'hostname; srun hostname'").strip()
    await_empty_queue()
    assert lab.run("p2", "cat", f"/tmp/out-{job}").split() == ["p2", "p2"]
    job = as_user(MANAGER, "sbatch --parsable -N2 -w p1,p2 -o /dev/null --wrap 'srun sleep 4711'").strip()
    lab.wait("its step runs", lambda: lab.run("p1", "pgrep", "-f", "(^|/)sleep 4711$", check=False) != "", PATIENCE)
    as_user("p2", f"scancel {job}")
    await_empty_queue()
    await_all_idle()


def test_64_tasks() -> None:
    output = as_user(MANAGER, "srun -N4 -n64 --overcommit printenv SLURM_PROCID")
    assert sorted(map(int, output.split())) == list(range(64))


def test_a_file_is_broadcast() -> None:
    broadcast(50_000_000)


def test_the_output_of_a_job_comes_while_it_runs(lab: Lab) -> None:
    script = "echo first; until [ -e /tmp/seen ]; do sleep 0.2; done; echo last"
    with lab.begin_command(MANAGER, *user_command(f'srun -Q -w p2 sh -c "{script}"')) as srun:
        assert srun.stdout and srun.stdout.readline() == "first\n"
        lab.run("p2", "touch", "/tmp/seen")
        assert srun.stdout.read() == "last\n"
    lab.run("p2", "rm", "/tmp/seen")


def test_the_check_at_level_full_knows_pods(lab: Lab, tmp_path: Path) -> None:
    """All ordered pairs, throughput, PyTorch collectives; a program that cannot use the library is named."""
    source = (
        "#include <sys/socket.h>\n#include <unistd.h>\n"
        "int main(void) { return listen(socket(AF_INET, SOCK_STREAM, 0), 1) || pause(); }"
    )
    build = f"echo '{source}' | gcc -static -x c - -o /usr/local/bin/goes-alone"
    lab.run("p1", "sh", "-c", f"{build} && (goes-alone > /dev/null 2>&1 &)")
    given = {
        "check_level": "full",
        "check_collective_max_bytes": 1 << 20,
        # On a busy machine, a shorter measurement may show one link at a fifth of another.
        "reachability_throughput_seconds": 3,
        "check_report_dir": str(tmp_path),
    }
    run = play("check", "--extra-vars", json.dumps(given))
    assert run.code == 0, run.output[-6000:]
    verdict = json.loads((tmp_path / "tailscale" / "verdict.json").read_text())
    pairs = verdict["reachability"]["pairs"]
    assert {(pair["from"], pair["to"]) for pair in pairs} == {(a, b) for a in MEMBERS for b in MEMBERS if a != b}
    assert all(pair["bandwidth_gbps"] > 0 for pair in pairs)
    (collective,) = verdict["collectives"]
    assert (collective["ranks"], collective["nodes"], collective["status"]) == (4, 4, "pass")
    preload = {one["host"]: one["actual"] for one in verdict["checks"] if one["id"] == "mesh.preload"}
    assert preload == {"p1": "active; not for goes-alone (static)", "p2": "active"}
    lab.run("p1", "sh", "-c", "pkill -x goes-alone; rm /usr/local/bin/goes-alone")


def test_ssh_between_all(lab: Lab) -> None:
    for one in MEMBERS:
        for other in MEMBERS:
            if one != other:
                assert lab.run(one, "ssh", "-o", "BatchMode=yes", other, "hostname").strip() == other


def test_who_logs_in_is_seen_with_the_address_of_the_mesh(lab: Lab) -> None:
    for one, other in ((MANAGER, "p1"), ("p1", "p2")):
        words = lab.run(one, "ssh", other, "printenv", "SSH_CONNECTION").split()
        assert all(address.startswith("100.64.") for address in (words[0], words[2])), words


def test_another_user_of_a_pod_does_not_pose_as_a_member(lab: Lab) -> None:
    program = (
        "import os, socket; listener = socket.create_server(('', 0)); port = listener.getsockname()[1]\n"
        "if os.fork() == 0:\n"
        "    os.setuid(65534); peer = socket.create_connection(('127.0.0.1', port)); peer.recv(1); os._exit(0)\n"
        "print(listener.accept()[1][0])"
    )
    assert lab.run("p1", "python3", "-c", program).strip() == "127.0.0.1"


def test_services_of_a_pod_do_not_see_who_comes_from_its_proxy(lab: Lab) -> None:
    """tailscaled connects any account to 127.0.0.1, as root. Members that come meanwhile are served."""
    with lab.begin_command("p1", "python3", "-c", SERVE) as service:
        assert service.stdout
        port = service.stdout.readline().strip()
        ask = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-c", ASK_PROXY, port)
        for _ in range(3):
            assert lab.run("p1", *ask, "stranger", timeout=PATIENCE).split() == ["connected", "True"]
        dial = (
            "import socket, sys; socket.create_connection(('p1', int(sys.argv[1])), 60).sendall(sys.argv[2].encode())"
        )
        for word in ("member", "end"):
            lab.run(MANAGER, "python3", "-c", dial, port, word)
        seen = [line.split() for line in service.stdout.read().splitlines()]
    address = lab.run(MANAGER, "tailscale", "ip", "-4").strip()
    assert seen == [["member", address], ["end", address]]


def test_training_over_pods(lab: Lab) -> None:
    for host in PODS:
        lab.copy(ROOT / "examples" / "ddp", host, "/opt/ddp")
        lab.run(host, "chmod", "-R", "a+rX", "/opt/ddp")
    # Debian builds PyTorch without libuv.
    command = "USE_LIBUV=0 srun -N2 -w p1,p2 --ntasks-per-node=1 python3 /opt/ddp/train.py"
    assert "weights equal on all ranks" in as_user(MANAGER, command)


def test_a_pod_that_dies_with_jobs_has_everything_back(lab: Lab) -> None:
    """Including the names in /etc/hosts, which the engine rewrites."""
    run_jobs_while_a_pod_dies(20)
    login = ("ssh", "-o", "BatchMode=yes", "p1", "hostname")
    lab.wait("p2 logs in", lambda: lab.run("p2", *login, check=False).strip() == "p1", PATIENCE)
    run = play("site")
    assert run.code == 0, run.output[-6000:]
    assert run.changed == dict.fromkeys(MEMBERS, 0), run.changes


def test_site_brings_back_a_pod_without_our_start_command(lab: Lab) -> None:
    restart_pod("p2")
    # Slurm may notice only now that the pod was away, and cancels what it has just started there.
    run = play("site", "--limit", "p2", "--skip-tags", "slurm", "-e", "check_level=quick")
    assert run.code == 0, run.output[-6000:]
    await_all_idle()
    check = play("check", "-e", "check_level=quick")
    assert check.code == 0, check.output[-6000:]
    assert lab.run("p2", "ssh", "-o", "BatchMode=yes", "p1", "hostname").strip() == "p1"


def test_slurmd_gets_the_new_library(lab: Lab) -> None:
    def library() -> str:
        maps = "grep -o '/usr/local/lib/gpumesh/[^ ]*' /proc/$(pgrep -ox 'slurmd(-wlm)?')/maps | sort -u"
        return lab.run("p1", "sh", "-c", maps)

    former = library()
    limited = ("--limit", f"{MANAGER},p1", "--skip-tags", "reachability")
    for given in (("-e", "mesh_proxy_port=1056"), ()):
        run = play("site", *limited, *given)
        assert run.code == 0, run.output[-6000:]
        assert f"{library().strip()}\n" == lab.run("p1", "cat", "/etc/ld.so.preload")
        assert (library() == former) == (not given)
        await_all_idle()
        assert lab.run("p1", "srun", "--nodes=4", "--chdir=/", "true", timeout=PATIENCE) == ""


def test_the_option_is_not_switched_off_beneath_a_node() -> None:
    run = play("site", "-e", "mesh_userspace_nodes=false")
    assert run.code != 0
    assert "p1, p2 in cluster tailscale: Slurm nodes without an interface of their tailnet" in run.words
    assert "Nothing has been changed." in run.words and not any(run.changed.values())


def test_a_pod_is_not_the_manager() -> None:
    run = play("remove", "-e", f"cluster_machine={MANAGER}", "-e", "cluster_new_manager=p1")
    assert run.code != 0
    assert "p1 cannot be the manager or serve a volume. Nothing has been changed." in run.words


def test_a_pod_leaves(lab: Lab) -> None:
    key = (STATE / "api.key").read_text().strip()
    given = ("-e", f"mesh_api_key={key}", "-e", f"mesh_api_ca_path={STATE / 'cert.pem'}")
    run = play("remove", "-e", "cluster_machine=p2", *given)
    assert run.code == 0, run.output[-6000:]
    assert sorted(nodes()) == ["p1", "t1", "t2"]
    assert lab.run("p2", "sh", "-c", "cat /etc/ld.so.preload; ls -d /usr/local/lib/gpumesh", check=False) == ""
    assert lab.run("p2", "sh", "-c", "ls -d /usr/local/sbin/gpumesh-names* /etc/supervisor/conf.d/*", check=False) == ""
    listed = json.loads(lab.run("headscale", "headscale", "nodes", "list", "--output", "json"))
    assert "p2" not in {node["given_name"] for node in listed}
