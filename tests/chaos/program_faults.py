# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The faults that hit runs of examples/full and of other frameworks, as data, and how such runs are judged.

This module runs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

#: examples/full, and programs as others write them, of examples/frameworks.
FULL_EXAMPLE, FRAMEWORK_PROGRAMS = "full", ("hf", "lightning", "nano", "jax", "accelerate")
ALL_PROGRAMS = (FULL_EXAMPLE, *FRAMEWORK_PROGRAMS)
#: Lightning reads an epoch from its beginning again when it goes on in the middle of it.
_INEXACT_PROGRAM = "lightning"
STEP_COUNT = 120
#: A fault comes after the first checkpoint of each program, and so early that the run is still active.
FAULT_STEPS = range(22, 60)
#: Steps that may be made again: the longest interval of the programs, or two of the others if a checkpoint was being
#: written.
_MAX_REPEATED_STEPS = 20
#: Seconds of a pause after each step, and in runs that must outlast their job.
STEP_PAUSE, LONG_PAUSE = 0.3, 1.5
HANG_TIMEOUT = 60


class Fault(NamedTuple):
    """A fault that hits a run of two nodes, and what the run must report.

    ``target``: on which node, any, the supervisor's, another one, or none; ``allowed_causes``: each as KIND:CULPRIT,
    where the culprit is the rank that was hit, its node, any rank on its own node, the same rank wherever it is, or
    nobody; ``attempt_range``: how many attempts must end so, at least and at most; ``message_part``: part of the
    cause's message; ``same_ranks``: whether the number of ranks must stay; ``program_order``: what the program itself
    does, see launched.py; ``slurm_delay``: the seconds for which Slurm itself waits before it starts a job again;
    ``affected_programs``: those that it can hit.
    """

    description: str
    target: str
    allowed_causes: tuple[str, ...] = ()
    attempt_range: tuple[int, int] = (1, 1)
    message_part: str = ""
    same_ranks: bool = True
    use_spare: bool = False
    state: str = "finished"
    program_order: str = ""
    train_options: tuple[str, ...] = ()
    sbatch_options: tuple[str, ...] = ()
    step_pause: float = STEP_PAUSE
    slurm_delay: float = 0.0
    affected_programs: tuple[str, ...] = ALL_PROGRAMS

    @property
    def train_arguments(self) -> list[str]:
        """The options of gpumesh-train. The manager is not among the nodes, so that it never loses its power alone."""
        spare = ("--spare", "1") if self.use_spare else ()
        limits = ("--nodes", "2", "--min-nodes", "1", "--hang-timeout", str(HANG_TIMEOUT))
        return [*limits, *spare, *self.train_options, "--sbatch", "--exclude=gpu1", *self.sbatch_options]


