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

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import health, program
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.step import Asking

EXAMINE = ["/usr/local/bin/gpumesh-train", "examine", "/x/nano"]


class Slurm:
    """A controller with nodes, and their replies to queries of their health."""

    def __init__(self, states: str, answers: dict[str, Completed | CommandError]) -> None:
        self.states = states
        self.answers = answers
        self.examined: list[str] = []
        self.lock = threading.Lock()

    def __call__(self, argv: Sequence[str], **_options: Any) -> Completed:
        if argv[0] == "sinfo":
            said = "gpumesh health: health.gpu_ecc: 12 errors\n" if "--format=%E" in argv else self.states
            return Completed(0, said, "")
        node = next(word.partition("=")[2] for word in argv if word.startswith("--nodelist="))
        if argv[-1] == "true":
            return Completed(0, "", "")
        assert argv[-3:] == EXAMINE
        with self.lock:
            self.examined.append(node)
        answer = self.answers[node]
        if isinstance(answer, CommandError):
            raise answer
        return answer


def test_only_who_failed_is_examined_and_who_is_unhealthy_is_left_out() -> None:
    slurm = Slurm(
        "n1|allocated\nn2|allocated\nn3|drained\nn4|allocated\nn5|allocated\nn6|down*\n",
        {
            "n2": Completed(14, "module loaded\nhealth.gpu_ecc: Uncorrected memory errors: GPU 3: 12\n", ""),
            "n4": Completed(0, "", ""),
            "n5": CommandError(["srun"], "did not end within 30 s"),
        },
    )
    asking = Asking(slurm, 41, EXAMINE, 8)
    nodes = ["n1", "n2", "n3", "n4", "n5", "n6"]
    assert asking.fit(nodes, ["n6"], ["n2", "n4", "n5", "n6"]) == ["n1", "n4"]
    assert sorted(slurm.examined) == ["n2", "n4", "n5"]
    assert asking.unfit == {
        "n2": "is unhealthy: health.gpu_ecc: Uncorrected memory errors: GPU 3: 12",
        "n3": "is drained: gpumesh health: health.gpu_ecc: 12 errors",
        "n5": "is unhealthy: its health could not be checked: 'srun' did not end within 30 s",
        "n6": "does not answer",
    }


class Busy(Slurm):
    """A controller that takes some seconds for each step."""

    SECONDS = 20.0

    def __call__(self, argv: Sequence[str], *, timeout: float = 60.0, **options: Any) -> Completed:
        if argv[0] == "srun" and timeout < self.SECONDS:
            raise CommandError(argv, f"did not end within {timeout} s")
        return super().__call__(argv, **options)


def test_a_busy_controller_costs_no_node_before_an_attempt() -> None:
    asking = Asking(Busy("n1|allocated\nn2|allocated\n", {}), 41)
    assert asking.fit(["n1", "n2"], []) == ["n1", "n2"]
    # Ranks that wait for a silent node do not wait as long.
    assert not asking.probe("n1")


class Shrunk(Slurm):
    """A controller that has taken nodes out of a job, and finds only some of the others for it.

    slurmd of all nodes but ``dead`` listens at one port of this machine.
    """

    def __init__(self, left: int, found: Sequence[str], dead: Sequence[str], port: int) -> None:
        super().__init__("n1|allocated\nn2|down*\nn3|allocated\nn4|allocated\n", {})
        self.left, self.found, self.dead, self.port = left, found, dead, port

    def __call__(self, argv: Sequence[str], **options: Any) -> Completed:
        if argv[0] == "squeue":
            return Completed(0, f"{self.left}\n", "")
        if list(argv[:3]) == ["scontrol", "show", "config"]:
            return Completed(0, f"SlurmUser = slurm(64030)\nSlurmdPort              = {self.port}\n", "")
        if argv[0] == "scontrol":
            port = " Port=1" if argv[-1] in self.dead else ""
            return Completed(0, f"NodeName={argv[-1]} NodeAddr=127.0.0.1 NodeHostName=x{port}\n", "")
        if argv[0] == "srun" and f"--nodelist={next(iter(self.found), '')}" not in argv:
            raise CommandError(argv, "exited 233", rc=233)
        return super().__call__(argv, **options)


@pytest.mark.parametrize(
    ("left", "cut_off"), [(3, ["n4"]), (4, []), (0, [])], ids=["taken out", "all there", "no longer known"]
)
def test_a_node_that_the_job_does_not_find_any_more_is_known_by_its_slurmd(left: int, cut_off: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        asking = Asking(Shrunk(left, ["n1"], ["n3"], slurmd.getsockname()[1]), 41, allocated=4)
        assert asking.fit(["n1", "n2", "n3", "n4"], []) == ["n1"]
        assert asking.cut_off == cut_off
        assert (asking.lives("n1"), asking.lives("n3"), asking.lives("n4")) == (True, False, bool(cut_off))
    assert asking.unfit["n3"] == "does not answer"


def test_a_program_that_fails_to_examine_does_not_take_a_node_away() -> None:
    slurm = Slurm("n1|allocated\n", {"n1": Completed(2, "", "srun: error: Unable to create step")})
    assert Asking(slurm, 41, EXAMINE).fit(["n1"], [], ["n1"]) == ["n1"]


def test_a_node_that_is_back_is_examined_before_it_is_used_again() -> None:
    slurm = Slurm(
        "", {"n1": Completed(0, "", ""), "n2": Completed(14, "storage.mounts: /mnt/shared is not mounted\n", "")}
    )
    asking = Asking(slurm, 41, EXAMINE)
    for node in ("n1", "n2"):
        asking.revisit(node)
    assert sorted(asking.revisited.get(timeout=60) for _node in range(2)) == [("n1", True), ("n2", False)]


def test_gpus_are_looked_at_in_runs_that_use_them(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("580", encoding="ascii")
    asked: list[str] = []

    def smi(argv: Sequence[str], **_options: Any) -> Completed:
        asked.append(argv[0])
        row = "0, H100, 12, No, 16, 16, 40\n" if argv[1].startswith("--query-gpu") else ""
        return Completed(0, row, "")

    def look(volumes: Sequence[str], gpus: bool) -> str:
        return health.words(health.examine(volumes, gpus, smi, Tree(str(tmp_path)), find=lambda name: name))

    assert look([], False) == "" and asked == []
    assert look([], True) == "health.gpu_ecc: Uncorrected memory errors: GPU 0: 12"


def test_a_volume_that_is_not_there_is_named(tmp_path: Path) -> None:
    failing = health.examine([str(tmp_path / "gone")], False)
    assert health.words(failing).startswith(f"storage.mounts: {tmp_path}/gone: ")
    # Nothing is written for a healthy one.
    assert health.examine(["/proc"], False) == []


def test_a_node_that_cannot_read_the_run_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examine = {"volumes": [], "run_dir": ""}, ["examine", str(tmp_path)]
    assert program.main(*examine) == health.UNHEALTHY
    assert capsys.readouterr().out.startswith(f"There is no run in {tmp_path}.")
    # Its mount has become stale, while the other nodes still have the volume.
    real = os.open

    def stale(path: Any, *given: Any, **options: Any) -> int:
        if path == f"{tmp_path}/request.json":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return real(path, *given, **options)

    monkeypatch.setattr(os, "open", stale)
    assert program.main(*examine) == health.UNHEALTHY
    assert "Stale file handle" in capsys.readouterr().out


VOLUME = "storage.mounts: /mnt/shared is not mounted"
UNREADABLE = "/mnt/shared/nano/request.json cannot be read: [Errno 5] Input/output error."
HARDWARE = "health.gpu_ecc: Uncorrected memory errors: GPU 3: 12"


@pytest.mark.parametrize(
    ("reasons", "suspects", "fit"),
    [
        # The same everywhere, also without a node that has not failed.
        ({"n1": VOLUME, "n2": VOLUME, "n3": VOLUME}, ["n2"], ["n1", "n2", "n3"]),
        ({"n1": UNREADABLE, "n2": UNREADABLE}, ["n1"], ["n1", "n2"]),
        ({"n1": VOLUME, "n2": VOLUME}, ["n1", "n2"], ["n1", "n2"]),
        # On the suspect only, or on the only node.
        ({"n1": "", "n2": VOLUME, "n3": ""}, ["n2"], ["n1", "n3"]),
        ({"n1": VOLUME, "n2": ""}, ["n1", "n2"], ["n2"]),
        ({"n1": VOLUME}, ["n1"], []),
        # Two faults of two nodes.
        ({"n1": VOLUME, "n2": UNREADABLE}, ["n1", "n2"], []),
        ({"n1": HARDWARE, "n2": HARDWARE}, ["n1", "n2"], []),
        ({"n1": f"{HARDWARE}; {VOLUME}", "n2": VOLUME}, ["n1"], ["n2"]),
    ],
)
def test_no_node_is_unhealthy_for_a_volume_that_fails_everywhere(
    reasons: dict[str, str], suspects: list[str], fit: list[str]
) -> None:
    answers = {node: Completed(14 if reason else 0, f"{reason}\n", "") for node, reason in reasons.items()}
    slurm = Slurm("".join(f"{node}|allocated\n" for node in reasons), answers)
    asking = Asking(slurm, 41, EXAMINE)
    assert asking.fit(list(reasons), [], suspects) == fit
    assert sorted(asking.unfit) == sorted(set(reasons) - set(fit))


def test_no_node_is_unhealthy_for_a_volume_that_hangs_everywhere() -> None:
    hung = {node: CommandError(["srun", f"--nodelist={node}"], f"did not end on {node}") for node in ("n1", "n2")}
    asking = Asking(Slurm("n1|allocated\nn2|allocated\n", hung), 41, EXAMINE)
    assert asking.fit(["n1", "n2"], [], ["n2"]) == ["n1", "n2"]
