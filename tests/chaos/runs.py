# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kill a playbook, run it again to completion, and once more to check that nothing is left to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cluster import Cluster, ProofError
from experiments import Experiment, Kill, Operation, Task
from lab_hosts import BIN, RECAP, ROOT, report

CALLBACKS = Path(__file__).resolve().parent / "callback"
#: The maximum duration of a run in seconds, after which it is considered hung.
LONGEST = 900


class Result(NamedTuple):
    """The result of an experiment."""

    experiment: Experiment
    seconds: float
    hit: str
    failure: str = ""


class Steps:
    """The file in which a playbook records its tasks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)

    def lines(self) -> list[dict[str, object]]:
        if not self.path.exists():
            return []
        # The last line may be incomplete.
        whole = self.path.read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def last(self) -> str:
        """The name of the task that runs; its number would change with the roles."""
        names = [str(line["name"]) for line in self.lines() if "task" in line]
        return names[-1] if names else ""

    @property
    def started(self) -> int:
        return sum("task" in line for line in self.lines())

    def tasks(self) -> list[Task]:
        lines = self.lines()
        changed = {line["changed"] for line in lines if "changed" in line}
        starts = [line for line in lines if "task" in line]
        return [
            Task(
                str(line["name"]),
                round(float(str(line["at"])) - float(str(starts[0]["at"])), 3),
                line["task"] in changed,
            )
            for line in starts
        ]

    def changed(self) -> list[str]:
        return [task.name for task in self.tasks() if task.changed]


class Play:
    """A run of ansible-playbook in a process group of its own."""

    def __init__(self, arguments: Sequence[str], log: Path, die_at: int = 0) -> None:
        self.log = log
        self.steps = Steps(log.with_suffix(".steps"))
        environment = {
            **os.environ,
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CALLBACK_PLUGINS": str(CALLBACKS),
            "ANSIBLE_CALLBACKS_ENABLED": "chaos_steps",
            "CHAOS_STEPS": str(self.steps.path),
            "CHAOS_DIE_AT": str(die_at),
        }
        with log.open("w", encoding="utf-8") as stream:
            self.process = subprocess.Popen(
                [str(BIN / "ansible-playbook"), *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def wait(self) -> int:
        """Wait for the end. Returns the exit status; a hung run is killed, and counts as failed."""
        try:
            return self.process.wait(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            self.kill()
            return 124

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def await_moment(self, kill: Kill) -> bool:
        """Wait for the moment of the kill. Returns False if the run ended before it."""
        deadline = time.monotonic() + LONGEST
        while self.process.poll() is None and time.monotonic() < deadline:
            if self.steps.started >= kill.task:
                time.sleep(kill.delay)
                return self.process.poll() is None
            time.sleep(0.02)
        return False

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    @property
    def changes(self) -> int:
        return sum(int(match[3]) for match in RECAP.finditer(self.output))


class Chaos:
    """Experiments on a cluster, one after the other, with a directory of logs for each."""

    def __init__(self, cluster: Cluster, logs: Path) -> None:
        self.cluster = cluster
        self.logs = logs

    def undisturbed(self, operation: Operation, folder: str) -> list[Task]:
        """Perform an operation to completion, to reach a state. Returns its tasks."""
        logs = self._folder(folder)
        self._prepare(operation)
        play = self._through(self.cluster.command(operation), logs / "undisturbed")
        self._come_back(operation, logs)
        self.cluster.state = operation.after(self.cluster.state)
        self.cluster.prove(died="")
        return play.steps.tasks()

    def experiment(self, experiment: Experiment, folder: str) -> tuple[str, list[Task]]:
        """Kill an operation, run it again, check the result, and run it once more. A member that was away comes back
        before the check, and then it is the run without a limit that is made once more.

        Returns the name of the task in which it was killed, or an empty string if it ended before the kill, and the
        tasks that had started by then.
        """
        logs = self._folder(folder)
        operation, kill = experiment
        self._prepare(operation)
        hit, tasks = self._killed(operation, kill, logs / "killed")
        died = kill.host if hit and kill.kind == "host" else ""
        if died:
            self.cluster.await_host(died)
        self._through(self.cluster.command(operation), logs / "rerun")
        self._come_back(operation, logs)
        command = self.cluster.completion() if operation.away else self.cluster.command(operation, steady=True)
        self.cluster.state = operation.after(self.cluster.state)
        self.cluster.prove(died)
        again = Play(command, logs / "again.log")
        code = again.wait()
        if code != 0:
            raise ProofError(f"the third run ended with {code}:\n{report(again.output)}")
        if again.changes:
            raise ProofError(f"the third run changed something: {again.steps.changed()}:\n{report(again.output)}")
        return hit, tasks

    def _killed(self, operation: Operation, kill: Kill, log: Path) -> tuple[str, list[Task]]:
        command = self.cluster.command(operation)
        play = Play(command, log.with_suffix(".log"), die_at=kill.task if kill.kind == "boundary" else 0)
        if kill.kind == "boundary":
            return play.steps.last if play.wait() < 0 else "", play.steps.tasks()
        hit = play.await_moment(kill)
        task = play.steps.last
        if hit and kill.kind == "controller":
            play.kill()
        elif hit and kill.kind == "host":
            self.cluster.strike(kill.host)
        elif hit:
            hit = self._kill_module(play, kill.host)
        play.wait()
        return task if hit else "", play.steps.tasks()

    def _kill_module(self, play: Play, host: str) -> bool:
        while play.process.poll() is None:
            if self.cluster.kill_module(host):
                return True
        return False

    def _prepare(self, operation: Operation) -> None:
        """Start the jobs, and cut the power of the member that is to be away."""
        self.cluster.start_jobs(operation)
        if operation.away:
            self.cluster.lab.kill(operation.away)

    def _come_back(self, operation: Operation, logs: Path) -> None:
        """Start the member that was away. One run without a limit must bring it up to date."""
        if operation.away:
            self.cluster.switch_on(operation.away)
            self._through(self.cluster.completion(operation.trusted), logs / "returned")

    def _through(self, command: Sequence[str], log: Path) -> Play:
        play = Play(command, log.with_suffix(".log"))
        code = play.wait()
        if code != 0:
            raise ProofError(f"{log.name}: ended with {code}:\n{report(play.output)}")
        return play

    def _folder(self, name: str) -> Path:
        folder = self.logs / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder
