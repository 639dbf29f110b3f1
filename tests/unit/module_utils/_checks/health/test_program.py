# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's checks as Slurm runs them: one file, without Ansible, and with an scontrol that plays the controller."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from program_builds import build_zipapp, push_options

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import look_lock, program
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.catalogue import (
    DRAINING_CHECKS,
    VOLUME_CHECK,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.run import ALL_CHECKS, CheckContext
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.settings import HealthSettings
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.shared_faults import COMMENT_PREFIX
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.show import SlurmNode
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import collect_sources
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm import health_program_sources
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._checks.health import (
    test_gpu_details as gpu_sections,
)
from ansible_collections.gpumesh.cluster.tests.unit.modules.test_cluster_modules import entry, run

DISK = "health.disk"
OURS = f"{program.REASON_PREFIX}health.disk: / has 99 % of its space in use"
#: According to the record, this machine has a hundred GPUs. The other check passes.
UNFIT, FIT = "health.gpu_count", "health.swap"
PUSHED = push_options(health_program_sources())


def result(status: str, name: str = DISK, reason: str = "/ has 99 % of its space in use.") -> Any:
    message = "" if status == "pass" else reason
    return {"id": name, "purpose": "", "host": "n1", "actual": 1, "required": 0, "unit": "", "status": status,
            "reason": message, "remedy": ""}  # fmt: skip


def node(reason: str = "", state: str = "idle", *flags: str) -> SlurmNode:
    node_line: Any = {"name": "n1", "state": state, "flags": list(flags), "reason": reason}
    return node_line


def is_node_change(argv: Any) -> bool:
    """Whether scontrol changes something other than the numbers of nodes with faults."""
    return "update" in argv and not argv[-1].startswith("extra=")


@pytest.mark.parametrize(
    ("results", "slurm_node", "kind"),
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
        # A node drained by us is resumed when all is well, but not if a check could not be made.
        ([result("pass"), result("skipped")], node(OURS, "idle", "drain"), "resume"),
        ([result("error")], node(OURS, "idle", "drain"), "none"),
        # A check for which it was not drained does not keep it drained.
        ([result("pass"), result("error", "health.gpu_xid")], node(OURS, "idle", "drain"), "resume"),
        (
            [result("error", "health.gpu_xid"), result("pass")],
            node(f"{OURS}; health.gpu_xid: y", "idle", "drain"),
            "none",
        ),
        (
            [result("error", "health.gpu_xid")],
            node(f"{program.REASON_PREFIX}{DISK}: {'x' * 370} …", "idle", "drain"),
            "none",
        ),
        # A new reason would forget the check that could not be made.
        ([result("error"), result("fail", "health.rdma")], node(OURS, "idle", "drain"), "none"),
        ([result("error")], node(), "none"),
        # An administrator who replaces our reason has taken over the node.
        ([result("pass")], node(f"see ticket 5; was: {OURS}", "idle", "drain"), "none"),
        # The node has our reason, but was resumed manually.
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
def test_action_for_results_and_node_state(results: list[Any], slurm_node: SlurmNode, kind: str) -> None:
    assert program.decide_action(results, slurm_node).action_kind == kind


def test_node_whose_driver_does_not_answer_is_drained(tmp_path: Path) -> None:
    for name in ("proc/driver/nvidia/version", "dev/nvidia0", "dev/nvidia1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    mismatch = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n"
    check_context = CheckContext(
        ExpectedState(gpus=2),
        Tree(str(tmp_path)),
        lambda _argv, **_options: CommandResult(18, mismatch, ""),
        lambda name: f"/bin/{name}" if name == "nvidia-smi" else None,
    )
    settings = HealthSettings(cluster="c", machine="n1")
    results = program.run_checks(settings, check_context, ["health.gpu_count", "health.gpu_ecc", "health.pcie"])
    action = program.decide_action(results, node())
    assert action.action_kind == "drain"
    assert action.explanation == (
        "gpumesh health: health.gpu_count: No GPU can be used: Driver/library version mismatch (version of the library: "
        "535.161)"
    )


@pytest.mark.parametrize("reason", [program.KILL_FAILED, program.DUPLICATE_JOB])
def test_node_with_unkillable_processes_stays_drained(reason: str) -> None:
    action = program.decide_action([result("pass")], node(reason, "idle", "drain"), leftover_processes=["python3 (71)"])
    assert (action.action_kind, "python3 (71)" in action.explanation) == ("none", True)


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
def test_job_leftovers(tmp_path: Path, stat: str, group: str, counts: bool) -> None:
    for name in ("9", "71", "self", "72"):
        (tmp_path / "proc" / name).mkdir(parents=True)
    # The program may run for another daemon than slurmd, which is process 9.
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/gpumesh-health.service\n", encoding="utf-8")
    (tmp_path / "proc/9/cgroup").write_text("0::/system.slice/slurmd.service\n", encoding="utf-8")
    (tmp_path / "proc/9/status").write_text("Name:\tslurmd\nUid:\t0\t0\t0\t0\n", encoding="utf-8")
    (tmp_path / "proc/9/exe").symlink_to("/usr/sbin/slurmd-wlm")
    # Process 72 has just ended.
    (tmp_path / "proc/71/stat").write_text(f"{stat} 71 0\n", encoding="utf-8")
    (tmp_path / "proc/71/cgroup").write_text(f"{group}\n", encoding="utf-8")
    assert bool(program.find_job_leftovers(Tree(str(tmp_path)))) == counts


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
def test_slurm_step_daemon_is_not_identified_by_its_name(tmp_path: Path, ids: str, file: str, counts: bool) -> None:
    folder = tmp_path / "proc/71"
    folder.mkdir(parents=True)
    (folder / "stat").write_text("71 (slurmstepd) S 1 71 0\n", encoding="utf-8")
    (folder / "status").write_text(f"Name:\tslurmstepd\nUid:\t{ids}\n", encoding="utf-8")
    (folder / "exe").symlink_to(file)
    assert bool(program.find_job_leftovers(Tree(str(tmp_path)))) == counts


def test_shared_fault_drains_no_node_and_resumes_drained_ones() -> None:
    assert program.decide_action([result("fail")], node(), [DISK]).action_kind == "none"
    assert program.decide_action([result("fail")], node(OURS, "idle", "drain"), [DISK]).action_kind == "resume"
    assert program.decide_action([result("fail")], node("new cables", "idle", "drain"), [DISK]).action_kind == "none"
    own_fault = result("fail", "health.gpu_ecc", "2 errors.")
    action = program.decide_action([result("fail"), own_fault], node(), [DISK])
    assert (action.action_kind, DISK in action.explanation) == ("drain", False)


ECC = "health.gpu_ecc"
OURS_ECC = f"{program.REASON_PREFIX}{ECC}: 2 errors"


def test_broken_card_is_never_excused_as_a_shared_fault() -> None:
    broken = result("fail", ECC, "2 errors.")
    assert program.decide_action([broken], node(OURS_ECC, "idle", "drain"), [ECC]).action_kind == "none"
    # The limit only prevents further drains.
    action = program.decide_action([broken], node(), [ECC])
    assert (action.action_kind, ECC in action.explanation) == ("none", True)
    # A node that is drained anyway is drained for everything that it has.
    action = program.decide_action([broken, result("fail")], node(), [ECC])
    assert (action.action_kind, ECC in action.explanation, DISK in action.explanation) == ("drain", True, True)
    # A fault of other nodes does not resume a node that also has a broken card.
    both = [broken, result("fail")]
    assert program.decide_action(both, node(OURS_ECC, "idle", "drain"), [ECC, DISK]).action_kind == "none"


@pytest.mark.parametrize("check", program.SINGLE_CARD_CHECKS)
def test_no_job_starts_on_a_broken_card_even_if_many_nodes_have_one(tmp_path: Path, check: str) -> None:
    commands: list[str] = []
    reason = f"{program.REASON_PREFIX}{check}: 2 errors [root@2026-11-22T14:45:56] Comment={COMMENT_PREFIX}{check}"
    line = f"NodeName={{}} State={{}} Reason={reason}\n"

    def runner(argv: Any, **_options: Any) -> CommandResult:
        if is_node_change(argv):
            commands.append(" ".join(argv[2:]))
        scontrol_output = line.format("n1", "IDLE+DRAIN")
        return CommandResult(
            0, scontrol_output if argv[-1] == "n1" else scontrol_output + line.format("n2", "IDLE"), ""
        )

    settings = HealthSettings("lab", "n1", "", [check], 95)
    action = program.publish_and_act(runner, settings, "n1", [result("fail", check, "2 errors.")], Tree(str(tmp_path)))
    assert (action.action_kind, action.is_unfit, commands) == ("none", True, [])


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
def test_node_that_does_not_report_faults_is_not_counted(tmp_path: Path, state: str, shared: bool) -> None:
    def runner(argv: Any, **_options: Any) -> CommandResult:
        scontrol_output = f"NodeName=n1 State=IDLE Comment={COMMENT_PREFIX}{DISK}\n"
        other_node = f"NodeName=n2 State={state} Comment={COMMENT_PREFIX}{DISK}\n"
        return CommandResult(0, scontrol_output if argv[-1] == "n1" else scontrol_output + other_node, "")

    settings = HealthSettings("lab", "n1", "", [DISK], 95)
    action = program.publish_and_act(runner, settings, "n1", [result("fail")], Tree(str(tmp_path)))
    assert (action.action_kind, action.is_unfit) == (("none", False) if shared else ("drain", True))


def test_resumed_node_reports_its_faults_again(tmp_path: Path) -> None:
    """Slurm removes the comment of a node that is resumed."""
    commands: list[str] = []
    line = f"NodeName={{}} State={{}} Reason={OURS} [root@2026-11-22T14:45:56] Comment={COMMENT_PREFIX}{DISK}\n"

    def runner(argv: Any, **_options: Any) -> CommandResult:
        if is_node_change(argv):
            commands.append(" ".join(argv[2:]))
        scontrol_output = line.format("n1", "IDLE+DRAIN")
        return CommandResult(
            0, scontrol_output if argv[-1] == "n1" else scontrol_output + line.format("n2", "IDLE"), ""
        )

    settings = HealthSettings("lab", "n1", "", [DISK], 95)
    action = program.publish_and_act(runner, settings, "n1", [result("fail")], Tree(str(tmp_path)))
    assert (action.action_kind, action.is_unfit) == ("resume", False)
    assert commands == ["nodename=n1 state=resume", f"nodename=n1 comment={COMMENT_PREFIX}{DISK}"]


def test_fault_of_a_reserved_node_is_reported_once(tmp_path: Path) -> None:
    """The node would otherwise wait for the others at each run, and its fault would not count among theirs."""
    commands: list[str] = []
    line = f"NodeName={{}} State=IDLE+RESERVED Comment={COMMENT_PREFIX}{DISK} ReservationName=mt\n"

    def runner(argv: Any, **_options: Any) -> CommandResult:
        if is_node_change(argv):
            commands.append(" ".join(argv[2:]))
        mine = line.format("n1")
        return CommandResult(0, mine if argv[-1] == "n1" else "".join(line.format(f"n{n}") for n in range(1, 5)), "")

    settings = HealthSettings("lab", "n1", "", [DISK], 95)
    action = program.publish_and_act(runner, settings, "n1", [result("fail")], Tree(str(tmp_path)))
    assert (action.action_kind, commands) == ("none", [])


def test_a_reason_is_one_line_that_slurm_can_store() -> None:
    reason = program.format_reason([result("fail", reason='a "quoted"\nword.'), result("fail", reason="x" * 900)])
    assert reason.startswith(f"{program.REASON_PREFIX}{DISK}: a 'quoted' word; {DISK}: xxx")
    assert len(reason) <= 400
    assert "\n" not in reason
    assert '"' not in reason


def test_zipapp_does_not_need_ansible() -> None:
    assert not [
        name
        for name, text in collect_sources(program.__name__).items()
        if "import ansible." in text or "from ansible." in text
    ]
    assert build_zipapp("/usr/bin/python3", program.__name__, {"a": 1}) == build_zipapp(
        "/usr/bin/python3", program.__name__, {"a": 1}
    )


class InstalledNode:
    """A machine with the program, a record, and an scontrol that shows and stores one node's state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "checks"
        self.command_log = folder / "told"
        self.memory = folder / "health"
        (folder / "bin").mkdir()
        self.show()
        run("cluster", name="lab", path=str(folder / "records"), subnet="10.77.0.11/24", manager="n1",
            members=[{**entry(1), "gpus": 100}])  # fmt: skip
        self.install()

    def install(self, **changes: Any) -> dict[str, Any]:
        return run("node_health_program", path=str(self.file), cluster="lab", machine="n1",
                   folder=str(self.folder / "records"), **{**PUSHED, "drain_on": [FIT], **changes})  # fmt: skip

    def show(self, state: str = "IDLE", reason: str = "", comment: str = "") -> None:
        tail = f" Reason={reason} [root@2026-11-20T20:31:00]" if reason else ""
        tail += f" Comment={comment}" if comment else ""
        line = f"NodeName=n1 Arch=x86_64 CPUTot=2 NodeAddr=10.77.0.11 State={state} Version=24.11.5{tail}"
        script = self.folder / "bin" / "scontrol"
        script.write_text(
            f"#!/bin/sh\ncase \"$1 $2\" in\n'--oneliner show') echo '{line}';;\n*) echo \"$@\" >> {self.command_log};;\nesac\n",
            encoding="utf-8",
        )
        script.chmod(0o755)

    def start(self, *arguments: str, **variables: str) -> tuple[int, str, list[str]]:
        """Run the program. Returns (exit status, output, commands to Slurm)."""
        self.command_log.write_text("", encoding="utf-8")
        environment = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **variables}
        result = subprocess.run(
            [str(self.file), *arguments], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert result.stderr == ""
        commands = self.command_log.read_text(encoding="utf-8").splitlines()
        return result.returncode, result.stdout, [line for line in commands if " extra=" not in line]


@pytest.fixture
def host(tmp_path: Path) -> InstalledNode:
    return InstalledNode(tmp_path)


def test_the_module_installs_once_and_removes(host: InstalledNode) -> None:
    assert host.file.stat().st_mode & 0o777 == 0o755
    assert not host.install()["changed"]
    newer = {"gpumesh-node-health": "another digest"}
    outdated = host.install(digests=newer, contents={})
    assert (outdated["changed"], outdated["outdated"]) == (False, ["gpumesh-node-health"])
    assert not host.install(contents={})["changed"], "the host has these sources"
    assert host.install(max_disk_percent=50)["changed"]
    host.file.chmod(0o644)
    assert host.install(max_disk_percent=50)["changed"]
    assert host.file.stat().st_mode & 0o777 == 0o755
    host.memory.mkdir()
    (host.memory / "faults.json").touch()
    absent = {"state": "absent", "path": str(host.file), "folder": str(host.folder / "records")}
    assert run("node_health_program", **absent, _ansible_check_mode=True)["changed"]
    assert host.file.exists() and host.memory.exists()
    assert run("node_health_program", **absent)["changed"]
    assert not run("node_health_program", **absent)["changed"]
    assert not host.file.exists() and not host.memory.exists()


def test_snapshot_is_removed_with_the_program(host: InstalledNode) -> None:
    snapshot = host.memory / "snapshot.json"
    host.start()
    assert snapshot.exists()
    run("node_health_program", state="absent", path=str(host.file), folder=str(host.folder / "records"))
    assert not snapshot.exists()


def test_a_fit_node_is_left_in_service(host: InstalledNode) -> None:
    code, output, commands = host.start()
    assert (code, commands) == (0, []), output


def test_passing_prolog_does_not_query_the_controller(host: InstalledNode) -> None:
    (host.folder / "bin" / "scontrol").write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    assert host.start(SLURM_SCRIPT_CONTEXT="prolog_slurmd")[0] == 0


@pytest.mark.parametrize("context", ["", "prolog_slurmd"])
def test_an_unfit_node_is_drained_with_our_reason(host: InstalledNode, context: str) -> None:
    host.install(drain_on=[UNFIT])
    code, output, commands = host.start(SLURM_SCRIPT_CONTEXT=context)
    assert code == 1, output
    assert commands[0] == f"update nodename=n1 comment={COMMENT_PREFIX}{UNFIT}"
    assert commands[1].startswith(f"update nodename=n1 state=drain reason={program.REASON_PREFIX}{UNFIT}: ")


def test_jobs_on_a_node_learn_once_why_it_is_drained(tmp_path: Path) -> None:
    commands: list[str] = []
    drained = False

    def runner(argv: Any, **_options: Any) -> CommandResult:
        nonlocal drained
        if argv[0] == "squeue":
            return CommandResult(0, "17\n19\n19\n17_[3-4]\n", "")
        if argv[1] == "notify":
            commands.append(" ".join(argv[1:]))
            if argv[2] == "17":
                raise CommandError(argv, "exited 1", rc=1)
        drained = drained or "state=drain" in argv
        flags, reason = ("+DRAIN", f" Reason={OURS} [root@2026-11-22T14:45:56]") if drained else ("", "")
        return CommandResult(0, f"NodeName=n1 State=MIXED{flags}{reason} Comment={COMMENT_PREFIX}{DISK}\n", "")

    settings = HealthSettings("lab", "n1", "", [DISK], 95)
    notice = "n1 accepts no more jobs, because it is unhealthy: health.disk: / has 99 % of its space in use"
    assert program.publish_and_act(runner, settings, "n1", [result("fail")], Tree(str(tmp_path))).action_kind == "drain"
    assert commands == [f"notify 17 {notice}", f"notify 19 {notice}"]
    # A reason that has changed is no second drain.
    changed = [result("fail", reason="/var has 97 % of its inodes in use.")]
    assert program.publish_and_act(runner, settings, "n1", changed, Tree(str(tmp_path))).action_kind == "drain"
    assert len(commands) == 2


def test_a_fault_that_comes_back_is_counted_in_the_reason(host: InstalledNode) -> None:
    # It has reported the fault, and does not wait for the reports of others.
    host.show(comment=f"{COMMENT_PREFIX}{UNFIT}")
    # Neither a prolog nor an administrator who only has the results shown begins or ends a fault.
    host.install(drain_on=[UNFIT])
    host.start("--show")
    host.start(SLURM_SCRIPT_CONTEXT="prolog_slurmd")
    assert not list(host.memory.glob("*"))

    def reason() -> str:
        (drain,) = [line for line in host.start()[2] if "state=drain" in line]
        return drain.partition("reason=")[2]

    first = reason()
    assert "time in" not in first
    assert host.memory.stat().st_mode & 0o777 == 0o700
    assert (host.memory / "faults.json").stat().st_mode & 0o777 == 0o600
    assert reason() == first, "it lasts"
    host.install(drain_on=[FIT, UNFIT])
    for ordinal in ("second", "third"):
        for gpus in (0, 100):
            run(
                "cluster_member", cluster="lab", path=str(host.folder / "records"), members=[{**entry(1), "gpus": gpus}]
            )
            drains = host.start()[2]
        (drain,) = [line for line in drains if "state=drain" in line]
        assert drain.endswith(f"reason={first} ({ordinal} time in 7 days)")
    assert f"({ordinal} time in 7 days)" in host.start("--show")[1]


def test_a_look_does_not_wait_forever_for_another_one(tmp_path: Path) -> None:
    node = NodeWithWaitingJob(0)
    InstalledNode(tmp_path)
    memory = tmp_path / "health"
    memory.mkdir()
    settings = {"cluster": "lab", "machine": "n1", "folder": str(tmp_path / "records"), "drain_on": [FIT]}
    with pytest.MonkeyPatch.context() as patch, look_lock.exclusive_look(str(memory), 0.0):
        patch.setattr(program, "_LOCK_SECONDS", 0.3)
        assert program.main(settings, [], {}, node.runner, Tree(str(tmp_path)), ()) == 0
        assert program.main(settings, ["--show"], {}, node.runner, Tree(str(tmp_path)), ()) == 0
        prolog = {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}
        assert program.main(settings, [], prolog, node.runner, Tree(str(tmp_path)), ()) == 0
    assert program.main(settings, [], {}, node.runner, Tree(str(tmp_path)), ()) == 0


def test_the_installed_program_watches_the_log(host: InstalledNode) -> None:
    """With a log that this test's account may read or not: it runs until it is stopped."""
    watcher = subprocess.Popen([str(host.file), "--watch"], stdout=subprocess.PIPE, text=True)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            watcher.wait(1.5)
    finally:
        watcher.terminate()
    output, _none = watcher.communicate(timeout=20)
    assert output in ("", "/dev/kmsg cannot be read.\n")


def test_node_drained_by_an_administrator_stays_drained(host: InstalledNode) -> None:
    for check in (FIT, UNFIT):
        host.install(drain_on=[check])
        host.show("IDLE+DRAIN", "new cables")
        assert not [line for line in host.start()[2] if "state=" in line]


def test_node_drained_by_us_is_resumed_when_healthy(host: InstalledNode) -> None:
    host.show("IDLE+DRAIN", OURS)
    assert host.start()[2] == ["update nodename=n1 state=resume"]


@pytest.mark.parametrize("reason", [program.KILL_FAILED, program.DUPLICATE_JOB])
@pytest.mark.parametrize("has_leftovers", [True, False])
def test_node_drained_for_a_job_is_resumed_without_leftovers(tmp_path: Path, has_leftovers: bool, reason: str) -> None:
    commands: list[str] = []
    scontrol_output = f"NodeName=n1 State=IDLE+DRAIN Reason={reason} [root@2026-11-22T14:45:56]\n"

    def runner(argv: Any, **_options: Any) -> CommandResult:
        if argv[0] == "squeue":
            return CommandResult(0, "17|(launch failed requeued held)\n", "")
        if argv[1] != "--oneliner":
            commands.append(" ".join(argv[1:]))
        return CommandResult(0, scontrol_output, "")

    process = tmp_path / "proc/71"
    process.mkdir(parents=True)
    (process / "stat").write_text("71 (x) S 1 71\n", encoding="utf-8")
    (process / "status").write_text("Uid:\t0\t0\t0\t0\n", encoding="utf-8")
    (process / "exe").symlink_to(f"/usr/sbin/{'slurmstepd' if has_leftovers else 'slurmd'}")
    settings = HealthSettings("lab", "n1", "", [DISK], 95)
    program.publish_and_act(runner, settings, "n1", [result("pass")], Tree(str(tmp_path)))
    resumed = ["update nodename=n1 state=resume", *(["release 17"] if reason == program.DUPLICATE_JOB else [])]
    assert commands == ([] if has_leftovers else resumed)


def test_show_changes_nothing_in_slurm(host: InstalledNode) -> None:
    host.show("IDLE+DRAIN", OURS)
    code, output, commands = host.start("--show")
    assert (code, commands) == (0, [])
    assert f"pass {FIT}" in output
    host.install(drain_on=[UNFIT])
    code, output, commands = host.start("--show")
    assert (code, commands) == (1, [])
    assert f"fail {UNFIT}" in output


def test_user_writable_disk_drains_no_node(host: InstalledNode) -> None:
    host.install(drain_on=[DISK], max_disk_percent=0.0001)
    code, output, _told = host.start("--show")
    assert code == 0, output
    assert "/tmp" not in output and "/dev/shm" not in output


def test_failed_check_run_does_not_stop_a_job(host: InstalledNode) -> None:
    (host.folder / "records" / "lab.json").write_text("{", encoding="utf-8")
    code, output, commands = host.start(SLURM_SCRIPT_CONTEXT="prolog_slurmd")
    assert (code, commands) == (0, [])
    assert "could not be checked" in output
    assert host.start()[0] == 2


def test_a_host_without_a_record_is_not_judged(host: InstalledNode) -> None:
    for path in (host.folder / "records").iterdir():
        path.unlink()
    assert host.start()[0] == 0


def test_expected_state_comes_from_the_record() -> None:
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
    settings = HealthSettings("lab", "n1", "", DRAINING_CHECKS, 95)
    expected = program.build_expected_state(record, settings)
    assert expected.rdma == "roce"
    assert (expected.gpus, list(expected.mounts), expected.cluster_address) == (8, ["/mnt/b"], "10.99.0.1")
    assert (expected.external_mounts, expected.read_only_mounts) == (["/mnt/c"], ["/mnt/c"])
    assert "health.gpu_count" in program.choose_checks(record, settings)
    member["gpus"] = 0
    assert "health.gpu_count" not in program.choose_checks(record, settings)


def test_all_checks_that_drain_are_made_by_default(tmp_path: Path) -> None:
    """Every name in it is that of a check."""
    names = {check.check_id for check in ALL_CHECKS}
    assert set(DRAINING_CHECKS) <= names
    record: Any = {"members": [{"machine": "n1", "gpus": 8}]}
    assert program.choose_checks(record, HealthSettings("lab", "n1")) == list(DRAINING_CHECKS)
    assert program.choose_checks(record, HealthSettings("lab", "n1", drain_on=[])) == []
    path = tmp_path / "health"
    run("node_health_program", path=str(path), cluster="lab", machine="n1", **PUSHED)
    with zipfile.ZipFile(path) as archive:
        assert '"drain_on": null' in archive.read("__main__.py").decode()
    assert path.read_bytes().startswith(f"#!{sys.executable} -IS\n".encode())


class NodeWithWaitingJob:
    """A node in whose prolog a job waits. The volume is ``away`` in this many attempts."""

    def __init__(self, away: int, jobs: str = "7|RUNNING", drained: bool = False, other_check: str = "") -> None:
        self.remaining_failures, self.jobs, self.drained, self.other_check = away, jobs, drained, other_check
        self.paused: list[float] = []
        self.commands: list[str] = []

    def examine(self, *_given: Any) -> list[Any]:
        self.remaining_failures -= 1
        failing = [VOLUME_CHECK] * (self.remaining_failures >= 0) + [self.other_check] * bool(
            self.other_check and self.paused
        )
        return [result("fail", name) for name in failing]

    def runner(self, argv: Any, **_options: Any) -> CommandResult:
        if argv[0] == "squeue":
            return CommandResult(0, "\n".join(self.jobs.split()), "")
        if argv[1:3] == ["show", "config"]:
            return CommandResult(0, "PrologEpilogTimeout     = 65534\n", "")
        if "show" in argv:
            return CommandResult(0, f"NodeName=n1 State=MIXED{'+DRAIN Reason=x' if self.drained else ''}\n", "")
        self.commands.append(" ".join(argv[1:]))
        return CommandResult(0, "", "")

    def start(self, folder: Path, monkeypatch: pytest.MonkeyPatch, context: str = "prolog_slurmd") -> int:
        InstalledNode(folder)
        monkeypatch.setattr(program, "run_checks", self.examine)
        monkeypatch.setattr(program.time, "sleep", self.paused.append)
        settings = {
            "cluster": "lab",
            "machine": "n1",
            "folder": str(folder / "records"),
            "drain_on": [VOLUME_CHECK],
        }
        environment = {"SLURM_SCRIPT_CONTEXT": context, "SLURM_JOB_ID": "7"}
        return program.main(settings, [], environment, self.runner, Tree(str(folder)), ())


@pytest.mark.parametrize(
    ("node", "code", "waited"),
    [
        # The job waits until the volume is back.
        (NodeWithWaitingJob(3), 0, [2.0, 4.0, 8.0]),
        # The periodic check has found that this node alone lacks it: Slurm requeues the job.
        (NodeWithWaitingJob(99, drained=True), 1, [2.0]),
        # Somebody has cancelled the job, or removed it; other tasks of its array do not count.
        (NodeWithWaitingJob(3, "7|COMPLETING 8|RUNNING"), 0, []),
        (NodeWithWaitingJob(3, ""), 0, []),
    ],
)
def test_a_job_waits_in_its_prolog_for_the_volumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: NodeWithWaitingJob, code: int, waited: list[float]
) -> None:
    assert node.start(tmp_path, monkeypatch) == code
    assert (node.paused, node.commands) == (waited, [])


def test_a_job_that_has_waited_for_long_is_requeued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeWithWaitingJob(99)
    assert node.start(tmp_path, monkeypatch) == 0
    assert sum(node.paused) == 600 and node.commands == ["requeue 7"]


def test_node_that_fails_while_a_job_waits_is_drained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeWithWaitingJob(99, other_check=DISK)
    assert node.start(tmp_path, monkeypatch) == 1
    assert [line for line in node.commands if "state=drain" in line]


def test_periodic_check_does_not_wait_for_volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeWithWaitingJob(99)
    assert node.start(tmp_path, monkeypatch, "") == 1
    assert [line for line in node.commands if "state=drain" in line] and "requeue 7" not in node.commands


def test_node_whose_gpu_is_occupied_stays_drained_until_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    occupied = gpu_sections.memory(4), gpu_sections.memory(40000, (4711, "C"))
    reason = ""
    InstalledNode(tmp_path)
    gpu_node = gpu_sections.Node(tmp_path, *occupied)
    gpu_node.add_process(4711)
    (tmp_path / "bin/nvidia-smi").write_text("", encoding="utf-8")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(program.time, "sleep", lambda _seconds: None)

    def runner(argv: Any, **_options: Any) -> CommandResult:
        if argv[0] == "nvidia-smi":
            return CommandResult(0, gpu_sections.query(*gpu_node.sections), "")
        if "update" in argv:
            commands.append(" ".join(argv[2:]))
        state = f"IDLE+DRAIN Reason={reason} [root@2026-11-22T14:45:56]" if reason else "IDLE"
        return CommandResult(0, f"NodeName=n1 State={state}\n", "")

    def start(*job_gpus: str) -> int:
        commands.clear()
        environment = (
            {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd", "SLURM_JOB_GPUS": ",".join(job_gpus)} if job_gpus else {}
        )
        settings = {"cluster": "lab", "machine": "n1", "folder": str(tmp_path / "records"),
                    "drain_on": ["health.gpu_processes"]}  # fmt: skip
        return program.main(settings, [], environment, runner, Tree(str(tmp_path)), ())

    # Nobody has asked for this GPU, and a job with the other one may start.
    assert (start(), start("0"), commands) == (0, 0, [])
    assert start("1") == 1
    (drain,) = [command for command in commands if "state=drain" in command]
    reason = drain.partition("reason=")[2]
    assert "GPU 00000000:1B:00.0: python3 (4711)" in reason
    # A look that began before this fault would resume the node, and a prolog waits for its end.
    with look_lock.exclusive_look(str(tmp_path / "health"), 0.0):
        begun = time.monotonic()
        monkeypatch.setattr(program, "_LOCK_SECONDS", 0.5)
        assert start("1") == 1
        assert time.monotonic() - begun >= 0.5
    # The snapshot of a prolog on another GPU does not make it free.
    assert (start("0"), start()) == (0, 1)
    assert not [command for command in commands if "state=" in command]
    gpu_node.sections = [gpu_sections.memory(4)] * 2
    assert start() == 0
    assert [command for command in commands if "state=" in command] == ["nodename=n1 state=resume"]
