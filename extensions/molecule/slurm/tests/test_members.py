# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Members fail while jobs run, and the manager changes.

The tests run in the order of the file; each but one leaves all nodes idle. In the end s1 has left, and s4 is the manager.
"""

from __future__ import annotations

import json
import re
import socket
from itertools import zip_longest
from pathlib import Path

import pytest
from lab_hosts import Lab
from slurm_members import (
    ADDRESSES,
    LAB,
    MACHINES,
    SLURM_PLAYBOOK,
    WAIT_TIMEOUT,
    find_daemon_pids,
    list_accounted_jobs,
    query_rest,
    read_job,
    submit_job,
    wait_for_job,
    wait_until_idle,
)

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import rest

STAY = ("s1", "s2", "s4")
#: Runs until it is told to end.
LONG = "srun sh -c 'until [ -e /root/end ]; do sleep 1; done; echo whole'"


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return LAB


@pytest.fixture(name="long_job", scope="module")
def _long_job(lab: Lab):
    """A job on three members that keeps running while the tests with this fixture change the cluster.

    That of the guides runs while members leave and join.
    """
    wait_until_idle(lab)
    for machine in MACHINES:
        lab.run(machine, "rm", "-f", "/root/end")
    number = submit_job(lab, LONG, "--nodes=3", "--ntasks-per-node=1", f"--nodelist={','.join(STAY)}", "--no-requeue")
    wait_for_job(lab, number, "RUNNING")
    return number


def keys(lab: Lab) -> set[bytes]:
    return {lab.read(machine, "/etc/munge/munge.key") for machine in MACHINES}


def test_a_new_munge_key_reaches_every_daemon(lab: Lab, long_job: str) -> None:
    before, old = find_daemon_pids(lab), keys(lab)
    run = lab.run_playbook(SLURM_PLAYBOOK, "-e", "munge_rotate_key=true")
    assert run.exit_status == 0, run.failure_report
    after = find_daemon_pids(lab)
    restarted = {name for name, pid in after.items() if before[name] != pid}
    assert restarted == {f"{machine} munge" for machine in MACHINES}
    (key,) = keys(lab)
    assert key not in old
    assert read_job(lab, long_job)["JobState"] == "RUNNING"


def test_the_job_has_run_through_all_of_it(lab: Lab, long_job: str) -> None:
    for machine in STAY:
        lab.run(machine, "touch", "/root/end")
    ended = wait_for_job(lab, long_job, "COMPLETED")
    assert (ended["ExitCode"], ended["Restarts"], ended["NumNodes"]) == ("0:0", "0", "3")
    output = lab.read(ended["BatchHost"], f"/root/{long_job}.out").decode()
    assert output.split() == ["whole"] * 3, output
    wait_until_idle(lab)


def test_a_job_of_a_node_that_dies_runs_again_elsewhere(lab: Lab) -> None:
    for machine in ("s2", "s3"):
        lab.run(machine, "rm", "-f", "/root/end")
    number = submit_job(lab, "until [ -e /root/end ]; do sleep 1; done", "--requeue", "--exclude=s1,s4")
    first = wait_for_job(lab, number, "RUNNING")["NodeList"]
    (other,) = {"s2", "s3"} - {first}
    lab.run(other, "touch", "/root/end")
    lab.kill(first)
    try:
        ended = wait_for_job(lab, number, "COMPLETED")
        assert (ended["NodeList"], ended["Restarts"]) == (other, "1")
    finally:
        lab.start(first)
    # It recovers without intervention.
    wait_until_idle(lab)


def test_supervisord_keeps_a_daemon_alive(lab: Lab) -> None:
    before = find_daemon_pids(lab, ["s4"])
    lab.run("s4", "kill", "-KILL", before["s4 slurmd"])
    lab.wait_until("slurmd is there again", lambda: slurmd_of_s4(lab) not in {"0", before["s4 slurmd"]}, WAIT_TIMEOUT)
    wait_until_idle(lab)
    assert find_daemon_pids(lab, ["s4"])["s4 munge"] == before["s4 munge"]
    assert lab.run("s1", "srun", "--nodelist=s4", "hostname", timeout=WAIT_TIMEOUT).strip() == "s4"


def slurmd_of_s4(lab: Lab) -> str:
    shown = lab.run("s4", "supervisorctl", "pid", "slurmd", check=False).strip()
    return shown if shown.isdigit() else "0"


def boot(lab: Lab) -> None:
    """Start s4, which was killed. Nothing but sshd starts with it."""
    lab.power_on("s4")
    lab.wait_until("s4 answers", lambda: listens("s4", 22), WAIT_TIMEOUT)


# --- The manager is a rented container

MANAGER = ("munge", "mariadb", "slurmdbd", "slurmctld", "slurmrestd", rest.PROXY_SERVICE, "slurmd")


def supervised(lab: Lab) -> dict[str, str]:
    """The processes of the manager's daemons under supervisord; 0 for one that is not running."""
    # A line for each, or a single one if supervisord does not answer.
    shown = lab.run("s4", "supervisorctl", "pid", *MANAGER, check=False).splitlines()
    return {name: pid if pid.isdigit() else "0" for name, pid in zip_longest(MANAGER, shown, fillvalue="")}


