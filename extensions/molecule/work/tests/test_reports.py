# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of programs that report little, or nothing: when they go on, when they stop, and when they hang."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from train_programs import MANAGER
from train_runs import WAIT_TIMEOUT, TrainLab, list_causes

#: Where the runs are, whose volume one test stops.
NODE = "gpu2"
PROGRAM = "/mnt/shared/reporter.py"
#: Lines of 8 KiB: several times what a pipe holds.
MANY = 60
GRACE = 3.0


@pytest.fixture(name="lab", scope="module")
def _lab() -> TrainLab:
    lab = TrainLab("molecule-work")
    shutil.copy(Path(__file__).with_name("reporter.py"), lab.shared_volume / "reporter.py")
    return lab


def begin(lab: TrainLab, name: str, *words: str, options: tuple[str, ...] = ()) -> None:
    """Start a run of one rank."""
    where = ("--sbatch", f"--nodelist={NODE}")
    lab.run_train("--detach", "--name", name, *options, *where, "--", "python3", PROGRAM, *words)


def log(lab: TrainLab, name: str, attempt: int) -> str:
    return (lab.runs_directory / name / "attempts" / f"{attempt:03}" / "rank-0.log").read_text(encoding="utf-8")


def test_a_program_that_exits_with_0_after_a_warning_goes_on_until_its_jobs_bring_nothing_new(lab: TrainLab) -> None:
    """It listens to SIGTERM. Slurm announces the end of each of its jobs, as it does before a time limit."""
    lab.clear_queue()
    begin(lab, "unsaid", "unsaid", options=("--warn-signal", "SIGTERM", "--grace", str(GRACE)))
    for attempt in range(1, 5):
        found = lab.await_first_step("unsaid", attempt)
        began = found["attempts"][-1]["begin"]
        # A shorter job had no chance of a checkpoint, and would not count.
        lab.wait_until("it has run for a while", lambda began=began: time.time() > began + 2 * GRACE, WAIT_TIMEOUT)
        lab.run(MANAGER, "scancel", "--batch", "--signal=USR1", str(found["job"]))
        lab.await_run("unsaid", "is warned", lambda now, attempt=attempt: now["attempts"][attempt - 1]["cause"])
        assert log(lab, "unsaid", attempt).endswith("exits for SIGTERM\n")
    found = lab.await_end("unsaid")
    jobs = [attempt["job"] for attempt in found["attempts"]]
    assert list_causes(found) == [("warned", None, "")] * 4 and len(set(jobs)) == 4, found
    listed = ", ".join(map(str, jobs[1:]))
    assert found["state"] == "failed"
    assert f"3 jobs in a row produced no newer checkpoint ({listed}): save more often" in found["detail"]


def test_restarts_are_counted_since_the_last_new_checkpoint(lab: TrainLab) -> None:
    lab.clear_queue()
    begin(lab, "mortal", "mortal", options=("--max-restarts", "2"))
    found = lab.await_end("mortal")
    # Attempts 1 to 3 each bring one, and the last of them is the first of three failures since.
    assert [attempt["checkpoint"] for attempt in found["attempts"]] == [10, 20, 30, 30, 30], found
    assert {kind for kind, _rank, _node in list_causes(found)} == {"crash"}
    assert found["state"] == "failed"
    assert "2 restarts since the last new checkpoint were not enough (--max-restarts)" in found["detail"]


def test_a_program_that_only_prints_is_found_to_hang_by_its_output(lab: TrainLab) -> None:
    lab.clear_queue()
    begin(lab, "silent", "silent", options=("--hang-timeout", "15"))
    found = lab.await_end("silent")
    assert list_causes(found) == [("hang", None, ""), ("finished", None, "")], found
    assert found["step"] is None and "line 149\n" in log(lab, "silent", 1)
    assert found["attempts"][0]["cause"]["detail"].startswith("no progress for 15 s; all are in silent (reporter.py:")


@pytest.fixture(name="served")
def _served(lab: TrainLab) -> Iterator[None]:
    """The shared volume of NODE is a network file system with a process of its own."""
    mount = ("sshfs", "-o", "sshfs_sync,dir_cache=no,attr_timeout=0,entry_timeout=0", f"{MANAGER}:/mnt/shared")
    lab.clear_queue()
    lab.run(NODE, *mount, "/mnt/shared")
    yield
    lab.run(NODE, "pkill", "-CONT", "-x", "sshfs", check=False)
    lab.clear_queue()
    lab.run(NODE, "umount", "--lazy", "/mnt/shared")


@pytest.mark.usefixtures("served")
def test_a_rank_that_prints_goes_on_while_the_volume_hangs(lab: TrainLab) -> None:
    counter = "/var/tmp/printed"

    def printed() -> int:
        return int(lab.run(NODE, "cat", counter, check=False).strip() or 0)

    lab.run(NODE, "rm", "-f", counter, f"{counter}.end")
    begin(lab, "printing", "print", counter)
    lab.wait_until("it prints", lambda: printed() > MANY, WAIT_TIMEOUT)
    lab.run(NODE, "pkill", "-STOP", "-x", "sshfs")
    before = printed()
    lab.wait_until("it goes on", lambda: printed() > before + MANY, WAIT_TIMEOUT)
    assert len(log(lab, "printing", 1).splitlines()) < before + MANY
    lab.run(NODE, "pkill", "-CONT", "-x", "sshfs")
    lab.run(NODE, "touch", f"{counter}.end")
    found = lab.await_end("printing")
    assert list_causes(found) == [("finished", None, "")], found
    *lines, last = log(lab, "printing", 1).splitlines()
    assert last == f"printed {printed()} lines"
    assert [int(line.split()[0]) for line in lines] == list(range(1, printed() + 1))