_NO_ATTEMPT = (0, 0)
FAULTS = {
    "rank": Fault("SIGKILL of a rank", "any", ("crash:rank",), message_part="SIGKILL"),
    "ranks": Fault(
        *("SIGKILL of both ranks of a node", "any", ("crash:node's",)),
        message_part="SIGKILL",
        train_options=("--ranks-per-node", "2"),
    ),
    "twice": Fault(
        *("SIGKILL of a rank, and of the other one as soon as it is there again", "any", ("crash:any",), (2, 2)),
        message_part="SIGKILL",
    ),
    "torn": Fault(
        *("the newest checkpoint is cut off, and a rank is killed", "any", ("crash:rank",)),
        message_part="SIGKILL",
        # The others have one only, or write it under another name first.
        affected_programs=(FULL_EXAMPLE, "hf", "lightning"),
    ),
    "agent": Fault("SIGKILL of the agent of a node", "any", ("node:node", "crash:rank")),
    "supervisor": Fault("SIGKILL of the supervisor", "supervisor", ("supervisor:",), message_part="SIGKILL"),
    "script": Fault("SIGKILL of the shell of the batch script", "supervisor", ("supervisor:", "warned:")),
    "batch": Fault(
        "SIGKILL of the slurmstepd of the batch script", "supervisor", ("warned:",), message_part="of Slurm"
    ),
    "stepd": Fault(
        "SIGKILL of the slurmstepd of a node's ranks", "other", ("node:node", "crash:rank"), same_ranks=False
    ),
    "stop": Fault("SIGSTOP of a rank", "any", ("hang:rank",), message_part="SIGSTOP"),
    # The ranks of the agent go on until the next attempt begins, and must not have finished by then.
    "asleep": Fault(
        *("SIGSTOP of an agent, and SIGCONT in the next attempt", "other", ("node:node",)),
        use_spare=True,
        step_pause=LONG_PAUSE,
    ),
    "power": Fault("the power of a node is cut", "other", ("node:node",), same_ranks=False),
    "spare": Fault("the power of a node is cut, with a spare node", "other", ("node:node",), use_spare=True),
    "first": Fault("the power of the supervisor's node is cut", "supervisor", ("node:node",), use_spare=True),
    "dark": Fault("the power of all machines is cut", "none", ("node:",), sbatch_options=("--exclude=gpu1,gpu4",)),
    "network": Fault("a node loses its network", "other", ("node:node",), same_ranks=False),
    "leader": Fault("the supervisor's node loses its network", "supervisor", ("node:node",), same_ranks=False),
    "requeue": Fault("Slurm requeues the job", "none", ("warned:",), message_part="requeued", slurm_delay=150.0),
    "drain": Fault("a node is drained", "other", ("warned:node",), message_part="drained", same_ranks=False),
    "slurmd": Fault("slurmd of a node is restarted", "any", attempt_range=_NO_ATTEMPT),
    "slurmctld": Fault("slurmctld is restarted", "none", attempt_range=_NO_ATTEMPT),
    "full": Fault("the shared volume is full for 20 s", "none", ("volume:",), (0, 3)),
    "away": Fault(
        "the shared volume is away when the job starts", "none", attempt_range=_NO_ATTEMPT, sbatch_options=("--hold",)
    ),
    "memory": Fault(
        # Slurm ends the whole step, with its agents, on a host without control groups.
        *("a rank uses up the memory of its job", "any", ("crash:rank", "crash:node")),
        message_part="oom_kill",
        program_order="memory",
        sbatch_options=("--mem=2000M",),
    ),
    "nan": Fault(
        "the loss is not a number",
        "none",
        ("diverged:",),
        state="failed",
        program_order="nan",
        train_options=("--stop-on-nan",),
    ),
    # The exit of a program may wait for the other ranks, as that of JAX does: such a rank is still there after its
    # error.
    "ecc": Fault(
        *("CUDA reports an ECC error on one node", "any", ("crash:rank", "hang:rank")),
        message_part="ECC",
        use_spare=True,
        program_order="ecc",
    ),
    "bad": Fault(
        *("any rank on one node fails", "any", ("crash:rank", "hang:rank"), (3, 4), "out of range"),
        use_spare=True,
        program_order="error",
    ),
    "bug": Fault(
        *("the same rank fails wherever it is", "any", ("crash:follows", "hang:follows"), (3, 7), "out of range"),
        use_spare=True,
        state="failed",
        program_order="error",
    ),
    "limit": Fault(
        *("the time limit is shorter than the run", "none", ("warned:",), (1, 9), "time limit"),
        train_options=("--time", "2m", "--grace", "20"),
        step_pause=LONG_PAUSE,
    ),
}


class ProgramExperiment(NamedTuple):
    """A run of a program, and the fault that hits it after so many steps, at this rank where it hits one."""

    fault: str
    program: str
    step: int
    rank: int

    def __str__(self) -> str:
        return f"{self.fault} in {self.program} after {self.step} steps, rank {self.rank}"


class FaultVictim(NamedTuple):
    """The rank that was hit, and its node; none if the fault hits no node."""

    rank: int | None = None
    node: str = ""


