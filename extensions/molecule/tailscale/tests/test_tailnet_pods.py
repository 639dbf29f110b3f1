# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods as nodes: containers with only the engine's default capabilities, and a real tailscaled.

They join the cluster of test_tailnet.py, together with its userspace-only member. The tests run in the order of the file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab_hosts import Lab
from pods_lab import (
    ALL_MEMBERS,
    LAB,
    MANAGER,
    NODES,
    PODS,
    PROXY_PORT,
    STATE_DIRECTORY,
    WAIT_TIMEOUT,
    await_all_idle,
    await_empty_queue,
    broadcast_file,
    join_pods,
    node_states,
    restart_pod,
    run_as_user,
    run_jobs_while_pod_dies,
    run_playbook,
    user_command,
)

#: Asks the proxy for a connection to a port of this pod, sends a word, and prints whether the connection was closed.
ASK_PROXY = """
import socket, sys
peer = socket.create_connection(("127.0.0.2", int(sys.argv[3])), 60)
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
    if set(node_states()) != set(NODES):
        join_pods()
    return LAB


def devices() -> dict[str, str]:
    """The devices that the control server knows: ID by name."""
    listed = json.loads(LAB.run("headscale", "headscale", "nodes", "list", "--output", "json"))
    return {node["given_name"]: node["id"] for node in listed}


def started(member: str) -> dict[str, str]:
    """The start time of each service of the member."""
    names = ("tailscaled", "munge", "slurmctld", "slurmd", "slurmdbd", "mariadb", "ssh")
    shown = LAB.run(member, "systemctl", "show", "--property=Id,ActiveEnterTimestampMonotonic", *names)
    found = [dict(line.split("=", 1) for line in unit.splitlines()) for unit in shown.strip().split("\n\n")]
    return {unit["Id"]: unit["ActiveEnterTimestampMonotonic"] for unit in found}


def test_the_pods_have_no_more_than_the_engine_gives(lab: Lab) -> None:
    for pod in PODS:
        assert "00000000a80425fb" in lab.run(pod, "grep", "CapEff", "/proc/1/status")
        assert lab.run(pod, "grep", "Seccomp:", "/proc/1/status").split() == ["Seccomp:", "2"]
        assert lab.run(pod, "sh", "-c", "ls /dev/net/tun /run/systemd/system", check=False) == ""


def test_the_pods_are_nodes_and_the_member_without_tun_is_none() -> None:
    await_all_idle()


def test_a_machine_whose_device_had_stayed_comes_back_as_the_same_device() -> None:
    """t3 was removed without the API. A second device of it would have another name."""
    assert sorted(devices()) == sorted(ALL_MEMBERS)


def test_they_are_behind_one_address(lab: Lab) -> None:
    hosts = lab.inventory.read_text()
    assert hosts.count("ansible_host: 10.77.60.1\n") == 2
    assert "ansible_port: 2201" in hosts and "ansible_port: 2202" in hosts


@pytest.mark.parametrize("host", [MANAGER, "p1"])
def test_srun_on_all_nodes_from_the_manager_and_from_a_pod(host: str) -> None:
    output = run_as_user(host, "srun -N4 sh -c 'echo $SLURMD_NODENAME $(id -u)'")
    assert sorted(output.splitlines()) == [f"{name} 65534" for name in sorted(NODES)]


def test_the_controller_answers_a_pod(lab: Lab) -> None:
    assert "is UP" in lab.run("p1", "scontrol", "ping")


def test_jobs_on_pods_have_the_environment(lab: Lab) -> None:
    told = 'echo "$SLURM_PROCID $(hostname) $MASTER_ADDR $WORLD_SIZE $GLOO_SOCKET_IFNAME"'
    ranks = sorted(line.split() for line in run_as_user(MANAGER, f"srun -N2 -w p1,p2 sh -c '{told}'").splitlines())
    # Slurm orders nodes as they registered.
    address = lab.run("p1", "getent", "hosts", ranks[0][1]).split()[0]
    assert address.startswith("100.64.")
    assert [rank[:1] + rank[2:] for rank in ranks] == [[str(one), address, "2", "tailscale0"] for one in range(2)]
    assert {rank[1] for rank in ranks} == {"p1", "p2"}


def test_exit_codes_and_signals_come_back(lab: Lab) -> None:
    assert run_as_user(MANAGER, "srun -w p2 sh -c 'exit 7'; echo $?").split()[-1] == "7"
    assert run_as_user("p1", "srun -w p2 sh -c 'kill -9 $$'; echo $?").split()[-1] == "137"
    # Quietly: srun says on stderr, which is combined with stdout, that its job waits for the end of the former one.
    with lab.start_command(MANAGER, *user_command("exec srun -Q -w p2 sh -c 'echo started; exec sleep 4711'")) as srun:
        assert srun.stdout and srun.stdout.readline() == "started\n"
        lab.run(MANAGER, "pkill", "-TERM", "-x", "-o", "srun")
        srun.wait(WAIT_TIMEOUT)
    await_empty_queue()
    assert lab.run("p2", "pgrep", "-f", "(^|/)sleep 4711$", check=False) == ""


def test_input_passes() -> None:
    assert run_as_user(MANAGER, "echo hello | srun -w p1 cat").strip() == "hello"


def test_batch_jobs_run_and_are_cancelled(lab: Lab) -> None:
    job = run_as_user("p1", "sbatch --parsable -w p2 -o /tmp/out-%j --wrap 'hostname; srun hostname'").strip()
    await_empty_queue()
    assert lab.run("p2", "cat", f"/tmp/out-{job}").split() == ["p2", "p2"]
    job = run_as_user(MANAGER, "sbatch --parsable -N2 -w p1,p2 -o /dev/null --wrap 'srun sleep 4711'").strip()
    lab.wait_until(
        "its step runs", lambda: lab.run("p1", "pgrep", "-f", "(^|/)sleep 4711$", check=False) != "", WAIT_TIMEOUT
    )
    run_as_user("p2", f"scancel {job}")
    await_empty_queue()
    await_all_idle()


def test_64_tasks() -> None:
    output = run_as_user(MANAGER, "srun -N4 -n64 --overcommit printenv SLURM_PROCID")
    assert sorted(map(int, output.split())) == list(range(64))


def test_a_file_is_broadcast() -> None:
    broadcast_file(50_000_000)


def test_the_output_of_a_job_comes_while_it_runs(lab: Lab) -> None:
    script = "echo first; until [ -e /tmp/seen ]; do sleep 0.2; done; echo last"
    with lab.start_command(MANAGER, *user_command(f'srun -Q -w p2 sh -c "{script}"')) as srun:
        assert srun.stdout and srun.stdout.readline() == "first\n"
        lab.run("p2", "touch", "/tmp/seen")
        assert srun.stdout.read() == "last\n"
    lab.run("p2", "rm", "/tmp/seen")


def test_the_check_at_level_full_knows_pods(lab: Lab, tmp_path: Path) -> None:
    """All ordered pairs, PyTorch collectives; a program that cannot use the library is named."""
    source = (
        "#include <sys/socket.h>\n#include <unistd.h>\n"
        "int main(void) { return listen(socket(AF_INET, SOCK_STREAM, 0), 1) || pause(); }"
    )
    build = f"echo '{source}' | gcc -static -x c - -o /usr/local/bin/goes-alone"
    lab.run("p1", "sh", "-c", f"{build} && (goes-alone > /dev/null 2>&1 &)")
    given = {
        "check_level": "full",
        "check_collective_max_bytes": 1 << 20,
        # It is measured by a timetable, which a busy machine may not keep.
        "reachability_throughput": False,
        # On a busy machine, a userspace tailscaled may take longer than the default for its first packets.
        "reachability_timeout": 60,
        "check_report_dir": str(tmp_path),
    }
    run = run_playbook("check", "--extra-vars", json.dumps(given))
    assert run.exit_status == 0, run.failure_report
    verdict = json.loads((tmp_path / "tailscale" / "verdict.json").read_text())
    pairs = [(pair["from"], pair["to"]) for pair in verdict["reachability"]["pairs"] if pair["verdict"] == "ok"]
    assert set(pairs) == {(a, b) for a in NODES for b in NODES if a != b}
    (collective,) = verdict["collectives"]
    assert (collective["ranks"], collective["nodes"], collective["status"]) == (4, 4, "pass")
    preload = {one["host"]: one["actual"] for one in verdict["checks"] if one["id"] == "mesh.preload"}
    assert preload == {"p1": "active; not for goes-alone (static)", "p2": "active"}
    lab.run("p1", "sh", "-c", "pkill -x goes-alone; rm /usr/local/bin/goes-alone")


def test_iperf3_measures_between_pods(lab: Lab) -> None:
    """With which the check measures the throughput."""
    with lab.start_command("p2", "iperf3", "--server", "--one-off", "--forceflush") as server:
        assert server.stdout and any("Server listening" in line for line in server.stdout)
        sent = json.loads(lab.run("p1", "iperf3", "--client", "p2", "--bytes", "10M", "--json", timeout=WAIT_TIMEOUT))
        server.stdout.read()
    assert sent["end"]["sum_received"]["bytes"] >= 10 << 20


def test_ssh_between_all(lab: Lab) -> None:
    for one in NODES:
        for other in NODES:
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
    with lab.start_command("p1", "python3", "-c", SERVE) as service:
        assert service.stdout
        port = service.stdout.readline().strip()
        ask = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-c", ASK_PROXY, port)
        for _attempt in range(3):
            assert lab.run("p1", *ask, "stranger", str(PROXY_PORT), timeout=WAIT_TIMEOUT).split() == [
                "connected",
                "True",
            ]
        dial = (
            "import socket, sys; socket.create_connection(('p1', int(sys.argv[1])), 60).sendall(sys.argv[2].encode())"
        )
        for word in ("member", "end"):
            lab.run(MANAGER, "python3", "-c", dial, port, word)
        seen = [line.split() for line in service.stdout.read().splitlines()]
    address = lab.run(MANAGER, "tailscale", "ip", "-4").strip()
    assert seen == [["member", address], ["end", address]]


def test_a_pod_that_dies_with_jobs_has_everything_back(lab: Lab) -> None:
    """Including the names in /etc/hosts, which the engine rewrites."""
    names = lab.read("p2", "/etc/hosts")
    run_jobs_while_pod_dies(20)
    login = ("ssh", "-o", "BatchMode=yes", "p1", "hostname")
    lab.wait_until("p2 logs in", lambda: lab.run("p2", *login, check=False).strip() == "p1", WAIT_TIMEOUT)
    assert sorted(lab.read("p2", "/etc/hosts").splitlines()) == sorted(names.splitlines())


def test_site_brings_back_a_pod_without_our_start_command_and_slurmd_gets_a_new_library(lab: Lab) -> None:
    def library() -> str:
        maps = "grep -o '/usr/local/lib/gpumesh/[^ ]*' /proc/$(pgrep -ox 'slurmd(-wlm)?')/maps | sort -u"
        return lab.run("p2", "sh", "-c", maps)

    former = library()
    restart_pod("p1")
    lab.wait_until("p1 accepts logins", lambda: lab.run("p1", "pgrep", "-x", "sshd", check=False) != "", WAIT_TIMEOUT)
    # Slurm may notice only now that p1 was away, and cancels what it has just started there.
    run = run_playbook("site", "--limit", f"{MANAGER},t3,p1,p2", "--skip-tags", "reachability,slurm")
    assert run.exit_status == 0, run.failure_report
    assert f"{library().strip()}\n" == lab.run("p2", "cat", "/etc/ld.so.preload")
    assert library() != former
    await_all_idle()
    assert lab.run("p2", "srun", "--nodes=4", "--chdir=/", "true", timeout=WAIT_TIMEOUT) == ""
    assert lab.run("p1", "ssh", "-o", "BatchMode=yes", "p2", "hostname").strip() == "p2"


def test_a_second_site_needs_no_key_changes_nothing_and_restarts_nothing() -> None:
    before = {member: started(member) for member in (MANAGER, "t2")}
    assert before[MANAGER]["tailscaled.service"] != "0"
    run = run_playbook("site")
    assert run.exit_status == 0, run.failure_report
    assert run.changed == dict.fromkeys(ALL_MEMBERS, 0), run.changes
    assert {member: started(member) for member in (MANAGER, "t2")} == before
    assert "t3 is a userspace-only member" in run.flat_output
    assert "t3: in the mesh of cluster 'tailscale', but excluded from storage and Slurm." in run.flat_output
    assert "p1, p2: pods" in run.flat_output and "sh -c .supervisord -c" in run.flat_output.replace(chr(39), ".")


def test_a_restart_of_a_member_brings_it_and_its_firewall_back(lab: Lab) -> None:
    address = lab.run("t2", "tailscale", "ip", "-4").strip()
    lab.stop("t2")
    lab.start("t2")
    asked = ("tailscale", "ip", "-4")
    lab.wait_until("t2 is in the tailnet again", lambda: lab.run("t2", *asked, check=False).strip() == address)
    lab.wait_until("its table is loaded at boot", lambda: "gpumesh-firewall" in lab.run("t2", "nft", "list", "tables"))
    await_all_idle()
    run = run_playbook("mesh", "--limit", "t2")
    assert run.exit_status == 0, run.failure_report
    assert run.changed == {"t2": 0}, run.changes


def test_a_pod_leaves(lab: Lab) -> None:
    key = (STATE_DIRECTORY / "api.key").read_text().strip()
    given = ("-e", f"mesh_api_key={key}", "-e", f"mesh_api_ca_path={STATE_DIRECTORY / 'cert.pem'}")
    run = run_playbook("remove", "-e", "cluster_machine=p2", "--limit", f"{MANAGER},p2", *given)
    assert run.exit_status == 0, run.failure_report
    assert sorted(node_states()) == ["p1", "t1", "t2"]
    assert lab.run("p2", "sh", "-c", "cat /etc/ld.so.preload; ls -d /usr/local/lib/gpumesh", check=False) == ""
    assert lab.run("p2", "sh", "-c", "ls -d /usr/local/sbin/gpumesh-names* /etc/supervisor/conf.d/*", check=False) == ""
    assert "p2" not in devices()
