# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes on which a job is launched, with stand-ins for Slurm's commands: it never waits for another job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import launch

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
        self.command_lines: list[str] = []

    def __call__(self, argv: Any, **_options: Any) -> CommandResult:
        line = " ".join(argv)
        self.command_lines.append(line)
        if "-V" in argv:
            return CommandResult(0, "slurm-wlm 22.05.8", "")
        if argv[-1] == "node":
            shown = [
                f"NodeName={name} CPUAlloc={cpus} CPUTot=4 State={state} RealMemory=900"
                + ("" if parts == "-" else f" Partitions={parts}")
                for name, cpus, state, parts in zip(NODES, self.allocated, self.states, self.partitions)
            ]
            return CommandResult(0, "\n".join(shown), "")
        if argv[-1] == "partition":
            names = sorted({name for parts in self.partitions for name in parts.split(",")} - {"-"})
            shown = [
                f"PartitionName={name} Default={'YES' if name == self.default else 'NO'} Nodes=n[1-3] "
                f"State={'DOWN' if name == self.down else 'UP'} TotalCPUs=4"
                for name in names
            ]
            return CommandResult(0, "\n".join(shown), "")
        if argv[-1] == "job":
            at = ",".join(name for name, cpus in zip(NODES, self.allocated) if cpus)
            ended = "JobId=6 JobName=old UserId=bob(1001) JobState=COMPLETED NodeList=n1"
            return CommandResult(
                0, f"{ended}\nJobId=7 JobName=train UserId=alice(1000) JobState=RUNNING NodeList={at}\n", ""
            )
        if "--test-only" in argv:
            at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + self.starts_in))
            return CommandResult(
                0, "", f"srun: Job 8 to start at {at} using 2 processors on nodes n1 in partition main"
            )
        raise AssertionError(line)


class RestartedNodes:
    """Three idle nodes, and what Slurm 22.05 and 24.11 do with a job after n2 was killed and started again.

    ``answers``: the result of each job. ``nodes``: the state of n2 each time that the nodes are read.
    """

    def __init__(self, *answers: CommandResult, nodes: Sequence[str] = ("IDLE 18:30:00",)) -> None:
        self.answers = list(answers)
        self.nodes = list(nodes)
        self.jobs = 0
        self.slept = 0.0

    def __call__(self, argv: Any, **_options: Any) -> CommandResult:
        if "-V" in argv:
            return CommandResult(0, "slurm-wlm 22.05.8", "")
        if argv[-1] == "node":
            state, started = (self.nodes.pop(0) if len(self.nodes) > 1 else self.nodes[0]).split()
            words = {"n1": ("IDLE", "18:00:00"), "n2": (state, started), "n3": ("IDLE", "18:00:00")}
            lines = [
                f"NodeName={name} CPUAlloc=0 CPUTot=4 State={word}+DYNAMIC_NORM RealMemory=900 "
                f"Partitions=main BootTime=2026-11-25T09:26:14 SlurmdStartTime=2026-11-25T{at} LastBusyTime=2026-11-25T18:37:11"
                for name, (word, at) in words.items()
            ]
            return CommandResult(0, "\n".join(lines), "")
        if argv[-1] == "partition":
            return CommandResult(0, "PartitionName=main Default=YES Nodes=n[1-3] State=UP TotalCPUs=12", "")
        assert "srun" in argv
        self.jobs += 1
        return self.answers.pop(0)

    def prove(self) -> launch.LaunchProof:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.monotonic", lambda: self.slept)
            patch.setattr("time.sleep", self.sleep)
            return launch.prove_launch(self, launch.LaunchRequest(NODES, "root", 60))

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def launch_targets(slurm: Slurm, *names: str) -> launch.LaunchTargets:
    request = launch.LaunchRequest(names or NODES, "root", 60)
    return launch.find_launch_targets(slurm, request, launch.read_nodes(slurm))


def target_fields(slurm: Slurm) -> tuple[Any, ...]:
    return launch_targets(slurm)[:3]


ALICE = ["7 of alice (train)"]


def test_idle_cluster_needs_no_further_queries() -> None:
    slurm = Slurm(0, 0, 0)
    assert target_fields(slurm) == (list(NODES), {}, {})
    assert len(slurm.command_lines) == 3


