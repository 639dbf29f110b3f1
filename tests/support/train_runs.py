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
from train_programs import MANAGER, SMALL, Outcome, Program

#: The host without a service manager.
BARE = "gpu4"
SUPERVISORD = "/etc/supervisor/supervisord.conf"
STEPS, INTERVAL = 120, 10
ENDED = ("finished", "failed", "cancelled")
#: Seconds to allow on a busy machine.
PATIENCE = 240.0
#: Seconds between two queries whether the job of a run is lost.
LOST = 30.0

#: A script for control groups of either version. Arguments: the name of the group, microseconds of each 100 ms, the
#: processes.
LIMIT = """
if test -d /sys/fs/cgroup/cpu; then group=/sys/fs/cgroup/cpu/$1 limit=cpu.cfs_quota_us none=-1
else group=/sys/fs/cgroup/$1 limit=cpu.max none=max; fi
mkdir -p $group && echo ${2:-$none} > $group/$limit
test -z "$2" || for process in $(pgrep -f "$3"); do echo $process > $group/cgroup.procs; done
test -n "$2" || rmdir $group || true
"""

#: A script that waits up to two minutes until a checkpoint is being written, and kills the ranks of this host.
KILL_WRITER = """
ranks=$(pgrep -f "$1")
end=$(($(date +%s) + 120))
while test "$(date +%s)" -lt $end; do
    for try in 0 1 2 3 4 5 6 7 8 9; do
        for draft in $2; do test -e "$draft" && kill -KILL $ranks && exit; done
    done
done
exit 1
"""

Found = dict[str, Any]


def all_samples(steps: int) -> float:
    """Return the sum of all samples that a run reads: the numbers from 0, 12 in each step."""
    return float(sum(range(12 * steps)))


def causes(found: Found) -> list[tuple[str, Any, str]]:
    """Return the kind, rank and node of the cause that ended each attempt."""
    return [(one["cause"]["kind"], one["cause"]["rank"], one["cause"]["node"]) for one in found["attempts"]]


def check_steps(found: Found) -> None:
    """Assert that each attempt starts at the last checkpoint of the previous one."""
    for before, after in zip(found["attempts"], found["attempts"][1:]):
        assert before["last"] - after["first"] < INTERVAL, (before, after)


