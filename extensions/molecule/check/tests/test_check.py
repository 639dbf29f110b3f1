# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks on three real hosts, healthy and with faults. The verdict must name what the tests broke, and nothing else.

The tests run in the order of the file; each leaves the cluster as it found it.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from lab_hosts import ROOT, AnsibleRun, Lab
from lab_links import limit_link

MACHINES = ("k1", "k2", "k3")
ADDRESSES = {"k1": "10.77.80.11", "k2": "10.77.80.12", "k3": "10.77.80.13"}
CHECK = "gpumesh.cluster.check"
SCHEMA = ROOT / "plugins" / "plugin_utils" / "_checks" / "report" / "verdict.schema.json"
PROGRAM = "/usr/local/sbin/gpumesh-node-health"
#: A healthy link on this machine carries a hundred times as much, even under load; the shaped one carries a quarter.
REQUIRED = "0.01"
SHAPED = "20mbit"
#: Visible on all hosts, since it is mounted into each of them.
VOLUME = "/mnt/shared"
RECORD = "/var/lib/gpumesh/clusters/check.json"
#: Any user of a node can fill it: the shared memory, which NCCL needs.
FILLER = "/dev/shm/filler"


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return Lab("molecule-check")


@pytest.fixture(name="reports", scope="module")
def _reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs, so that each is compared with the previous one."""
    return tmp_path_factory.mktemp("report")


def check(lab: Lab, reports: Path, *arguments: str, **variables: Any) -> tuple[AnsibleRun, dict[str, Any]]:
    """Run the check playbook. Returns the run and its verdict."""
    given = {"check_report_dir": str(reports), "reachability_throughput_seconds": 1, **variables}
    run = lab.run_playbook(CHECK, "--extra-vars", json.dumps(given), *arguments)
    part = any(word.startswith(("--tags", "--limit")) for word in arguments)
    path = reports / "check" / ("part/verdict.json" if part else "verdict.json")
    assert path.exists(), run.output
    assert f"Report: {path.parent}/report.html" in run.flat_output
    return run, json.loads(path.read_text(encoding="utf-8"))


def full(lab: Lab, reports: Path, **variables: Any) -> tuple[AnsibleRun, dict[str, Any]]:
    wanted = {
        "check_level": "full",
        "check_collective_max_bytes": 2 << 20,
        "check_min_busbw_gbps": float(REQUIRED),
        # All hosts share one processor, so their bandwidth under concurrent load proves nothing.
        # Twice what the limited link carries: others carry more, however busy this machine is.
        "check_min_bandwidth_gbps": 0.04,
    }
    return check(lab, reports, **wanted, **variables)


def bad(verdict: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{one['id']}@{one['host']}": one for one in verdict["checks"] if one["status"] in ("fail", "error")}


def nodes(lab: Lab) -> dict[str, tuple[str, str]]:
    """State and reason by node."""
    shown = lab.run("k1", "sinfo", "--noheader", "--Node", "--format=%N|%T|%E")
    return {fields[0]: (fields[1], fields[2]) for fields in (line.split("|", 2) for line in shown.splitlines())}


def all_idle(lab: Lab) -> bool:
    return {state for state, _reason in nodes(lab).values()} == {"idle"}


def test_a_healthy_cluster_passes_at_level_full(lab: Lab, reports: Path) -> None:
    lab.wait_until("all nodes are idle", lambda: all_idle(lab))
    run, verdict = full(lab, reports)
    assert run.exit_status == 0, run.output
    assert (verdict["status"], bad(verdict)) == ("pass", {})
    assert sum(run.changed.values()) == 0
    (collective,) = verdict["collectives"]
    assert (collective["ranks"], collective["nodes"], collective["status"]) == (3, 3, "pass")
    assert collective["rows"][-1]["size_bytes"] == 2 << 20
    assert collective["busbw_gbps"] > float(REQUIRED)
    assert all(pair["bandwidth_gbps"] > 0 for pair in verdict["reachability"]["pairs"])
    assert {one["host"] for one in verdict["checks"] if one["id"] == "reachability.bandwidth"} == set(MACHINES)
    passed = {f"{one['id']}@{one['host']}" for one in verdict["checks"] if one["status"] == "pass"}
    names = ("mounts", "shared", "locks")
    assert {f"storage.{name}@{machine}" for name in names for machine in MACHINES} <= passed
    measured = {
        f"{one['id']}@{one['host']}" for one in verdict["checks"] if one["status"] == "skipped" and one["actual"]
    }
    names = ("write", "read", "files")
    assert {f"storage.{name}@{machine}" for name in names for machine in MACHINES} <= measured
    (volume,) = verdict["volumes"]
    assert sorted(volume["mounted_on"]) == list(MACHINES)
    assert 0 < volume["free_bytes"] < volume["total_bytes"]
    assert all(member["write_mbps"] > 0 and member["read_mbps"] > 0 for member in volume["members"])
    assert lab.run("k1", "ls", "--almost-all", VOLUME) == ""


def test_every_report_is_written_and_whole(reports: Path) -> None:
    folder = reports / "check"
    verdict = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    jsonschema.validate(verdict, json.loads(SCHEMA.read_text(encoding="utf-8")))
    suites = ElementTree.parse(folder / "junit.xml").getroot()
    assert int(suites.attrib["tests"]) == len(verdict["checks"]) == len(suites.findall("./testsuite/testcase"))
    metrics = (folder / "gpumesh.prom").read_text(encoding="utf-8")
    assert 'gpumesh_cluster_ok{cluster="check"} 1.0' in metrics
    assert "gpumesh_collective_busbw_bytes_per_second" in metrics
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Ready to train" in page
    assert "required 0.01 GB/s" in page
    assert "<td><code>/mnt/shared</code></td>" in page
    assert 'gpumesh_volume_write_bytes_per_second{cluster="check",volume="shared",host="k1"}' in metrics


def passed_layers(verdict: dict[str, Any]) -> set[str]:
    """The layers of which a check has passed."""
    return {one["id"].split(".")[0] for one in verdict["checks"] if one["status"] == "pass"}


def test_a_tag_chooses_a_part(lab: Lab, tmp_path: Path) -> None:
    """That of the reachability is used in the scenario default."""
    run, verdict = check(lab, tmp_path, "--tags", "storage")
    assert run.exit_status == 0, run.output
    assert {"storage"} <= passed_layers(verdict) <= {"members", "storage", "clock"}


def test_logins_are_tested_as_a_user_who_has_them(lab: Lab, tmp_path: Path) -> None:
    """Many sites let nobody log in as root. What a user fills is a fault too, for which no node is drained."""
    for machine in MACHINES:
        lab.run(machine, "useradd", "--create-home", "alice")
    try:
        trust(lab, tmp_path, ["alice"])
        run, verdict = check(lab, tmp_path, "--tags", "health", ssh_trust_users=["alice"])
        assert (run.exit_status, bad(verdict)) == (0, {}), run.output
        with full_memory(lab, "k2"):
            _run, verdict = check(lab, tmp_path, "--tags", "health", check_ssh_user="root")
            assert set(bad(verdict)) == {*(f"ssh_trust.login@{machine}" for machine in MACHINES), "health.disk@k2"}
            assert "k2: none: fit" in lab.run("k2", PROGRAM)
        assert all_idle(lab)
    finally:
        trust(lab, tmp_path, ["root"])
        for machine in MACHINES:
            lab.run(machine, "userdel", "--remove", "alice")


@contextmanager
def full_memory(lab: Lab, host: str) -> Iterator[None]:
    """Let an ordinary user fill 97 percent of the host's shared memory."""
    size = int(lab.run(host, "df", "--output=size", "--block-size=1K", "/dev/shm").split()[-1])
    lab.run(host, "runuser", "--user=nobody", "--", "fallocate", "--length", f"{size * 97 // 100}K", FILLER)
    try:
        yield
    finally:
        lab.run(host, "rm", "-f", FILLER)


def trust(lab: Lab, folder: Path, users: list[str]) -> None:
    """Let only these users log in to other members."""
    roles = [("cluster", "load"), ("ssh_trust", "main")]
    tasks = [
        {"ansible.builtin.include_role": {"name": f"gpumesh.cluster.{name}", "tasks_from": entry}}
        for name, entry in roles
    ]
    path = folder / "trust.json"
    path.write_text(json.dumps([{"hosts": "cluster", "become": True, "gather_facts": False, "tasks": tasks}]))
    run = lab.run_playbook(str(path), "--extra-vars", json.dumps({"ssh_trust_users": users}))
    assert run.exit_status == 0, run.output


def test_a_part_leaves_the_verdict_on_the_whole_as_it_is(lab: Lab, reports: Path) -> None:
    path = reports / "check" / "verdict.json"
    whole = path.read_bytes()
    run, verdict = check(lab, reports, "--tags", "health", "--limit=k1,k2")
    assert run.exit_status == 0, run.output
    # Some of the checks of a node's health are of other layers.
    assert (
        {"health"} <= passed_layers(verdict) <= {"members", "health", "storage", "clock", "ssh_trust", "mesh", "slurm"}
    )
    assert verdict["history"] == []
    assert path.read_bytes() == whole


def test_show_has_the_volumes_with_what_was_measured(lab: Lab, reports: Path) -> None:
    given = {"show_output": "json", "check_report_dir": str(reports)}
    run = lab.run_playbook("gpumesh.cluster.show", "--extra-vars", json.dumps(given))
    assert run.exit_status == 0, run.output
    (line,) = [line for line in run.output.splitlines() if line.startswith("[{")]
    (volume,) = json.loads(line)[0]["volumes"]
    assert sorted(volume["state"]["mounted_on"]) == list(MACHINES)
    assert volume["state"]["free_bytes"] > 0
    assert sorted(member["machine"] for member in volume["state"]["members"]) == list(MACHINES)
    assert volume["state"]["measured_at"]


def test_a_healthy_node_is_judged_in_seconds(lab: Lab) -> None:
    """Within five seconds on an otherwise idle host; on a busy one, before Slurm would end the program after 60."""
    run = lab.run_module("cluster", "gpumesh.cluster.node_health")
    assert run.exit_status == 0, run.output
    results = [json.loads(line.partition("=> ")[2]) for line in run.output.splitlines() if "=> " in line]
    assert len(results) == len(MACHINES)
    assert all(result["status"] == "pass" and result["seconds"] < 60 for result in results), results


# --- Programs built from source

#: Stand-in for nccl-tests, which needs GPUs: it is unpacked, built and started in the same way, by ranks that know of
#: each other, and prints the same output. The speeds that it prints are meaningless.
STAND_IN = """#!/usr/bin/python3
import os, time
rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
nodes = os.popen("scontrol show hostnames " + os.environ["SLURM_STEP_NODELIST"]).read().split()
if rank == 0:
    print("# Collective test starting: all_reduce_perf")
    for number in range(ranks):
        print(f"#  Rank {number:2d} Group  0 Pid {100 + number} on {nodes[number]:>10} device  0 [0000:01:00] Stand-in")
    print("     1048576    262144     float     sum      -1    200.0    5.24    6.99      0    200.0    5.24    6.99      0")
    print("# Out of bounds values : 0 OK")
    print("# Avg bus bandwidth    : 6.99")
"""
MAKEFILE = """all:
\ttest "$(MPI)" = 1 && mkdir -p build && cp all_reduce_perf.py build/all_reduce_perf && chmod 755 build/all_reduce_perf
"""


