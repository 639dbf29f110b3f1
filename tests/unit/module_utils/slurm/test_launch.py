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
    """Three nodes with four CPUs. ``starts_in``: the seconds until a job could start beside the existing ones.

    ``partitions``: those of each node, - for none. One of them is the default, and another one may be down.
    """

    def __init__(
        self,
        *allocated: int,
        states: str = "",
        starts_in: float = 0,
        partitions: str = "main main main",
        default: str = "main",
        down: str = "",
    ) -> None:
        self.partitions, self.default, self.down = partitions.split(), default, down
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
                + ("" if parts == "-" else f" Partitions={parts}")
                for name, cpus, state, parts in zip(NODES, self.allocated, self.states, self.partitions)
            ]
            return Completed(0, "\n".join(shown), "")
        if argv[-1] == "partition":
            names = sorted({name for parts in self.partitions for name in parts.split(",")} - {"-"})
            shown = [
                f"PartitionName={name} Default={'YES' if name == self.default else 'NO'} Nodes=n[1-3] "
                f"State={'DOWN' if name == self.down else 'UP'} TotalCPUs=4"
                for name in names
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


def look(slurm: Slurm) -> launch.Found:
    return launch.look(slurm, launch.Request(NODES, "root", 60))


def found(slurm: Slurm) -> tuple[Any, ...]:
    return look(slurm)[:3]


ALICE = ["7 of alice (train)"]


def test_an_idle_cluster_is_launched_on_without_more_questions() -> None:
    slurm = Slurm(0, 0, 0)
    assert found(slurm) == (list(NODES), {}, {})
    assert len(slurm.asked) == 3


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


@pytest.mark.parametrize(
    ("partitions", "default", "groups"),
    [
        ("main main main", "main", [("main", NODES)]),
        # There does not have to be a default one.
        ("main main main", "", [("main", NODES)]),
        ("fast fast slow", "fast", [("fast", ("n1", "n2")), ("slow", ("n3",))]),
        # A node has one task, and everybody may use the default partition.
        ("fast,all all fast,all", "fast", [("fast", ("n1", "n3")), ("all", ("n2",))]),
        # Otherwise, as few jobs as possible.
        ("a,all b,all c,all", "", [("all", NODES)]),
        ("all,main all,main all,main", "main", [("main", NODES)]),
    ],
)
def test_nodes_of_several_partitions_are_launched_on_together(
    partitions: str, default: str, groups: list[tuple[str, tuple[str, ...]]]
) -> None:
    request = launch.Request(NODES, "root", 60)
    there = look(Slurm(0, 0, 0, partitions=partitions, default=default))
    assert (there.nodes, there.barred) == (list(NODES), {})
    jobs = launch.jobs(request, there.nodes, there.partitions)
    assert [(job.partition, tuple(job.nodes)) for job in jobs] == groups


def test_a_node_without_a_partition_that_starts_jobs_is_left_out() -> None:
    there = look(Slurm(0, 0, 0, partitions="fast - slow", default="fast", down="slow"))
    assert (there.nodes, there.barred) == (
        ["n1"],
        {"n2": "in no partition", "n3": "only in partitions that start no jobs (slow)"},
    )


def test_each_partition_is_asked_whether_it_can_start_a_job() -> None:
    slurm = Slurm(2, 2, 0, partitions="fast slow slow", default="fast", starts_in=3600)
    assert found(slurm) == (["n3"], {"n1": ALICE, "n2": ALICE}, {})
    asked = [line for line in slurm.asked if "--test-only" in line]
    assert ["--partition=fast" in asked[0], "--partition=slow" in asked[1]] == [True, True]


def test_the_jobs_of_several_partitions_have_one_result() -> None:
    seen: list[list[str]] = []

    def run(argv: Any, **_options: Any) -> Completed:
        seen.append([word for word in argv if word.startswith(("--partition", "--nodes", "--nodelist"))])
        return Completed(*((0, "n1\nn2\n", "") if "--partition=fast" in argv else (1, "", "srun: error: x\n")))

    base = launch.Request(NODES, "root", 60)
    jobs = launch.jobs(base, NODES, {"n1": "fast", "n2": "fast", "n3": "slow"})
    assert launch.launch_all(run, [*jobs, jobs[0]]) == (1, "n1\nn2\nn1\nn2\n", "srun: error: x\n")
    assert seen[:2] == [
        ["--nodes=2", "--nodelist=n1,n2", "--partition=fast"],
        ["--nodes=1", "--nodelist=n3", "--partition=slow"],
    ]
    words = launch.words_of_all(jobs)
    assert words.index("&&") == len(launch.words(jobs[0])) and words.count("srun") == 2
