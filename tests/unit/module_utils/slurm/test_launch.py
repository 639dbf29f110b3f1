# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a job is launched, with stand-ins for Slurm's commands: it never waits for another job."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import launch

NODES = ("n1", "n2", "n3")


class Slurm:
    """Three nodes with four CPUs. ``starts_in``: the seconds until a job could start beside the existing ones."""

    def __init__(self, *allocated: int, states: str = "", starts_in: float = 0) -> None:
        self.allocated = allocated
        self.states = states.split() or [
            "IDLE" if not cpus else "MIXED" if cpus < 4 else "ALLOCATED" for cpus in allocated
        ]
        self.starts_in = starts_in
        self.asked: list[str] = []

    def __call__(self, argv: Any, **_options: Any) -> Completed:
        line = " ".join(argv)
        self.asked.append(line)
        if "-V" in argv:
            return Completed(0, "slurm-wlm 22.05.8", "")
        if argv[-1] == "node":
            shown = [
                f"NodeName={name} CPUAlloc={cpus} CPUTot=4 State={state} RealMemory=900"
                for name, cpus, state in zip(NODES, self.allocated, self.states)
            ]
            return Completed(0, "\n".join(shown), "")
        if argv[-1] == "job":
            at = ",".join(name for name, cpus in zip(NODES, self.allocated) if cpus)
            ended = "JobId=6 JobName=old UserId=bob(1001) JobState=COMPLETED NodeList=n1"
            return Completed(
                0, f"{ended}\nJobId=7 JobName=train UserId=alice(1000) JobState=RUNNING NodeList={at}\n", ""
            )
        if "--test-only" in argv:
            at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + self.starts_in))
            return Completed(0, "", f"srun: Job 8 to start at {at} using 2 processors on nodes n1 in partition main")
        raise AssertionError(line)


def found(slurm: Slurm) -> launch.Found:
    return launch.look(slurm, launch.Request(NODES, "root", 60))


ALICE = ["7 of alice (train)"]


def test_an_idle_cluster_is_launched_on_without_more_questions() -> None:
    slurm = Slurm(0, 0, 0)
    assert found(slurm) == (list(NODES), {}, {})
    assert len(slurm.asked) == 2


def test_nodes_without_a_free_processor_are_named_with_their_jobs() -> None:
    slurm = Slurm(4, 4, 0)
    assert found(slurm) == (["n3"], {"n1": ALICE, "n2": ALICE}, {})
    assert found(Slurm(4, 4, 4)) == ([], dict.fromkeys(NODES, ALICE), {})


def test_a_job_that_leaves_room_is_launched_beside() -> None:
    assert found(Slurm(2, 0, 0)) == (list(NODES), {}, {})


def test_a_job_that_has_all_the_memory_is_not_waited_for() -> None:
    slurm = Slurm(2, 0, 0, starts_in=3600)
    assert found(slurm) == (["n2", "n3"], {"n1": ALICE}, {})


def test_a_node_that_takes_no_jobs_is_left_out_with_its_state() -> None:
    assert found(Slurm(0, 0, 0, states="IDLE+DRAIN IDLE DOWN*")) == (
        ["n2"],
        {},
        {"n1": "idle drain", "n3": "down not_responding"},
    )


def test_a_node_that_slurm_does_not_know_is_left_out() -> None:
    request = launch.Request([*NODES, "n9"], "root", 60)
    assert launch.look(Slurm(0, 0, 0), request).barred == {"n9": "unknown to Slurm"}


@pytest.mark.parametrize("text", ["", "srun: error: allocation failure", "to start at soon"])
def test_a_scheduler_that_does_not_say_is_asked_by_the_job_itself(text: str) -> None:
    assert launch.start_time(text) is None


def test_the_job_is_nobodys_and_in_a_folder_that_nobody_can_write_to() -> None:
    seen: list[list[str]] = []

    def run(argv: Any, **_options: Any) -> Completed:
        seen.append(list(argv))
        return Completed(0, "", "")

    launch.launch(run, launch.Request(NODES, "nobody", 60))
    (argv,) = seen
    assert "--chdir=/" in argv
    assert argv.index("setpriv") < argv.index("srun")
    assert {"--reuid=65534", "--clear-groups"} <= set(argv)
