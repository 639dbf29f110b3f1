# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chaos experiments on a cluster, as data: operations, the moments at which they are killed, and their order.

This module runs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

MACHINES = ("c1", "c2", "c3")
OPERATION_NAMES = ("create", "join", "remove", "hand-over", "delete", "mesh-keys", "munge-key", "storage", "install")
#: The kinds from which experiments are drawn: the operations with all members, and any with a member away.
OPERATION_KINDS = (*OPERATION_NAMES, "away")
KILL_KINDS = ("boundary", "controller", "module", "host")
VOLUME_SETS = {
    "one": ({"name": "shared", "mount_point": "/mnt/shared"},),
    "two": (
        {"name": "shared", "mount_point": "/mnt/shared"},
        {"name": "scratch", "mount_point": "/mnt/scratch"},
    ),
}

#: The approximate numbers of the tasks in which an operation changes hosts. Moments are drawn from them if nothing was
#: recorded. To install: the tasks that install packages.
TYPICAL_TASKS: Mapping[str, Sequence[int]] = {
    "create": range(22, 95),
    "join": range(22, 95),
    "remove": range(12, 105),
    "hand-over": range(12, 140),
    "delete": range(29, 78),
    "mesh-keys": range(26, 35),
    "munge-key": range(22, 32),
    "storage": range(22, 31),
    "install": (35, 44, 76, 77, 83, 91),
}
#: The longest time between the start of such a task and the kill, in seconds.
MAX_DELAYS = {"install": 30.0}


class ClusterState(NamedTuple):
    """The state of the cluster between two operations. Without members there is no cluster.

    ``image``: the image from which the hosts were started, with all packages ("prepared"), or without any ("host").
    """

    members: frozenset[str] = frozenset()
    manager: str = "c1"
    volume_set: str = "one"
    image: str = "prepared"

    @property
    def is_complete(self) -> bool:
        return len(self.members) == len(MACHINES)


class ClusterOperation(NamedTuple):
    """One command. ``machine`` joins, leaves or becomes the manager; ``manager`` is the manager before it;
    ``away_member`` is down and excluded from the run. To rebuild hosts, ``machine`` is their image.
    """

    name: str
    machine: str = ""
    manager: str = "c1"
    away_member: str = ""

    def __str__(self) -> str:
        text = self.name + (f":{self.machine}" if self.machine else "")
        text += f"@{self.manager}" if self.manager != "c1" else ""
        return text + (f"-{self.away_member}" if self.away_member else "")

    @classmethod
    def parse(cls, text: str) -> ClusterOperation:
        remainder, _separator, away_member = text.rpartition("-")
        if away_member not in MACHINES:
            remainder, away_member = text, ""
        operation, _at, manager = remainder.partition("@")
        name, _at, machine = operation.partition(":")
        if name not in OPERATION_NAMES:
            raise ValueError(f"unknown operation '{name}'. Choose from {', '.join(OPERATION_NAMES)}.")
        manager = manager or "c1"
        if name in {"join", "remove", "hand-over"} and not machine:
            machine = next(candidate for candidate in reversed(MACHINES) if candidate != manager)
        return cls(name, machine, manager, away_member)

    @property
    def kind(self) -> str:
        return "away" if self.away_member else self.name

    @property
    def machines_up(self) -> list[str]:
        """The machines that are up."""
        return [machine for machine in MACHINES if machine != self.away_member]

    @property
    def leaving_machine(self) -> str:
        """The machine that leaves, if one does."""
        return {"remove": self.machine, "hand-over": self.manager}.get(self.name, "")

    @property
    def trusted_machine(self) -> str:
        """The machine whose copy of the record has to be trusted when the member that was away is back, if it does not
        know its manager.
        """
        return self.machine if self.away_member and self.name == "hand-over" else ""

    def state_before(self, state: ClusterState) -> ClusterState:
        """Return the state closest to this one in which the operation can be performed."""
        if self.name == "rebuild":
            return state
        if self.name in {"create", "install"}:
            return ClusterState(frozenset(), self.manager, "one", "host" if self.name == "install" else "prepared")
        members = frozenset(MACHINES) - ({self.machine} if self.name == "join" else set())
        return ClusterState(members, self.manager, state.volume_set)

    def state_after(self, state: ClusterState) -> ClusterState:
        """Return the state afterwards."""
        all_members = frozenset(MACHINES)
        if self.name == "rebuild":
            return ClusterState(image=self.machine)
        if self.name in {"create", "install", "join"}:
            return state._replace(members=all_members)
        if self.name == "delete":
            return ClusterState()
        if self.name in {"remove", "hand-over"}:
            successor = self.machine if self.name == "hand-over" else state.manager
            return state._replace(members=all_members - {self.leaving_machine}, manager=successor)
        if self.name == "storage":
            return state._replace(volume_set="two" if state.volume_set == "one" else "one")
        return state


