# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the state of a run: phases (plays), their tasks, hosts and times. Independent of the terminal and of Ansible."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: A host can end a task with these outcomes. After ``rescued``, it continues with the rescue section of the block.
HOST_OUTCOMES = ("ok", "changed", "skipped", "failed", "unreachable", "ignored", "rescued")
#: A host takes no part in the run after these outcomes.
LOST_OUTCOMES = ("failed", "unreachable")


@dataclass
class PlayTask:
    """A task of a phase. Times are seconds on the clock of the run."""

    name: str
    task_number: int
    host_count: int
    started_at: float
    is_handler: bool = False
    start_times: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)
    #: The hosts that did the work for each changed item of a loop, by inventory host.
    changed_workers: dict[str, list[str]] = field(default_factory=dict)
    #: The host that did the work, by inventory host.
    workers: dict[str, str] = field(default_factory=dict)
    ended_at: float | None = None

    @property
    def waiting_hosts(self) -> list[str]:
        """Return the hosts that have started and not ended, the longest running first."""
        return [host for host in self.start_times if host not in self.outcomes]

    def changed_hosts(self) -> list[str]:
        """Return the hosts on which the task changed something, including those to which it was delegated."""
        hosts = self.hosts_with_outcome("changed")
        return sorted(
            {worker for host in hosts for worker in self.changed_workers.get(host) or [self.workers.get(host, host)]}
        )

    def hosts_with_outcome(self, outcome: str) -> list[str]:
        """Return the hosts that ended with this outcome, in the order in which they ended."""
        return [host for host, host_outcome in self.outcomes.items() if host_outcome == outcome]


@dataclass
class Phase:
    """A play."""

    name: str
    host_count: int
    started_at: float
    check_mode: bool = False
    tasks: list[PlayTask] = field(default_factory=list)
    #: The outcomes of hosts that were lost between the counted tasks.
    lost_hosts: dict[str, str] = field(default_factory=dict)
    ended_at: float | None = None

    def host_durations(self) -> dict[str, float]:
        """Return the seconds for which each host was working."""
        seconds_by_host: dict[str, float] = {}
        for task in self.tasks:
            for host, duration in task.durations.items():
                seconds_by_host[host] = seconds_by_host.get(host, 0.0) + duration
        return seconds_by_host

    def find_slowest_host(self) -> tuple[str, float] | None:
        """Return the host that worked longest, and its seconds; None if fewer than two hosts worked."""
        seconds_by_host = self.host_durations()
        if len(seconds_by_host) < 2:
            return None
        host = max(seconds_by_host, key=lambda candidate: seconds_by_host[candidate])
        return host, seconds_by_host[host]

    def count_outcomes(self, *outcomes: str) -> int:
        """Count the results with one of these outcomes."""
        task_outcomes = [outcome for task in self.tasks for outcome in task.outcomes.values()]
        return sum(1 for outcome in [*task_outcomes, *self.lost_hosts.values()] if outcome in outcomes)


class PlaybookRun:
    """All phases of a run. Each method is an event that Ansible reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.phases: list[Phase] = []
        self.lost_hosts: set[str] = set()
        self.started_at = clock()

    def now(self) -> float:
        """Return the seconds since the run started."""
        return self._clock() - self.started_at

    @property
    def phase(self) -> Phase | None:
        """Return the current phase; None between phases."""
        return self.phases[-1] if self.phases and self.phases[-1].ended_at is None else None

    @property
    def task(self) -> PlayTask | None:
        """Return the current task; None between tasks."""
        phase = self.phase
        return phase.tasks[-1] if phase and phase.tasks and phase.tasks[-1].ended_at is None else None

    def begin_phase(self, name: str, host_names: list[str], check_mode: bool = False) -> Phase:
        """Start a phase on ``hosts``, without those that failed before."""
        self.end_phase()
        phase = Phase(name, len(set(host_names) - self.lost_hosts), self.now(), check_mode)
        self.phases.append(phase)
        return phase

    def end_phase(self) -> Phase | None:
        """End the current phase; None if there is none."""
        phase = self.phase
        if phase is not None:
            self.end_task()
            phase.ended_at = self.now()
        return phase

    def begin_task(self, name: str, runs_once: bool = False, is_handler: bool = False) -> PlayTask:
        """Start the next task of the phase, which runs on one host with ``runs_once``."""
        phase = self.phase or self.begin_phase("", [])
        self.end_task()
        task = PlayTask(name, len(phase.tasks) + 1, 1 if runs_once else phase.host_count, self.now(), is_handler)
        phase.tasks.append(task)
        return task

    def end_task(self) -> PlayTask | None:
        """End the current task; None if there is none."""
        task = self.task
        if task is not None:
            task.ended_at = self.now()
        return task

    def begin_host(self, host: str) -> None:
        """Note that a host starts the task."""
        if self.task is not None:
            self.task.start_times.setdefault(host, self.now())

    def _drop_host(self, host: str) -> None:
        """Exclude the host from the following tasks."""
        self.lost_hosts.add(host)
        if self.phase is not None:
            self.phase.host_count = max(self.phase.host_count - 1, 0)

    def lose_host(self, host: str, outcome: str) -> None:
        """Record a host that has failed at a task that is not counted, such as the include of a missing file."""
        phase = self.phase
        if phase is not None and host not in phase.lost_hosts:
            phase.lost_hosts[host] = outcome
            self._drop_host(host)

    def add_changed_worker(self, host: str, worker: str) -> None:
        """Note that an item of a loop has changed something. ``worker``: the host that did the work."""
        if self.task is not None:
            self.task.changed_workers.setdefault(host, []).append(worker)

    def end_host(self, host: str, outcome: str, worker: str = "") -> None:
        """Record the outcome of a host. ``worker``: the host that did the work, if that is another one."""
        if outcome in LOST_OUTCOMES:
            self._drop_host(host)
        task = self.task
        if task is not None:
            task.outcomes[host] = outcome
            task.workers[host] = worker or host
            task.durations[host] = self.now() - task.start_times.get(host, task.started_at)
