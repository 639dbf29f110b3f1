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

from cluster import ChaosCluster, ProofError
from experiments import ClusterOperation, KillExperiment, KillMoment, RecordedTask
from lab_hosts import BIN, RECAP_PATTERN, ROOT, summarize_failures

CALLBACK_DIRECTORY = Path(__file__).resolve().parent / "callback"
#: The maximum duration of a run in seconds, after which it is considered hung.
RUN_TIMEOUT = 900


class ExperimentResult(NamedTuple):
    """The result of an experiment."""

    experiment: KillExperiment
    seconds: float
    killed_task: str
    failure: str = ""


class TaskLog:
    """The file in which a playbook records its tasks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)

    def read_entries(self) -> list[dict[str, object]]:
        if not self.path.exists():
            return []
        # The last line may be incomplete.
        complete_lines = self.path.read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in complete_lines.splitlines()]

    @property
    def last_task_name(self) -> str:
        """The name of the task that runs; its number would change with the roles."""
        names = [str(line["name"]) for line in self.read_entries() if "task" in line]
        return names[-1] if names else ""

    @property
    def started_count(self) -> int:
        return sum("task" in line for line in self.read_entries())

    def recorded_tasks(self) -> list[RecordedTask]:
        entries = self.read_entries()
        changed_numbers = {line["changed"] for line in entries if "changed" in line}
        start_entries = [line for line in entries if "task" in line]
        return [
            RecordedTask(
                str(line["name"]),
                round(float(str(line["at"])) - float(str(start_entries[0]["at"])), 3),
                line["task"] in changed_numbers,
            )
            for line in start_entries
        ]

    def changed_task_names(self) -> list[str]:
        return [task.name for task in self.recorded_tasks() if task.changed]


class PlaybookProcess:
    """A run of ansible-playbook in a process group of its own."""

    def __init__(self, arguments: Sequence[str], log_path: Path, kill_at_task: int = 0) -> None:
        self.log_path = log_path
        self.task_log = TaskLog(log_path.with_suffix(".steps"))
        environment = {
            **os.environ,
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CALLBACK_PLUGINS": str(CALLBACK_DIRECTORY),
            "ANSIBLE_CALLBACKS_ENABLED": "chaos_steps",
            "CHAOS_STEPS": str(self.task_log.path),
            "CHAOS_DIE_AT": str(kill_at_task),
        }
        with log_path.open("w", encoding="utf-8") as stream:
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
            return self.process.wait(timeout=RUN_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            return 124

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def await_kill_moment(self, kill: KillMoment) -> bool:
        """Wait for the moment of the kill. Returns False if the run ended before it."""
        deadline = time.monotonic() + RUN_TIMEOUT
        while self.process.poll() is None and time.monotonic() < deadline:
            if self.task_log.started_count >= kill.task:
                time.sleep(kill.delay)
                return self.process.poll() is None
            time.sleep(0.02)
        return False

    @property
    def output(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    @property
    def change_count(self) -> int:
        return sum(int(match[3]) for match in RECAP_PATTERN.finditer(self.output))


class ExperimentRunner:
    """Experiments on a cluster, one after the other, with a directory of logs for each."""

    def __init__(self, cluster: ChaosCluster, log_directory: Path) -> None:
        self.cluster = cluster
        self.log_directory = log_directory

    def run_undisturbed(self, operation: ClusterOperation, directory_name: str) -> list[RecordedTask]:
        """Perform an operation to completion, to reach a state. Returns its tasks."""
        directory = self._create_directory(directory_name)
        self._prepare(operation)
        playbook = self._complete(self.cluster.build_command(operation), directory / "undisturbed")
        self._restore_away_member(operation, directory)
        self.cluster.state = operation.state_after(self.cluster.state)
        self.cluster.verify(killed_host="")
        return playbook.task_log.recorded_tasks()

    def run_experiment(self, experiment: KillExperiment, directory_name: str) -> tuple[str, list[RecordedTask]]:
        """Kill an operation, run it again, check the result, and run it once more. A member that was away comes back
        before the check, and then it is the run without a limit that is made once more.

        Returns the name of the task in which it was killed, or an empty string if it ended before the kill, and the
        tasks that had started by then.
        """
        directory = self._create_directory(directory_name)
        operation, kill = experiment
        self._prepare(operation)
        killed_task, tasks = self._run_and_kill(operation, kill, directory / "killed")
        killed_host = kill.host if killed_task and kill.kind == "host" else ""
        if killed_host:
            self.cluster.await_host(killed_host)
        self._complete(self.cluster.build_command(operation), directory / "rerun")
        self._restore_away_member(operation, directory)
        command = (
            self.cluster.build_completion_command()
            if operation.away_member
            else self.cluster.build_command(operation, repeatable=True)
        )
        self.cluster.state = operation.state_after(self.cluster.state)
        self.cluster.verify(killed_host)
        third_run = PlaybookProcess(command, directory / "again.log")
        exit_status = third_run.wait()
        if exit_status != 0:
            raise ProofError(f"the third run ended with {exit_status}:\n{summarize_failures(third_run.output)}")
        if third_run.change_count:
            raise ProofError(
                f"the third run changed something: {third_run.task_log.changed_task_names()}:\n{summarize_failures(third_run.output)}"
            )
        return killed_task, tasks

    def _run_and_kill(
        self, operation: ClusterOperation, kill: KillMoment, log_path: Path
    ) -> tuple[str, list[RecordedTask]]:
        command = self.cluster.build_command(operation)
        playbook = PlaybookProcess(
            command, log_path.with_suffix(".log"), kill_at_task=kill.task if kill.kind == "boundary" else 0
        )
        if kill.kind == "boundary":
            return playbook.task_log.last_task_name if playbook.wait() < 0 else "", playbook.task_log.recorded_tasks()
        was_killed = playbook.await_kill_moment(kill)
        task_name = playbook.task_log.last_task_name
        if was_killed and kill.kind == "controller":
            playbook.kill()
        elif was_killed and kill.kind == "host":
            self.cluster.power_cycle(kill.host)
        elif was_killed:
            was_killed = self._kill_module(playbook, kill.host)
        playbook.wait()
        return task_name if was_killed else "", playbook.task_log.recorded_tasks()

    def _kill_module(self, playbook: PlaybookProcess, host: str) -> bool:
        while playbook.process.poll() is None:
            if self.cluster.kill_module(host):
                return True
        return False

    def _prepare(self, operation: ClusterOperation) -> None:
        """Start the jobs, and cut the power of the member that is to be away."""
        self.cluster.start_jobs(operation)
        if operation.away_member:
            self.cluster.lab.kill(operation.away_member)

    def _restore_away_member(self, operation: ClusterOperation, directory: Path) -> None:
        """Start the member that was away. One run without a limit must bring it up to date."""
        if operation.away_member:
            self.cluster.start_host(operation.away_member)
            self._complete(self.cluster.build_completion_command(operation.trusted_machine), directory / "returned")

    def _complete(self, command: Sequence[str], log_path: Path) -> PlaybookProcess:
        playbook = PlaybookProcess(command, log_path.with_suffix(".log"))
        exit_status = playbook.wait()
        if exit_status != 0:
            raise ProofError(f"{log_path.name}: ended with {exit_status}:\n{summarize_failures(playbook.output)}")
        return playbook

    def _create_directory(self, name: str) -> Path:
        directory = self.log_directory / name
        directory.mkdir(parents=True, exist_ok=True)
        return directory