@pytest.fixture(name="sources", scope="module")
def _sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings that choose the stand-in."""
    archive = tmp_path_factory.mktemp("sources") / "tests-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as writer:
        for name, text in (("Makefile", MAKEFILE), ("all_reduce_perf.py", STAND_IN)):
            entry = tarfile.TarInfo(f"tests-1.0/{name}")
            entry.size = len(text)
            writer.addfile(entry, io.BytesIO(text.encode()))
    return {"check_collective_source": str(archive), "check_collective_mpi": ""}


def test_sources_that_are_named_are_built_and_used(lab: Lab, tmp_path: Path, sources: dict[str, str]) -> None:
    """That they are built once is in the test of a cluster at work."""
    lab.wait_until("all nodes are idle", lambda: all_idle(lab))
    run, verdict = check(lab, tmp_path, "--tags", "collectives", check_level="full", **sources)
    assert run.exit_status == 0, run.output
    assert set(run.changed.values()) == {3}
    (collective,) = verdict["collectives"]
    assert (collective["ranks"], collective["nodes"], collective["busbw_gbps"]) == (3, 3, 6.99)


# --- A slow link, and volumes with faults


def store(lab: Lab, volumes: Sequence[dict[str, str]]) -> AnsibleRun:
    """Set these as the volumes of the cluster."""
    return lab.run_playbook("gpumesh.cluster.storage", "--extra-vars", json.dumps({"storage_volumes": volumes}))


@contextmanager
def faulty_volumes(lab: Lab) -> Iterator[list[dict[str, str]]]:
    """One volume that is separate on every host, and one whose locks do not reach other hosts."""
    lab.run("k1", "mkdir", "-p", "/srv/lockless")
    try:
        for host in MACHINES:
            lab.run(host, "mkdir", "-p", "/mnt/own", "/mnt/lockless")
            lab.run(host, "mount", "-t", "tmpfs", "own", "/mnt/own")
            lab.run(host, "sshfs", f"{ADDRESSES['k1']}:/srv/lockless", "/mnt/lockless")
        yield [
            {"name": "own", "mount_point": "/mnt/own", "filesystem": "tmpfs"},
            {"name": "lockless", "mount_point": "/mnt/lockless"},
        ]
    finally:
        for host in MACHINES:
            lab.run(host, "umount", "--lazy", "/mnt/own", "/mnt/lockless", check=False)


def test_a_slow_link_and_each_fault_of_a_volume_are_named(lab: Lab, reports: Path) -> None:
    shared = {"name": "shared", "mount_point": VOLUME}
    with faulty_volumes(lab) as faulty:
        run = store(lab, [shared, *faulty])
        assert run.exit_status == 0, run.output
        with limit_link(lab, {machine: ADDRESSES[machine] for machine in ("k2", "k3")}, SHAPED):
            run, verdict = full(lab, reports, check_volume_size_mib=1, check_min_volume_write_mbps=10**5)
        assert run.exit_status != 0, run.output
        # A file system that the role did not mount stays, even when it is no longer a volume of the cluster.
        back = store(lab, [shared])
        assert back.exit_status == 0, back.output
        assert "tmpfs" in lab.run("k2", "findmnt", "--noheadings", "--output=FSTYPE", "/mnt/own")
    assert lab.run("k3", "findmnt", "--noheadings", "--output=TARGET", VOLUME).strip() == VOLUME
    found = bad(verdict)
    assert set(found) == {
        "reachability.bandwidth@k2",
        "reachability.bandwidth@k3",
        "collective.all_reduce@None",
        *(f"storage.{name}@{machine}" for name in ("shared", "locks", "write") for machine in MACHINES),
    }, run.output
    assert "the link between k2 and k3" in found["collective.all_reduce@None"]["reason"]
    assert "from k2 to k3" in found["reachability.bandwidth@k2"]["reason"]
    # The output names all of them, not only the first one.
    for words in ("the link between k2 and k3", "The link from k2 to k3", "The link from k3 to k2"):
        assert words in run.flat_output, run.output
    assert len(verdict["history"]) >= 1
    assert verdict["history"][-1]["status"] == "pass"
    assert "k1 does not see what k2, k3 wrote to own at /mnt/own" in found["storage.shared@k1"]["reason"]
    assert "k1 got a lock on lockless while k2 held it." in found["storage.locks@k1"]["reason"]
    assert "100000 are required" in found["storage.write@k2"]["reason"]
    assert all(one["remedy"] for one in found.values())
    by_name = {volume["name"]: volume for volume in verdict["volumes"]}
    assert {member["locks"] for member in by_name["shared"]["members"]} == {"pass"}


# --- A rank that dies


def ranks_on(lab: Lab, host: str) -> Sequence[str]:
    return lab.run(host, "pgrep", "-f", "python3 -I -c.*--collective=all_reduce", check=False).split()


def test_a_rank_that_dies_is_named_within_the_limit(lab: Lab, tmp_path: Path) -> None:
    lab.wait_until("all nodes are idle", lambda: all_idle(lab))
    limit = 900
    killed: list[str] = []

    def kill() -> None:
        # The rank has reported its start, and the run lasts far longer than this test.
        lab.wait_until("the rank on k3 runs", lambda: bool(ranks_on(lab, "k3")), seconds=limit)
        killed.extend(ranks_on(lab, "k3"))
        lab.run("k3", "kill", "-KILL", *killed)

    killer = threading.Thread(target=kill)
    killer.start()
    wanted = {"check_level": "full", "check_collective_max_bytes": 1 << 30, "check_collective_timeout": limit}
    run, verdict = check(lab, tmp_path, "--tags", "collectives", **wanted)
    killer.join()
    assert killed, run.output
    assert run.exit_status != 0
    reason = bad(verdict)["collective.all_reduce@None"]["reason"]
    # Slurm numbers the nodes in the order in which they registered.
    assert re.search(r"rank \d on k3: Killed", reason), run.output
    assert run.seconds < limit, "it waited for the limit instead of noticing"


# --- A rank that attacks the others

#: Behaves as rank 1 until the ranks exchange who they are. Then it sends an object that runs a command in any process
#: that unpickles it.
ATTACKER = """
import os, torch, torch.distributed as dist

