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
OWN, OTHERS = "full", ("hf", "lightning", "nano", "jax", "accelerate")
PROGRAMS = (OWN, *OTHERS)
#: Lightning reads an epoch from its beginning again when it goes on in the middle of it.
_INEXACT = "lightning"
STEPS = 120
#: A fault comes after the first checkpoint of each program, and so early that the run is still active.
MOMENTS = range(22, 60)
#: Steps that may be made again: the longest interval of the programs, or two of the others if a checkpoint was being
#: written.
_AGAIN = 20
#: Seconds of a pause after each step, and in runs that must outlast their job.
PAUSE, LONG = 0.3, 1.5
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

    words: str
    where: str
    ends: tuple[str, ...] = ()
    times: tuple[int, int] = (1, 1)
    says: str = ""
    same: bool = True
    spare: bool = False
    state: str = "finished"
    order: str = ""
    options: tuple[str, ...] = ()
    sbatch: tuple[str, ...] = ()
    pause: float = PAUSE
    waits: float = 0.0
    programs: tuple[str, ...] = PROGRAMS

    @property
    def argv(self) -> list[str]:
        """The options of gpumesh-train. The manager is not among the nodes, so that it never loses its power alone."""
        spare = ("--spare", "1") if self.spare else ()
        limits = ("--nodes", "2", "--min-nodes", "1", "--hang-timeout", str(HANG_TIMEOUT))
        return [*limits, *spare, *self.options, "--sbatch", "--exclude=gpu1", *self.sbatch]


_NONE = (0, 0)
FAULTS = {
    "rank": Fault("SIGKILL of a rank", "any", ("crash:rank",), says="SIGKILL"),
    "ranks": Fault(
        *("SIGKILL of both ranks of a node", "any", ("crash:node's",)),
        says="SIGKILL",
        options=("--ranks-per-node", "2"),
    ),
    "twice": Fault(
        *("SIGKILL of a rank, and of the other one as soon as it is there again", "any", ("crash:any",), (2, 2)),
        says="SIGKILL",
    ),
    "torn": Fault(
        *("the newest checkpoint is cut off, and a rank is killed", "any", ("crash:rank",)),
        says="SIGKILL",
        # The others have one only, or write it under another name first.
        programs=(OWN, "hf", "lightning"),
    ),
    "agent": Fault("SIGKILL of the agent of a node", "any", ("node:node", "crash:rank")),
    "supervisor": Fault("SIGKILL of the supervisor", "supervisor", ("supervisor:",), says="SIGKILL"),
    "script": Fault("SIGKILL of the shell of the batch script", "supervisor", ("supervisor:", "warned:")),
    "batch": Fault("SIGKILL of the slurmstepd of the batch script", "supervisor", ("warned:",), says="of Slurm"),
    "stepd": Fault("SIGKILL of the slurmstepd of a node's ranks", "other", ("node:node", "crash:rank"), same=False),
    "stop": Fault("SIGSTOP of a rank", "any", ("hang:rank",), says="SIGSTOP"),
    # The ranks of the agent go on until the next attempt begins, and must not have finished by then.
    "asleep": Fault(
        *("SIGSTOP of an agent, and SIGCONT in the next attempt", "other", ("node:node",)),
        spare=True,
        pause=LONG,
    ),
    "power": Fault("the power of a node is cut", "other", ("node:node",), same=False),
    "spare": Fault("the power of a node is cut, with a spare node", "other", ("node:node",), spare=True),
    "first": Fault("the power of the supervisor's node is cut", "supervisor", ("node:node",), spare=True),
    "dark": Fault("the power of all machines is cut", "none", ("node:",), sbatch=("--exclude=gpu1,gpu4",)),
    "network": Fault("a node loses its network", "other", ("node:node",), same=False),
    "leader": Fault("the supervisor's node loses its network", "supervisor", ("node:node",), same=False),
    "requeue": Fault("Slurm requeues the job", "none", ("warned:",), says="requeued", waits=150.0),
    "drain": Fault("a node is drained", "other", ("warned:node",), says="drained", same=False),
    "slurmd": Fault("slurmd of a node is restarted", "any", times=_NONE),
    "slurmctld": Fault("slurmctld is restarted", "none", times=_NONE),
    "full": Fault("the shared volume is full for 20 s", "none", ("volume:",), (0, 3)),
    "away": Fault("the shared volume is away when the job starts", "none", times=_NONE, sbatch=("--hold",)),
    "memory": Fault(
        # Slurm ends the whole step, with its agents, on a host without control groups.
        *("a rank uses up the memory of its job", "any", ("crash:rank", "crash:node")),
        says="oom_kill",
        order="memory",
        sbatch=("--mem=2000M",),
    ),
    "nan": Fault(
        "the loss is not a number", "none", ("diverged:",), state="failed", order="nan", options=("--stop-on-nan",)
    ),
    # The exit of a program may wait for the other ranks, as that of JAX does: such a rank is still there after its
    # error.
    "ecc": Fault(
        *("CUDA reports an ECC error on one node", "any", ("crash:rank", "hang:rank")),
        says="ECC",
        spare=True,
        order="ecc",
    ),
    "bad": Fault(
        *("any rank on one node fails", "any", ("crash:rank", "hang:rank"), (3, 4), "out of range"),
        spare=True,
        order="error",
    ),
    "bug": Fault(
        *("the same rank fails wherever it is", "any", ("crash:follows", "hang:follows"), (3, 7), "out of range"),
        spare=True,
        state="failed",
        order="error",
    ),
    "limit": Fault(
        *("the time limit is shorter than the run", "none", ("warned:",), (1, 9), "time limit"),
        options=("--time", "2m", "--grace", "20"),
        pause=LONG,
    ),
}


class Experiment(NamedTuple):
    """A run of a program, and the fault that hits it after so many steps, at this rank where it hits one."""

    fault: str
    program: str
    step: int
    rank: int

    def __str__(self) -> str:
        return f"{self.fault} in {self.program} after {self.step} steps, rank {self.rank}"


class Hit(NamedTuple):
    """The rank that was hit, and its node; none if the fault hits no node."""

    rank: int | None = None
    node: str = ""


def draw(seed: int, count: int, programs: Sequence[str], faults: Sequence[str]) -> list[Experiment]:
    """Draw random experiments, each fault equally often, half of them on examples/full.

    The first ones do not depend on ``count``.
    """
    chance = random.Random(seed)
    order: list[str] = []
    others = [program for program in programs if program != OWN]
    while len(order) < count:
        order += chance.sample(list(faults), len(faults))
    first = len(others) < len(programs)
    chosen = []
    for number, fault in enumerate(order[:count]):
        able = [program for program in others if program in FAULTS[fault].programs]
        chosen.append(OWN if not able or (first and number % 2 == 0) else able[number // (1 + first) % len(able)])
    return [
        again(Experiment(*pair, 0, 0), seed, number) for number, pair in enumerate(zip(order, chosen, strict=False))
    ]


def again(one: Experiment, seed: int, number: int, tried: int = 0) -> Experiment:
    """Draw another moment for a fault that came too late."""
    chance = random.Random(f"{seed}-{number}-{tried}")
    return one._replace(step=chance.choice(MOMENTS), rank=chance.randrange(2))


def victim(fault: Fault, rank: int, attempt: Mapping[str, Any]) -> Hit:
    """Return who is hit in an attempt. With several ranks per node, the node is that of the first of them."""
    nodes, supervisor = list(attempt["nodes"]), attempt["supervisor"]
    if fault.where == "none":
        return Hit()
    if fault.where == "supervisor":
        rank = nodes.index(supervisor)
    elif fault.where == "other":
        rank = next(number for number, node in enumerate(nodes) if node != supervisor)
    return Hit(rank, nodes[rank])


def names(culprit: str, hit: Hit, attempt: Mapping[str, Any]) -> bool:
    """Return whether the cause of an attempt blames the culprit that this text names."""
    rank, node = attempt["cause"]["rank"], attempt["cause"]["node"]
    nodes = attempt["nodes"]
    of_node = rank is not None and nodes[rank * len(nodes) // attempt["world_size"]] == node
    return {
        "": rank is None and not node,
        "node": rank is None and node == hit.node,
        "rank": (rank, node) == (hit.rank, hit.node),
        "node's": of_node and node == hit.node,
        "follows": of_node and rank == hit.rank,
        "any": of_node,
    }[culprit]


def judge(fault: Fault, hit: Hit, found: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a run that has ended, by its run.json."""
    attempts = found["attempts"]
    wrong = [] if found["state"] == fault.state else [f"the run is {found['state']}: {found['detail']}"]
    # A node that is back is used again, and nobody is to blame for that.
    ended = [one for one in attempts if one["cause"]["kind"] not in ("finished", "grown")]
    least, most = fault.times
    if not least <= len(ended) <= most:
        wrong.append(f"{least} to {most} attempts had to be disturbed, but {len(ended)} were")
    for one in ended:
        cause = one["cause"]
        pairs = [text.split(":") for text in fault.ends]
        if not any(cause["kind"] == kind and names(culprit, hit, one) for kind, culprit in pairs):
            wrong.append(f"attempt {one['number']} had to end with {' or '.join(fault.ends) or 'nothing'}: {cause}")
        elif fault.says not in cause["detail"]:
            wrong.append(f"attempt {one['number']} does not say '{fault.says}': {cause['detail']}")
    ranks = {one["world_size"] for one in attempts}
    if fault.same and len(ranks) > 1:
        wrong.append(f"it had {sorted(ranks)} ranks")
    stepped = [one for one in attempts if one["first"] is not None]
    for before, after in zip(stepped, stepped[1:]):
        if before["last"] - after["first"] >= _AGAIN:
            wrong.append(f"it went back from step {before['last']} to {after['first']}")
    return wrong


def differs(program: str, found: Mapping[str, Any], calm: Mapping[str, Any]) -> list[str]:
    """Compare a run with an undisturbed one: the last step, and the loss to the bit if the number of ranks was the
    same.
    """
    wrong = [] if found["step"] == calm["step"] else [f"the last step is {found['step']}, not {calm['step']}"]
    ranks = {one["world_size"] for one in (*found["attempts"], *calm["attempts"])}
    if program != _INEXACT and len(ranks) == 1 and found["loss"] != calm["loss"]:
        wrong.append(f"the loss is {found['loss']!r}; undisturbed: {calm['loss']!r}")
    return wrong


def too_late(fault: Fault, found: Mapping[str, Any], took: float | None, within: float) -> list[str]:
    """Return what is wrong if the machine is quiet: a late step, or ranks that are reported slow.

    ``step_delay``: the seconds from the fault to the next step.
    """
    allowed = within + fault.waits + (HANG_TIMEOUT if "hang" in "".join(fault.ends) else 0)
    wrong = [f"the next step came after {took:.0f} s, not within {allowed:.0f} s"] if took and took > allowed else []
    slow = [one["stragglers"] for one in found["attempts"] if one["stragglers"]]
    return wrong + ([f"called slow: {slow}"] if slow else [])
