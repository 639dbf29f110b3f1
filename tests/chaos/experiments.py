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
OPERATIONS = ("create", "join", "remove", "hand-over", "delete", "mesh-keys", "munge-key", "storage", "install")
#: The kinds from which experiments are drawn: the operations with all members, and any with a member away.
KINDS = (*OPERATIONS, "away")
KILLS = ("boundary", "controller", "module", "host")
VOLUMES = {
    "one": ({"name": "shared", "mount_point": "/mnt/shared"},),
    "two": (
        {"name": "shared", "mount_point": "/mnt/shared"},
        {"name": "scratch", "mount_point": "/mnt/scratch"},
    ),
}

#: The approximate numbers of the tasks in which an operation changes hosts. Moments are drawn from them if nothing was
#: recorded. To install: the tasks that install packages.
TASKS: Mapping[str, Sequence[int]] = {
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
DELAYS = {"install": 30.0}


class State(NamedTuple):
    """The state of the cluster between two operations. Without members there is no cluster.

    ``image``: the image from which the hosts were started, with all packages ("prepared"), or without any ("host").
    """

    members: frozenset[str] = frozenset()
    manager: str = "c1"
    volumes: str = "one"
    image: str = "prepared"

    @property
    def whole(self) -> bool:
        return len(self.members) == len(MACHINES)


class Operation(NamedTuple):
    """One command. ``machine`` joins, leaves or becomes the manager; ``manager`` is the manager before it;
    ``away_member`` is down and excluded from the run. To rebuild hosts, ``machine`` is their image.
    """

    name: str
    machine: str = ""
    manager: str = "c1"
    away: str = ""

    def __str__(self) -> str:
        words = self.name + (f":{self.machine}" if self.machine else "")
        words += f"@{self.manager}" if self.manager != "c1" else ""
        return words + (f"-{self.away}" if self.away else "")

    @classmethod
    def parse(cls, text: str) -> Operation:
        rest, _sign, away = text.rpartition("-")
        if away not in MACHINES:
            rest, away = text, ""
        words, _at, manager = rest.partition("@")
        name, _at, machine = words.partition(":")
        if name not in OPERATIONS:
            raise ValueError(f"unknown operation '{name}'. Choose from {', '.join(OPERATIONS)}.")
        manager = manager or "c1"
        if name in {"join", "remove", "hand-over"} and not machine:
            machine = next(other for other in reversed(MACHINES) if other != manager)
        return cls(name, machine, manager, away)

    @property
    def kind(self) -> str:
        return "away" if self.away else self.name

    @property
    def present(self) -> list[str]:
        """The machines that are up."""
        return [machine for machine in MACHINES if machine != self.away]

    @property
    def leaving(self) -> str:
        """The machine that leaves, if one does."""
        return {"remove": self.machine, "hand-over": self.manager}.get(self.name, "")

    @property
    def trusted(self) -> str:
        """The machine whose copy of the record has to be trusted when the member that was away is back, if it does not
        know its manager.
        """
        return self.machine if self.away and self.name == "hand-over" else ""

    def before(self, state: State) -> State:
        """Return the state closest to this one in which the operation can be performed."""
        if self.name == "rebuild":
            return state
        if self.name in {"create", "install"}:
            return State(frozenset(), self.manager, "one", "host" if self.name == "install" else "prepared")
        members = frozenset(MACHINES) - ({self.machine} if self.name == "join" else set())
        return State(members, self.manager, state.volumes)

    def after(self, state: State) -> State:
        """Return the state afterwards."""
        everybody = frozenset(MACHINES)
        if self.name == "rebuild":
            return State(image=self.machine)
        if self.name in {"create", "install", "join"}:
            return state._replace(members=everybody)
        if self.name == "delete":
            return State()
        if self.name in {"remove", "hand-over"}:
            successor = self.machine if self.name == "hand-over" else state.manager
            return state._replace(members=everybody - {self.leaving}, manager=successor)
        if self.name == "storage":
            return state._replace(volumes="two" if state.volumes == "one" else "one")
        return state


#: The operations, in an order in which each starts in the final state of the previous one, except for that on hosts
#: without packages. c3 has no service manager.
VARIANTS = tuple(
    Operation.parse(text)
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


class Kill(NamedTuple):
    """The moment of a kill: a number of seconds after the start of the task ``task``, on ``host`` where it affects one."""

    kind: str
    task: int
    delay: float = 0.0
    host: str = ""

    def __str__(self) -> str:
        words = f"{self.kind}:{self.task}" + (f"+{self.delay:.2f}" if self.delay else "")
        return words + (f"@{self.host}" if self.host else "")

    @classmethod
    def parse(cls, text: str) -> Kill:
        words, _sign, host = text.partition("@")
        kind, _sign, moment = words.partition(":")
        task, _sign, delay = moment.partition("+")
        if kind not in KILLS or not task.isdigit() or (kind in {"module", "host"} and host not in MACHINES):
            raise ValueError(
                f"unknown kill '{text}'. Give boundary:TASK, controller:TASK+SECONDS, "
                "module:TASK+SECONDS@HOST or host:TASK+SECONDS@HOST."
            )
        return cls(kind, int(task), float(delay or 0), host)


class Experiment(NamedTuple):
    operation: Operation
    kill: Kill

    def __str__(self) -> str:
        return f"--operation {self.operation} --kill {self.kill}"


class Task(NamedTuple):
    """A task of a recorded run: its name, its start in seconds after the first task, and whether it changed a host."""

    name: str
    at: float
    changed: bool


def boundaries(tasks: Sequence[Task]) -> list[int]:
    """Return the numbers of the tasks that start after a change to the hosts.

    A task that changed nothing leaves the hosts as they were: a kill after it is the same as a kill before it.
    """
    return [number + 1 for number, task in enumerate(tasks, 1) if task.changed and number < len(tasks)]


def draw_moment(chance: random.Random, tasks: Sequence[Task], name: str) -> tuple[int, float]:
    """Draw a moment of the run, as a task and the seconds since its start, which depends least on the machine's speed."""
    if not tasks:
        return chance.choice(TASKS[name]), round(chance.uniform(0, DELAYS.get(name, 1.0)), 2)
    moment = chance.uniform(0, tasks[-1].at)
    number = max(index for index, task in enumerate(tasks) if task.at <= moment)
    return number + 1, round(moment - tasks[number].at, 2)


def draw_kill(chance: random.Random, kind: str, operation: Operation, tasks: Sequence[Task]) -> Kill:
    """Draw a kill of this kind."""
    if kind == "boundary":
        # If nothing was recorded, use any task.
        return Kill("boundary", chance.choice(boundaries(tasks) or TASKS[operation.name]))
    task, delay = draw_moment(chance, tasks, operation.name)
    return Kill(kind, task, delay, "" if kind == "controller" else chance.choice(operation.present))


def draw(
    chance: random.Random,
    count: int,
    kinds: Sequence[str],
    kills: Sequence[str],
    recorded: Mapping[Operation, Sequence[Task]],
) -> list[Experiment]:
    """Draw random experiments, with each kind of operation and each kind of kill equally often."""
    found = []
    for number in range(count):
        name = kinds[number % len(kinds)]
        operation = chance.choice([variant for variant in VARIANTS if variant.kind == name])
        kind = kills[number // len(kinds) % len(kills)] if count > len(kills) else chance.choice(kills)
        found.append(Experiment(operation, draw_kill(chance, kind, operation, recorded.get(operation, ()))))
    return found


def draw_again(chance: random.Random, experiment: Experiment, tasks: Sequence[Task]) -> Experiment:
    """Draw another kill of the same kind from the tasks of a run that ended before its kill."""
    operation, kill = experiment
    return Experiment(operation, draw_kill(chance, kill.kind, operation, tasks))


def sample(chance: random.Random) -> list[Experiment]:
    """Draw six experiments, each of which starts in the final state of the previous one."""
    machine = chance.choice(["c2", "c3"])
    leaves, joins, deleted = chance.choice(
        [
            (f"remove:{machine}", f"join:{machine}", "delete"),
            (f"hand-over:{machine}", f"join:c1@{machine}", f"delete@{machine}"),
        ]
    )
    texts = ["create", *chance.sample(["mesh-keys", "munge-key", "storage"], 2), leaves, joins, deleted]
    operations = [Operation.parse(text) for text in texts]
    return [
        Experiment(operation, draw_kill(chance, kind, operation, ()))
        for operation, kind in zip(operations, chance.sample([*KILLS, *KILLS], len(operations)), strict=True)
    ]


def all_boundaries(kinds: Sequence[str], recorded: Mapping[Operation, Sequence[Task]]) -> list[Experiment]:
    """Return an experiment at each boundary of the recorded operations."""
    return [
        Experiment(operation, Kill("boundary", task))
        for operation, tasks in recorded.items()
        if operation.kind in kinds
        for task in boundaries(tasks)
    ]


def way(state: State, wanted: State) -> Iterator[Operation]:
    """Yield the operations that lead from one state to the other."""
    if state != wanted and "host" in (state.image, wanted.image):
        yield Operation("rebuild", wanted.image)
        state = State(image=wanted.image)
    if not wanted.members:
        if state.members:
            yield from way(state, state._replace(members=frozenset(MACHINES)))
            yield Operation("delete", "", state.manager)
        return
    while state != wanted:
        operation = _step(state, wanted)
        yield operation
        state = operation.after(state)


def _step(state: State, wanted: State) -> Operation:
    missing = sorted(set(MACHINES) - state.members)
    if not state.members:
        return Operation("create")
    if missing:
        return Operation("join", missing[0], state.manager)
    if state.volumes != wanted.volumes:
        return Operation("storage", "", state.manager)
    if state.manager != wanted.manager:
        return Operation("hand-over", wanted.manager, state.manager)
    return Operation("remove", min(state.members - wanted.members), state.manager)


def choose(left: Sequence[Experiment], state: State) -> Experiment:
    """Return the next experiment: the first of those that need the fewest operations to reach their initial state."""
    return min(left, key=lambda experiment: len(list(way(state, experiment.operation.before(state)))))
