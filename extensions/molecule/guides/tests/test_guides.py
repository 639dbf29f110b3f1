# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guides for a LAN and for the days after, typed as written, by a user who has the archive and three machines.

The commands are taken from the text of the guides. Only addresses and the mesh differ, and the collection is installed
from its archive, since there is no Galaxy here. The tests run in the order of the file: this is the life of a cluster
with all its layers, from bare machines to machines that are as bare as before, and each test continues from the state
that the previous one left.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import host_state
import pytest
from desk import GUIDES_DIRECTORY, GuideRunner
from lab_hosts import AnsibleRun, Lab

from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT, install
from ansible_collections.gpumesh.cluster.tests.publication.guides import blocks, console_lines

MACHINES = ("gpu1", "gpu2", "gpu3")
#: The network of these machines.
OURS = "10.77.95."
RECORD = "/var/lib/gpumesh/clusters/lan.json"
MUNGE_KEY = "/etc/munge/munge.key"
DAEMONS = ("munge", "slurmctld", "slurmdbd", "mariadb", "slurmd", "wg-quick@gpumesh0")
#: Seconds for what happens within seconds on a machine that is not busy.
PATIENCE = 600.0
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
#: Waits until the record has a member.
AWAIT_MEMBER = """
import json, sys, time
while sys.argv[1] not in [member["machine"] for member in json.load(open(sys.argv[2]))["members"]]:
    time.sleep(0.1)
"""
#: Commands of these guides that are not typed here, and where they are tested.
ELSEWHERE = {
    # Here it is gpu2 that is lost, as the manager to which gpu1 has handed over.
    (
        "ansible-playbook -i inventories/lan gpumesh.cluster.remove -e cluster_machine=gpu1 -e cluster_new_manager=gpu2 "
        "-e cluster_manager_lost=true"
    ),
    # The first ten minutes type it with their own inventory, and troubleshooting with a subnet.
    "ansible-playbook -i inventories/lan gpumesh.cluster.discover",
    # Scenario `registry` joins a member again.
    "ansible-playbook -i inventories/lan gpumesh.cluster.join -e cluster_machines=gpu2",
    # Scenario `default` does this on bare hosts. On those of a cluster, it is typed here.
    "ansible-playbook -i my-lan gpumesh.cluster.site --check --diff",
    # Scenario `default` removes a machine without a time limit.
    "ansible-playbook -i inventories/lan gpumesh.cluster.remove -e cluster_machine=gpu3",
    # Scenario `kernel` reboots machines, which have a kernel of their own there, with each of these options.
    "ansible-playbook -i inventories/lan gpumesh.cluster.reboot --check",
    "ansible-playbook -i inventories/lan gpumesh.cluster.reboot -e cluster_drain_timeout=86400",
    "ansible-playbook -i inventories/lan gpumesh.cluster.reboot --limit gpu2,gpu3",
    # Scenario `wireguard` rotates the keys of a mesh.
    "ansible-playbook -i inventories/rented gpumesh.cluster.mesh -e mesh_rotate_keys=true",
    # Scenario `slurm` rotates munge's key, has accounts and limits, and runs the examples.
    "ansible-playbook -i inventories/lan gpumesh.cluster.slurm -e munge_rotate_key=true",
    "ansible-playbook -i inventories/lan gpumesh.cluster.slurm",
    "ansible cluster -i my-lan --become -m ansible.builtin.apt -a name=python3-torch",
    "scp -r gpumesh/examples admin@192.168.1.11:/mnt/shared/",
    "cd /mnt/shared/examples/ddp",
    "sbatch train.sbatch",
    # Scenario `slurm` asks slurmrestd with a token, over TLS from other members and on its socket.
    "(umask 077; scontrol token | sed 's/SLURM_JWT=/X-SLURM-USER-TOKEN: /' > token)",
    (
        "curl --header X-SLURM-USER-NAME:root --header @token --cacert /etc/gpumesh/slurm-rest-ca.crt "
        "https://10.0.0.11:6820/slurm/v0.0.41/nodes"
    ),
    (
        "curl --header X-SLURM-USER-NAME:root --header @token --unix-socket /run/gpumesh-rest/socket "
        "http://localhost/slurm/v0.0.41/nodes"
    ),
    # Scenario `check` covers the parts, the levels and the speed of volumes, and `site` ends with the default level here.
    # Volumes served by a member are covered by `kernel`.
    "ansible-playbook -i inventories/lan gpumesh.cluster.check",
    "ansible-playbook -i inventories/lan gpumesh.cluster.check --tags reachability",
    "ansible-playbook -i inventories/lan gpumesh.cluster.check -e check_level=full",
    "ansible-playbook -i inventories/lan gpumesh.cluster.check -e check_level=full -e check_min_volume_read_mbps=500",
    "ansible-playbook -i inventories/lan gpumesh.cluster.storage",
    # Scenarios `default` and `tailscale` name other groups.
    "ansible-playbook -i inventories/lan gpumesh.cluster.site -e cluster_hosts=lab_b",
    # The fixture installs the archive. That a checkout gives the same is a test of publication.
    "python3 -m venv ~/ansible",
    ". ~/ansible/bin/activate",
    "pip install 'ansible-core>=2.18,<2.22' paramiko netaddr",
    "git clone https://github.com/gpumesh/gpumesh.cluster gpumesh",
    "git -C gpumesh pull",
    "ansible-galaxy collection install --force ./gpumesh",
}


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab("molecule-guides")