class Attack:
    def __reduce__(self):
        return os.system, ("touch /tmp/seized-$RANK",)

dist.init_process_group("gloo", rank=1, world_size=2)
data, one = torch.ones(2), torch.zeros(1)
dist.all_reduce(data)
dist.all_reduce(one)
dist.barrier()
dist.all_reduce(data)
dist.all_reduce(one.double(), op=dist.ReduceOp.MAX)
dist.all_gather_object([None, None], Attack())
dist.barrier()
"""
RANKS = """
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29601 WORLD_SIZE=2 GLOO_SOCKET_IFNAME=lo USE_LIBUV=0
RANK=1 timeout 60 python3 -c "$1" & RANK=0 timeout 60 python3 -I -c "$2" --min-bytes=8 --max-bytes=8 --iterations=1 --timeout=10
wait
"""


def test_code_that_a_rank_sends_is_run_by_no_other(lab: Lab) -> None:
    program = (ROOT / "plugins/module_utils/_checks/collective/torch_program.py").read_text(encoding="utf-8")
    try:
        lab.run("k1", "sh", "-c", RANKS, "sh", ATTACKER, program, check=False)
        assert "seized-0" not in lab.run("k1", "ls", "/tmp")
    finally:
        lab.run("k1", "sh", "-c", "rm -f /tmp/seized-*")


# --- A busy cluster


@contextmanager
def at_work(lab: Lab, *hosts: str) -> Iterator[None]:
    """Run a user's job that has exclusive use of these hosts."""
    words = f"--nodes={len(hosts)} --nodelist={','.join(hosts)} --exclusive --job-name=train --output=/dev/null"
    job = lab.run("k1", "sbatch", "--parsable", "--chdir=/", *words.split(), "--wrap=sleep 3600").strip()
    try:
        lab.wait_until("the job runs", lambda: "RUNNING" in lab.run("k1", "squeue", "--noheader", "--format=%T"))
        yield
    finally:
        lab.run("k1", "scancel", job)
        lab.wait_until("all nodes are idle", lambda: all_idle(lab))


def test_a_cluster_at_work_is_proven_where_it_has_room_and_waited_for_nowhere(
    lab: Lab, tmp_path: Path, sources: dict[str, str]
) -> None:
    lab.wait_until("all nodes are idle", lambda: all_idle(lab))
    wanted = {"check_level": "full", "check_job_timeout": 900, "check_collective_timeout": 900}
    with at_work(lab, *MACHINES):
        run, verdict = check(lab, tmp_path, "--tags", "slurm,collectives", **wanted, **sources)
        assert run.exit_status == 0, run.output
        assert set(run.changed.values()) == {0}, "the sources were built again"
        assert run.seconds < 900, "it waited for the job"
        (job,) = (one for one in verdict["checks"] if one["id"] == "slurm.job")
        assert job["status"] == "skipped"
        assert re.search(r"job \d+ of root \(train\) occupies k1, k2, k3", job["reason"])
        (collective,) = (one for one in verdict["checks"] if one["id"].startswith("collective."))
        assert collective["status"] == "skipped" and "held by job" in collective["reason"]
    with at_work(lab, "k2"):
        run, verdict = check(lab, tmp_path, "--tags", "slurm", **wanted)
        assert run.exit_status == 0, run.output
        by_id = {one["id"]: one for one in verdict["checks"] if one["id"] in ("slurm.job", "slurm.room")}
        assert (by_id["slurm.job"]["status"], by_id["slurm.job"]["actual"]) == ("pass", "2 nodes")
        assert "occupies k2" in by_id["slurm.room"]["reason"]


# --- An unfit node, and a node that an administrator has drained


@contextmanager
def faulty_mount(lab: Lab, host: str) -> Iterator[None]:
    """Make the volume read-only on the host, which makes the host unfit and can be undone with one command."""
    lab.run(host, "mount", "-o", "remount,bind,ro", VOLUME)
    try:
        yield
    finally:
        lab.run(host, "mount", "-o", "remount,bind,rw", VOLUME)


def state(lab: Lab, host: str) -> str:
    return " ".join(nodes(lab)[host])


def job_state(lab: Lab, job: str) -> str:
    """The state of a job that Slurm still knows, and the reason."""
    return lab.run("k1", "squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T %r").strip()


