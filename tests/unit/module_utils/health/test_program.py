# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's checks as Slurm runs them: one file, without Ansible, and with an scontrol that plays the controller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import program
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.run import CHECKS
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.package import build, sources
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.show import Node
from ansible_collections.gpumesh.cluster.tests.unit.modules.test_cluster_modules import entry, run

DISK = "health.disk"
OURS = f"{program.MARK}health.disk: / has 99 % of its space in use"
#: According to the record, this machine has a hundred GPUs. The other check passes.
UNFIT, FIT = "health.gpu_count", "health.swap"


def result(status: str, name: str = DISK, reason: str = "/ has 99 % of its space in use.") -> Any:
    words = "" if status == "pass" else reason
    return {"id": name, "purpose": "", "host": "n1", "actual": 1, "required": 0, "unit": "", "status": status,
            "reason": words, "remedy": ""}  # fmt: skip


def node(reason: str = "", state: str = "idle", *flags: str) -> Node:
    shown: Any = {"name": "n1", "state": state, "flags": list(flags), "reason": reason}
    return shown


@pytest.mark.parametrize(
    ("results", "shown", "kind"),
    [
        ([result("pass")], node(), "none"),
        ([result("fail")], node(), "drain"),
        ([result("fail")], node("", "mixed"), "drain"),
        # Drained already, for the same or for another fault of ours.
        ([result("fail")], node(OURS, "idle", "drain"), "none"),
        ([result("fail", reason="/var has 97 % of its inodes in use.")], node(OURS, "idle", "drain"), "drain"),
        # Drained by others: never changed, fit or not.
        ([result("fail")], node("new cables", "idle", "drain"), "none"),
        ([result("pass")], node("new cables", "idle", "drain"), "none"),
        ([result("pass")], node("gpumesh: leaves the cluster", "idle", "drain"), "none"),
        ([result("pass")], node("Not responding", "down"), "none"),
        ([result("fail")], node("Not responding", "down"), "none"),
        # Ours: resumed when all is well, but not if a check could not be made.
        ([result("pass"), result("skipped")], node(OURS, "idle", "drain"), "resume"),
        ([result("error")], node(OURS, "idle", "drain"), "none"),
        # What it was not drained for does not keep it drained.
        ([result("pass"), result("error", "health.gpu_xid")], node(OURS, "idle", "drain"), "resume"),
        (
            [result("error", "health.gpu_xid"), result("pass")],
            node(f"{OURS}; health.gpu_xid: y", "idle", "drain"),
            "none",
        ),
        ([result("error", "health.gpu_xid")], node(f"{program.MARK}{DISK}: {'x' * 370} …", "idle", "drain"), "none"),
        # A new reason would forget the check that could not be made.
        ([result("error"), result("fail", "health.rdma")], node(OURS, "idle", "drain"), "none"),
        ([result("error")], node(), "none"),
        # An administrator who replaces our reason has taken over the node.
        ([result("pass")], node(f"see ticket 5; was: {OURS}", "idle", "drain"), "none"),
        # Our reason on a node that was resumed manually.
        ([result("pass")], node(OURS, "idle"), "none"),
        ([result("fail")], node(OURS, "idle"), "drain"),
        # Slurm's reason, for a job that did not end in time, of which nothing is left.
        ([result("pass")], node(program.KILL_FAILED, "idle", "drain"), "resume"),
        ([result("pass")], node(program.DUPLICATE_JOB, "idle", "drain"), "resume"),
        ([result("pass")], node("batch job complete failure", "idle", "drain"), "none"),
        ([result("fail")], node(program.KILL_FAILED, "idle", "drain"), "none"),
        ([result("error")], node(program.KILL_FAILED, "idle", "drain"), "none"),
        ([result("pass")], node(program.KILL_FAILED, "idle"), "none"),
        ([result("pass")], node(f"{program.KILL_FAILED}, see ticket 5", "idle", "drain"), "none"),
    ],
)
def test_decide(results: list[Any], shown: Node, kind: str) -> None:
    assert program.decide(results, shown).kind == kind


@pytest.mark.parametrize("reason", [program.KILL_FAILED, program.DUPLICATE_JOB])
def test_a_node_with_processes_that_no_signal_ends_stays_drained(reason: str) -> None:
    action = program.decide([result("pass")], node(reason, "idle", "drain"), left=["python3 (71)"])
    assert (action.kind, "python3 (71)" in action.words) == ("none", True)