@pytest.fixture(scope="session")
def bare(lab: Lab) -> dict[str, dict[str, Any]]:
    """The machines before the first run."""
    states = {machine: host_state.read_state(lab, machine) for machine in MACHINES}
    assert not any(host_state.find_differences(state, state) for state in states.values())
    assert not any("/var/lib/gpumesh" in state["files"] for state in states.values())
    return states


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory, lab: Lab) -> GuideRunner:
    made = GuideRunner(install(tmp_path_factory.mktemp("guides")), lab, OURS)
    for block in blocks(GUIDES_DIRECTORY / "lan.md"):
        if block.file:
            made.write(block.file, adapted(block.text))
    for path in sorted((ROOT / "inventories" / "lan").rglob("*.yml")):
        made.write(str(path.relative_to(ROOT)), adapted(path.read_text()))
    return made


def adapted(text: str) -> str:
    """An inventory for machines that are containers, whose kernel may have no NFS: scenario `kernel` covers the volumes.

    It chooses WireGuard, as its comment suggests, so that a tunnel is among the layers. Scenario `check` has no mesh. The
    inventory of day 2 sets the variable of that of the first ten minutes.
    """
    text = re.sub(r"^# (job_environment_variables: )", r"\1", text, flags=re.MULTILINE)
    text = re.sub(r"^storage_volumes:\n(?: .*\n)+", "", text, flags=re.MULTILINE)
    return re.sub(r"^mesh_backend: none$", "mesh_backend: wireguard", text, flags=re.MULTILINE)


class Job(NamedTuple):
    """What the controller reports about a job that nothing may disturb."""

    state: str
    started: str
    restarts: str
    batch_host: str


def play(desk: GuideRunner, playbook: str, *arguments: str) -> AnsibleRun:
    """Run a playbook as the guide for day 2 does, with options that it does not type, whether it succeeds or not."""
    return desk.run_ansible("ansible-playbook", "-i", "inventories/lan", f"gpumesh.cluster.{playbook}", *arguments)


def assert_success(run: AnsibleRun) -> AnsibleRun:
    assert run.exit_status == 0, run.failure_report
    return run


def assert_refused(run: AnsibleRun, *said: str) -> None:
    assert run.exit_status != 0, run.failure_report
    assert [text for text in said if text not in run.flat_output] == [], run.failure_report


