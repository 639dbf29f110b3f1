# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The promises of the main job, checked on three real hosts on which `site` has run.

The tests run in the order of the file; each leaves the cluster as it found it.
"""

from __future__ import annotations

import json
import re
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from lab_hosts import AnsibleRun, Lab

MACHINES = ("n1", "n2", "n3")
SITE = "gpumesh.cluster.site"
CHECK = "gpumesh.cluster.check"
MESH = "gpumesh0"
#: Seconds for what waits for a member that is down.
SHORT = ("-e", "ansible_ssh_timeout=30", "-e", "check_job_timeout=10")
RECORD = "/var/lib/gpumesh/clusters/default.json"
SERVICES = ("munge", "slurmctld", "slurmdbd", "mariadb", "slurmd", "ssh", f"wg-quick@{MESH}")


@pytest.fixture(name="record", scope="module")
def _record(lab: Lab) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(lab.read("n1", RECORD))
    return document


def addresses(record: dict[str, Any]) -> dict[str, str]:
    """The mesh address of each machine."""
    return {member["machine"]: member["mesh"]["address"] for member in record["members"]}


def main_pids(lab: Lab) -> dict[str, dict[str, str]]:
    """The main processes of the running services, by machine."""
    found = {}
    for machine in MACHINES:
        shown = lab.run(machine, "systemctl", "show", "--property=Id,MainPID,ActiveEnterTimestampMonotonic", *SERVICES)
        units = [dict(line.split("=", 1) for line in unit.splitlines()) for unit in shown.strip().split("\n\n")]
        found[machine] = {unit["Id"]: f"{unit['MainPID']} {unit['ActiveEnterTimestampMonotonic']}" for unit in units}
    return found


def idle(lab: Lab) -> bool:
    states = lab.run("n1", "sinfo", "--noheader", "--Node", "--format=%N %T", check=False).split("\n")
    return sorted(filter(None, states)) == [f"{machine} idle" for machine in MACHINES]


def verdict(folder: Path, part: str = "") -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "default" / part / "verdict.json").read_text(encoding="utf-8"))
    return document


# --- Slurm


@pytest.mark.parametrize("machine", MACHINES)
def test_a_job_from_any_member_runs_on_all_of_them(lab: Lab, machine: str) -> None:
    names = lab.run(machine, "srun", "--nodes=3", "hostname").split()
    assert sorted(names) == list(MACHINES)


def test_nodes_are_idle_at_their_mesh_addresses(lab: Lab, record: dict[str, Any]) -> None:
    lab.wait_until("all nodes are idle", lambda: idle(lab))
    shown = lab.run("n2", "scontrol", "--oneliner", "show", "nodes")
    found = dict(re.findall(r"NodeName=(\S+) .*?NodeAddr=(\S+) ", shown))
    assert found == addresses(record)


def test_a_job_has_its_environment(lab: Lab, record: dict[str, Any]) -> None:
    shown = lab.run("n3", "srun", "--nodes=3", "--ntasks-per-node=1", "env", "--null")
    values = {
        name: re.findall(rf"(?:^|\0){name}=([^\0]*)", shown)
        for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "NCCL_SOCKET_IFNAME", "SLURMD_NODENAME")
    }
    assert sorted(values["NODE_RANK"]) == ["0", "1", "2"]
    assert values["WORLD_SIZE"] == ["3"] * 3
    assert values["NCCL_SOCKET_IFNAME"] == [f"={MESH}"] * 3
    assert len(set(values["MASTER_PORT"])) == 1
    assert 1024 < int(values["MASTER_PORT"][0]) < 65536
    # Slurm numbers the nodes in the order in which they registered, so any member may be the first.
    first = dict(zip(values["NODE_RANK"], values["SLURMD_NODENAME"], strict=True))["0"]
    (master,) = set(values["MASTER_ADDR"])
    assert master in {addresses(record)[first], first}


# --- The mesh


@pytest.mark.parametrize(("one", "other"), list(permutations(MACHINES, 2)))
def test_each_pair_has_a_handshake(lab: Lab, record: dict[str, Any], one: str, other: str) -> None:
    # Until the first reply.
    lab.run(one, "ping", "-c", "1", "-w", "240", addresses(record)[other])
    seen = dict(line.split("\t") for line in lab.run(one, "wg", "show", MESH, "latest-handshakes").splitlines())
    keys = {member["machine"]: member["mesh"]["public_key"] for member in record["members"]}
    assert set(seen) == {key for machine, key in keys.items() if machine != one}
    assert int(seen[keys[other]]) > 0


# --- Secrets


def private_keys(lab: Lab) -> dict[str, str]:
    return {machine: lab.run(machine, "wg", "show", MESH, "private-key").strip() for machine in MACHINES}


def munge_keys(lab: Lab) -> dict[str, bytes]:
    return {machine: lab.read(machine, "/etc/munge/munge.key") for machine in MACHINES}


def test_key_files_are_for_root_or_their_service_alone(lab: Lab) -> None:
    for machine in MACHINES:
        private = lab.run(machine, "wg", "show", MESH, "private-key").strip()
        holding = lab.run(machine, "grep", "-rlF", "--", private, "/etc", "/var", "/root", "/srv", "/opt", check=False)
        paths = holding.split()
        assert len(paths) == 1, f"{machine}: the private key is in {paths}"
        assert lab.run(machine, "stat", "--format=%a %U", paths[0]).strip() == "600 root"
        mode, owner = lab.run(machine, "stat", "--format=%a %U", "/etc/munge/munge.key").split()
        assert (mode in {"400", "600"}, owner) == (True, "munge")


def test_each_host_has_a_private_key_of_its_own_and_the_munge_key_of_all(lab: Lab) -> None:
    assert len(set(private_keys(lab).values())) == len(MACHINES)
    assert len(set(munge_keys(lab).values())) == 1


# --- Checks


def test_check_names_exactly_the_pairs_that_a_stopped_member_breaks(lab: Lab, tmp_path: Path) -> None:
    lab.stop("n3")
    try:
        run = lab.run_playbook(CHECK, "-e", f"check_report_dir={tmp_path}", *SHORT, "--tags", "reachability")
    finally:
        lab.start("n3")
    assert run.exit_status != 0
    judged = verdict(tmp_path, "part")
    assert judged["status"] != "pass"
    # The tag chooses a part.
    passed = {one["id"].split(".")[0] for one in judged["checks"] if one["status"] == "pass"}
    assert {"reachability"} <= passed <= {"members", "reachability", "clock"}
    pairs = {
        status: {(pair["from"], pair["to"]) for pair in judged["reachability"]["pairs"] if pair["status"] == status}
        for status in ("fail", "error", "pass")
    }
    assert pairs == {
        "fail": {("n1", "n3"), ("n2", "n3")},
        # n3 could not be reached, so its checks count neither as failed nor as passed.
        "error": {("n3", "n1"), ("n3", "n2")},
        "pass": {("n1", "n2"), ("n2", "n1")},
    }
    assert "n3" in run.flat_output


# --- A second run


class Again(NamedTuple):
    """A second run, the services before and after it, and the folder of its report."""

    run: AnsibleRun
    before: dict[str, dict[str, str]]
    after: dict[str, dict[str, str]]
    folder: Path


@pytest.fixture(name="again", scope="module")
def _again(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Again:
    """Run site once more, with the member that was stopped. bench_site.py measures its duration."""
    lab.await_idle("n1")
    before, folder = main_pids(lab), tmp_path_factory.mktemp("report")
    run = lab.run_playbook(SITE, "-e", f"check_report_dir={folder}")
    return Again(run, before, main_pids(lab), folder)


def test_a_second_run_changes_nothing(again: Again) -> None:
    assert again.run.exit_status == 0, again.run.failure_report
    assert set(again.run.changed.values()) == {0}, again.run.changes
    left_out = "names, firewall, storage, ssh_trust, tracking, munge, job_environment, session, slurm, train"
    assert f"are left out: {left_out}." in again.run.flat_output


def test_a_second_run_restarts_nothing(again: Again) -> None:
    assert any(pid.split()[0] != "0" for pid in again.before["n1"].values())
    assert again.after == again.before


def test_its_check_passes_now_that_all_members_are_up(again: Again) -> None:
    assert verdict(again.folder)["status"] == "pass"
