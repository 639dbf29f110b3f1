# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of a cluster with all its layers. Each test continues from the state that the previous one left."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import host_state
import pytest
from lab_hosts import Lab, Run

MACHINES = ("l1", "l2", "l3")
RECORD = "/var/lib/gpumesh/clusters/life.json"
MUNGE_KEY = "/etc/munge/munge.key"
DAEMONS = ("munge", "slurmctld", "slurmdbd", "mariadb", "slurmd", "wg-quick@gpumesh0")

#: A job that records the times at which it runs, so that interruptions show as gaps.
HEARTBEAT = """#!/bin/sh
exec srun --ntasks=1 python3 -c '
import os, time
with open("/root/heartbeat", "w") as stream:
    while True:
        print(os.getpid(), os.environ["SLURM_JOB_ID"], time.time(), file=stream, flush=True)
        time.sleep(0.2)
'
"""


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return Lab("molecule-life_cycle")


@pytest.fixture(name="bare", scope="module")
def _bare(lab: Lab) -> dict[str, Any]:
    """The hosts as they were before the first run."""
    states: dict[str, Any] = json.loads((lab.inventory.parent / "before.json").read_text(encoding="utf-8"))
    return states


class Job(NamedTuple):
    """What the controller reports about a job that nothing may disturb."""

    state: str
    started: str
    restarts: str
    batch_host: str


def ends_well(run: Run) -> Run:
    assert run.code == 0, run.output[-6000:]
    return run


def refused(run: Run, *said: str) -> None:
    assert run.code != 0, run.output[-4000:]
    assert [text for text in said if text not in run.words] == [], run.output[-4000:]