@pytest.mark.parametrize(
    ("stat", "group", "counts"),
    [
        ("71 (python3) S 1 71", "0::/system.slice/n1_slurmstepd.scope/job_8/step_0/user/task_0", True),
        ("71 (python3) S 1 71", "4:memory:/slurm/uid_1000/job_8\n0::/", True),
        ("71 (slurmstepd) S 1 71", "0::/", False),
        ("71 (a) S (b) D 1 71", "0::/system.slice/slurmd.service", True),
        ("71 (python3) D 1 71", "0::/user.slice/user-1000.slice/session-3.scope", False),
        ("71 (python3) D 1 71", "0::/system.slice/docker-1.scope", False),
        ("71 (python3) D 1 71", "0::/system.slice/n1_slurmstepd.scope/job_8/step_0/user/task_0", True),
        ("71 (python3) S 1 71", "0::/user.slice/user-1000.slice/job_x", False),
        # A user may make groups of any name there.
        ("71 (python3) S 1 71", "0::/user.slice/user-1000.slice/user@1000.service/job_8", False),
        ("71 (slurmd) S 1 71", "0::/system.slice/slurmd.service", False),
    ],
)
def test_what_is_left_of_jobs(tmp_path: Path, stat: str, group: str, counts: bool) -> None:
    for name in ("71", "self", "72"):
        (tmp_path / "proc" / name).mkdir(parents=True)
    # Process 72 has just ended.
    (tmp_path / "proc/71/stat").write_text(f"{stat} 71 0\n", encoding="utf-8")
    (tmp_path / "proc/71/cgroup").write_text(f"{group}\n", encoding="utf-8")
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/slurmd.service\n", encoding="utf-8")
    assert bool(program.left_of_jobs(Tree(str(tmp_path)))) == counts


@pytest.mark.parametrize(
    ("ids", "file", "counts"),
    [
        ("0\t0\t0\t0", "/usr/sbin/slurmstepd", True),
        ("0\t0\t0\t0", "/usr/sbin/slurmstepd (deleted)", True),
        ("1000\t1000\t1000\t1000", "/home/mallory/slurmstepd", False),
        ("1000\t0\t0\t0", "/home/mallory/slurmstepd", False),
        ("0\t0\t0\t0", "/usr/bin/su", False),
    ],
)
def test_what_slurm_starts_for_jobs_is_not_known_by_its_name(tmp_path: Path, ids: str, file: str, counts: bool) -> None:
    folder = tmp_path / "proc/71"
    folder.mkdir(parents=True)
    (folder / "stat").write_text("71 (slurmstepd) S 1 71 0\n", encoding="utf-8")
    (folder / "status").write_text(f"Name:\tslurmstepd\nUid:\t{ids}\n", encoding="utf-8")
    (folder / "exe").symlink_to(file)
    assert bool(program.left_of_jobs(Tree(str(tmp_path)))) == counts


@pytest.mark.parametrize(
    ("others", "nodes", "shared"),
    [
        (0, 3, False),
        (1, 3, True),
        (1, 8, False),
        (2, 8, True),
        (24, 100, False),
        (25, 100, True),
        # One node may always be out of service.
        (0, 1, False),
    ],
)
def test_a_fault_of_more_than_a_part_of_the_nodes_is_shared(others: int, nodes: int, shared: bool) -> None:
    comments = {f"m{number}": f"{program.NOTE}health.rdma,{DISK}" for number in range(others)}
    comments["other"] = f"{program.NOTE}health.rdma"
    comments["admin"] = f"new cables, {DISK}"
    assert program.shared_faults([DISK], "n1", comments, nodes, 25) == ([DISK] if shared else [])


def test_a_shared_fault_drains_nobody_and_brings_back_who_was_drained_for_it() -> None:
    assert program.decide([result("fail")], node(), [DISK]).kind == "none"
    assert program.decide([result("fail")], node(OURS, "idle", "drain"), [DISK]).kind == "resume"
    assert program.decide([result("fail")], node("new cables", "idle", "drain"), [DISK]).kind == "none"
    own = result("fail", "health.gpu_ecc", "2 errors.")
    action = program.decide([result("fail"), own], node(), [DISK])
    assert (action.kind, DISK in action.words) == ("drain", False)


ECC = "health.gpu_ecc"
OURS_ECC = f"{program.MARK}{ECC}: 2 errors"


