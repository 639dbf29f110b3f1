# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node on which a failure occurred is used again only if it is healthy, and run.json contains why it is not."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import BUSY_MACHINE_TIMEOUT

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import health, program
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.step import NodeProber

EXAMINE_COMMAND = ["/usr/local/bin/gpumesh-train", "examine", "/x/nano"]


class FakeSlurm:
    """A controller with nodes, and their replies to queries of their health."""

    def __init__(self, states: str, answers: dict[str, CommandResult | CommandError]) -> None:
        self.states = states
        self.answers = answers
        self.examined: list[str] = []
        self.lock = threading.Lock()

    def __call__(self, argv: Sequence[str], **_options: Any) -> CommandResult:
        if argv[0] == "sinfo":
            said = "gpumesh health: health.gpu_ecc: 12 errors\n" if "--format=%E" in argv else self.states
            return CommandResult(0, said, "")
        node = next(word.partition("=")[2] for word in argv if word.startswith("--nodelist="))
        if argv[-1] == "true":
            return CommandResult(0, "", "")
        assert argv[-3:] == EXAMINE_COMMAND
        with self.lock:
            self.examined.append(node)
        answer = self.answers[node]
        if isinstance(answer, CommandError):
            raise answer
        return answer


def test_only_suspects_are_examined_and_unhealthy_nodes_are_excluded() -> None:
    slurm = FakeSlurm(
        "n1|allocated\nn2|allocated\nn3|drained\nn4|allocated\nn5|allocated\nn6|down*\n",
        {
            "n2": CommandResult(14, "module loaded\nhealth.gpu_ecc: Uncorrected memory errors: GPU 3: 12\n", ""),
            "n4": CommandResult(0, "", ""),
            "n5": CommandError(["srun"], "did not end within 30 s"),
        },
    )
    asking = NodeProber(slurm, 41, EXAMINE_COMMAND, 8)
    nodes = ["n1", "n2", "n3", "n4", "n5", "n6"]
    assert asking.find_usable_nodes(nodes, ["n6"], ["n2", "n4", "n5", "n6"]) == ["n1", "n4"]
    assert sorted(slurm.examined) == ["n2", "n4", "n5"]
    assert asking.unusable_reasons == {
        "n2": "is unhealthy: health.gpu_ecc: Uncorrected memory errors: GPU 3: 12",
        "n3": "is drained: gpumesh health: health.gpu_ecc: 12 errors",
        "n5": "is unhealthy: its health could not be checked: 'srun' did not end within 30 s",
        "n6": "does not answer",
    }


class BusySlurm(FakeSlurm):
    """A controller that takes some seconds for each step."""

    SECONDS = 20.0

    def __call__(self, argv: Sequence[str], *, timeout: float = 60.0, **options: Any) -> CommandResult:
        if argv[0] == "srun" and timeout < self.SECONDS:
            raise CommandError(argv, f"did not end within {timeout} s")
        return super().__call__(argv, **options)


def test_busy_controller_excludes_no_node() -> None:
    asking = NodeProber(BusySlurm("n1|allocated\nn2|allocated\n", {}), 41)
    assert asking.find_usable_nodes(["n1", "n2"], []) == ["n1", "n2"]
    # Ranks that wait for a silent node do not wait as long.
    assert not asking.can_run_step("n1")


class ShrunkSlurm(FakeSlurm):
    """A controller that has taken nodes out of a job, and finds only some of the others for it.

    slurmd of all nodes but ``dead`` listens at one port of this machine.
    """

    def __init__(self, left: int, found: Sequence[str], dead: Sequence[str], port: int) -> None:
        super().__init__("n1|allocated\nn2|down*\nn3|allocated\nn4|allocated\n", {})
        self.left, self.found, self.dead, self.port = left, found, dead, port

    def __call__(self, argv: Sequence[str], **options: Any) -> CommandResult:
        if argv[0] == "squeue":
            return CommandResult(0, f"{self.left}\n", "")
        if list(argv[:3]) == ["scontrol", "show", "config"]:
            return CommandResult(0, f"SlurmUser = slurm(64030)\nSlurmdPort              = {self.port}\n", "")
        if argv[0] == "scontrol":
            port = " Port=1" if argv[-1] in self.dead else ""
            return CommandResult(0, f"NodeName={argv[-1]} NodeAddr=127.0.0.1 NodeHostName=x{port}\n", "")
        if argv[0] == "srun" and f"--nodelist={next(iter(self.found), '')}" not in argv:
            raise CommandError(argv, "exited 233", rc=233)
        return super().__call__(argv, **options)