def record(lab: Lab, host: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(lab.read(host, RECORD))
    return document


def members(lab: Lab, host: str) -> list[str]:
    return [member["machine"] for member in record(lab, host)["members"]]


def keys(lab: Lab, host: str) -> dict[str, str]:
    """What the record contains about the keys of the removed machines."""
    return {removed["machine"]: removed["keys"] for removed in record(lab, host)["removed"]}


def address(lab: Lab, host: str) -> str:
    """The mesh address of a member."""
    found = {member["machine"]: member["mesh"]["address"] for member in record(lab, host)["members"]}
    return found[host]


def job(lab: Lab, host: str, number: str) -> Job:
    shown = lab.run(host, "scontrol", "--oneliner", "show", "job", number)
    fields = dict(word.partition("=")[::2] for word in shown.split())
    return Job(fields["JobState"], fields["StartTime"], fields["Restarts"], fields.get("BatchHost", ""))


def running_job(lab: Lab, host: str) -> str:
    """The ID of the job that the earlier tests started."""
    (number,) = lab.run(host, "squeue", "--noheader", "--name=train", "--states=RUNNING", "--format=%i").split()
    return number


def heartbeats(lab: Lab, host: str) -> list[list[str]]:
    return [line.split() for line in lab.run(host, "cat", "/root/heartbeat").splitlines() if len(line.split()) == 3]


def start_job(lab: Lab, host: str, node: str) -> str:
    """Start a job on one core that runs until it is cancelled. Returns its ID."""
    options = f"--parsable --nodelist={node} --job-name=train --output=/root/slurm.out"
    number = lab.run(host, "sh", "-c", f'printf %s "$1" | sbatch {options}', "-", HEARTBEAT).strip()
    lab.wait("the job runs", lambda: "RUNNING" in job(lab, host, number) and bool(_beats(lab, node)))
    return number


def _beats(lab: Lab, node: str) -> str:
    return lab.run(node, "tail", "-n1", "/root/heartbeat", check=False)


def goes_on(lab: Lab, node: str) -> None:
    """Wait until the job has made progress by its own clock."""
    last = heartbeats(lab, node)[-1]
    lab.wait("the job works on", lambda: heartbeats(lab, node)[-1][2] > last[2], seconds=60)


def pids(lab: Lab, host: str) -> dict[str, str]:
    shown = lab.run(host, "systemctl", "show", "--property=Id,MainPID,ActiveEnterTimestampMonotonic", *DAEMONS)
    units = [dict(line.split("=", 1) for line in unit.splitlines()) for unit in shown.strip().split("\n\n")]
    return {unit["Id"]: f"{unit['MainPID']} {unit['ActiveEnterTimestampMonotonic']}" for unit in units}


def idle(lab: Lab, host: str, *nodes: str) -> Callable[[], bool]:
    def holds() -> bool:
        shown = lab.run(host, "sinfo", "--noheader", "--Node", "--format=%N %t", check=False).splitlines()
        states = dict(line.split() for line in shown)
        return set(states) == set(nodes) and set(states.values()) <= {"idle", "mix"}

    return holds


@contextmanager
def cut_off(lab: Lab, host: str) -> Iterator[None]:
    """No packet reaches the host or leaves it."""
    engine = ["docker", "inspect", "--format={{.State.Pid}}", f"gpumesh-{lab.name}-{host}"]
    pid = subprocess.run(engine, capture_output=True, text=True, check=True).stdout.strip()
    inside = ["nsenter", f"--target={pid}", "--net", "nft"]
    chains = "".join(
        f"chain {way} {{ type filter hook {way} priority -300; policy drop; }}\n" for way in ("input", "output")
    )
    subprocess.run([*inside, "-f", "-"], input=f"table inet partition {{\n{chains}}}\n", text=True, check=True)
    try:
        yield
    finally:
        subprocess.run([*inside, "delete", "table", "inet", "partition"], check=True)


def nothing_left(lab: Lab, bare: dict[str, Any], host: str) -> None:
    # The output of the tests' own jobs.
    lab.run(host, "rm", "-f", "/root/heartbeat", "/root/slurm.out")
    assert host_state.differences(bare[host], host_state.read(lab, host)) == []


# --- Joins under a running job


def test_a_job_does_not_notice_that_two_machines_join(lab: Lab) -> None:
    number = start_job(lab, "l1", "l1")
    before, daemons = job(lab, "l1", number), pids(lab, "l1")
    ends_well(lab.play("gpumesh.cluster.join", "-e", "cluster_machines=l2"))
    lab.wait("both nodes work", idle(lab, "l1", "l1", "l2"))
    with subprocess.Popen(
        ["docker", "exec", f"gpumesh-{lab.name}-l1", "ping", "-q", "-i0.2", "-W30", address(lab, "l2")],
        stdout=subprocess.PIPE,
        text=True,
    ) as ping:
        ends_well(lab.play("gpumesh.cluster.join", "-e", "cluster_machines=l3"))
        lab.run("l1", "pkill", "-INT", "-x", "ping")
        counted = ping.communicate(timeout=60)[0]
    assert " 0% packet loss" in counted
    lab.wait("all nodes work", idle(lab, "l1", *MACHINES))
    assert job(lab, "l1", number) == before
    assert pids(lab, "l1") == daemons
    goes_on(lab, "l1")
    assert {(beat[0], beat[1]) for beat in heartbeats(lab, "l1")} == {(heartbeats(lab, "l1")[0][0], number)}
    assert sorted(lab.run("l2", "srun", "-N3", "hostname").split()) == list(MACHINES)


def shown(lab: Lab) -> dict[str, Any]:
    """What the playbook show reports about the cluster."""
    run = ends_well(lab.play("gpumesh.cluster.show", "-e", "show_output=json"))
    (cluster,) = run.shown
    return cluster


def drift(lab: Lab) -> dict[str, dict[str, str]]:
    return {member["machine"]: member["drift"] for member in shown(lab)["members"]}


def test_show_finds_every_layer_and_no_drift(lab: Lab) -> None:
    cluster = shown(lab)
    assert cluster["machines"] == list(MACHINES)
    assert cluster["problems"] == []
    assert [member["copy"] for member in cluster["members"]] == ["current"] * 3
    assert [member["layers"] for member in cluster["members"]] == [["wireguard", "ssh", "munge", "slurm"]] * 3
    assert drift(lab) == {"l1": {}, "l2": {}, "l3": {}}


# --- Removals


def test_a_machine_with_a_job_does_not_leave(lab: Lab) -> None:
    number, before = running_job(lab, "l1"), record(lab, "l1")
    run = lab.play("gpumesh.cluster.remove", "-e", "cluster_machine=l1", "-e", "cluster_new_manager=l2")
    refused(run, f"{number} of root (train on l1)", "cannot leave", "cluster_force=true")
    assert record(lab, "l1") == record(lab, "l3") == before
    assert idle(lab, "l1", *MACHINES)()
    assert "RUNNING" in job(lab, "l1", number)


def test_the_manager_hands_over_with_queue_and_accounts(lab: Lab, bare: dict[str, Any]) -> None:
    ended = running_job(lab, "l1")
    lab.run("l1", "scancel", ended)
    lab.wait("the job has ended", lambda: "CANCELLED" in job(lab, "l1", ended))
    lab.wait("all nodes work", idle(lab, "l1", *MACHINES))
    running = start_job(lab, "l1", "l3")
    waiting = lab.run("l1", "sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=hostname").strip()
    run = ends_well(lab.play("gpumesh.cluster.remove", "-e", "cluster_machine=l1", "-e", "cluster_new_manager=l2"))
    assert "l1: removed from the cluster" in run.words and "cluster_untrusted=true" in run.words
    assert keys(lab, "l2") == {"l1": "kept"}
    assert members(lab, "l2") == members(lab, "l3") == ["l2", "l3"]
    assert record(lab, "l2")["manager"] == "l2"
    lab.wait("the nodes that stay work", idle(lab, "l2", "l2", "l3"))
    queue = dict(line.split() for line in lab.run("l3", "squeue", "--noheader", "--format=%i %T").splitlines())
    assert queue == {running: "RUNNING", waiting: "PENDING"}
    goes_on(lab, "l3")
    shown = lab.run("l3", "sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,State").splitlines()
    # Only some versions say who cancelled it: "CANCELLED by 0".
    history = dict(line.partition(" by ")[0].split("|") for line in shown)
    assert (history[ended], history[running]) == ("CANCELLED", "RUNNING")
    assert sorted(lab.run("l3", "srun", "-N2", "hostname").split()) == ["l2", "l3"]
    lab.run("l3", "scontrol", "release", waiting)
    lab.wait("the job that waited has run", lambda: "COMPLETED" in job(lab, "l2", waiting))
    nothing_left(lab, bare, "l1")


def test_show_says_layer_by_layer_what_differs(lab: Lab) -> None:
    """The join in the next test repairs it."""
    key = next(member["mesh"]["public_key"] for member in record(lab, "l2")["members"] if member["machine"] == "l3")
    lab.run("l2", "wg", "set", "gpumesh0", "peer", key, "remove")
    # In a container the file is a mount, which `sed -i` cannot replace.
    lab.run("l2", "sh", "-c", "grep -v ' l3$' /etc/hosts >/root/hosts; cat /root/hosts >/etc/hosts; rm /root/hosts")
    lab.run("l2", "rm", "/etc/gpumesh/ssh/life/known_hosts", "/etc/gpumesh/task_prolog")
    lab.run("l2", "systemctl", "disable", "munge.service")
    lab.run("l3", "systemctl", "disable", "slurmd.service")
    assert drift(lab) == {
        "l2": {
            "mesh": "would update l3",
            "names": "/etc/hosts differs",
            "munge": "munge.service does not start at boot",
            "ssh": "/etc/gpumesh/ssh/life/known_hosts is missing",
            "job environment": "/etc/gpumesh/task_prolog is missing",
        },
        "l3": {"slurm": "slurmd.service does not start at boot"},
    }


def test_a_join_through_a_partition_is_finished_by_the_next_run(lab: Lab) -> None:
    """The former manager joins again, and one member is cut off meanwhile."""
    number = running_job(lab, "l2")
    before = job(lab, "l2", number)
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(lab.play, "gpumesh.cluster.join", "-e", "cluster_machines=l1")
        lab.wait("the record has the new member", lambda: "l1" in members(lab, "l2") or joining.done(), seconds=300)
        with cut_off(lab, "l3"):
            refused(joining.result(), "[l3]: UNREACHABLE!")
            assert members(lab, "l2") == ["l2", "l3", "l1"]
            run = lab.play("gpumesh.cluster.show", "-e", "ansible_ssh_timeout=5")
            assert "l3 does not answer" in run.words, run.output
    ends_well(lab.play("gpumesh.cluster.join", "-e", "cluster_machines=l1"))
    assert record(lab, "l1") == record(lab, "l2") == record(lab, "l3")
    lab.wait("all nodes work", idle(lab, "l2", *MACHINES))
    assert sorted(lab.run("l1", "srun", "-N3", "hostname").split()) == list(MACHINES)
    assert drift(lab) == {"l1": {}, "l2": {}, "l3": {}}
    assert job(lab, "l2", number) == before
    goes_on(lab, "l3")


def test_a_lost_manager_is_followed_and_cleaned_up_when_it_is_back(lab: Lab, bare: dict[str, Any]) -> None:
    """It is declared untrusted as well, so the secrets that it knows become useless."""
    lost = ("-e", "cluster_machine=l2", "-e", "cluster_new_manager=l3", "-e", "cluster_manager_lost=true")
    lost += ("-e", "cluster_untrusted=true")
    known = lab.read("l2", MUNGE_KEY)
    refused(lab.play("gpumesh.cluster.remove", *lost), "l2 answers, so it is not lost")
    lab.stop("l2")
    try:
        run = ends_well(lab.play("gpumesh.cluster.remove", *lost, "-e", "ansible_ssh_timeout=5"))
        assert "disk of l2" in run.words
        assert "run the playbook remove with cluster_machine=l2 again" in run.words
        assert members(lab, "l1") == members(lab, "l3") == ["l3", "l1"]
        lab.wait("the nodes that are left work", idle(lab, "l3", "l1", "l3"))
        assert sorted(lab.run("l1", "srun", "-N2", "hostname").split()) == ["l1", "l3"]
        assert lab.read("l1", MUNGE_KEY) == lab.read("l3", MUNGE_KEY) != known
        assert keys(lab, "l3") == {"l2": "changed"}
        assert record(lab, "l1") == record(lab, "l3")
    finally:
        lab.start("l2")
    assert lab.read("l2", MUNGE_KEY) == known
    before, after = record(lab, "l2"), (record(lab, "l3"), lab.read("l3", MUNGE_KEY))
    refused(lab.play("gpumesh.cluster.mesh"), "l2 does not confirm that l3 follows it")
    ends_well(lab.play("gpumesh.cluster.mesh", "-e", "cluster_trusted_copy=l3"))
    assert record(lab, "l2") == before
    # The same command again cleans up the machine that was unreachable.
    assert "disk of l2" not in ends_well(lab.play("gpumesh.cluster.remove", *lost)).words
    assert (record(lab, "l3"), lab.read("l3", MUNGE_KEY)) == after
    nothing_left(lab, bare, "l2")


# --- The end


def test_a_cluster_in_use_is_not_deleted(lab: Lab) -> None:
    number, before = start_job(lab, "l3", "l1"), record(lab, "l3")
    login = ["docker", "exec", f"gpumesh-{lab.name}-l3", "ssh", "l1", "touch /run/came; exec sleep 600"]
    with subprocess.Popen(login) as session:
        lab.wait("the login is there", lambda: "came" in lab.run("l1", "ls", "/run"))
        refused(
            lab.play("gpumesh.cluster.delete"),
            f"job {number} of root (train on l1)",
            f"l1: root is logged in from {address(lab, 'l3')} (notty)",
            "cluster_force=true",
        )
        lab.run("l1", "sh", "-c", "rm /run/came; pkill -x sleep")
        session.wait(timeout=60)
    assert record(lab, "l3") == record(lab, "l1") == before
    goes_on(lab, "l1")


def test_deleted_by_force_it_leaves_nothing(lab: Lab, bare: dict[str, Any]) -> None:
    ends_well(lab.play("gpumesh.cluster.delete", "-e", "cluster_force=true"))
    for host in MACHINES:
        nothing_left(lab, bare, host)
