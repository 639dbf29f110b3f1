# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods as nodes: containers with only the engine's default capabilities, and a real tailscaled.

The tests run in the order of the file; each leaves the cluster as it found it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT, Lab

#: Duration of the job that prints while it runs; set GPUMESH_JOB_SECONDS=600 for a long one.
SECONDS = int(os.environ.get("GPUMESH_JOB_SECONDS", "20"))
PODS = ("p1", "p2", "p3")
MEMBERS = ("m1", *PODS)
STATE = ROOT / ".lab" / "molecule-pods"


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return Lab("molecule-pods")


def as_user(lab: Lab, host: str, command: str, check: bool = True, timeout: float = 180) -> str:
    """Run a shell command as an ordinary user. Returns its stdout."""
    return lab.run(
        host,
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "sh",
        "-c",
        command,
        check=check,
        timeout=timeout,
    )


def nodes(lab: Lab) -> dict[str, str]:
    """The state of each node."""
    lines = lab.run("m1", "sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
    return dict(line.split() for line in lines)


def all_idle(lab: Lab) -> bool:
    return nodes(lab) == dict.fromkeys(MEMBERS, "idle")


def queue_is_empty(lab: Lab) -> bool:
    return lab.run("m1", "squeue", "--noheader") == ""


def kill_and_start(lab: Lab, pod: str, away: float = 0) -> None:
    """Stop and start a pod as a provider does that keeps its disk and runs our start command. ``away``: seconds between."""
    container = f"gpumesh-molecule-pods-{pod}"
    subprocess.run(["docker", "kill", container], check=True, capture_output=True)
    time.sleep(away)
    subprocess.run(["docker", "start", container], check=True, capture_output=True)
    lab.await_boot(pod, "/etc/supervisor/supervisord.conf")


def test_the_pods_have_no_more_than_the_engine_gives(lab: Lab) -> None:
    for pod in PODS:
        assert "00000000a80425fb" in lab.run(pod, "grep", "CapEff", "/proc/1/status")
        assert lab.run(pod, "grep", "Seccomp:", "/proc/1/status").split() == ["Seccomp:", "2"]
        assert lab.run(pod, "sh", "-c", "ls /dev/net/tun /run/systemd/system", check=False) == ""


def test_all_members_are_nodes(lab: Lab) -> None:
    lab.wait("all nodes are idle", lambda: all_idle(lab))


def test_two_of_them_are_behind_one_address(lab: Lab) -> None:
    hosts = lab.inventory.read_text()
    assert hosts.count("ansible_host: 10.77.61.1\n") == 2
    assert "ansible_port: 2202" in hosts and "ansible_port: 2203" in hosts


def test_a_second_site_changes_nothing(lab: Lab) -> None:
    run = lab.play("gpumesh.cluster.site")
    assert run.code == 0, run.output[-6000:]
    assert set(run.changed.values()) == {0}, run.changes
    assert "p1, p2, p3: pods" in run.words and "sh -c .supervisord -c" in run.words.replace(chr(39), ".")


@pytest.mark.parametrize("host", ["m1", "p1"])
def test_srun_on_all_nodes_from_the_manager_and_from_a_pod(lab: Lab, host: str) -> None:
    output = as_user(lab, host, "cd /tmp && srun -N4 sh -c 'echo $SLURMD_NODENAME $(id -u)'")
    assert sorted(output.splitlines()) == [f"{name} 65534" for name in sorted(MEMBERS)]


def test_the_controller_answers_a_pod(lab: Lab) -> None:
    assert "is UP" in lab.run("p1", "scontrol", "ping")


def test_jobs_on_pods_have_the_environment(lab: Lab) -> None:
    told = 'echo "$SLURM_PROCID $(hostname) $MASTER_ADDR $WORLD_SIZE $GLOO_SOCKET_IFNAME"'
    ranks = sorted(
        line.split() for line in as_user(lab, "m1", f"cd /tmp && srun -N3 -w p1,p2,p3 sh -c '{told}'").splitlines()
    )
    # Slurm orders nodes as they registered.
    address = lab.run("p1", "getent", "hosts", ranks[0][1]).split()[0]
    assert address.startswith("100.64.")
    assert [rank[:1] + rank[2:] for rank in ranks] == [[str(one), address, "3", "tailscale0"] for one in range(3)]
    assert {rank[1] for rank in ranks} == {"p1", "p2", "p3"}


def test_exit_codes_and_signals_come_back(lab: Lab) -> None:
    assert as_user(lab, "m1", "cd /tmp && srun -w p2 sh -c 'exit 7'; echo $?").split()[-1] == "7"
    assert as_user(lab, "p1", "cd /tmp && srun -w p3 sh -c 'kill -9 $$'; echo $?").split()[-1] == "137"
    interrupted = "cd /tmp && timeout --signal=TERM 8 srun -w p2 sleep 300; echo $?"
    started = time.monotonic()
    as_user(lab, "m1", interrupted)
    assert time.monotonic() - started < 60
    lab.wait("the step has ended", lambda: queue_is_empty(lab))


def test_input_passes(lab: Lab) -> None:
    assert as_user(lab, "m1", "cd /tmp && echo hello | srun -w p1 cat").strip() == "hello"


def test_batch_jobs_run_and_are_cancelled(lab: Lab) -> None:
    job = as_user(
        lab, "p1", "cd /tmp && sbatch --parsable -w p2 -o /tmp/out-%j --wrap 'hostname; srun hostname'"
    ).strip()
    lab.wait("the job has ended", lambda: queue_is_empty(lab))
    assert lab.run("p2", "cat", f"/tmp/out-{job}").split() == ["p2", "p2"]
    job = as_user(
        lab, "m1", "cd /tmp && sbatch --parsable -N3 -w p1,p2,p3 -o /dev/null --wrap 'srun sleep 600'"
    ).strip()
    lab.wait("the job runs", lambda: "RUNNING" in lab.run("m1", "squeue", "--noheader", "--format=%T"))
    as_user(lab, "p3", f"scancel {job}")
    lab.wait("the job is gone", lambda: queue_is_empty(lab))
    lab.wait("all nodes are idle", lambda: all_idle(lab))


def test_64_tasks(lab: Lab) -> None:
    output = as_user(lab, "m1", "cd /tmp && srun -N4 -n64 --overcommit printenv SLURM_PROCID", timeout=300)
    assert sorted(map(int, output.split())) == list(range(64))


def test_a_file_of_1_gb_is_broadcast(lab: Lab) -> None:
    script = (
        "head -c 1000000000 /dev/urandom > big && sha256sum < big && sbcast -f big /tmp/copy && srun sha256sum /tmp/copy;"
        "rm big; srun rm /tmp/copy"
    )
    output = as_user(lab, "m1", f"cd /tmp && salloc -Q -N3 -w p1,p2,p3 sh -c '{script}'", timeout=900)
    assert len({line.split()[0] for line in output.splitlines()}) == 1 and len(output.splitlines()) == 4


def test_the_output_of_a_job_comes_while_it_runs(lab: Lab) -> None:
    script = f"for i in $(seq {SECONDS}); do echo $i; sleep 1; done"
    # Append the time at which each line arrives.
    stamped = "while read -r line; do echo $line $(date +%s); done"
    output = as_user(lab, "m1", f"cd /tmp && srun -w p2 sh -c '{script}' | {stamped}", timeout=2 * SECONDS + 120)
    lines = [tuple(map(int, line.split())) for line in output.splitlines()]
    assert [number for number, _second in lines] == list(range(1, SECONDS + 1))
    times, half = [second for _number, second in lines], SECONDS // 2
    assert times[half - 1] - times[0] > SECONDS / 3 and times[-1] - times[half] > SECONDS / 3


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
    run = lab.play("gpumesh.cluster.check", "--extra-vars", json.dumps(given))
    assert run.code == 0, run.output[-6000:]
    verdict = json.loads((tmp_path / "pods" / "verdict.json").read_text())
    pairs = verdict["reachability"]["pairs"]
    assert {(pair["from"], pair["to"]) for pair in pairs} == {(a, b) for a in MEMBERS for b in MEMBERS if a != b}
    assert all(pair["bandwidth_gbps"] > 0 for pair in pairs)
    (collective,) = verdict["collectives"]
    assert (collective["ranks"], collective["nodes"], collective["status"]) == (4, 4, "pass")
    preload = {one["host"]: one["actual"] for one in verdict["checks"] if one["id"] == "mesh.preload"}
    assert preload == {"p1": "active; not for goes-alone (static)", "p2": "active", "p3": "active"}
    lab.run("p1", "sh", "-c", "pkill -x goes-alone; rm /usr/local/bin/goes-alone")


def test_ssh_between_all(lab: Lab) -> None:
    for one in MEMBERS:
        for other in MEMBERS:
            if one != other:
                assert lab.run(one, "ssh", "-o", "BatchMode=yes", other, "hostname").strip() == other


def test_who_logs_in_is_seen_with_the_address_of_the_mesh(lab: Lab) -> None:
    for one, other in (("m1", "p1"), ("p1", "p2")):
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


def test_training_over_three_pods(lab: Lab) -> None:
    for host in PODS:
        lab.copy(ROOT / "examples" / "ddp", host, "/opt/ddp")
        lab.run(host, "chmod", "-R", "a+rX", "/opt/ddp")
    # Debian builds PyTorch without libuv.
    command = "cd /tmp && USE_LIBUV=0 srun -N3 -w p1,p2,p3 --ntasks-per-node=1 python3 /opt/ddp/train.py"
    output = as_user(lab, "m1", command, timeout=400)
    assert "weights equal on all ranks" in output, output


def test_200_jobs_with_a_pod_killed_and_back(lab: Lab) -> None:
    submit = "cd /tmp && sbatch --quiet --array=1-200 -n1 --requeue -J many -o /dev/null --wrap 'sleep 0.2'"
    as_user(lab, "m1", submit)
    on_p3 = ("squeue", "--noheader", "--states=running", "--nodelist=p3")
    lab.wait("p3 runs some of them", lambda: lab.run("m1", *on_p3) != "", spacing=0.2)
    kill_and_start(lab, "p3", away=30)
    lab.wait("all jobs have ended", lambda: queue_is_empty(lab), 600)
    lab.wait("all nodes are idle", lambda: all_idle(lab), 300)
    # Jobs on the killed pod are requeued, so each job has completed exactly once.
    ended = lab.run("m1", "sacct", "--allocations", "--noheader", "--parsable2", "--name=many", "--format=state")
    assert ended.split() == ["COMPLETED"] * 200


def test_a_pod_that_was_restarted_has_everything_back(lab: Lab) -> None:
    """Including the names in /etc/hosts, which the engine rewrites."""
    kill_and_start(lab, "p3")
    lab.wait("p3 logs in", lambda: "p1" in lab.run("p3", "ssh", "-o", "BatchMode=yes", "p1", "hostname", check=False))
    lab.wait("all nodes are idle", lambda: all_idle(lab), 300)
    assert lab.run("p3", "ssh", "-o", "BatchMode=yes", "p1", "hostname").strip() == "p1"
    run = lab.play("gpumesh.cluster.site")
    assert run.code == 0, run.output[-6000:]
    assert set(run.changed.values()) == {0}, run.changes


def test_site_brings_back_a_pod_without_our_start_command(lab: Lab) -> None:
    container = "gpumesh-molecule-pods-p2"
    subprocess.run(["docker", "kill", container], check=True, capture_output=True)
    subprocess.run(["docker", "start", container], check=True, capture_output=True)
    # Slurm may notice only now that the pod was away, and cancels what it has just started there.
    run = lab.play("gpumesh.cluster.site", "--limit", "p2", "--skip-tags", "slurm", "-e", "check_level=quick")
    assert run.code == 0, run.output[-6000:]
    lab.wait("all nodes are idle", lambda: all_idle(lab), 300)
    check = lab.play("gpumesh.cluster.check", "-e", "check_level=quick")
    assert check.code == 0, check.output[-6000:]
    assert lab.run("p2", "ssh", "-o", "BatchMode=yes", "p1", "hostname").strip() == "p1"


def test_slurmd_gets_the_new_library(lab: Lab) -> None:
    def library() -> str:
        maps = "grep -o '/usr/local/lib/gpumesh/[^ ]*' /proc/$(pgrep -ox 'slurmd(-wlm)?')/maps | sort -u"
        return lab.run("p1", "sh", "-c", maps)

    former = library()
    limited = ("--limit", "m1,p1", "--skip-tags", "reachability")
    for given in (("-e", "mesh_proxy_port=1056"), ()):
        run = lab.play("gpumesh.cluster.site", *limited, *given)
        assert run.code == 0, run.output[-6000:]
        assert f"{library().strip()}\n" == lab.run("p1", "cat", "/etc/ld.so.preload")
        assert (library() == former) == (not given)
        lab.wait("all nodes are idle", lambda: all_idle(lab))
        assert lab.run("p1", "srun", "--nodes=4", "--chdir=/", "true") == ""


def test_the_option_is_not_switched_off_beneath_a_node(lab: Lab) -> None:
    run = lab.play("gpumesh.cluster.site", "-e", "mesh_userspace_nodes=false")
    assert run.code != 0
    assert "p1, p2, p3 in cluster pods: Slurm nodes without an interface of their tailnet" in run.words
    assert "Nothing has been changed." in run.words and not any(run.changed.values())


def test_a_pod_is_not_the_manager(lab: Lab) -> None:
    run = lab.play("gpumesh.cluster.remove", "-e", "cluster_machine=m1", "-e", "cluster_new_manager=p1")
    assert run.code != 0
    assert "p1 cannot be the manager or serve a volume. Nothing has been changed." in run.words


def test_a_pod_leaves(lab: Lab) -> None:
    key = (STATE / "api.key").read_text().strip()
    given = ("-e", f"mesh_api_key={key}", "-e", f"mesh_api_ca_path={STATE / 'cert.pem'}")
    started = time.monotonic()
    run = lab.play("gpumesh.cluster.remove", "-e", "cluster_machine=p3", *given)
    assert run.code == 0, run.output[-6000:]
    print(f"removed within {time.monotonic() - started:.0f} s")
    assert sorted(nodes(lab)) == ["m1", "p1", "p2"]
    assert lab.run("p3", "sh", "-c", "cat /etc/ld.so.preload; ls -d /usr/local/lib/gpumesh", check=False) == ""
    assert lab.run("p3", "sh", "-c", "ls -d /usr/local/sbin/gpumesh-names* /etc/supervisor/conf.d/*", check=False) == ""
    listed = json.loads(lab.run("m1", "headscale", "nodes", "list", "--output", "json"))
    assert "p3" not in {node["given_name"] for node in listed}