#: The operations, in an order in which each starts in the final state of the previous one, except for that on hosts
#: without packages. c3 has no service manager.
VARIANTS = tuple(
    ClusterOperation.parse(text)
    for text in (
        "create",
        "munge-key",
        "mesh-keys",
        "storage",
        "remove:c3",
        "join:c3",
        "remove:c2",
        "join:c2",
        "hand-over:c2",
        "join:c1@c2",
        "hand-over:c3@c2",
        "join:c2@c3",
        "hand-over:c1@c3",
        "join:c3",
        "storage-c2",
        "storage-c3",
        "remove:c3-c2",
        "join:c3-c2",
        "hand-over:c2-c3",
        "join:c1@c2-c3",
        "hand-over:c1@c2-c3",
        "join:c2-c3",
        "delete",
        "install",
    )
)


class KillMoment(NamedTuple):
    """The moment of a kill: a number of seconds after the start of the task ``task``, on ``host`` where it affects one."""

    kind: str
    task: int
    delay: float = 0.0
    host: str = ""

    def __str__(self) -> str:
        text = f"{self.kind}:{self.task}" + (f"+{self.delay:.2f}" if self.delay else "")
        return text + (f"@{self.host}" if self.host else "")

    @classmethod
    def parse(cls, text: str) -> KillMoment:
        moment_text, _separator, host = text.partition("@")
        kind, _separator, moment = moment_text.partition(":")
        task, _separator, delay = moment.partition("+")
        if kind not in KILL_KINDS or not task.isdigit() or (kind in {"module", "host"} and host not in MACHINES):
            raise ValueError(
                f"unknown kill '{text}'. Give boundary:TASK, controller:TASK+SECONDS, "
                "module:TASK+SECONDS@HOST or host:TASK+SECONDS@HOST."
            )
        return cls(kind, int(task), float(delay or 0), host)


class KillExperiment(NamedTuple):
    operation: ClusterOperation
    kill: KillMoment

    def __str__(self) -> str:
        return f"--operation {self.operation} --kill {self.kill}"


class RecordedTask(NamedTuple):
    """A task of a recorded run: its name, its start in seconds after the first task, and whether it changed a host."""

    name: str
    start_offset: float
    changed: bool


def find_boundaries(tasks: Sequence[RecordedTask]) -> list[int]:
    """Return the numbers of the tasks that start after a change to the hosts.

    A task that changed nothing leaves the hosts as they were: a kill after it is the same as a kill before it.
    """
    return [number + 1 for number, task in enumerate(tasks, 1) if task.changed and number < len(tasks)]


def draw_moment(random_source: random.Random, tasks: Sequence[RecordedTask], name: str) -> tuple[int, float]:
    """Draw a moment of the run, as a task and the seconds since its start, which depends least on the machine's speed."""
    if not tasks:
        return random_source.choice(TYPICAL_TASKS[name]), round(random_source.uniform(0, MAX_DELAYS.get(name, 1.0)), 2)
    run_offset = random_source.uniform(0, tasks[-1].start_offset)
    number = max(index for index, task in enumerate(tasks) if task.start_offset <= run_offset)
    return number + 1, round(run_offset - tasks[number].start_offset, 2)


def draw_kill(
    random_source: random.Random, kind: str, operation: ClusterOperation, tasks: Sequence[RecordedTask]
) -> KillMoment:
    """Draw a kill of this kind."""
    if kind == "boundary":
        # If nothing was recorded, use any task.
        return KillMoment("boundary", random_source.choice(find_boundaries(tasks) or TYPICAL_TASKS[operation.name]))
    task, delay = draw_moment(random_source, tasks, operation.name)
    return KillMoment(kind, task, delay, "" if kind == "controller" else random_source.choice(operation.machines_up))