def test_full_nodes_are_reported_with_their_jobs() -> None:
    slurm = Slurm(4, 4, 0)
    assert target_fields(slurm) == (["n3"], {"n1": ALICE, "n2": ALICE}, {})
    assert target_fields(Slurm(4, 4, 4)) == ([], dict.fromkeys(NODES, ALICE), {})


def test_partially_used_nodes_are_launched_on() -> None:
    assert target_fields(Slurm(2, 0, 0)) == (list(NODES), {}, {})


def test_nodes_without_free_memory_are_skipped() -> None:
    slurm = Slurm(2, 0, 0, starts_in=3600)
    assert target_fields(slurm) == (["n2", "n3"], {"n1": ALICE}, {})


def test_unavailable_nodes_are_reported_with_their_state() -> None:
    assert target_fields(Slurm(0, 0, 0, states="IDLE+DRAIN IDLE DOWN*")) == (
        ["n2"],
        {},
        {"n1": "idle drain", "n3": "down not_responding"},
    )


def test_unknown_nodes_are_skipped() -> None:
    assert launch_targets(Slurm(0, 0, 0), *NODES, "n9").unavailable_nodes == {"n9": "unknown to Slurm"}
    # A job would wait for a node of which Slurm does not know yet that it hangs.
    slurm = Slurm(0, 0, 0)
    left_out = launch.find_launch_targets(
        slurm, launch.LaunchRequest(NODES, "root", 60, unreachable_nodes=["n2"]), launch.read_nodes(slurm)
    )
    assert (left_out.nodes, left_out.unavailable_nodes) == (["n1", "n3"], {"n2": "unreachable"})


@pytest.mark.parametrize("text", ["", "srun: error: allocation failure", "to start at soon"])
def test_unknown_start_time_does_not_prevent_the_launch(text: str) -> None:
    assert launch.parse_start_time(text) is None


def test_job_runs_as_an_unprivileged_user_in_the_root_directory() -> None:
    seen: list[list[str]] = []

    def run(argv: Any, **_options: Any) -> CommandResult:
        seen.append(list(argv))
        return CommandResult(0, "", "")

    launch.launch_job(run, launch.LaunchRequest(NODES, "nobody", 60))
    (argv,) = seen
    assert "--chdir=/" in argv
    assert argv.index("setpriv") < argv.index("srun")
    assert {"--reuid=65534", "--clear-groups"} <= set(argv)


RAN = CommandResult(0, "n1\nn3\nn2\n", "")
LOST = CommandResult(
    1,
    "",
    "srun: error: Nodes n[2-3,1] are still not ready\nsrun: error: Something is wrong with the boot of the nodes.\n",
)
FAILED = CommandResult(1, "", "srun: error: task 1 launch failed: Slurmd could not execve job\n")
BEFORE, BACK, SILENT = "IDLE 18:30:00", "IDLE 18:37:41", "IDLE* 18:30:00"


def test_successful_job_runs_once() -> None:
    slurm = RestartedNodes(RAN)
    proof = slurm.prove()
    assert (proof.result, proof.absent_nodes, proof.attempt_count, slurm.jobs, slurm.slept) == (RAN, [], 1, 1, 0)
    nothing = launch.prove_launch(Slurm(4, 4, 4), launch.LaunchRequest(NODES, "root", 60))
    assert (nothing.attempt_count, nothing.result.stdout, list(nothing.targets.blocking_jobs)) == (0, "", list(NODES))


def test_job_lost_to_a_restarted_node_is_repeated() -> None:
    """The controller learns only afterwards that another slurmd runs there, or that none answers."""
    for nodes in ([BEFORE, BACK], [BEFORE, SILENT, SILENT, BACK], [BEFORE, BACK, "IDLE+COMPLETING 18:37:41", BACK]):
        slurm = RestartedNodes(LOST, RAN, nodes=nodes)
        proof = slurm.prove()
        assert (proof.absent_nodes, proof.attempt_count, slurm.jobs) == (["n2"], 2, 2)
        assert (proof.result.rc, proof.result.stdout) == (0, RAN.stdout)
        # The first output of srun is not hidden.
        assert proof.result.stderr == LOST.stderr


