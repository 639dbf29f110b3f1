# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the named parts of the tests, all of them by default, even when one fails.

JOBS commands (by default two more than there are processors, since scenarios wait as much as they work) run side by
side; each scenario has hosts and networks of its own. SCENARIO=name runs that scenario only. The output of a command is
shown when it ends: all of it if it failed, otherwise the counts and the slowest tests. A single command prints
directly.

At the end, a table shows for each command the seconds on the clock and the seconds of processor, with all that it
started and the containers of its lab. Then follows in short why commands failed, and the last line has the counts. If
every part has passed in a clean checkout, the hash of its tree is written to .cache/passed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from runner.steps import PARTS, Step, find_scenarios, next_step, plan_steps
from runner.usage import CommandGroup, Labs, machine_seconds

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / ".cache" / "run"
PASSED = ROOT / ".cache" / "passed"
#: Seconds after which a command that hangs is ended. Its hosts go with the next run.
TIME_LIMIT = 4500.0
SUMMARY = re.compile(r"^(=+ .* (passed|failed|skipped)|\d+ (passed|failed)|SKIPPED|[0-9.]+s (setup|call))")
#: The lines that tell why a command failed: failed tasks of playbooks, with the lines below them, and failed tests.
REASON = re.compile(r"^(FAILED|ERROR) |^E +\w*(Error|Exception)|\b(fatal|failed): \[")
_LINES_OF_A_REASON = 5
_LINES_OF_REASONS = 60
_LINES_OF_THE_END = 15
_LONGEST_LINE = 400


@dataclass
class Execution:
    """A step that runs or has run."""

    step: Step
    log: Path | None
    started: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    own_seconds: float = 0.0
    status: int | None = None

    def __post_init__(self) -> None:
        self.group = CommandGroup(self.step.name.replace(" ", ""))
        output = self.log.open("wb") if self.log else None
        self.process = subprocess.Popen(
            self.step.command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
        )
        self.group.add(self.process.pid)
        if output:
            output.close()

    def poll(self) -> bool:
        """Return whether the command has ended, and end it after the time limit."""
        process, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if process:
            self.ended = time.monotonic()
            self.own_seconds = usage.ru_utime + usage.ru_stime
            self.status = self.process.returncode = os.waitstatus_to_exitcode(status)
        elif time.monotonic() - self.started > TIME_LIMIT:
            self.stop(signal.SIGKILL)
        return self.status is not None

    def stop(self, number: int) -> None:
        """Send a signal to all processes of the command's session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def run_steps(steps: Sequence[Step], limit: int, labs: Labs) -> list[Execution]:
    """Run all steps, at most ``limit`` at once, and return them in the order of their ends."""
    waiting, running, ended = list(steps), [], []
    try:
        while waiting or running:
            while step := next_step(waiting, [execution.step for execution in running], limit):
                waiting.remove(step)
                running.append(start_step(step, alone=len(steps) == 1))
            labs.read()
            for execution in [execution for execution in running if execution.poll()]:
                running.remove(execution)
                ended.append(execution)
                show_end(execution)
            time.sleep(1.0)
    finally:
        for execution in running:
            execution.stop(signal.SIGTERM)
    return ended


def start_step(step: Step, *, alone: bool) -> Execution:
    """Start a command with its output in a file, or on the terminal if there is no other."""
    print(f"\n=== {step.name} starts", flush=True)
    log = None if alone else LOGS / f"{re.sub('[^a-z0-9_]+', '-', step.name)}.log"
    return Execution(step, log)


def show_end(execution: Execution) -> None:
    """Print how a command ended: its whole output on failure, otherwise the lines that count."""
    seconds = execution.ended - execution.started
    print(f"\n=== {execution.step.name} ended after {seconds:.0f} s with status {execution.status}", flush=True)
    if execution.log:
        lines = execution.log.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = lines if execution.status else [line for line in lines if SUMMARY.match(line)]
        print("\n".join(shown), flush=True)


def find_reasons(output: str) -> list[str]:
    """Return the lines that tell why a command failed: each once, the last ones if they are many. If there are none,
    the end of the output.
    """
    lines = output.splitlines()
    near = {
        index
        for start, line in enumerate(lines)
        if REASON.search(line)
        for index in range(start, start + _LINES_OF_A_REASON)
    }
    found = dict.fromkeys(lines[index][:_LONGEST_LINE] for index in sorted(near) if index < len(lines))
    return list(found)[-_LINES_OF_REASONS:] or lines[-_LINES_OF_THE_END:]


def show_reasons(execution: Execution) -> None:
    """Print in short why a command failed: its own output may be far above."""
    print(f"=== why {execution.step.name} failed")
    output = execution.log.read_text(encoding="utf-8", errors="replace") if execution.log else ""
    print("\n".join(find_reasons(output)) + "\n")


def show_table(executions: Sequence[Execution], labs: Labs, clock: float, machine: float) -> None:
    """Print what each command took, those that took most processor time first."""
    rows = [
        (execution.group.seconds(execution.own_seconds) + labs.seconds(execution.step.lab), execution)
        for execution in executions
    ]
    print(f"\n{'part':<28} {'clock s':>8} {'processor s':>12}  result")
    for processor, execution in sorted(rows, key=lambda row: -row[0]):
        seconds = execution.ended - execution.started
        result = "FAILED" if execution.status else "passed"
        print(f"{execution.step.name:<28} {seconds:>8.0f} {processor:>12.0f}  {result}")
    counted = sum(processor for processor, _ in rows)
    print(f"{'container engine and others':<28} {'':>8} {machine - counted:>12.0f}")
    print(f"{'total':<28} {clock:>8.0f} {machine:>12.0f}\n")


def clean_tree() -> str:
    """Return the hash of the tree that is checked out, or an empty text if files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    try:
        return "" if git("status", "--porcelain") else git("rev-parse", "HEAD^{tree}")
    except (OSError, subprocess.CalledProcessError):
        return ""


def main(arguments: Sequence[str]) -> int:
    """Run the tests and return the exit status."""
    unknown = [name for name in arguments if name not in PARTS]
    if unknown:
        print(f"tests/run: there is no part '{unknown[0]}': {', '.join(PARTS)}.", file=sys.stderr)
        return 2
    os.environ.setdefault("PY_COLORS", "0")
    os.environ.setdefault("ANSIBLE_FORCE_COLOR", "0")
    LOGS.mkdir(parents=True, exist_ok=True)
    scenario = os.environ.get("SCENARIO", "")
    everything = not scenario and set(arguments or PARTS) == set(PARTS)
    tree, clock, machine, labs = clean_tree(), time.monotonic(), machine_seconds(), Labs()
    steps = plan_steps(arguments or PARTS, scenario.split() or find_scenarios(ROOT))
    executions = run_steps(steps, int(os.environ.get("JOBS") or (os.cpu_count() or 1) + 2), labs)
    show_table(executions, labs, time.monotonic() - clock, machine_seconds() - machine)
    for execution in executions:
        execution.group.close()
    failed = [execution for execution in executions if execution.status != 0]
    for execution in failed:
        show_reasons(execution)
    if everything and not failed and tree and clean_tree() == tree:
        PASSED.write_text(f"{tree}\n", encoding="ascii")
    print(f"{len(executions) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Leave through the handlers that end the commands."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main(sys.argv[1:]))