def test_a_broken_card_is_never_excused_by_that_of_another_node() -> None:
    broken = result("fail", ECC, "2 errors.")
    assert program.decide([broken], node(OURS_ECC, "idle", "drain"), [ECC]).kind == "none"
    # The limit only prevents further drains.
    action = program.decide([broken], node(), [ECC])
    assert (action.kind, ECC in action.words) == ("none", True)
    # A node that is drained anyway is drained for everything that it has.
    action = program.decide([broken, result("fail")], node(), [ECC])
    assert (action.kind, ECC in action.words, DISK in action.words) == ("drain", True, True)
    # What other nodes have too does not bring back a node that also has a broken card.
    both = [broken, result("fail")]
    assert program.decide(both, node(OURS_ECC, "idle", "drain"), [ECC, DISK]).kind == "none"


@pytest.mark.parametrize("check", program.OF_A_CARD)
def test_jobs_do_not_start_on_a_broken_card_however_many_there_are(tmp_path: Path, check: str) -> None:
    told: list[str] = []
    reason = f"{program.MARK}{check}: 2 errors [root@2026-11-22T14:45:56] Comment={program.NOTE}{check}"
    line = f"NodeName={{}} State={{}} Reason={reason}\n"

    def runner(argv: Any, **_options: Any) -> Completed:
        if "update" in argv:
            told.append(" ".join(argv[2:]))
        shown = line.format("n1", "IDLE+DRAIN")
        return Completed(0, shown if argv[-1] == "n1" else shown + line.format("n2", "IDLE"), "")

    settings = program.Settings("lab", "n1", "", [check], 95)
    action = program.settle(runner, settings, [result("fail", check, "2 errors.")], Tree(str(tmp_path)))
    assert (action.kind, action.unfit, told) == ("none", True, [])


@pytest.mark.parametrize(
    ("state", "shared"),
    [
        ("IDLE", True),
        ("MIXED+DRAIN", True),
        ("DOWN", False),
        ("IDLE*", False),
        ("IDLE+NOT_RESPONDING", False),
        ("IDLE+CLOUD+POWERED_DOWN", False),
        ("IDLE+POWERING_DOWN", False),
    ],
)
def test_a_node_that_does_not_report_its_faults_does_not_count(tmp_path: Path, state: str, shared: bool) -> None:
    def runner(argv: Any, **_options: Any) -> Completed:
        shown = f"NodeName=n1 State=IDLE Comment={program.NOTE}{DISK}\n"
        other = f"NodeName=n2 State={state} Comment={program.NOTE}{DISK}\n"
        return Completed(0, shown if argv[-1] == "n1" else shown + other, "")

    settings = program.Settings("lab", "n1", "", [DISK], 95)
    action = program.settle(runner, settings, [result("fail")], Tree(str(tmp_path)))
    assert (action.kind, action.unfit) == (("none", False) if shared else ("drain", True))


def test_a_node_that_comes_back_says_again_what_it_has(tmp_path: Path) -> None:
    """Slurm removes the comment of a node that is resumed."""
    told: list[str] = []
    line = f"NodeName={{}} State={{}} Reason={OURS} [root@2026-11-22T14:45:56] Comment={program.NOTE}{DISK}\n"

    def runner(argv: Any, **_options: Any) -> Completed:
        if "update" in argv:
            told.append(" ".join(argv[2:]))
            return Completed(0, "", "")
        shown = line.format("n1", "IDLE+DRAIN")
        return Completed(0, shown if argv[-1] == "n1" else shown + line.format("n2", "IDLE"), "")

    settings = program.Settings("lab", "n1", "", [DISK], 95)
    action = program.settle(runner, settings, [result("fail")], Tree(str(tmp_path)))
    assert (action.kind, action.unfit) == ("resume", False)
    assert told == ["nodename=n1 state=resume", f"nodename=n1 comment={program.NOTE}{DISK}"]


def test_comments_are_read_where_slurm_shows_them() -> None:
    line = "NodeName={} State=IDLE+DRAIN Reason=gpumesh health: x y [root@2026-11-22T14:45:56] Comment={}"
    shown = (
        line.format("n1", "gpumesh-unfit:a.b,c.d")
        + "\n"
        + line.format("n2", "see ticket 5")
        + "\nNodeName=n3 State=IDLE\n"
    )
    assert program.parse_comments(shown) == {"n1": "gpumesh-unfit:a.b,c.d", "n2": "see ticket 5"}
    reserved = shown.replace("c.d", "c.d ReservationName=mt") + "NodeName=n4 State=IDLE+RESERVED ReservationName=mt\n"
    assert program.parse_comments(reserved) == program.parse_comments(shown)
    assert program.noted("gpumesh-unfit:a.b,c.d") == ["a.b", "c.d"]
    assert program.noted("see ticket 5") == []