def test_second_failure_is_final() -> None:
    slurm = RestartedNodes(LOST, FAILED, nodes=[BEFORE, BACK])
    proof = slurm.prove()
    assert (proof.result.rc, proof.absent_nodes, proof.attempt_count, slurm.jobs) == (1, ["n2"], 2, 2)
    assert proof.result.stderr == LOST.stderr + FAILED.stderr


@pytest.mark.parametrize("answer", [FAILED, LOST])
def test_job_failing_on_available_nodes_is_not_repeated(answer: CommandResult) -> None:
    slurm = RestartedNodes(answer)
    proof = slurm.prove()
    assert (proof.result, proof.absent_nodes, proof.attempt_count, slurm.jobs, slurm.slept) == (answer, [], 1, 1, 0)


def test_wait_for_an_absent_node_is_limited() -> None:
    slurm = RestartedNodes(LOST, nodes=[BEFORE, SILENT])
    proof = slurm.prove()
    assert (proof.result, proof.absent_nodes, proof.attempt_count, slurm.jobs) == (LOST, ["n2"], 1, 1)
    assert 60 <= slurm.slept < 65


def test_completing_node_is_waited_for() -> None:
    """Slurm starts nothing there. After slurmd was killed, the controller needs up to two minutes to end the job."""
    slurm = RestartedNodes(RAN, nodes=["IDLE+COMPLETING 18:30:00"] * 3 + ["IDLE 18:30:00"])
    assert slurm.prove().attempt_count == 1
    assert 0 < slurm.slept < 10
    slurm = RestartedNodes(RAN, nodes=["IDLE+COMPLETING 18:30:00"])
    assert slurm.prove().attempt_count == 1
    assert 60 <= slurm.slept < 65
    slurm = RestartedNodes(RAN, nodes=["IDLE*+COMPLETING 18:30:00"])
    assert slurm.prove().targets.unavailable_nodes == {"n2": "idle completing dynamic_norm not_responding"}
    assert slurm.slept == 0


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
def test_nodes_of_several_partitions_get_one_job_per_partition(
    partitions: str, default: str, groups: list[tuple[str, tuple[str, ...]]]
) -> None:
    request = launch.LaunchRequest(NODES, "root", 60)
    there = launch_targets(Slurm(0, 0, 0, partitions=partitions, default=default))
    assert (there.nodes, there.unavailable_nodes) == (list(NODES), {})
    jobs = launch.split_by_partition(request, there.nodes, there.partition_by_node)
    assert [(job.partition, tuple(job.nodes)) for job in jobs] == groups


def test_nodes_without_an_active_partition_are_skipped() -> None:
    there = launch_targets(Slurm(0, 0, 0, partitions="fast - slow", default="fast", down="slow"))
    assert (there.nodes, there.unavailable_nodes) == (
        ["n1"],
        {"n2": "in no partition", "n3": "only in partitions that start no jobs (slow)"},
    )


def test_each_partition_is_tested_for_a_start() -> None:
    slurm = Slurm(2, 2, 0, partitions="fast slow slow", default="fast", starts_in=3600)
    assert target_fields(slurm) == (["n3"], {"n1": ALICE, "n2": ALICE}, {})
    asked = [line for line in slurm.command_lines if "--test-only" in line]
    assert ["--partition=fast" in asked[0], "--partition=slow" in asked[1]] == [True, True]


def test_results_of_several_partitions_are_combined() -> None:
    seen: list[list[str]] = []

    def run(argv: Any, **_options: Any) -> CommandResult:
        seen.append([word for word in argv if word.startswith(("--partition", "--nodes", "--nodelist"))])
        return CommandResult(*((0, "n1\nn2\n", "") if "--partition=fast" in argv else (1, "", "srun: error: x\n")))

    base = launch.LaunchRequest(NODES, "root", 60)
    jobs = launch.split_by_partition(base, NODES, {"n1": "fast", "n2": "fast", "n3": "slow"})
    assert launch.launch_jobs(run, [*jobs, jobs[0]]) == (1, "n1\nn2\nn1\nn2\n", "srun: error: x\n")
    assert seen[:2] == [
        ["--nodes=2", "--nodelist=n1,n2", "--partition=fast"],
        ["--nodes=1", "--nodelist=n3", "--partition=slow"],
    ]
    words = launch.chained_arguments(jobs)
    assert words.index("&&") == len(launch.srun_arguments(jobs[0])) and words.count("srun") == 2
