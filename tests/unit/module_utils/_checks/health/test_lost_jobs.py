# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that a power cut has ended, although Slurm does not know it yet."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import lost_jobs
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree


def fake_host(root: Path, up: float, first: float = 0.1, batch: str = "", slurmd: float = 10.0) -> Tree:
    """A host that has been up for so many seconds. ``first``: when its first process began; ``batch``: a job's script.

    ``slurmd``: when that began.
    """
    for pid in ("1", "100", "200"):
        (root / "proc" / pid).mkdir(parents=True)
    (root / "proc" / "uptime").write_text(f"{up:.2f} 12345.67\n")
    for pid, began in (("1", first), ("100", slurmd)):
        ticks = int(began * os.sysconf("SC_CLK_TCK"))
        (root / "proc" / pid / "stat").write_text(f"{pid} (a ) b) S {' '.join(['0'] * 18)} {ticks} 24141824 3514\n")
    (root / "proc" / "100" / "exe").symlink_to("/usr/sbin/slurmd-wlm")
    (root / "proc" / "100" / "status").write_text("Uid:\t0\t0\t0\t0\n", encoding="utf-8")
    (root / "proc" / "1" / "cmdline").write_text("/sbin/init\0")
    (root / "proc" / "200" / "cmdline").write_text(
        f"slurmstepd: [{batch}.batch]\0\0" if batch else "slurmstepd: [7.0]\0"
    )
    return Tree(str(root))


@pytest.mark.parametrize(
    ("up", "first", "seconds"),
    [
        (100.0, 0.1, 99.9),
        # A container on a machine that has been up for days, and one whose /proc/uptime is its own.
        (900000.0, 899900.0, 100.0),
        (100.0, 899900.0, 100.0),
    ],
)
def test_uptime_of_hosts_and_containers(tmp_path: Path, up: float, first: float, seconds: float) -> None:
    assert lost_jobs.read_uptime(fake_host(tmp_path, up, first)) == pytest.approx(seconds, abs=0.1)


def test_host_with_unknown_boot_time_has_lost_no_jobs(tmp_path: Path) -> None:
    lost_jobs.requeue_lost_jobs(lambda *_argv, **_options: pytest.fail("asked"), "n1", Tree(str(tmp_path)))


def test_jobs_are_queried_only_after_a_recent_start_of_slurmd(tmp_path: Path) -> None:
    slurm = FakeController({"7": ("n1", 4000.0)})
    lost_jobs.requeue_lost_jobs(slurm, "n1", fake_host(tmp_path / "late", 3000.0, slurmd=2900.0))
    assert slurm.requeued == ["7"]
    none = fake_host(tmp_path / "none", 100.0)
    Path(none.path("proc", "100", "exe")).unlink()
    assert lost_jobs.read_slurmd_uptime(none) == float("inf")
    lost_jobs.requeue_lost_jobs(lambda *_argv, **_options: pytest.fail("asked"), "n1", none)


class FakeController:
    """Slurm with these jobs, each of which began so many seconds ago. ``refused``: those that it does not requeue."""

    def __init__(self, jobs: dict[str, tuple[str, float]], refused: str = "") -> None:
        self.squeue_output = "".join(f"{job}|{where}|{time.time() - ago:.0f}\n" for job, (where, ago) in jobs.items())
        self.refused = refused
        self.requeued: list[str] = []

    def __call__(self, argv: list[str], **_options: Any) -> CommandResult:
        if "squeue" in argv:
            assert "SLURM_TIME_FORMAT=%s" in argv and "--nodelist=n1" in argv
            return CommandResult(0, self.squeue_output, "")
        assert argv[:2] == ["scontrol", "requeue"]
        if argv[2] == self.refused:
            raise CommandError(argv, "exited 1", rc=1, stderr="Requested operation is presently disabled")
        self.requeued.append(argv[2])
        return CommandResult(0, "", "")


def test_jobs_older_than_the_boot_are_requeued_by_their_batch_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = FakeController(
        {"7": ("n1", 500.0), "8": ("n2", 500.0), "9": ("n1", 60.0), "10": ("n1", 500.0)}, refused="10"
    )
    lost_jobs.requeue_lost_jobs(slurm, "n1", fake_host(tmp_path, 100.0))
    assert slurm.requeued == ["7"]
    output = capsys.readouterr().out
    assert "job 7 ended when this node lost power, and is requeued" in output
    assert "job 10 ended when this node lost power, but is not requeued" in output


def test_job_with_a_running_batch_script_is_not_lost(tmp_path: Path) -> None:
    slurm = FakeController({"7": ("n1", 500.0)})
    lost_jobs.requeue_lost_jobs(slurm, "n1", fake_host(tmp_path, 100.0, batch="7"))
    assert slurm.requeued == []


def test_no_query_long_after_the_boot_and_no_failure_without_a_controller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def be_away(argv: list[str], **_options: Any) -> CommandResult:
        raise CommandError(argv, "exited 1", rc=1, stderr="Unable to contact slurm controller")

    for name, up, slurmd in (("late", 8000.0, 7990.0), ("started", 3000.0, 10.0)):
        tree = fake_host(tmp_path / name, up, slurmd=slurmd)
        lost_jobs.requeue_lost_jobs(lambda *_argv, **_options: pytest.fail("asked"), "n1", tree)
    lost_jobs.requeue_lost_jobs(be_away, "n1", fake_host(tmp_path / "early", 100.0))
    assert "its jobs could not be listed" in capsys.readouterr().out


def test_unexpected_squeue_output_is_ignored() -> None:
    squeue_output = "7|n1|1000\n8|n1|1000 state=x\n9;reboot|n1|1000\nslurm_load_jobs error: x\n\n"
    assert lost_jobs.find_lost_jobs(squeue_output, "n1", 2000.0, []) == ["7", "8"]


def test_jobs_held_after_a_refused_launch_are_released(capsys: pytest.CaptureFixture[str]) -> None:
    commands: list[str] = []

    def slurm(argv: list[str], **_options: Any) -> CommandResult:
        if argv[0] == "squeue":
            return CommandResult(0, "17|(launch failed requeued held)\n18|(JobHeldUser)\n19|(Priority)\n", "")
        commands.append(" ".join(argv))
        return CommandResult(0, "", "")

    lost_jobs.release_refused_jobs(slurm, "n1")
    assert commands == ["scontrol release 17"]
    assert "n1: job 17 was refused by a node, and is released" in capsys.readouterr().out


@pytest.mark.parametrize("failing", ["squeue", "scontrol"])
def test_unresponsive_controller_keeps_no_node_out_of_service(failing: str, capsys: pytest.CaptureFixture[str]) -> None:
    def slurm(argv: list[str], **_options: Any) -> CommandResult:
        if argv[0] == failing:
            raise CommandError(argv, "Unable to contact slurm controller")
        return CommandResult(0, "17|(launch failed requeued held)\n", "")

    lost_jobs.release_refused_jobs(slurm, "n1")
    assert "Unable to contact slurm controller" in capsys.readouterr().out
