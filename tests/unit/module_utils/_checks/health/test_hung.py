# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import hung, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

#: The mask of SIGKILL, as /proc/PID/status shows it, and that of no signal.
KILLED, NOT_KILLED = "0000000000000100", "0000000000000000"


def add_process(
    tmp_path: Path,
    state: str = "D",
    age: int = 300,
    signals: str = KILLED,
    uid: int = 0,
    program: str = "/usr/bin/nvidia-smi",
) -> None:
    """Write the files of process 4711, on a host that was booted 5000 seconds ago."""
    process = tmp_path / "proc/4711"
    process.mkdir(parents=True)
    start = (5000 - age) * os.sysconf("SC_CLK_TCK")
    (tmp_path / "proc/uptime").write_text("5000.25 9000.00\n", encoding="utf-8")
    (process / "stat").write_text(f"4711 (nvidia-smi) {state} {' '.join(['0'] * 18)} {start} 0 0\n", encoding="utf-8")
    status = f"Name:\tnvidia-smi\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nSigPnd:\t{signals}\nShdPnd:\t{NOT_KILLED}\n"
    (process / "status").write_text(status, encoding="utf-8")
    (process / "exe").symlink_to(program)


def check_all(tmp_path: Path, started: list[str]) -> dict[str, run.CheckResult]:
    """The results of all checks of health on a host with two GPUs; the programs that are run are added to ``started``."""
    for name in ("proc/driver/nvidia/version", "dev/nvidia0", "dev/nvidia1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")

    def run_command(argv: list[str], **_options: object) -> CommandResult:
        started.append(argv[0])
        row = "0, NVIDIA H100 80GB HBM3, 0, [N/A], 16, 16, 31\n"
        return CommandResult(0, row * 2 if argv[1].startswith("--query-gpu=index,name") else "", "")

    check_context = run.CheckContext(
        ExpectedState(gpus=2),
        Tree(str(tmp_path)),
        run_command,
        lambda name: f"/bin/{name}" if name == "nvidia-smi" else None,
    )
    return {result["id"]: result for result in run.run_selected_checks(check_context, "n1", ["health"])}


def test_driver_that_hangs_is_a_fault_and_gets_no_more_programs(tmp_path: Path) -> None:
    add_process(tmp_path)
    started: list[str] = []
    results = check_all(tmp_path, started)
    count = results["health.gpu_count"]
    assert (count["status"], count["actual"], count["required"]) == ("fail", 0, 2)
    assert "hangs in the kernel and cannot be killed (PID 4711 for 300 s)" in count["reason"]
    assert "reboot" in count["remedy"]
    assert results["health.gpu_ecc"]["status"] == "error"
    assert "nvidia-smi" not in started


@pytest.mark.parametrize(
    "changes",
    [
        # It waits for something, and may run for a long time, such as nvidia-smi dmon.
        {"signals": NOT_KILLED},
        {"state": "S"},
        # It was slow and was killed just now.
        {"age": 15},
        # A user's process, which may wait for a file system of the user.
        {"uid": 1000},
        {"program": "/home/alice/nvidia"},
    ],
)
def test_other_processes_are_no_fault(tmp_path: Path, changes: dict) -> None:
    add_process(tmp_path, **changes)
    started: list[str] = []
    assert check_all(tmp_path, started)["health.gpu_count"]["status"] == "pass"
    assert "nvidia-smi" in started


class WaitingHost:
    """A host with process 71, in two snapshots."""

    def __init__(self, root: Path, state: str = "D", flags: int = 0x400000) -> None:
        self.root, self.state, self.flags = root, state, flags
        (root / "proc/71").mkdir(parents=True)

    def examine(self, uptime: float, switches: int, start: int = 1000) -> Tree:
        stat = f"71 (rsync (1)) {self.state} 1 71 71 0 -1 {self.flags} {' '.join(['0'] * 12)} {start} 0 0\n"
        (self.root / "proc/uptime").write_text(f"{uptime} 9000.00\n", encoding="utf-8")
        (self.root / "proc/71/stat").write_text(stat, encoding="utf-8")
        (self.root / "proc/71/status").write_text(
            f"Name:\trsync (1)\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t5\n",
            encoding="utf-8",
        )
        return Tree(str(self.root))


def judge_twice(host: WaitingHost, interval: float, switches: int = 17, start: int = 1000) -> run.Judgement:
    """The judgement at the second snapshot, by which the process has run ``switches - 17`` times."""
    earlier = hung.follow_sleeping(host.examine(5000, 17), {})
    return hung.judge_sleeping(
        hung.follow_sleeping(host.examine(5000 + interval, switches, start), earlier), 5000 + interval
    )


def test_process_that_has_not_run_between_two_snapshots_hangs(tmp_path: Path) -> None:
    judged = judge_twice(WaitingHost(tmp_path), 300)
    assert (judged.status, judged.actual) == ("fail", 1)
    assert judged.reason == "Processes hang in the kernel: rsync (1) (71) for 300 s."


@pytest.mark.parametrize(
    ("host", "interval", "switches", "start"),
    [
        # It reads from a disk, and runs in between.
        ({}, 300, 18, 1000),
        # Another process with the same number.
        ({}, 300, 17, 2000),
        ({}, 100, 17, 1000),
        ({"state": "S"}, 300, 17, 1000),
        # A thread of the kernel.
        ({"flags": 0x208040}, 300, 17, 1000),
    ],
)
def test_other_waiting_processes_do_not_hang(
    tmp_path: Path, host: dict, interval: float, switches: int, start: int
) -> None:
    assert judge_twice(WaitingHost(tmp_path, **host), interval, switches, start).status == "pass"


def test_process_of_a_paused_container_does_not_hang(tmp_path: Path) -> None:
    """Version 1 of control groups freezes it in uninterruptible sleep."""
    host = WaitingHost(tmp_path)
    (tmp_path / "proc/71/wchan").write_text("__refrigerator", encoding="utf-8")
    assert judge_twice(host, 300).status == "pass"
    (tmp_path / "proc/71/wchan").write_text("nfs_wait_bit_killable", encoding="utf-8")
    assert judge_twice(host, 300).status == "fail"


def test_time_without_running_adds_up(tmp_path: Path) -> None:
    host, earlier = WaitingHost(tmp_path), {}
    for uptime in (5000, 5070, 5140):
        earlier = hung.follow_sleeping(host.examine(uptime, 17), earlier)
    assert hung.judge_sleeping(earlier, 5140).status == "fail"
    assert hung.follow_sleeping(host.examine(5140, 17), {"71": 7})["71"]["since"] == 5140