class TrainLab(Lab):
    """Four hosts with gpumesh-train, and the directory of this machine that contains their runs."""

    def __init__(self, name: str, program: Program = SMALL) -> None:
        super().__init__(name)
        self.program = program
        self.shared = ROOT / ".lab" / name / "shared"
        self.runs = self.shared / "root" / "runs"

    def bring(self) -> None:
        """Copy the program to where runs expect it."""
        self.program.bring(self)

    def train(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run gpumesh-train on the manager."""
        done = self.complete(MANAGER, "gpumesh-train", *arguments, timeout=PATIENCE)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def begin(self, name: str, *options: str, steps: int = STEPS, extra: Sequence[str] = ()) -> None:
        """Start a run of the program."""
        argv = self.program.argv(steps, INTERVAL, extra)
        self.train("--detach", "--name", name, *self.program.options, *options, "--", *argv)

    def state(self, name: str) -> Found:
        """Return the content of run.json."""
        try:
            return dict(json.loads((self.runs / name / "run.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {"state": "queued", "attempts": []}

    def await_run(
        self, name: str, what: str, holds: Callable[[Found], Any], seconds: float = PATIENCE, spacing: float = 1.0
    ) -> Found:
        """Wait until ``condition`` returns true for the run. Returns the content of run.json."""
        self.wait(f"{name} {what}: {self.state(name)}", lambda: holds(self.state(name)), seconds, spacing)
        return self.state(name)

    def end_of(self, name: str) -> Callable[[Found], bool]:
        """Return a condition that holds if the run has ended, also if run.json does not say so: ``show`` asks Slurm for
        its job now and then.
        """
        asked = time.monotonic()

        def ended(found: Found) -> bool:
            nonlocal asked
            if found["state"] in ENDED or time.monotonic() - asked < LOST:
                return found["state"] in ENDED
            shown = self.train("show", name, check=False).stdout
            asked = time.monotonic()
            return shown.startswith(tuple(f"{name}: {state}" for state in ENDED))

        return ended

    def finish(self, name: str, seconds: float = PATIENCE) -> Found:
        """Wait for the end of the run. Returns the content of run.json.

        What ended its attempts is printed, for a test that expects something else.
        """
        found = self.await_run(name, "has ended", self.end_of(name), seconds)
        print(f"{name}: {found['state']}: {found['detail']}")
        for one in found["attempts"]:
            print(f"attempt {one['number']} on {', '.join(one['nodes'])}: {one['cause']}")
        return found

    def at_step(self, name: str, attempt: int, some: int) -> Found:
        """Wait until an attempt has made ``step_count`` steps. Returns the content of run.json."""
        return self.await_run(
            name,
            f"has made {some} steps in attempt {attempt}",
            lambda found: (
                len(found["attempts"]) == attempt
                and found["attempts"][-1]["first"] is not None
                and found["attempts"][-1]["last"] - found["attempts"][-1]["first"] >= some
            ),
            spacing=0.3,
        )

    def again(self, name: str, attempt: int) -> Found:
        """Wait until an attempt has made its first step. Returns the content of run.json."""
        return self.await_run(
            name,
            f"makes steps in attempt {attempt}",
            lambda found: len(found["attempts"]) >= attempt and found["attempts"][attempt - 1]["first"] is not None,
            spacing=0.3,
        )

    def signal(self, node: str, signal: str) -> None:
        """Send a signal to the ranks on a node."""
        self.run(node, "pkill", f"-{signal}", "-f", self.program.process)

    def signal_rank(self, found: Found, rank: int, signal: str) -> str:
        """Send a signal to the process of a rank. Returns its node."""
        node = str(found["attempts"][-1]["nodes"][rank])
        self.signal(node, signal)
        print(f"SIG{signal} to rank {rank} on {node} at step {found['step']}")
        return node

    def kill_writer(self, node: str, name: str) -> None:
        """Send SIGKILL to the ranks on a node as soon as a checkpoint of the run is being written."""
        draft = f"/mnt/shared/root/runs/{name}/checkpoints/{self.program.draft}"
        self.run(node, "sh", "-c", KILL_WRITER, "-", self.program.process, draft)

    def result(self, name: str) -> Outcome:
        """Return the result of the run, from the last line of rank 0."""
        log = self.runs / name / "attempts" / f"{len(self.state(name)['attempts']):03}" / "rank-0.log"
        return self.program.outcome(log.read_text(encoding="utf-8").splitlines()[-1])

    def idle(self) -> None:
        """Cancel every job, also those that wait for nodes, and wait until all nodes are idle."""
        self.run(MANAGER, "sh", "-c", "squeue --noheader --format=%A | xargs --no-run-if-empty scancel")
        self.await_idle(MANAGER)

    # Hosts that die

    def revive(self, *hosts: str) -> None:
        """Restore the power of hosts, and wait until they have booted."""
        self.power_on(*hosts)
        for host in hosts:
            self.await_boot(host, SUPERVISORD if host == BARE else "")

    def interface(self, host: str) -> str:
        """Return the name of the host's interface in the lab's network."""
        known = set(re.findall(r"\d+\.\d+\.\d+\.\d+", self.inventory.read_text(encoding="utf-8")))
        lines = self.run(host, "ip", "-oneline", "-4", "address", "show", "scope", "global").splitlines()
        return next(line.split()[1] for line in lines if line.split()[3].partition("/")[0] in known)

    def link(self, host: str, interface: str, state: str) -> None:
        """Set the interface ``down``, or ``up`` again."""
        self.run(host, "ip", "link", "set", interface, state)

    def limit_cpu(self, host: str, percent: str) -> None:
        """Limit the CPU of the ranks on a host, in percent of a processor; empty for no limit."""
        quota = str(int(percent) * 1000) if percent else ""
        self.run(host, "sh", "-c", LIMIT, "-", f"gpumesh-slow-{self.name}", quota, self.program.process)

    def limit_network(self, host: str, rate: str) -> None:
        """Limit the rate at which a host sends, such as ``1mbit``; empty for no limit."""
        interface = self.interface(host)
        if rate:
            limit = ("tbf", "rate", rate, "burst", "3000", "latency", "300ms")
            self.run(host, "tc", "qdisc", "replace", "dev", interface, "root", *limit)
        else:
            self.run(host, "tc", "qdisc", "del", "dev", interface, "root", check=False)

    def fill(self) -> Path:
        """Fill the shared volume. Returns the file that occupies it."""
        path = self.shared / "filler"
        # Unbuffered: otherwise, closing the file would write the rest of the buffer, and fail again.
        with path.open("wb", buffering=0) as stream:
            for size in (1 << 16, 1):
                with contextlib.suppress(OSError):
                    while True:
                        stream.write(bytes(size))
        return path
