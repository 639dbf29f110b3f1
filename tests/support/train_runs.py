# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of gpumesh-train in the lab of the scenario work, or in a similar one, and ways to disturb their hosts."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab_hosts import ROOT, Lab
from train_programs import MANAGER, SMALL_PROGRAM, TrainingOutcome, TrainingProgram

#: The host without a service manager.
BARE_HOST = "gpu4"
SUPERVISORD = "/etc/supervisor/supervisord.conf"
STEP_COUNT, CHECKPOINT_INTERVAL = 120, 10
ENDED_STATES = ("finished", "failed", "cancelled")
#: Seconds to allow on a busy machine.
WAIT_TIMEOUT = 240.0
#: Seconds between two queries whether the job of a run is lost.
JOB_QUERY_INTERVAL = 30.0

#: A script for control groups of either version. Arguments: the name of the group, microseconds of each 100 ms, the
#: processes.
CPU_LIMIT_SCRIPT = """
if test -d /sys/fs/cgroup/cpu; then group=/sys/fs/cgroup/cpu/$1 limit=cpu.cfs_quota_us none=-1
else group=/sys/fs/cgroup/$1 limit=cpu.max none=max; fi
mkdir -p $group && echo ${2:-$none} > $group/$limit
test -z "$2" || for process in $(pgrep -f "$3"); do echo $process > $group/cgroup.procs; done
test -n "$2" || rmdir $group || true
"""

#: A script that waits up to two minutes until a checkpoint is being written, and kills the ranks of this host.
KILL_WRITER_SCRIPT = """
ranks=$(pgrep -f "$1")
end=$(($(date +%s) + 120))
while test "$(date +%s)" -lt $end; do
    for try in 0 1 2 3 4 5 6 7 8 9; do
        for draft in $2; do test -e "$draft" && kill -KILL $ranks && exit; done
    done
done
exit 1
"""

RunStatus = dict[str, Any]


def sum_of_samples(step_count: int) -> float:
    """Return the sum of all samples that a run reads: the numbers from 0, 12 in each step."""
    return float(sum(range(12 * step_count)))


def list_causes(run_status: RunStatus) -> list[tuple[str, Any, str]]:
    """Return the kind, rank and node of the cause that ended each attempt."""
    return [
        (attempt["cause"]["kind"], attempt["cause"]["rank"], attempt["cause"]["node"])
        for attempt in run_status["attempts"]
    ]


def assert_checkpoints_used(run_status: RunStatus, interval: int = CHECKPOINT_INTERVAL) -> None:
    """Assert that each attempt starts at the last checkpoint of the previous one. ``interval``: the steps between two."""
    for previous, following in zip(run_status["attempts"], run_status["attempts"][1:]):
        assert previous["last"] - following["first"] < interval, (previous, following)