def test_a_reserved_node_has_its_fault_only_once(tmp_path: Path) -> None:
    """It would otherwise wait for the others at each run, and its fault would not count among theirs."""
    told: list[str] = []
    line = f"NodeName={{}} State=IDLE+RESERVED Comment={program.NOTE}{DISK} ReservationName=mt\n"

    def runner(argv: Any, **_options: Any) -> Completed:
        if argv[1] == "update":
            told.append(" ".join(argv[2:]))
            return Completed(0, "", "")
        mine = line.format("n1")
        return Completed(0, mine if argv[-1] == "n1" else "".join(line.format(f"n{n}") for n in range(1, 5)), "")

    settings = program.Settings("lab", "n1", "", [DISK], 95)
    action = program.settle(runner, settings, [result("fail")], Tree(str(tmp_path)))
    assert (action.kind, told) == ("none", [])


def test_a_reason_is_one_line_that_slurm_can_store() -> None:
    reason = program.reason_of([result("fail", reason='a "quoted"\nword.'), result("fail", reason="x" * 900)])
    assert reason.startswith(f"{program.MARK}{DISK}: a 'quoted' word; {DISK}: xxx")
    assert len(reason) <= 400
    assert "\n" not in reason
    assert '"' not in reason


def test_the_archive_needs_nothing_of_ansible() -> None:
    assert not [
        name for name, text in sources(program.__name__).items() if "import ansible." in text or "from ansible." in text
    ]
    assert build("/usr/bin/python3", program.__name__, {"a": 1}) == build(
        "/usr/bin/python3", program.__name__, {"a": 1}
    )


