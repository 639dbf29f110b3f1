# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What pods must do as nodes, asked of containers with the engine's own capabilities and a real tailscaled.

The tests run in the order of the file; each leaves the cluster as it found it.
"""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT, Lab

PODS = ("p1", "p2", "p3")
MEMBERS = ("m1", *PODS)
STATE = ROOT / ".lab" / "molecule-pods"


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return Lab("molecule-pods")


def as_user(lab: Lab, host: str, command: str, check: bool = True, timeout: float = 180) -> str:
    """Run a command of the shell as an ordinary user."""
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


def test_the_pods_have_no_more_than_the_engine_gives(lab: Lab) -> None:
    for pod in PODS:
        assert "00000000a80425fb" in lab.run(pod, "grep", "CapEff", "/proc/1/status")
        assert lab.run(pod, "grep", "Seccomp:", "/proc/1/status").split() == ["Seccomp:", "2"]
        assert lab.run(pod, "sh", "-c", "ls /dev/net/tun /run/systemd/system", check=False) == ""


def test_all_members_are_nodes(lab: Lab) -> None:
    lab.wait("all nodes are idle", lambda: all_idle(lab))


def test_a_second_site_changes_nothing(lab: Lab) -> None:
    run = lab.play("gpumesh.cluster.site")
    assert run.code == 0, run.output[-6000:]
    assert set(run.changed.values()) == {0}, run.output[-6000:]
    assert "p1, p2, p3: pods" in run.words and "sh -c .supervisord -c" in run.words.replace(chr(39), ".")


@pytest.mark.parametrize("host", ["m1", "p1"])
def test_srun_on_all_nodes_from_the_manager_and_from_a_pod(lab: Lab, host: str) -> None:
    output = as_user(lab, host, "cd /tmp && srun -N4 sh -c 'echo $SLURMD_NODENAME $(id -u)'")
    assert sorted(output.splitlines()) == [f"{name} 65534" for name in sorted(MEMBERS)]


def test_exit_codes_and_signals_come_back(lab: Lab) -> None:
    assert as_user(lab, "m1", "cd /tmp && srun -w p2 sh -c 'exit 7'; echo $?").split()[-1] == "7"
    assert as_user(lab, "p1", "cd /tmp && srun -w p3 sh -c 'kill -9 $$'; echo $?").split()[-1] == "137"
    interrupted = "cd /tmp && timeout --signal=TERM 8 srun -w p2 sleep 300; echo $?"
    started = time.monotonic()
    as_user(lab, "m1", interrupted)
    assert time.monotonic() - started < 60
    lab.wait("the step has ended", lambda: lab.run("m1", "squeue", "--noheader") == "")


def test_input_passes(lab: Lab) -> None:
    assert as_user(lab, "m1", "cd /tmp && echo hello | srun -w p1 cat").strip() == "hello"


def test_batch_jobs_run_and_are_cancelled(lab: Lab) -> None:
    job = as_user(
        lab, "p1", "cd /tmp && sbatch --parsable -w p2 -o /tmp/out-%j --wrap 'hostname; srun hostname'"
    ).strip()
    lab.wait("the job has ended", lambda: lab.run("m1", "squeue", "--noheader") == "")
    assert lab.run("p2", "cat", f"/tmp/out-{job}").split() == ["p2", "p2"]
    job = as_user(
        lab, "m1", "cd /tmp && sbatch --parsable -N3 -w p1,p2,p3 -o /dev/null --wrap 'srun sleep 600'"
    ).strip()
    lab.wait("the job runs", lambda: "RUNNING" in lab.run("m1", "squeue", "--noheader", "--format=%T"))
    as_user(lab, "p3", f"scancel {job}")
    lab.wait("the job is gone", lambda: lab.run("m1", "squeue", "--noheader") == "")
    lab.wait("all nodes are idle", lambda: all_idle(lab))


def test_64_tasks(lab: Lab) -> None:
    output = as_user(lab, "m1", "cd /tmp && srun -N4 -n64 --overcommit printenv SLURM_PROCID", timeout=300)
    assert sorted(map(int, output.split())) == list(range(64))


def test_a_file_of_50_mb_is_broadcast(lab: Lab) -> None:
    script = "cd /tmp && head -c 50000000 /dev/urandom > big && sha256sum < big && sbcast -f big /tmp/copy && srun sha256sum /tmp/copy"
    output = as_user(lab, "m1", f"cd /tmp && salloc -Q -N3 -w p1,p2,p3 sh -c '{script}'", timeout=400)
    assert len({line.split()[0] for line in output.splitlines()}) == 1 and len(output.splitlines()) == 4


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
    submit = (
        "cd /tmp && for i in $(seq 200); do sbatch --quiet -n1 --requeue -J many -o /dev/null --wrap 'sleep 0.2'; done"
    )
    as_user(lab, "m1", submit, timeout=300)
    subprocess.run(["docker", "kill", "gpumesh-molecule-pods-p3"], check=True, capture_output=True)
    # One that is back within 20 s may leave a job that Slurm takes for one that is still starting; the guide says so.
    time.sleep(30)
    subprocess.run(["docker", "start", "gpumesh-molecule-pods-p3"], check=True, capture_output=True)
    lab.await_boot("p3", "/etc/supervisor/supervisord.conf")
    lab.wait("all jobs have ended", lambda: lab.run("m1", "squeue", "--noheader") == "", 600)
    lab.wait("all nodes are idle", lambda: all_idle(lab), 300)
    # A job of the pod that was killed begins once more, so each has one end.
    ended = lab.run("m1", "sacct", "--allocations", "--noheader", "--parsable2", "--name=many", "--format=state")
    assert ended.split() == ["COMPLETED"] * 200


def test_a_pod_that_was_restarted_gets_its_names_back(lab: Lab) -> None:
    """The engine writes /etc/hosts anew. Nothing else is missing."""
    run = lab.play("gpumesh.cluster.site")
    assert run.code == 0, run.output[-6000:]
    assert run.changed == {"m1": 0, "p1": 0, "p2": 0, "p3": 1}, run.output[-6000:]


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
    assert lab.run("p3", "sh", "-c", "cat /etc/ld.so.preload; ls /usr/local/lib/gpumesh/*.so", check=False) == ""
    listed = json.loads(lab.run("m1", "headscale", "nodes", "list", "--output", "json"))
    assert "p3" not in {node["given_name"] for node in listed}