@pytest.mark.parametrize(
    ("left", "cut_off"), [(3, ["n4"]), (4, []), (0, [])], ids=["taken out", "all there", "no longer known"]
)
def test_cut_off_node_is_recognised_by_its_slurmd(left: int, cut_off: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        asking = NodeProber(ShrunkSlurm(left, ["n1"], ["n3"], slurmd.getsockname()[1]), 41, allocated_count=4)
        assert asking.find_usable_nodes(["n1", "n2", "n3", "n4"], []) == ["n1"]
        assert asking.cut_off == cut_off
        assert (asking.is_alive("n1"), asking.is_alive("n3"), asking.is_alive("n4")) == (True, False, bool(cut_off))
    assert asking.unusable_reasons["n3"] == "does not answer"


def test_failed_examination_excludes_no_node() -> None:
    slurm = FakeSlurm("n1|allocated\n", {"n1": CommandResult(2, "", "srun: error: Unable to create step")})
    assert NodeProber(slurm, 41, EXAMINE_COMMAND).find_usable_nodes(["n1"], [], ["n1"]) == ["n1"]


def test_returning_node_is_examined_before_reuse() -> None:
    slurm = FakeSlurm(
        "",
        {"n1": CommandResult(0, "", ""), "n2": CommandResult(14, "storage.mounts: /mnt/shared is not mounted\n", "")},
    )
    asking = NodeProber(slurm, 41, EXAMINE_COMMAND)
    for node in ("n1", "n2"):
        asking.recheck_node(node)
    assert sorted(asking.recheck_results.get(timeout=BUSY_MACHINE_TIMEOUT) for _node in range(2)) == [
        ("n1", True),
        ("n2", False),
    ]


def test_gpus_are_examined_only_in_runs_that_use_them(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("580", encoding="ascii")
    asked: list[str] = []

    def smi(argv: Sequence[str], **_options: Any) -> CommandResult:
        asked.append(argv[0])
        row = "0, H100, 12, No, 16, 16, 40\n" if argv[1].startswith("--query-gpu") else ""
        return CommandResult(0, row, "")

    def examine_node(volumes: Sequence[str], gpus: bool) -> str:
        return health.format_failures(
            health.examine(volumes, gpus, smi, Tree(str(tmp_path)), find_tool=lambda name: name)
        )

    assert examine_node([], False) == "" and asked == []
    assert examine_node([], True) == "health.gpu_ecc: Uncorrected memory errors: GPU 0: 12"


def test_missing_volume_is_named(tmp_path: Path) -> None:
    failing = health.examine([str(tmp_path / "gone")], False)
    assert health.format_failures(failing).startswith(f"storage.mounts: {tmp_path}/gone: ")
    # Nothing is written for a healthy one.
    assert health.examine(["/proc"], False) == []


def test_node_that_cannot_read_the_run_is_unhealthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examine = {"volumes": [], "run_dir": ""}, ["examine", str(tmp_path)]
    assert program.main(*examine) == health.UNHEALTHY_STATUS
    assert capsys.readouterr().out.startswith(f"There is no run in {tmp_path}.")
    # Its mount has become stale, while the other nodes still have the volume.
    real = os.open

    def stale(path: Any, *given: Any, **options: Any) -> int:
        if path == f"{tmp_path}/request.json":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return real(path, *given, **options)

    monkeypatch.setattr(os, "open", stale)
    assert program.main(*examine) == health.UNHEALTHY_STATUS
    assert "Stale file handle" in capsys.readouterr().out


VOLUME_FAILURE = "storage.mounts: /mnt/shared is not mounted"
UNREADABLE_RUN = "/mnt/shared/nano/request.json cannot be read: [Errno 5] Input/output error."
HARDWARE_FAILURE = "health.gpu_ecc: Uncorrected memory errors: GPU 3: 12"


@pytest.mark.parametrize(
    ("reasons", "suspects", "fit"),
    [
        # The same everywhere, also without a node that has not failed.
        ({"n1": VOLUME_FAILURE, "n2": VOLUME_FAILURE, "n3": VOLUME_FAILURE}, ["n2"], ["n1", "n2", "n3"]),
        ({"n1": UNREADABLE_RUN, "n2": UNREADABLE_RUN}, ["n1"], ["n1", "n2"]),
        ({"n1": VOLUME_FAILURE, "n2": VOLUME_FAILURE}, ["n1", "n2"], ["n1", "n2"]),
        # On the suspect only, or on the only node.
        ({"n1": "", "n2": VOLUME_FAILURE, "n3": ""}, ["n2"], ["n1", "n3"]),
        ({"n1": VOLUME_FAILURE, "n2": ""}, ["n1", "n2"], ["n2"]),
        ({"n1": VOLUME_FAILURE}, ["n1"], []),
        # Two faults of two nodes.
        ({"n1": VOLUME_FAILURE, "n2": UNREADABLE_RUN}, ["n1", "n2"], []),
        ({"n1": HARDWARE_FAILURE, "n2": HARDWARE_FAILURE}, ["n1", "n2"], []),
        ({"n1": f"{HARDWARE_FAILURE}; {VOLUME_FAILURE}", "n2": VOLUME_FAILURE}, ["n1"], ["n2"]),
    ],
)
def test_volume_that_fails_everywhere_makes_no_node_unhealthy(
    reasons: dict[str, str], suspects: list[str], fit: list[str]
) -> None:
    answers = {node: CommandResult(14 if reason else 0, f"{reason}\n", "") for node, reason in reasons.items()}
    slurm = FakeSlurm("".join(f"{node}|allocated\n" for node in reasons), answers)
    asking = NodeProber(slurm, 41, EXAMINE_COMMAND)
    assert asking.find_usable_nodes(list(reasons), [], suspects) == fit
    assert sorted(asking.unusable_reasons) == sorted(set(reasons) - set(fit))


def test_volume_that_hangs_everywhere_makes_no_node_unhealthy() -> None:
    hung = {node: CommandError(["srun", f"--nodelist={node}"], f"did not end on {node}") for node in ("n1", "n2")}
    asking = NodeProber(FakeSlurm("n1|allocated\nn2|allocated\n", hung), 41, EXAMINE_COMMAND)
    assert asking.find_usable_nodes(["n1", "n2"], [], ["n2"]) == ["n1", "n2"]