def test_an_unfit_node_takes_no_job_and_comes_back_when_it_is_well(lab: Lab, tmp_path: Path) -> None:
    lab.wait_until("all nodes are idle", lambda: all_idle(lab))
    lab.run("k1", "scontrol", "update", "nodename=k3", "state=drain", "reason=new cables")
    try:
        with faulty_mount(lab, "k2"):
            # Either the prolog of this job or the periodic check detects it first.
            job = lab.run(
                "k1", "sbatch", "--parsable", "--nodelist=k2", "--output=/dev/null", "--wrap=hostname"
            ).strip()
            ours = f"drained gpumesh health: storage.mounts: {VOLUME}: Read-only file system"
            lab.wait_until("k2 is drained by its own check", lambda: state(lab, "k2").startswith(ours))
            run, verdict = check(lab, tmp_path, "--tags", "health,slurm", check_job_timeout=5)
            assert run.exit_status != 0
            found = bad(verdict)
            assert found["storage.mounts@k2"]["reason"].startswith(f"{VOLUME}: ")
            assert "returns it to service" in found["slurm.node@k2"]["remedy"]
            # A node that an administrator has drained is not a fault of the cluster.
            (drained,) = (one for one in verdict["checks"] if (one["id"], one["host"]) == ("slurm.node", "k3"))
            assert drained["status"] == "skipped"
            assert "new cables" in drained["reason"]
        lab.wait_until("k2 is back by itself", lambda: nodes(lab)["k2"][0] in ("idle", "mixed", "allocated"))
        shown = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State"]
        # Slurm delays a requeued job by two minutes, unless it is held and released.
        lab.run("k1", "scontrol", "update", f"jobid={job}", "starttime=now", check=False)
        lab.wait_until("its job ran in the end", lambda: lab.run("k1", *shown).strip() == "COMPLETED", seconds=600)
        with faulty_mount(lab, "k3"):
            assert "already out of service: new cables" in lab.run("k3", PROGRAM, check=False)
        # The node is fit again, but stays drained by the administrator.
        assert "left alone: new cables" in lab.run("k3", PROGRAM)
        assert state(lab, "k3") == "drained new cables"
    finally:
        lab.run("k1", "scontrol", "update", "nodename=k3", "state=resume")
    lab.wait_until("all nodes are idle", lambda: all_idle(lab))


def test_a_node_that_slurm_drained_for_a_job_comes_back_when_nothing_is_left_of_it(lab: Lab) -> None:
    lab.wait_until("all nodes are idle", lambda: all_idle(lab))
    words = ("sbatch", "--parsable", "--nodelist=k2", "--chdir=/", "--output=/dev/null", "--wrap=sleep 600")
    job = lab.run("k1", *words).strip()
    try:
        # The node is allocated while its prolog runs, and no process of the job exists yet.
        lab.wait_until(
            "its job runs", lambda: bool(lab.run("k2", "pgrep", "--full", "--exact", "sleep 600", check=False))
        )
        lab.run("k1", "scontrol", "update", "nodename=k2", "state=drain", "reason=Kill task failed")
        shown = lab.run("k2", PROGRAM)
        assert "none: stays drained" in shown and "slurmstepd" in shown
        assert state(lab, "k2") == "draining Kill task failed"
    finally:
        lab.run("k1", "scancel", job)
    lab.wait_until("all nodes are idle", lambda: all_idle(lab))


def test_what_all_nodes_have_drains_none_and_one_that_had_it_first_comes_back(lab: Lab) -> None:
    lab.wait_until("all nodes are idle", lambda: all_idle(lab))
    with faulty_mount(lab, "k1"):
        lab.wait_until(
            "k1 is drained for what it alone has", lambda: state(lab, "k1").startswith("drained gpumesh health")
        )
        with faulty_mount(lab, "k2"), faulty_mount(lab, "k3"):
            lab.wait_until("all are in service", lambda: all_idle(lab))
            # Rounds of the nodes' own checks.
            for _again in range(2):
                time.sleep(10)
                assert all_idle(lab), nodes(lab)
            assert "other nodes have it too" in lab.run("k2", PROGRAM)
            for machine in MACHINES:
                assert "fail storage.mounts" in lab.run(machine, PROGRAM, "--show", check=False)
            # A job that starts meanwhile waits for the volume.
            words = ("sbatch", "--parsable", "--nodelist=k3", "--chdir=/", "--output=/dev/null", "--wrap=hostname")
            job = lab.run("k1", *words).strip()
            lab.wait_until("it waits in its prolog", lambda: job_state(lab, job) == "RUNNING Prolog")
            # Each of these takes as long as the prolog of a job that is not made to wait.
            for _again in range(3):
                assert "kept in service" in lab.run("k3", PROGRAM)
            assert job_state(lab, job) == "RUNNING Prolog"
        lab.wait_until("it has run", lambda: job_state(lab, job).startswith("COMPLETED"))
    lab.wait_until("none says so any more", lambda: "Comment=" not in lab.run("k1", "scontrol", "show", "node"))
    # k1 may have been drained for what it alone had again, until its own check finds it well.
    lab.wait_until("all nodes are idle", lambda: all_idle(lab))