def draw_experiments(
    random_source: random.Random,
    count: int,
    kinds: Sequence[str],
    kill_kinds: Sequence[str],
    tasks_by_operation: Mapping[ClusterOperation, Sequence[RecordedTask]],
) -> list[KillExperiment]:
    """Draw random experiments, with each kind of operation and each kind of kill equally often."""
    drawn_experiments = []
    for number in range(count):
        name = kinds[number % len(kinds)]
        operation = random_source.choice([variant for variant in VARIANTS if variant.kind == name])
        kill_kind = (
            kill_kinds[number // len(kinds) % len(kill_kinds)]
            if count > len(kill_kinds)
            else random_source.choice(kill_kinds)
        )
        drawn_experiments.append(
            KillExperiment(
                operation, draw_kill(random_source, kill_kind, operation, tasks_by_operation.get(operation, ()))
            )
        )
    return drawn_experiments


def redraw_kill(
    random_source: random.Random, experiment: KillExperiment, tasks: Sequence[RecordedTask]
) -> KillExperiment:
    """Draw another kill of the same kind from the tasks of a run that ended before its kill."""
    operation, kill = experiment
    return KillExperiment(operation, draw_kill(random_source, kill.kind, operation, tasks))


def draw_sample(random_source: random.Random) -> list[KillExperiment]:
    """Draw six experiments, each of which starts in the final state of the previous one."""
    machine = random_source.choice(["c2", "c3"])
    leave_operation, join_operation, delete_operation = random_source.choice(
        [
            (f"remove:{machine}", f"join:{machine}", "delete"),
            (f"hand-over:{machine}", f"join:c1@{machine}", f"delete@{machine}"),
        ]
    )
    texts = [
        "create",
        *random_source.sample(["mesh-keys", "munge-key", "storage"], 2),
        leave_operation,
        join_operation,
        delete_operation,
    ]
    operations = [ClusterOperation.parse(text) for text in texts]
    return [
        KillExperiment(operation, draw_kill(random_source, kind, operation, ()))
        for operation, kind in zip(
            operations, random_source.sample([*KILL_KINDS, *KILL_KINDS], len(operations)), strict=True
        )
    ]


def list_boundary_experiments(
    kinds: Sequence[str], tasks_by_operation: Mapping[ClusterOperation, Sequence[RecordedTask]]
) -> list[KillExperiment]:
    """Return an experiment at each boundary of the recorded operations."""
    return [
        KillExperiment(operation, KillMoment("boundary", task))
        for operation, tasks in tasks_by_operation.items()
        if operation.kind in kinds
        for task in find_boundaries(tasks)
    ]


def find_path(state: ClusterState, target: ClusterState) -> Iterator[ClusterOperation]:
    """Yield the operations that lead from one state to the other."""
    if state != target and "host" in (state.image, target.image):
        yield ClusterOperation("rebuild", target.image)
        state = ClusterState(image=target.image)
    if not target.members:
        if state.members:
            yield from find_path(state, state._replace(members=frozenset(MACHINES)))
            yield ClusterOperation("delete", "", state.manager)
        return
    while state != target:
        operation = _next_operation(state, target)
        yield operation
        state = operation.state_after(state)


def _next_operation(state: ClusterState, target: ClusterState) -> ClusterOperation:
    missing_machines = sorted(set(MACHINES) - state.members)
    if not state.members:
        return ClusterOperation("create")
    if missing_machines:
        return ClusterOperation("join", missing_machines[0], state.manager)
    if state.volume_set != target.volume_set:
        return ClusterOperation("storage", "", state.manager)
    if state.manager != target.manager:
        return ClusterOperation("hand-over", target.manager, state.manager)
    return ClusterOperation("remove", min(state.members - target.members), state.manager)


def choose_nearest(remaining: Sequence[KillExperiment], state: ClusterState) -> KillExperiment:
    """Return the next experiment: the first of those that need the fewest operations to reach their initial state."""
    return min(remaining, key=lambda experiment: len(list(find_path(state, experiment.operation.state_before(state)))))