def draw_experiments(seed: int, count: int, programs: Sequence[str], faults: Sequence[str]) -> list[ProgramExperiment]:
    """Draw random experiments, each fault equally often, half of them on examples/full.

    The first ones do not depend on ``count``.
    """
    random_source = random.Random(seed)
    fault_order: list[str] = []
    framework_programs = [program for program in programs if program != FULL_EXAMPLE]
    while len(fault_order) < count:
        fault_order += random_source.sample(list(faults), len(faults))
    includes_full = len(framework_programs) < len(programs)
    chosen_programs = []
    for number, fault in enumerate(fault_order[:count]):
        suitable_programs = [program for program in framework_programs if program in FAULTS[fault].affected_programs]
        chosen_programs.append(
            FULL_EXAMPLE
            if not suitable_programs or (includes_full and number % 2 == 0)
            else suitable_programs[number // (1 + includes_full) % len(suitable_programs)]
        )
    return [
        redraw_moment(ProgramExperiment(*pair, 0, 0), seed, number)
        for number, pair in enumerate(zip(fault_order, chosen_programs, strict=False))
    ]


def redraw_moment(
    experiment: ProgramExperiment, seed: int, experiment_number: int, try_number: int = 0
) -> ProgramExperiment:
    """Draw another moment for a fault that came too late."""
    random_source = random.Random(f"{seed}-{experiment_number}-{try_number}")
    return experiment._replace(step=random_source.choice(FAULT_STEPS), rank=random_source.randrange(2))


def find_victim(fault: Fault, rank: int, attempt: Mapping[str, Any]) -> FaultVictim:
    """Return who is hit in an attempt. With several ranks per node, the node is that of the first of them."""
    nodes, supervisor_node = list(attempt["nodes"]), attempt["supervisor"]
    if fault.target == "none":
        return FaultVictim()
    if fault.target == "supervisor":
        rank = nodes.index(supervisor_node)
    elif fault.target == "other":
        rank = next(number for number, node in enumerate(nodes) if node != supervisor_node)
    return FaultVictim(rank, nodes[rank])


def blames(culprit: str, hit: FaultVictim, attempt: Mapping[str, Any]) -> bool:
    """Return whether the cause of an attempt blames the culprit that this text names."""
    rank, node = attempt["cause"]["rank"], attempt["cause"]["node"]
    nodes = attempt["nodes"]
    rank_on_node = rank is not None and nodes[rank * len(nodes) // attempt["world_size"]] == node
    return {
        "": rank is None and not node,
        "node": rank is None and node == hit.node,
        "rank": (rank, node) == (hit.rank, hit.node),
        "node's": rank_on_node and node == hit.node,
        "follows": rank_on_node and rank == hit.rank,
        "any": rank_on_node,
    }[culprit]


def find_problems(fault: Fault, hit: FaultVictim, run_status: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a run that has ended, by its run.json."""
    attempts = run_status["attempts"]
    problems = (
        [] if run_status["state"] == fault.state else [f"the run is {run_status['state']}: {run_status['detail']}"]
    )
    # A node that is back is used again, and nobody is to blame for that.
    disturbed_attempts = [attempt for attempt in attempts if attempt["cause"]["kind"] not in ("finished", "grown")]
    minimum, maximum = fault.attempt_range
    if not minimum <= len(disturbed_attempts) <= maximum:
        problems.append(f"{minimum} to {maximum} attempts had to be disturbed, but {len(disturbed_attempts)} were")
    for attempt in disturbed_attempts:
        cause = attempt["cause"]
        allowed_pairs = [text.split(":") for text in fault.allowed_causes]
        if not any(cause["kind"] == kind and blames(culprit, hit, attempt) for kind, culprit in allowed_pairs):
            problems.append(
                f"attempt {attempt['number']} had to end with {' or '.join(fault.allowed_causes) or 'nothing'}: {cause}"
            )
        elif fault.message_part not in cause["detail"]:
            problems.append(f"attempt {attempt['number']} does not say '{fault.message_part}': {cause['detail']}")
    world_sizes = {attempt["world_size"] for attempt in attempts}
    if fault.same_ranks and len(world_sizes) > 1:
        problems.append(f"it had {sorted(world_sizes)} ranks")
    stepped_attempts = [attempt for attempt in attempts if attempt["first"] is not None]
    for previous, following in zip(stepped_attempts, stepped_attempts[1:]):
        if previous["last"] - following["first"] >= _MAX_REPEATED_STEPS:
            problems.append(f"it went back from step {previous['last']} to {following['first']}")
    return problems


def find_differences(program: str, run_status: Mapping[str, Any], undisturbed_status: Mapping[str, Any]) -> list[str]:
    """Compare a run with an undisturbed one: the last step, and the loss to the bit if the number of ranks was the
    same.
    """
    problems = (
        []
        if run_status["step"] == undisturbed_status["step"]
        else [f"the last step is {run_status['step']}, not {undisturbed_status['step']}"]
    )
    world_sizes = {attempt["world_size"] for attempt in (*run_status["attempts"], *undisturbed_status["attempts"])}
    if program != _INEXACT_PROGRAM and len(world_sizes) == 1 and run_status["loss"] != undisturbed_status["loss"]:
        problems.append(f"the loss is {run_status['loss']!r}; undisturbed: {undisturbed_status['loss']!r}")
    return problems


def find_delays(fault: Fault, run_status: Mapping[str, Any], step_delay: float | None, limit: float) -> list[str]:
    """Return what is wrong if the machine is quiet: a late step, or ranks that are reported slow.

    ``step_delay``: the seconds from the fault to the next step.
    """
    allowed_seconds = limit + fault.slurm_delay + (HANG_TIMEOUT if "hang" in "".join(fault.allowed_causes) else 0)
    problems = (
        [f"the next step came after {step_delay:.0f} s, not within {allowed_seconds:.0f} s"]
        if step_delay and step_delay > allowed_seconds
        else []
    )
    straggler_lists = [attempt["stragglers"] for attempt in run_status["attempts"] if attempt["stragglers"]]
    return problems + ([f"called slow: {straggler_lists}"] if straggler_lists else [])