class Host:
    """A machine with the program, a record, and an scontrol that shows and stores one node's state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "health"
        self.told = folder / "told"
        (folder / "bin").mkdir()
        self.show()
        run("cluster", name="lab", path=str(folder / "records"), subnet="10.77.0.11/24", manager="n1",
            members=[{**entry(1), "gpus": 100}])  # fmt: skip
        self.install()

    def install(self, **changes: Any) -> dict[str, Any]:
        return run("node_health_program", path=str(self.file), cluster="lab", machine="n1",
                   folder=str(self.folder / "records"), **{"drain_on": [FIT], **changes})  # fmt: skip

    def show(self, state: str = "IDLE", reason: str = "") -> None:
        tail = f" Reason={reason} [root@2026-11-20T20:31:00]" if reason else ""
        line = f"NodeName=n1 Arch=x86_64 CPUTot=2 NodeAddr=10.77.0.11 State={state} Version=24.11.5{tail}"
        script = self.folder / "bin" / "scontrol"
        script.write_text(
            f"#!/bin/sh\ncase \"$1 $2\" in\n'--oneliner show') echo '{line}';;\n*) echo \"$@\" >> {self.told};;\nesac\n",
            encoding="utf-8",
        )
        script.chmod(0o755)

    def start(self, *arguments: str, **variables: str) -> tuple[int, str, list[str]]:
        """Run the program. Returns (exit status, output, commands to Slurm)."""
        self.told.write_text("", encoding="utf-8")
        environment = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **variables}
        done = subprocess.run(
            [str(self.file), *arguments], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.stderr == ""
        return done.returncode, done.stdout, self.told.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_module_installs_once_and_removes(host: Host) -> None:
    assert host.file.stat().st_mode & 0o777 == 0o755
    assert not host.install()["changed"]
    assert host.install(max_disk_percent=50)["changed"]
    host.file.chmod(0o644)
    assert host.install(max_disk_percent=50)["changed"]
    assert host.file.stat().st_mode & 0o777 == 0o755
    path = str(host.file)
    assert run("node_health_program", state="absent", path=path, _ansible_check_mode=True)["changed"]
    assert host.file.exists()
    assert run("node_health_program", state="absent", path=path)["changed"]
    assert not run("node_health_program", state="absent", path=path)["changed"]
    assert not host.file.exists()


def test_a_fit_node_is_left_in_service(host: Host) -> None:
    code, output, told = host.start()
    assert (code, told) == (0, []), output


def test_a_prolog_that_passes_does_not_even_ask_the_controller(host: Host) -> None:
    (host.folder / "bin" / "scontrol").write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    assert host.start(SLURM_SCRIPT_CONTEXT="prolog_slurmd")[0] == 0


@pytest.mark.parametrize("context", ["", "prolog_slurmd"])
def test_an_unfit_node_is_drained_with_our_reason(host: Host, context: str) -> None:
    host.install(drain_on=[UNFIT])
    code, output, told = host.start(SLURM_SCRIPT_CONTEXT=context)
    assert code == 1, output
    assert told[0] == f"update nodename=n1 comment={program.NOTE}{UNFIT}"
    assert told[1].startswith(f"update nodename=n1 state=drain reason={program.MARK}{UNFIT}: ")


def test_what_an_admin_has_drained_stays_so(host: Host) -> None:
    for check in (FIT, UNFIT):
        host.install(drain_on=[check])
        host.show("IDLE+DRAIN", "new cables")
        assert not [line for line in host.start()[2] if "state=" in line]


def test_what_we_have_drained_is_resumed_when_it_is_well(host: Host) -> None:
    host.show("IDLE+DRAIN", OURS)
    assert host.start()[2] == ["update nodename=n1 state=resume"]


@pytest.mark.parametrize("reason", [program.KILL_FAILED, program.DUPLICATE_JOB])
@pytest.mark.parametrize("left", [True, False])
def test_what_slurm_has_drained_for_a_job_is_resumed_when_nothing_is_left_of_it(
    tmp_path: Path, left: bool, reason: str
) -> None:
    told: list[str] = []
    shown = f"NodeName=n1 State=IDLE+DRAIN Reason={reason} [root@2026-11-22T14:45:56]\n"

    def runner(argv: Any, **_options: Any) -> Completed:
        if argv[0] == "squeue":
            return Completed(0, "17|(launch failed requeued held)\n", "")
        if argv[1] != "--oneliner":
            told.append(" ".join(argv[1:]))
        return Completed(0, shown, "")

    process = tmp_path / "proc/71"
    process.mkdir(parents=True)
    (process / "stat").write_text("71 (x) S 1 71\n", encoding="utf-8")
    (process / "status").write_text("Uid:\t0\t0\t0\t0\n", encoding="utf-8")
    (process / "exe").symlink_to(f"/usr/sbin/{'slurmstepd' if left else 'slurmd'}")
    settings = program.Settings("lab", "n1", "", [DISK], 95)
    program.settle(runner, settings, [result("pass")], Tree(str(tmp_path)))
    resumed = ["update nodename=n1 state=resume", *(["release 17"] if reason == program.DUPLICATE_JOB else [])]
    assert told == ([] if left else resumed)


def test_show_tells_slurm_nothing(host: Host) -> None:
    host.show("IDLE+DRAIN", OURS)
    code, output, told = host.start("--show")
    assert (code, told) == (0, [])
    assert f"pass {FIT}" in output
    host.install(drain_on=[UNFIT])
    code, output, told = host.start("--show")
    assert (code, told) == (1, [])
    assert f"fail {UNFIT}" in output


def test_what_users_can_fill_drains_nobody(host: Host) -> None:
    host.install(drain_on=[DISK], max_disk_percent=0.0001)
    code, output, _told = host.start("--show")
    assert code == 0, output
    assert "/tmp" not in output and "/dev/shm" not in output


def test_what_cannot_be_checked_does_not_stop_a_job(host: Host) -> None:
    (host.folder / "records" / "lab.json").write_text("{", encoding="utf-8")
    code, output, told = host.start(SLURM_SCRIPT_CONTEXT="prolog_slurmd")
    assert (code, told) == (0, [])
    assert "could not be checked" in output
    assert host.start()[0] == 2


def test_a_host_without_a_record_is_not_judged(host: Host) -> None:
    for path in (host.folder / "records").iterdir():
        path.unlink()
    assert host.start()[0] == 0


def test_the_record_says_what_the_node_is_meant_to_be() -> None:
    volumes = [
        {"mount_point": "/mnt/a", "server": "n1"},
        {"mount_point": "/mnt/b", "server": "n2"},
        {"mount_point": "/mnt/c", "read_only": True},
    ]
    member = {"machine": "n1", "address": "10.77.0.11", "gpus": 8, "rdma": "roce", "mesh": {"address": "10.99.0.1"}}
    record: Any = {
        "name": "lab",
        "members": [member],
        "mesh": {"backend": "wireguard"},
        "storage": {"volumes": volumes},
    }
    settings = program.Settings("lab", "n1", "", program.DRAIN_ON, 95)
    expected = program.expected_of(record, settings)
    assert expected.rdma == "roce"
    assert (expected.gpus, list(expected.mounts), expected.cluster_address) == (8, ["/mnt/b"], "10.99.0.1")
    assert (expected.external_mounts, expected.read_only_mounts) == (["/mnt/c"], ["/mnt/c"])
    assert "health.gpu_count" in program.chosen(record, settings)
    member["gpus"] = 0
    assert "health.gpu_count" not in program.chosen(record, settings)


def test_the_modules_default_is_the_programs(tmp_path: Path) -> None:
    """Every name in it is that of a check."""
    names = {check.id for check in CHECKS}
    assert set(program.DRAIN_ON) <= names
    path = tmp_path / "health"
    run("node_health_program", path=str(path), cluster="lab", machine="n1")
    with zipfile.ZipFile(path) as archive:
        assert json.dumps(list(program.DRAIN_ON)) in archive.read("__main__.py").decode()
    assert path.read_bytes().startswith(f"#!{sys.executable} -IS\n".encode())


class Waiting:
    """A node in whose prolog a job waits. The volume is ``away`` in this many attempts."""

    def __init__(self, away: int, jobs: str = "7|RUNNING", drained: bool = False, other: str = "") -> None:
        self.away, self.jobs, self.drained, self.other = away, jobs, drained, other
        self.paused: list[float] = []
        self.told: list[str] = []

    def examine(self, *_given: Any) -> list[Any]:
        self.away -= 1
        failing = [program.VOLUMES] * (self.away >= 0) + [self.other] * bool(self.other and self.paused)
        return [result("fail", name) for name in failing]

    def runner(self, argv: Any, **_options: Any) -> Completed:
        if argv[0] == "squeue":
            return Completed(0, "\n".join(self.jobs.split()), "")
        if argv[1:3] == ["show", "config"]:
            return Completed(0, "PrologEpilogTimeout     = 65534\n", "")
        if "show" in argv:
            return Completed(0, f"NodeName=n1 State=MIXED{'+DRAIN Reason=x' if self.drained else ''}\n", "")
        self.told.append(" ".join(argv[1:]))
        return Completed(0, "", "")

    def start(self, folder: Path, monkeypatch: pytest.MonkeyPatch, context: str = "prolog_slurmd") -> int:
        Host(folder)
        monkeypatch.setattr(program, "examine", self.examine)
        monkeypatch.setattr(program.time, "sleep", self.paused.append)
        given = {"cluster": "lab", "machine": "n1", "folder": str(folder / "records"), "drain_on": [program.VOLUMES]}
        environment = {"SLURM_SCRIPT_CONTEXT": context, "SLURM_JOB_ID": "7"}
        return program.main(given, [], environment, self.runner, Tree(str(folder)), ())


@pytest.mark.parametrize(
    ("node", "code", "waited"),
    [
        # It waits until the volume is back.
        (Waiting(3), 0, [2.0, 4.0, 8.0]),
        # The periodic check has found that this node alone lacks it: Slurm requeues the job.
        (Waiting(99, drained=True), 1, [2.0]),
        # Somebody has cancelled the job, or removed it; other tasks of its array do not count.
        (Waiting(3, "7|COMPLETING 8|RUNNING"), 0, []),
        (Waiting(3, ""), 0, []),
    ],
)
def test_a_job_waits_in_its_prolog_for_the_volumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: Waiting, code: int, waited: list[float]
) -> None:
    assert node.start(tmp_path, monkeypatch) == code
    assert (node.paused, node.told) == (waited, [])


def test_a_job_that_has_waited_for_long_is_requeued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Waiting(99)
    assert node.start(tmp_path, monkeypatch) == 0
    assert sum(node.paused) == 600 and node.told == ["requeue 7"]


def test_a_node_that_breaks_while_a_job_waits_is_drained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Waiting(99, other=DISK)
    assert node.start(tmp_path, monkeypatch) == 1
    assert [line for line in node.told if "state=drain" in line]


def test_the_periodic_check_waits_for_no_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Waiting(99)
    assert node.start(tmp_path, monkeypatch, "") == 1
    assert [line for line in node.told if "state=drain" in line] and "requeue 7" not in node.told