class TrainLab(Lab):
    """Four hosts with gpumesh-train, and the directory of this machine that contains their runs."""

    def __init__(self, name: str, program: TrainingProgram = SMALL_PROGRAM) -> None:
        super().__init__(name)
        self.program = program
        self.shared_volume = ROOT / ".lab" / name / "shared"
        self.runs_directory = self.shared_volume / "root" / "runs"

    def copy_program(self) -> None:
        """Copy the program to where runs expect it."""
        self.program.copy_program(self)

    def run_train(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run gpumesh-train on the manager."""
        completed = self.run_unchecked(MANAGER, "gpumesh-train", *arguments, timeout=WAIT_TIMEOUT)
        assert not check or completed.returncode == 0, completed.stdout + completed.stderr
        return completed

    def start_run(
        self, name: str, *options: str, step_count: int = STEP_COUNT, extra_arguments: Sequence[str] = ()
    ) -> None:
        """Start a run of the program."""
        argv = self.program.rank_command(step_count, CHECKPOINT_INTERVAL, extra_arguments)
        self.run_train("--detach", "--name", name, *self.program.train_options, *options, "--", *argv)

    def read_status(self, name: str) -> RunStatus:
        """Return the content of run.json."""
        try:
            return dict(json.loads((self.runs_directory / name / "run.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {"state": "queued", "attempts": []}

    def await_run(
        self,
        name: str,
        description: str,
        condition: Callable[[RunStatus], Any],
        seconds: float = WAIT_TIMEOUT,
        spacing: float = 1.0,
    ) -> RunStatus:
        """Wait until ``condition`` returns true for the run. Returns the content of run.json."""
        self.wait_until(
            f"{name} {description}: {self.read_status(name)}",
            lambda: condition(self.read_status(name)),
            seconds,
            spacing,
        )
        return self.read_status(name)

    def end_condition(self, name: str) -> Callable[[RunStatus], bool]:
        """Return a condition that holds if the run has ended, also if run.json does not say so: ``show`` asks Slurm for
        its job now and then.
        """
        last_query = time.monotonic()

        def has_ended(run_status: RunStatus) -> bool:
            nonlocal last_query
            if run_status["state"] in ENDED_STATES or time.monotonic() - last_query < JOB_QUERY_INTERVAL:
                return run_status["state"] in ENDED_STATES
            show_output = self.run_train("show", name, check=False).stdout
            last_query = time.monotonic()
            return show_output.startswith(tuple(f"{name}: {state}" for state in ENDED_STATES))

        return has_ended

    def await_end(self, name: str, seconds: float = WAIT_TIMEOUT) -> RunStatus:
        """Wait for the end of the run. Returns the content of run.json.

        What ended its attempts is printed, for a test that expects something else.
        """
        run_status = self.await_run(name, "has ended", self.end_condition(name), seconds)
        print(f"{name}: {run_status['state']}: {run_status['detail']}")
        for attempt in run_status["attempts"]:
            print(f"attempt {attempt['number']} on {', '.join(attempt['nodes'])}: {attempt['cause']}")
        return run_status

    def await_step(self, name: str, attempt: int, step_count: int) -> RunStatus:
        """Wait until an attempt has made ``step_count`` steps. Returns the content of run.json."""
        return self.await_run(
            name,
            f"has made {step_count} steps in attempt {attempt}",
            lambda run_status: (
                len(run_status["attempts"]) == attempt
                and run_status["attempts"][-1]["first"] is not None
                and run_status["attempts"][-1]["last"] - run_status["attempts"][-1]["first"] >= step_count
            ),
            spacing=0.3,
        )

    def await_first_step(self, name: str, attempt: int) -> RunStatus:
        """Wait until an attempt has made its first step. Returns the content of run.json."""
        return self.await_run(
            name,
            f"makes steps in attempt {attempt}",
            lambda run_status: (
                len(run_status["attempts"]) >= attempt and run_status["attempts"][attempt - 1]["first"] is not None
            ),
            spacing=0.3,
        )

    def send_signal(self, node: str, signal: str) -> None:
        """Send a signal to the ranks on a node."""
        self.run(node, "pkill", f"-{signal}", "-f", self.program.process_pattern)

    def send_rank_signal(self, run_status: RunStatus, rank: int, signal: str) -> str:
        """Send a signal to the process of a rank. Returns its node."""
        node = str(run_status["attempts"][-1]["nodes"][rank])
        self.send_signal(node, signal)
        print(f"SIG{signal} to rank {rank} on {node} at step {run_status['step']}")
        return node

    def kill_writer(self, node: str, name: str) -> None:
        """Send SIGKILL to the ranks on a node as soon as a checkpoint of the run is being written."""
        draft_path = f"/mnt/shared/root/runs/{name}/checkpoints/{self.program.draft_pattern}"
        self.run(node, "sh", "-c", KILL_WRITER_SCRIPT, "-", self.program.process_pattern, draft_path)

    def read_result(self, name: str) -> TrainingOutcome:
        """Return the result of the run, from the last line of rank 0."""
        log = self.runs_directory / name / "attempts" / f"{len(self.read_status(name)['attempts']):03}" / "rank-0.log"
        return self.program.parse_outcome(log.read_text(encoding="utf-8").splitlines()[-1])

    def clear_queue(self) -> None:
        """Cancel every job, also those that wait for nodes, and wait until all nodes are idle."""
        self.run(MANAGER, "sh", "-c", "squeue --noheader --format=%A | xargs --no-run-if-empty scancel")
        self.await_idle(MANAGER)

    # Hosts that die

    def restore_power(self, *hosts: str) -> None:
        """Restore the power of hosts, and wait until they have booted."""
        self.power_on(*hosts)
        for host in hosts:
            self.await_boot(host, SUPERVISORD if host == BARE_HOST else "")

    def find_interface(self, host: str) -> str:
        """Return the name of the host's interface in the lab's network."""
        lab_addresses = set(re.findall(r"\d+\.\d+\.\d+\.\d+", self.inventory.read_text(encoding="utf-8")))
        lines = self.run(host, "ip", "-oneline", "-4", "address", "show", "scope", "global").splitlines()
        return next(line.split()[1] for line in lines if line.split()[3].partition("/")[0] in lab_addresses)

    def set_link(self, host: str, interface: str, state: str) -> None:
        """Set the interface ``down``, or ``up`` again."""
        self.run(host, "ip", "link", "set", interface, state)

    def limit_cpu(self, host: str, percent: str) -> None:
        """Limit the CPU of the ranks on a host, in percent of a processor; empty for no limit."""
        quota = str(int(percent) * 1000) if percent else ""
        self.run(
            host, "sh", "-c", CPU_LIMIT_SCRIPT, "-", f"gpumesh-slow-{self.name}", quota, self.program.process_pattern
        )

    def limit_network(self, host: str, rate: str) -> None:
        """Limit the rate at which a host sends, such as ``1mbit``; empty for no limit."""
        interface = self.find_interface(host)
        if rate:
            qdisc_options = ("tbf", "rate", rate, "burst", "3000", "latency", "300ms")
            self.run(host, "tc", "qdisc", "replace", "dev", interface, "root", *qdisc_options)
        else:
            self.run(host, "tc", "qdisc", "del", "dev", interface, "root", check=False)

    def fill_volume(self) -> Path:
        """Fill the shared volume. Returns the file that occupies it."""
        path = self.shared_volume / "filler"
        # Unbuffered: otherwise, closing the file would write the rest of the buffer, and fail again.
        with path.open("wb", buffering=0) as stream:
            for size in (1 << 16, 1):
                with contextlib.suppress(OSError):
                    while True:
                        stream.write(bytes(size))
        return path