def manages(lab: Lab) -> bool:
    """Whether s4 reports all nodes as idle."""
    shown = lab.run("s4", "sinfo", "--noheader", "--Node", "--format=%N %T", check=False).splitlines()
    return sorted(shown) == ["s2 idle", "s3 idle", "s4 idle"]


HANDING = ("gpumesh.cluster.remove", "-e", "cluster_machine=s1", "-e", "cluster_new_manager=s4")


def test_a_rented_container_takes_over_as_manager_with_queue_and_accounting(lab: Lab) -> None:
    """When cut off in between, the queue stays where it is, and no controller starts with an empty one."""
    history = list_accounted_jobs(lab, "s2")
    waiting = submit_job(lab, "hostname", "--hold")
    cut_off = lab.run_playbook(*HANDING, "-e", json.dumps({"slurm_conf": {"NoSuchOption": 1}}))
    assert cut_off.exit_status != 0
    assert "NoSuchOption" in cut_off.flat_output
    run = lab.run_playbook(SLURM_PLAYBOOK)
    assert run.exit_status != 0
    assert "the queue and the accounting are still on s1" in run.flat_output, run.failure_report
    assert supervised(lab)["slurmctld"] == "0"
    run = lab.run_playbook(*HANDING)
    assert run.exit_status == 0, run.failure_report
    assert "0" not in supervised(lab).values()
    lab.wait_until("s4 manages the others", lambda: manages(lab), WAIT_TIMEOUT)
    assert query_rest(lab, "s2", "s4") == ["s2 s3 s4", "refused", "not verified"]
    assert lab.run("s2", "squeue", "--noheader", "--format=%i %T").split() == [waiting, "PENDING"]
    lab.run("s3", "scontrol", "release", waiting)
    lab.wait_until("it has run", lambda: not lab.run("s2", "squeue", "--noheader"), WAIT_TIMEOUT)
    lab.wait_until(
        "it is in the accounting", lambda: {*history, waiting} <= list_accounted_jobs(lab, "s2"), WAIT_TIMEOUT
    )


def test_supervisord_keeps_the_managers_daemons_alive(lab: Lab) -> None:
    before = supervised(lab)
    lab.run("s4", "kill", "-KILL", *before.values())
    lab.wait_until(
        "all are there again",
        lambda: all(pid not in {"0", before[name]} for name, pid in supervised(lab).items()),
        WAIT_TIMEOUT,
    )
    lab.wait_until("s4 manages the others", lambda: manages(lab), WAIT_TIMEOUT)
    assert sorted(lab.run("s2", "srun", "--nodes=3", "hostname", timeout=WAIT_TIMEOUT).split()) == ["s2", "s3", "s4"]