def test_what_slurm_runs_and_what_the_playbook_runs_say_the_same(lab: Lab) -> None:
    shown = lab.run("k1", PROGRAM, "--show")
    assert "pass storage.mounts: 1" in shown
    assert "skipped health.gpu_ecc: There is no NVIDIA driver on this host." in shown


# --- A volume that is not there


def test_a_volume_that_is_not_there_is_refused_by_name(lab: Lab) -> None:
    before = lab.read("k1", RECORD)
    faulty = [
        {"name": "absent", "mount_point": "/srv"},
        {"name": "other", "mount_point": VOLUME, "filesystem": "lustre"},
    ]
    run = store(lab, faulty)
    assert run.exit_status != 0
    assert "volume absent at /srv: nothing is mounted there" in run.flat_output
    assert "lustre is required" in run.flat_output
    assert lab.read("k1", RECORD) == before


# --- A volume in use


@contextmanager
def volume_in_use(lab: Lab, host: str) -> Iterator[str]:
    """Mount a volume that the record assigns to k1 on the host, with a process that uses it. Yields its mount point.

    The kernel of these hosts has no NFS, so another file system stands in for it; its users are found in the same way.
    """
    shared = {"name": "shared", "mount_point": VOLUME}
    data = {"name": "data", "server": "k1", "path": "/srv/data", "mount_point": "/mnt/data"}
    try:
        run = lab.run_module("k1", "gpumesh.cluster.cluster", name="check", storage={"volumes": [shared, data]})
        assert run.exit_status == 0, run.output
        lab.run(host, "mkdir", "-p", "/mnt/data")
        lab.run(host, "mount", "-t", "tmpfs", "data", "/mnt/data")
        lab.run(host, "systemd-run", "--unit=holder", "--working-directory=/mnt/data", "sleep", "3600")
        yield "/mnt/data"
    finally:
        lab.run(host, "systemctl", "stop", "holder", check=False)
        lab.run(host, "umount", "/mnt/data", check=False)
        run = lab.run_module("k1", "gpumesh.cluster.cluster", name="check", storage={"volumes": [shared]})
    assert run.exit_status == 0, run.output


def test_neither_a_machine_nor_a_cluster_goes_while_a_volume_is_in_use(lab: Lab) -> None:
    with volume_in_use(lab, "k3") as point:
        pid = lab.run("k3", "systemctl", "show", "--property=MainPID", "--value", "holder").strip()
        before = lab.read("k1", RECORD)
        given = {"cluster_name": "check", "cluster_machine": "k3"}
        for playbook in ("delete", "remove"):
            run = lab.run_playbook(f"gpumesh.cluster.{playbook}", "--extra-vars", json.dumps(given))
            assert run.exit_status != 0, run.output
            assert f"sleep of root (process {pid}) uses {point}" in run.flat_output.partition("k3")[2]
            assert lab.read("k1", RECORD) == before
    # The node was drained before, so its jobs are not among the users of the volume.
    lab.run("k1", "scontrol", "update", "nodename=k3", "state=resume")
    lab.wait_until("all nodes are idle", lambda: all_idle(lab))


# --- A user-space NFS server, as in a container whose kernel has none

SERVED = f"{VOLUME}/served"
SOURCE = f"nfs://{ADDRESSES['k3']}{SERVED}"


def serve(lab: Lab, *volumes: dict[str, str], limit: str = "k3") -> AnsibleRun:
    """Set these volumes, and run the role on k3 only: the other kernels could not mount them."""
    given = {"storage_backend": "nfs", "storage_server": "ganesha", "storage_volumes": volumes}
    return lab.run_playbook("gpumesh.cluster.storage", f"--limit={limit}", "--extra-vars", json.dumps(given))


def listed(lab: Lab, host: str) -> str:
    return lab.run(host, "nfs-ls", f"{SOURCE}?version=4", check=False)


def serving_since(lab: Lab) -> str:
    return lab.run("k3", "systemctl", "show", "--property=ActiveEnterTimestampMonotonic", "nfs-ganesha")


@contextmanager
def as_a_stranger(lab: Lab, host: str) -> Iterator[None]:
    """Let the host connect to k3 from an address that belongs to no member."""
    stranger, route = "10.77.80.99", f"{ADDRESSES['k3']}/32"
    lab.run(host, "ip", "address", "add", f"{stranger}/24", "dev", "eth0")
    try:
        lab.run(host, "ip", "route", "add", route, "dev", "eth0", "src", stranger)
        yield
    finally:
        lab.run(host, "ip", "route", "del", route, check=False)
        lab.run(host, "ip", "address", "del", f"{stranger}/24", "dev", "eth0", check=False)


def refuse_programs_of_users(lab: Lab) -> None:
    """A job on k2 claims to be user 1000, whose file nobody else may read."""
    lab.run("k3", "chmod", "600", f"{SERVED}/note")
    read = ("nfs-cat", f"{SOURCE}/note?version=4&uid=1000&gid=1000")
    assert "written by k2" in lab.run("k2", *read), "root of a member is who it wants to be"
    port_start = "net.ipv4.ip_unprivileged_port_start"
    assert lab.run("k3", "sysctl", "--values", port_start).strip() == "1024", "the role has closed them, here too"
    # The setting of members that mount volumes, which k2's kernel cannot.
    before = lab.run("k2", "sysctl", "--values", port_start).strip()
    lab.run("k2", "sysctl", "--quiet", "--write", f"{port_start}=1024")
    try:
        as_user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *read)
        assert "written by k2" not in lab.run("k2", *as_user, check=False)
    finally:
        lab.run("k2", "sysctl", "--quiet", "--write", f"{port_start}={before}")


def test_a_server_that_is_a_program_serves_members_alone(lab: Lab) -> None:
    volume = {"name": "data", "server": "k3", "path": SERVED, "mount_point": "/mnt/data"}
    try:
        if "nfs4" not in lab.run("k1", "cat", "/proc/filesystems"):
            before = lab.read("k1", RECORD)
            run = serve(lab, volume, limit="cluster")
            assert "This kernel has no nfs4, which volume data needs" in run.flat_output
            assert lab.read("k1", RECORD) == before, "refused, and the record was changed before"
        run = serve(lab, volume)
        assert run.exit_status == 0, run.output
        lab.run("k2", "sh", "-c", "echo written by k2 > /tmp/note")
        copy = ("nfs-cp", "/tmp/note", f"{SOURCE}/note?version=4&uid=1000&gid=1000")
        # A server that has just started first admits only clients that had files open.
        lab.wait_until("k2 can write", lambda: "copied" in lab.run("k2", *copy, check=False))
        assert "note" in listed(lab, "k2")
        assert lab.run("k3", "cat", "/mnt/data/note") == "written by k2\n"
        assert lab.run("k3", "stat", "--format=%u %a", SERVED).split() == ["0", "1777"]
        with as_a_stranger(lab, "k2"):
            assert "note" not in listed(lab, "k2")
        refuse_programs_of_users(lab)
        again = {"record": json.loads(lab.read("k1", RECORD))}
        ganesha: dict[str, object] = {"storage_backend": "nfs", "storage_server": "ganesha"}
        assert "SUCCESS" in lab.run_module("k3", "gpumesh.cluster.storage", ganesha, **again).output
        since = serving_since(lab)
        serve(lab, volume, {**volume, "name": "more", "path": f"{VOLUME}/more", "mount_point": "/mnt/more"})
        # It is told to read its exports again, and does so a moment later.
        look = ("nfs-ls", f"nfs://{ADDRESSES['k3']}{VOLUME}?version=4")
        lab.wait_until("it serves both", lambda: "more" in lab.run("k2", *look, check=False))
        assert serving_since(lab) == since, "restarted, while others have files open"
    finally:
        run = store(lab, [{"name": "shared", "mount_point": VOLUME}])
        lab.run("k3", "rm", "-rf", SERVED, f"{VOLUME}/more")
    assert run.exit_status == 0, run.output
    assert "note" not in listed(lab, "k2")
    assert "gpumesh" not in lab.run("k3", "cat", "/etc/ganesha/ganesha.conf")
