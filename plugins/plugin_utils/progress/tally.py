# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a run: phases (plays), their tasks, hosts and times. Independent of the terminal and of Ansible."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: How a host can end a task. After a rescued one, it continues with the rescue section of its block.
OUTCOMES = ("ok", "changed", "skipped", "failed", "unreachable", "ignored", "rescued")
#: Those after which a host takes no part in the run.
LOSSES = ("failed", "unreachable")


@dataclass
class Task:
    """One task of a phase. Times are seconds on the run's clock."""

    name: str
    number: int
    total: int
    started: float
    handler: bool = False
    began: dict[str, float] = field(default_factory=dict)
    outcome: dict[str, str] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    #: The items of a loop that changed something, by host: the hosts that did the work.
    items: dict[str, list[str]] = field(default_factory=dict)
    #: Which host did the work, by host.
    worked: dict[str, str] = field(default_factory=dict)
    ended: float | None = None

    @property
    def waiting(self) -> list[str]:
        """The hosts that have started and not ended, the longest running first."""
        return [host for host in self.began if host not in self.outcome]

    def changed_on(self) -> list[str]:
        """Where the task changed something, with the hosts to which it was delegated."""
        hosts = self.hosts("changed")
        return sorted({one for host in hosts for one in self.items.get(host) or [self.worked.get(host, host)]})

    def hosts(self, outcome: str) -> list[str]:
        """The hosts that ended with this outcome, in the order in which they ended."""
        return [host for host, one in self.outcome.items() if one == outcome]


@dataclass
class Phase:
    """One play."""

    name: str
    hosts: int
    started: float
    check_mode: bool = False
    tasks: list[Task] = field(default_factory=list)
    #: The outcome of hosts that were lost between the counted tasks.
    lost: dict[str, str] = field(default_factory=dict)
    ended: float | None = None

    def host_times(self) -> dict[str, float]:
        """The seconds for which each host was working."""
        times: dict[str, float] = {}
        for task in self.tasks:
            for host, took in task.took.items():
                times[host] = times.get(host, 0.0) + took
        return times

    def slowest(self) -> tuple[str, float] | None:
        """The host that worked longest; None if fewer than two did, since there is nothing to compare then."""
        times = self.host_times()
        if len(times) < 2:
            return None
        host = max(times, key=lambda one: times[one])
        return host, times[host]

    def count(self, *outcomes: str) -> int:
        """The number of results with one of these outcomes."""
        found = [one for task in self.tasks for one in task.outcome.values()]
        return sum(1 for one in [*found, *self.lost.values()] if one in outcomes)


class Run:
    """All phases. Each method is an event, in the order in which Ansible reports them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.phases: list[Phase] = []
        self.gone: set[str] = set()
        self.started = clock()

    def now(self) -> float:
        """Seconds since the run started."""
        return self._clock() - self.started

    @property
    def phase(self) -> Phase | None:
        """The current phase."""
        return self.phases[-1] if self.phases and self.phases[-1].ended is None else None

    @property
    def task(self) -> Task | None:
        """The current task."""
        phase = self.phase
        return phase.tasks[-1] if phase and phase.tasks and phase.tasks[-1].ended is None else None

    def begin_phase(self, name: str, hosts: list[str], check_mode: bool = False) -> Phase:
        """Start a phase on ``hosts``, without those that failed before."""
        self.end_phase()
        phase = Phase(name, len(set(hosts) - self.gone), self.now(), check_mode)
        self.phases.append(phase)
        return phase

    def end_phase(self) -> Phase | None:
        """End the current phase; None if there is none."""
        phase = self.phase
        if phase is not None:
            self.end_task()
            phase.ended = self.now()
        return phase

    def begin_task(self, name: str, once: bool = False, handler: bool = False) -> Task:
        """Start the next task of the phase; it runs on one host with ``once``."""
        phase = self.phase or self.begin_phase("", [])
        self.end_task()
        task = Task(name, len(phase.tasks) + 1, 1 if once else phase.hosts, self.now(), handler)
        phase.tasks.append(task)
        return task

    def end_task(self) -> Task | None:
        """End the current task; None if there is none."""
        task = self.task
        if task is not None:
            task.ended = self.now()
        return task

    def begin_host(self, host: str) -> None:
        """A host starts on the task."""
        if self.task is not None:
            self.task.began.setdefault(host, self.now())

    def _part_with(self, host: str) -> None:
        """The following tasks run without the host."""
        self.gone.add(host)
        if self.phase is not None:
            self.phase.hosts = max(self.phase.hosts - 1, 0)

    def lose_host(self, host: str, outcome: str) -> None:
        """A host has failed at a task that is not counted, such as one that includes a file that does not exist."""
        phase = self.phase
        if phase is not None and host not in phase.lost:
            phase.lost[host] = outcome
            self._part_with(host)

    def end_item(self, host: str, worked: str) -> None:
        """An item of a loop has changed something. ``worked``: which host did the work."""
        if self.task is not None:
            self.task.items.setdefault(host, []).append(worked)

    def end_host(self, host: str, outcome: str, worked: str = "") -> None:
        """A host has ended the task. ``worked``: which host did the work, if that is another one."""
        if outcome in LOSSES:
            self._part_with(host)
        task = self.task
        if task is not None:
            task.outcome[host] = outcome
            task.worked[host] = worked or host
            task.took[host] = self.now() - task.began.get(host, task.started)