def test_supervisord_restarts_daemons_that_are_older_than_what_they_read(lab: Lab) -> None:
    """A run that was cut off after writing the files and before the restarts leaves them in this state."""
    before = supervised(lab)
    read = f"/etc/munge/munge.key /etc/slurm/slurm.conf /etc/slurm/slurmdbd.conf /etc/slurm/node/slurm.conf {rest.PROXY_CONFIG_PATH}"
    lab.run("s4", "sh", "-c", f"touch {read}")
    run = lab.run_playbook(SLURM_PLAYBOOK, "--limit", "s4")
    assert run.exit_status == 0, run.failure_report
    after = supervised(lab)
    assert "0" not in after.values()
    assert {name for name in MANAGER if after[name] != before[name]} == {*MANAGER} - {"mariadb"}
    lab.wait_until("s4 manages the others", lambda: manages(lab), WAIT_TIMEOUT)


def test_a_rented_manager_is_back_after_a_boot_with_one_run(lab: Lab) -> None:
    history, others = list_accounted_jobs(lab, "s2"), find_daemon_pids(lab, ("s2", "s3"))
    # Its sshd, the first process, does not end when it is asked to, so no time is lost with asking.
    lab.kill("s4")
    boot(lab)
    run = lab.run_playbook(SLURM_PLAYBOOK, "--limit", "s4")
    assert run.exit_status == 0, run.failure_report
    assert "0" not in supervised(lab).values()
    assert find_daemon_pids(lab, ("s2", "s3")) == others
    lab.wait_until("s4 manages the others", lambda: manages(lab), WAIT_TIMEOUT)
    assert sorted(lab.run("s2", "srun", "--nodes=3", "hostname", timeout=WAIT_TIMEOUT).split()) == ["s2", "s3", "s4"]
    assert history <= list_accounted_jobs(lab, "s3")


def remains(lab: Lab, machine: str) -> str:
    """What a machine still has of a controller."""
    files = "/var/lib/slurm/slurmctld/* /var/lib/mysql/slurm_acct_db /etc/slurm/slurm.conf /etc/slurm/slurmdbd.conf"
    files += f" {rest.PROXY_DIRECTORY} {rest.SOCKET_DIRECTORY}"
    daemons = "slurmctld slurmdbd mariadbd slurmrestd stunnel"
    return lab.run(machine, "sh", "-c", f"pidof {daemons}; ls -d {files}", check=False)


def hold(lab: Lab) -> str:
    """Submit a job that stays pending. Returns its ID."""
    return lab.run("s3", "sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=hostname").strip()


def queue(lab: Lab) -> set[str]:
    return set(lab.run("s3", "squeue", "--noheader", "--format=%i").split())


def test_a_former_manager_that_stays_a_member_keeps_no_queue(lab: Lab) -> None:
    """An old queue left on it would come back with it."""
    history, waiting = list_accounted_jobs(lab, "s3"), hold(lab)
    # The named machine left long ago.
    run = lab.run_playbook(*HANDING[:3], "-e", "cluster_new_manager=s2")
    assert run.exit_status == 0, run.failure_report
    assert remains(lab, "s4") == ""
    assert queue(lab) == {waiting}
    assert history <= list_accounted_jobs(lab, "s3")


def test_a_lost_manager_that_joins_again_is_an_ordinary_member(lab: Lab) -> None:
    """Its own controller starts with it, and continues with an obsolete queue."""
    lab.kill("s2")
    lost = ("-e", "cluster_machine=s2", "-e", "cluster_new_manager=s4", "-e", "cluster_manager_lost=true")
    run = lab.run_playbook("gpumesh.cluster.remove", *lost, "-e", "ansible_ssh_timeout=30")
    assert run.exit_status == 0, run.failure_report
    waiting = {hold(lab)}
    lab.start("s2")
    back = ("-e", "cluster_machines=s2", "-e", "cluster_trusted_copy=s4", "-e", "cluster_prove_subnet=false")
    run = lab.run_playbook("gpumesh.cluster.join", *back)
    assert run.exit_status == 0, run.failure_report
    assert remains(lab, "s2") == ""
    (kept,) = set(re.findall(r"kept in (/var/lib/slurm/slurmctld\.\w+)", run.flat_output))
    assert set(lab.run("s2", "ls", kept).split()) >= {"accounting.sql", "clustername", "job_state"}
    assert queue(lab) == waiting