def record(lab: Lab, machine: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(lab.read(machine, RECORD))
    return document


def members(lab: Lab, machine: str) -> list[str]:
    return [member["machine"] for member in record(lab, machine)["members"]]


def removed_keys(lab: Lab, machine: str) -> dict[str, str]:
    """What the record contains about the keys of the removed machines."""
    return {removed["machine"]: removed["keys"] for removed in record(lab, machine)["removed"]}


def mesh_address(lab: Lab, asked: str, machine: str) -> str:
    found = {member["machine"]: member["mesh"]["address"] for member in record(lab, asked)["members"]}
    return found[machine]


def job(lab: Lab, machine: str, number: str) -> Job:
    shown = lab.run(machine, "scontrol", "--oneliner", "show", "job", number)
    fields = dict(word.partition("=")[::2] for word in shown.split())
    return Job(fields["JobState"], fields["StartTime"], fields["Restarts"], fields.get("BatchHost", ""))


def running_job(lab: Lab, machine: str) -> str:
    """The ID of the job that the earlier tests started."""
    (number,) = lab.run(machine, "squeue", "--noheader", "--name=train", "--states=RUNNING", "--format=%i").split()
    return number


def heartbeats(lab: Lab, node: str) -> list[list[str]]:
    lines = lab.run(node, "cat", "/root/heartbeat", check=False).splitlines()
    return [line.split() for line in lines if len(line.split()) == 3]


def start_job(lab: Lab, machine: str, node: str) -> str:
    """Start a job on one core that runs until it is cancelled. Returns its ID."""
    options = f"--parsable --nodelist={node} --job-name=train --output=/root/slurm.out"
    number = lab.run(machine, "sh", "-c", f'printf %s "$1" | sbatch {options}', "-", HEARTBEAT).strip()
    lab.wait_until(
        "the job runs",
        lambda: "RUNNING" in job(lab, machine, number) and any(beat[1] == number for beat in heartbeats(lab, node)),
        PATIENCE,
    )
    return number


def cancel_job(lab: Lab, machine: str, number: str) -> None:
    lab.run(machine, "scancel", number)
    lab.wait_until("the job has ended", lambda: "CANCELLED" in job(lab, machine, number), PATIENCE)


def answered(lab: Lab) -> set[int]:
    """The numbers of the pings that gpu1 has had an answer to."""
    said = lab.read("gpu1", "/tmp/pings").decode()
    return {0, *(int(number) for number in re.findall(r"bytes from .* icmp_seq=(\d+) ", said))}


def assert_progress(lab: Lab, node: str) -> None:
    """Wait until the job has made progress by its own clock."""
    last = heartbeats(lab, node)[-1]
    lab.wait_until("the job works on", lambda: heartbeats(lab, node)[-1][2] > last[2], PATIENCE)


def processes(lab: Lab, machine: str) -> dict[str, str]:
    shown = lab.run(machine, "systemctl", "show", "--property=Id,MainPID,ActiveEnterTimestampMonotonic", *DAEMONS)
    units = [dict(line.split("=", 1) for line in unit.splitlines()) for unit in shown.strip().split("\n\n")]
    return {unit["Id"]: f"{unit['MainPID']} {unit['ActiveEnterTimestampMonotonic']}" for unit in units}


def all_processes(lab: Lab, *machines: str) -> dict[str, dict[str, str]]:
    return {machine: processes(lab, machine) for machine in machines}


def able(lab: Lab, machine: str, *nodes: str) -> Callable[[], bool]:
    """Whether these are the nodes, and each of them takes jobs."""

    def holds() -> bool:
        shown = lab.run(machine, "sinfo", "--noheader", "--Node", "--format=%N %t", check=False).splitlines()
        states = dict(line.split() for line in shown)
        return set(states) == set(nodes) and set(states.values()) <= {"idle", "mix"}

    return holds


def ran_on(lab: Lab, machine: str, count: int) -> list[str]:
    return sorted(lab.run(machine, "srun", f"-N{count}", "hostname", timeout=PATIENCE).split())


def accounting(lab: Lab, machine: str) -> dict[str, str]:
    """The user and the state of each job, by its ID. Only some versions say who cancelled it: "CANCELLED by 0"."""
    form = ("--noheader", "--allusers", "--allocations", "--parsable2", "--format=JobID,User,State")
    lines = lab.run(machine, "sacct", "--starttime=now-1days", *form, check=False).splitlines()
    rows = [line.partition(" by ")[0].split("|") for line in lines]
    return {row[0]: f"{row[1]} {row[2]}" for row in rows}


@contextlib.contextmanager
def cut_off(lab: Lab, machine: str) -> Iterator[None]:
    """No packet reaches the machine or leaves it."""
    engine = ["docker", "inspect", "--format={{.State.Pid}}", f"gpumesh-{lab.name}-{machine}"]
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


def assert_bare(lab: Lab, bare: dict[str, dict[str, Any]], machine: str) -> None:
    # The output of the jobs of these tests.
    lab.run(machine, "rm", "-f", "/root/heartbeat", "/root/slurm.out")
    left = ["the host has not been read"]

    def is_bare() -> bool:
        left[:] = host_state.find_differences(bare[machine], host_state.read_state(lab, machine))
        return not left

    # A process or a unit may end a moment after what it belonged to.
    with contextlib.suppress(AssertionError):
        lab.wait_until(f"{machine} is as bare as before", is_bare, 120, 5)
    assert left == []


def shown_cluster(desk: GuideRunner) -> dict[str, Any]:
    """What the playbook show reports about the cluster."""
    (cluster,) = assert_success(play(desk, "show", "-e", "show_output=json")).shown_clusters
    return cluster


def drift(cluster: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {member["machine"]: member["drift"] for member in cluster["members"]}


# --- The first ten minutes


def test_a_lan_in_ten_minutes(desk: GuideRunner, bare: dict[str, dict[str, Any]]) -> None:
    command = desk.type_line("lan", "ansible-playbook -i my-lan gpumesh.cluster.discover")
    # Scenario `default` runs it without a subnet.
    subnet = desk.type_line(
        "troubleshooting",
        "ansible-playbook -i inventories/lan gpumesh.cluster.discover -e discover_subnet=192.168.1.0/24",
    )
    found = assert_success(desk.run_ansible(*command, *subnet[-2:]))
    assert "10.77.95.0/24" in found.output
    assert {
        machine: host_state.find_differences(bare[machine], host_state.read_state(desk.lab, machine))
        for machine in bare
    } == {machine: [] for machine in MACHINES}
    desk.run_playbook("lan", "ansible-playbook -i my-lan gpumesh.cluster.site")
    assert sorted(desk.type_on_machine("gpu2", "lan", "srun -N3 hostname").split()) == list(MACHINES)
    assert (desk.installed.folder / "gpumesh-report").is_dir()


def test_look_for_troubles(desk: GuideRunner) -> None:
    listed = desk.run_playbook("troubleshooting", "ansible cluster -i inventories/lan --list-hosts")
    assert set(MACHINES) <= set(listed.output.split())
    # Slurm resumes a node that is down by itself as soon as that registers, and refuses the command then.
    desk.lab.run("gpu1", "scontrol", "update", "NodeName=gpu2", "State=DRAIN", "Reason=tests")
    desk.type_on_machine("gpu1", "troubleshooting", "scontrol update NodeName=gpu2 State=RESUME")
    desk.lab.wait_until("all nodes work", able(desk.lab, "gpu1", *MACHINES), PATIENCE)


# --- Members leave and join


def test_a_machine_leaves_while_a_job_runs(desk: GuideRunner, bare: dict[str, dict[str, Any]]) -> None:
    lab = desk.lab
    number = start_job(lab, "gpu1", "gpu2")
    before, daemons = job(lab, "gpu1", number), all_processes(lab, "gpu1", "gpu2")
    desk.run_playbook(
        "day2",
        "ansible-playbook -i inventories/lan gpumesh.cluster.remove -e cluster_machine=gpu3 -e cluster_drain_timeout=3600",
    )
    assert members(lab, "gpu1") == members(lab, "gpu2") == ["gpu1", "gpu2"]
    assert removed_keys(lab, "gpu1") == {"gpu3": "kept"}
    assert_bare(lab, bare, "gpu3")
    assert all_processes(lab, "gpu1", "gpu2") == daemons
    # Distrusting it afterwards replaces munge's key on the remaining members.
    key = lab.read("gpu1", MUNGE_KEY)
    desk.run_playbook(
        "day2",
        "ansible-playbook -i inventories/lan gpumesh.cluster.remove -e cluster_machine=gpu3 -e cluster_untrusted=true",
    )
    assert lab.read("gpu1", MUNGE_KEY) == lab.read("gpu2", MUNGE_KEY) != key
    assert removed_keys(lab, "gpu1") == {"gpu3": "changed"}
    assert job(lab, "gpu1", number) == before


def test_a_join_through_a_partition_is_finished_by_the_next_run_and_no_job_notices(desk: GuideRunner) -> None:
    """The member with the job is cut off while another machine joins."""
    lab, number = desk.lab, running_job(desk.lab, "gpu1")
    before, daemons = job(lab, "gpu1", number), all_processes(lab, "gpu1", "gpu2")
    line = "ansible-playbook -i inventories/lan gpumesh.cluster.join -e cluster_machines=gpu3"
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(desk.run_ansible, *desk.type_line("day2", line))
        lab.run("gpu1", "python3", "-c", AWAIT_MEMBER, "gpu3", RECORD, timeout=PATIENCE)
        with cut_off(lab, "gpu2"):
            assert_refused(joining.result(), "[gpu2]: UNREACHABLE!")
            assert members(lab, "gpu1") == list(MACHINES)
            shown = desk.type_line("day2", "ansible-playbook -i inventories/lan gpumesh.cluster.show")
            run = desk.run_ansible(*shown, "-e", "ansible_ssh_timeout=5")
            assert all(machine in run.output for machine in MACHINES)
            assert "gpu2 does not answer" in run.flat_output, run.output
    pings = f"exec ping -i0.2 -W30 {mesh_address(lab, 'gpu1', 'gpu2')} >/tmp/pings"
    ping = lab.start_command("gpu1", "sh", "-c", pings)
    try:
        desk.run_playbook("day2", line)
        last = max(answered(lab))
        lab.wait_until("pings are still answered", lambda: max(answered(lab)) > last, PATIENCE)
    finally:
        lab.run("gpu1", "pkill", "-INT", "-x", "ping")
        ping.communicate(timeout=PATIENCE)
    # Those after the last one that was answered may have been on their way when it ended.
    found = answered(lab)
    assert set(range(1, max(found))) - found == set()
    lab.run("gpu1", "rm", "/tmp/pings")
    assert record(lab, "gpu1") == record(lab, "gpu2") == record(lab, "gpu3")
    lab.wait_until("all nodes work", able(lab, "gpu1", *MACHINES), PATIENCE)
    assert job(lab, "gpu1", number) == before
    assert all_processes(lab, "gpu1", "gpu2") == daemons
    assert_progress(lab, "gpu2")
    beats = heartbeats(lab, "gpu2")
    assert {(beat[0], beat[1]) for beat in beats} == {(beats[0][0], number)}
    assert ran_on(lab, "gpu2", 3) == list(MACHINES)


def test_a_machine_with_a_job_does_not_leave(desk: GuideRunner) -> None:
    lab, number, before = desk.lab, running_job(desk.lab, "gpu1"), record(desk.lab, "gpu1")
    run = play(desk, "remove", "-e", "cluster_machine=gpu2")
    assert_refused(run, f"{number} of root (train on gpu2)", "cannot leave", "cluster_force=true")
    assert record(lab, "gpu1") == record(lab, "gpu3") == before
    lab.wait_until("all nodes work", able(lab, "gpu1", *MACHINES), PATIENCE)
    assert "RUNNING" in job(lab, "gpu1", number)


def test_a_cluster_in_use_is_not_deleted(desk: GuideRunner) -> None:
    lab, number, before = desk.lab, running_job(desk.lab, "gpu1"), record(desk.lab, "gpu1")
    login = ["docker", "exec", f"gpumesh-{lab.name}-gpu1", "ssh", "gpu3", "touch /run/came; exec sleep infinity"]
    with subprocess.Popen(login) as session:
        lab.wait_until("the login is there", lambda: "came" in lab.run("gpu3", "ls", "/run"), PATIENCE)
        assert_refused(
            desk.run_ansible(*desk.type_line("day2", "ansible-playbook -i inventories/lan gpumesh.cluster.delete")),
            f"job {number} of root (train on gpu2)",
            f"gpu3: root is logged in from {mesh_address(lab, 'gpu1', 'gpu1')} (notty)",
            "cluster_force=true",
        )
        lab.run("gpu3", "sh", "-c", "rm /run/came; pkill -x sleep")
        session.wait(timeout=PATIENCE)
    assert record(lab, "gpu1") == record(lab, "gpu2") == record(lab, "gpu3") == before
    assert_progress(lab, "gpu2")
    cancel_job(lab, "gpu1", number)


# --- Daily work


def test_add_a_user(desk: GuideRunner) -> None:
    desk.run_playbook(
        "day2",
        'ansible cluster -i inventories/lan --become -m ansible.builtin.user -a "name=alice uid=2001 shell=/bin/bash"',
    )
    assert {desk.lab.run(machine, "id", "-u", "alice").strip() for machine in MACHINES} == {"2001"}
    ran = desk.lab.run("gpu1", "su", "-", "alice", "-c", "srun -N3 id -un", timeout=PATIENCE)
    assert ran.split() == ["alice"] * 3


def test_back_up_the_accounting_and_restore_it(desk: GuideRunner) -> None:
    lab = desk.lab

    def root(line: str) -> None:
        desk.type_line("day2", line)
        lab.run("gpu1", "sh", "-c", f"cd /root && {line}", timeout=PATIENCE)

    lab.wait_until(
        "alice's job is in the accounting", lambda: "alice COMPLETED" in accounting(lab, "gpu1").values(), PATIENCE
    )
    before = accounting(lab, "gpu1")
    root("(umask 077; mariadb-dump slurm_acct_db > slurm_acct_db.sql)")
    root("systemctl stop slurmdbd")
    root("mariadb slurm_acct_db < slurm_acct_db.sql")
    root("systemctl start slurmdbd")
    lab.wait_until("slurmdbd answers", lambda: accounting(lab, "gpu1") != {}, PATIENCE)
    lab.wait_until("it has all jobs", lambda: before.items() <= accounting(lab, "gpu1").items(), PATIENCE)
    # Neither the dump nor the user belongs to the cluster.
    lab.run("gpu1", "rm", "/root/slurm_acct_db.sql")
    for machine in MACHINES:
        lab.run(machine, "userdel", "--remove", "alice")


def test_an_upgrade_brings_back_what_differs_and_keeps_jobs_off_a_machine(desk: GuideRunner) -> None:
    """What differs is changed by hand here, and is named by show before the upgrade."""
    lab = desk.lab

    def state() -> str:
        return lab.run("gpu1", "sinfo", "-hn", "gpu1", "-o", "%T").strip()

    desk.type_on_machine("gpu1", "day2", 'scontrol update NodeName=gpu1 State=DRAIN Reason="no jobs here"')
    lab.wait_until("gpu1 is drained", lambda: state() == "drained", PATIENCE)
    key = next(member["mesh"]["public_key"] for member in record(lab, "gpu1")["members"] if member["machine"] == "gpu3")
    lab.run("gpu1", "wg", "set", "gpumesh0", "peer", key, "remove")
    lab.run("gpu1", "sed", "-i", "/ gpu3$/d", "/etc/hosts")
    lab.run("gpu1", "rm", "/etc/gpumesh/ssh/lan/known_hosts", "/etc/gpumesh/task_prolog")
    lab.run("gpu1", "systemctl", "disable", "munge.service")
    lab.run("gpu3", "systemctl", "disable", "slurmd.service")
    differing = {
        "gpu1": {
            "mesh": "would update gpu3",
            "names": "/etc/hosts differs",
            "munge": "munge.service does not start at boot",
            "ssh_trust": "/etc/gpumesh/ssh/lan/known_hosts is missing",
            "job_environment": "/etc/gpumesh/task_prolog is missing",
            "slurm": "lacks '/etc/gpumesh/task_prolog'",
        },
        "gpu2": {},
        "gpu3": {"slurm": "slurmd.service does not start at boot"},
    }
    assert drift(shown_cluster(desk)) == differing
    # Check mode says so and leaves it for the run.
    for line in (
        "ansible-playbook -i inventories/lan gpumesh.cluster.site --check --diff",
        "ansible-playbook -i inventories/lan gpumesh.cluster.site",
    ):
        changed = desk.run_playbook("day2", line).changed
        assert {machine: changed[machine] > 0 for machine in MACHINES} == {
            machine: differing[machine] != {} for machine in MACHINES
        }
    # The check at the end of the run does not take it for a fault.
    assert state() == "drained"
    lab.run("gpu1", "scontrol", "update", "NodeName=gpu1", "State=RESUME")
    lab.wait_until("gpu1 is idle", lambda: state() == "idle", PATIENCE)


def test_see_what_is_there(desk: GuideRunner) -> None:
    listed = desk.run_playbook("day2", "ansible-playbook -i inventories/lan gpumesh.cluster.show -e show_output=json")
    (cluster,) = listed.shown_clusters
    assert sorted(cluster["machines"]) == list(MACHINES)
    assert cluster["problems"] == []
    assert [member["copy"] for member in cluster["members"]] == ["current"] * 3
    layers = ["mesh", "names", "ssh_trust", "munge", "job_environment", "slurm", "train"]
    assert [member["layers"] for member in cluster["members"]] == [layers] * 3
    assert drift(cluster) == {machine: {} for machine in MACHINES}


# --- Another manager


def test_hand_over_with_queue_and_accounts(desk: GuideRunner, bare: dict[str, dict[str, Any]]) -> None:
    lab = desk.lab
    lab.wait_until("all nodes work", able(lab, "gpu1", *MACHINES), PATIENCE)
    history = accounting(lab, "gpu1")
    # Of alice, whose account was removed, the number is left.
    assert {"2001 COMPLETED", "root CANCELLED"} <= set(history.values())
    running = start_job(lab, "gpu1", "gpu3")
    waiting = lab.run("gpu1", "sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=hostname").strip()
    run = desk.run_playbook(
        "day2",
        "ansible-playbook -i inventories/lan gpumesh.cluster.remove -e cluster_machine=gpu1 -e cluster_new_manager=gpu2",
    )
    assert "gpu1: removed from the cluster" in run.flat_output and "cluster_untrusted=true" in run.flat_output
    assert removed_keys(lab, "gpu2")["gpu1"] == "kept"
    assert members(lab, "gpu2") == members(lab, "gpu3") == ["gpu2", "gpu3"]
    assert record(lab, "gpu2")["manager"] == "gpu2"
    assert record(lab, "gpu2")["history"][-1]["change"] == "hand_over"
    lab.wait_until("the nodes that stay work", able(lab, "gpu2", "gpu2", "gpu3"), PATIENCE)
    queue = dict(line.split() for line in lab.run("gpu3", "squeue", "--noheader", "--format=%i %T").splitlines())
    assert queue == {running: "RUNNING", waiting: "PENDING"}
    assert_progress(lab, "gpu3")
    known = {**history, running: "root RUNNING"}.items()
    lab.wait_until("the accounting has all jobs", lambda: known <= accounting(lab, "gpu3").items(), PATIENCE)
    assert ran_on(lab, "gpu3", 2) == ["gpu2", "gpu3"]
    lab.run("gpu3", "scontrol", "release", waiting)
    lab.wait_until("the job that waited has run", lambda: "COMPLETED" in job(lab, "gpu2", waiting), PATIENCE)
    assert_bare(lab, bare, "gpu1")


def test_a_lost_manager_is_followed_and_cleaned_up_when_it_is_back(
    desk: GuideRunner, bare: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """It is declared untrusted as well, so the secrets that it knows become useless. Its accounting is restored."""
    lab = desk.lab
    lost = ("-e", "cluster_machine=gpu2", "-e", "cluster_new_manager=gpu3", "-e", "cluster_manager_lost=true")
    lost += ("-e", "cluster_untrusted=true")
    known = lab.read("gpu2", MUNGE_KEY)
    before = accounting(lab, "gpu2")
    assert before
    dump = tmp_path / "slurm_acct_db.sql"
    dump.write_text(lab.run("gpu2", "mariadb-dump", "slurm_acct_db", timeout=PATIENCE))
    lab.stop("gpu2")
    try:
        run = assert_success(play(desk, "remove", *lost, "-e", "ansible_ssh_timeout=30"))
        assert "disk of gpu2" in run.flat_output
        assert "run the playbook remove with cluster_machine=gpu2 again" in run.flat_output
        assert members(lab, "gpu3") == ["gpu3"]
        lab.wait_until("the node that is left works", able(lab, "gpu3", "gpu3"), PATIENCE)
        lab.run("gpu3", "systemctl", "stop", "slurmdbd")
        lab.copy(dump, "gpu3", f"/root/{dump.name}")
        lab.run("gpu3", "sh", "-c", f"mariadb slurm_acct_db < /root/{dump.name}", timeout=PATIENCE)
        lab.run("gpu3", "rm", f"/root/{dump.name}")
        lab.run("gpu3", "systemctl", "start", "slurmdbd")
        lab.wait_until("it has all jobs", lambda: before.items() <= accounting(lab, "gpu3").items(), PATIENCE)
        # It has the ID that the database of gpu3 had before, with which slurmctld would not start.
        lab.run("gpu3", "rm", "/var/lib/slurm/slurmctld/clustername")
        lab.run("gpu3", "systemctl", "restart", "slurmctld")
        lab.wait_until("the node works again", able(lab, "gpu3", "gpu3"), PATIENCE)
        assert ran_on(lab, "gpu3", 1) == ["gpu3"]
        assert lab.read("gpu3", MUNGE_KEY) != known
        assert removed_keys(lab, "gpu3")["gpu2"] == "changed"
    finally:
        lab.start("gpu2")
    assert lab.read("gpu2", MUNGE_KEY) == known
    after = record(lab, "gpu3"), lab.read("gpu3", MUNGE_KEY)
    # The same command again cleans up the machine that was unreachable.
    assert "disk of gpu2" not in assert_success(play(desk, "remove", *lost)).flat_output
    assert (record(lab, "gpu3"), lab.read("gpu3", MUNGE_KEY)) == after
    assert_bare(lab, bare, "gpu2")


# --- The end


def test_deleted_by_force_it_leaves_nothing(desk: GuideRunner, bare: dict[str, dict[str, Any]]) -> None:
    start_job(desk.lab, "gpu3", "gpu3")
    assert_success(play(desk, "delete", "-e", "cluster_force=true"))
    for machine in MACHINES:
        assert_bare(desk.lab, bare, machine)


def test_nothing_that_the_guides_say_was_left_out(desk: GuideRunner) -> None:
    said = {
        line
        for name in ("lan", "day2", "storage", "troubleshooting")
        for line in console_lines(GUIDES_DIRECTORY / f"{name}.md")
    }
    assert said - desk.typed_lines - ELSEWHERE == set()