# --- Members without jobs

#: The playbooks create and slurm, as for a new cluster.
CONVERGE = str(Path(__file__).parents[1] / "converge.yml")
#: The manager, which is a rented container, and another member.
HEADS = json.dumps({"slurm_node": "{{ inventory_hostname == 's2' }}"})
#: What a node has, and another member does not.
OF_A_NODE = "pidof slurmd; ls -d /etc/slurm/node/slurmd.env /var/lib/slurm/slurmd/*"


def shown_nodes(lab: Lab) -> list[str]:
    return sorted(lab.run("s2", "sinfo", "--noheader", "--Node", "--format=%N %T", check=False).splitlines())


def test_a_member_with_jobs_stays_a_node(lab: Lab) -> None:
    lab.wait_until("s4 manages the others", lambda: manages(lab), WAIT_TIMEOUT)
    lab.run("s3", "rm", "-f", "/root/end")
    until_told = "until [ -e /root/end ]; do sleep 1; done"
    number = lab.run("s2", "sbatch", "--parsable", "--nodelist=s3", "--output=/dev/null", "--wrap", until_told).strip()
    lab.wait_until("the job runs", lambda: shown_nodes(lab)[1] != "s3 idle", WAIT_TIMEOUT)
    generation = lab.run("s4", "cat", "/var/lib/gpumesh/clusters/slurm.json")
    run = lab.run_playbook(CONVERGE, "-e", HEADS)
    assert run.exit_status != 0
    assert f"(slurm_node=false) while they are there: {number} of root" in run.flat_output, run.failure_report
    assert lab.run("s4", "cat", "/var/lib/gpumesh/clusters/slurm.json") == generation
    assert not any("drain" in line for line in shown_nodes(lab))
    lab.run("s3", "touch", "/root/end")
    lab.wait_until("the job has ended", lambda: manages(lab), WAIT_TIMEOUT)


def test_members_without_jobs_have_all_but_a_node(lab: Lab) -> None:
    """The only node left is s2. Users submit jobs on the others, also on a manager that is none."""
    run = lab.run_playbook(CONVERGE, "-e", HEADS)
    assert run.exit_status == 0, run.failure_report
    assert shown_nodes(lab) == ["s2 idle"]
    for machine in ("s3", "s4"):
        assert lab.run(machine, "sh", "-c", OF_A_NODE, check=False) == "", machine
        assert lab.run(machine, "srun", "hostname", timeout=WAIT_TIMEOUT).strip() == "s2"
        number = lab.run(machine, "sbatch", "--wait", "--parsable", "--output=/dev/null", "--wrap=true").strip()
        assert number in list_accounted_jobs(lab, machine)
    assert "0" not in {name: pid for name, pid in supervised(lab).items() if name != "slurmd"}.values()
    before = {**find_daemon_pids(lab, ["s2"]), **supervised(lab)}
    run = lab.run_playbook(CONVERGE, "--limit", "s3,s4", "-e", HEADS)
    assert run.exit_status == 0, run.failure_report
    assert set(run.changed.values()) == {0}, run.failure_report
    assert {**find_daemon_pids(lab, ["s2"]), **supervised(lab)} == before


def test_members_that_run_jobs_again_register(lab: Lab) -> None:
    run = lab.run_playbook(CONVERGE, "--limit", "s3,s4")
    assert run.exit_status == 0, run.failure_report
    lab.wait_until("s4 manages the others", lambda: manages(lab), WAIT_TIMEOUT)
    # What it gets from the controller does not compete with files of its own.
    assert lab.run("s3", "sh", "-c", "ls /etc/slurm/slurm.conf", check=False) == ""
    assert sorted(lab.run("s3", "srun", "--nodes=3", "hostname", timeout=WAIT_TIMEOUT).split()) == ["s2", "s3", "s4"]


def listens(machine: str, port: int) -> bool:
    try:
        with socket.create_connection((ADDRESSES[machine], port), timeout=2):
            return True
    except OSError:
        return False
