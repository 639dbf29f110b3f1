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

from runner.steps import PARTS, CommandStep, find_scenarios, next_step, plan_steps
from runner.usage import CommandGroup, LabUsage, machine_seconds

ROOT = Path(__file__).resolve().parents[2]
LOG_DIRECTORY = ROOT / ".cache" / "run"
PASSED_TREE = ROOT / ".cache" / "passed"
#: Seconds after which a command that hangs is ended. Its hosts go with the next run.
TIME_LIMIT = 4500.0
SUMMARY_PATTERN = re.compile(r"^(=+ .* (passed|failed|skipped)|\d+ (passed|failed)|SKIPPED|[0-9.]+s (setup|call))")
#: The lines that tell why a command failed: failed tasks of playbooks, with the lines below them, and failed tests.
REASON_PATTERN = re.compile(r"^(FAILED|ERROR) |^E +\w*(Error|Exception)|\b(fatal|failed): \[")
_REASON_CONTEXT_LINES = 5
_MAX_REASON_LINES = 60
_TAIL_LINES = 15
_MAX_LINE_LENGTH = 400


@dataclass
class StepExecution:
    """A step that runs or has run."""

    step: CommandStep
    log_path: Path | None
    started_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0
    own_cpu_seconds: float = 0.0
    status: int | None = None

    def __post_init__(self) -> None:
        self.group = CommandGroup(self.step.name.replace(" ", ""))
        output = self.log_path.open("wb") if self.log_path else None
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
            self.ended_at = time.monotonic()
            self.own_cpu_seconds = usage.ru_utime + usage.ru_stime
            self.status = self.process.returncode = os.waitstatus_to_exitcode(status)
        elif time.monotonic() - self.started_at > TIME_LIMIT:
            self.stop(signal.SIGKILL)
        return self.status is not None

    def stop(self, number: int) -> None:
        """Send a signal to all processes of the command's session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def run_steps(steps: Sequence[CommandStep], limit: int, labs: LabUsage) -> list[StepExecution]:
    """Run all steps, at most ``limit`` at once, and return them in the order of their ends."""
    waiting_steps, running_executions, ended_executions = list(steps), [], []
    try:
        while waiting_steps or running_executions:
            while step := next_step(waiting_steps, [execution.step for execution in running_executions], limit):
                waiting_steps.remove(step)
                running_executions.append(start_step(step, alone=len(steps) == 1))
            labs.read_counters()
            for execution in [execution for execution in running_executions if execution.poll()]:
                running_executions.remove(execution)
                ended_executions.append(execution)
                show_end(execution)
            time.sleep(1.0)
    finally:
        for execution in running_executions:
            execution.stop(signal.SIGTERM)
    return ended_executions


def start_step(step: CommandStep, *, alone: bool) -> StepExecution:
    """Start a command with its output in a file, or on the terminal if there is no other."""
    print(f"\n=== {step.name} starts", flush=True)
    log_path = None if alone else LOG_DIRECTORY / f"{re.sub('[^a-z0-9_]+', '-', step.name)}.log"
    return StepExecution(step, log_path)


def show_end(execution: StepExecution) -> None:
    """Print how a command ended: its whole output on failure, otherwise the lines that count."""
    seconds = execution.ended_at - execution.started_at
    print(f"\n=== {execution.step.name} ended after {seconds:.0f} s with status {execution.status}", flush=True)
    if execution.log_path:
        lines = execution.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        shown_lines = lines if execution.status else [line for line in lines if SUMMARY_PATTERN.match(line)]
        print("\n".join(shown_lines), flush=True)


def find_reasons(output: str) -> list[str]:
    """Return the lines that tell why a command failed: each once, the last ones if they are many. If there are none,
    the end of the output.
    """
    lines = output.splitlines()
    context_indexes = {
        index
        for start, line in enumerate(lines)
        if REASON_PATTERN.search(line)
        for index in range(start, start + _REASON_CONTEXT_LINES)
    }
    reason_lines = dict.fromkeys(
        lines[index][:_MAX_LINE_LENGTH] for index in sorted(context_indexes) if index < len(lines)
    )
    return list(reason_lines)[-_MAX_REASON_LINES:] or lines[-_TAIL_LINES:]


def show_reasons(execution: StepExecution) -> None:
    """Print in short why a command failed: its own output may be far above."""
    print(f"=== why {execution.step.name} failed")
    output = execution.log_path.read_text(encoding="utf-8", errors="replace") if execution.log_path else ""
    print("\n".join(find_reasons(output)) + "\n")


def show_table(
    executions: Sequence[StepExecution], labs: LabUsage, elapsed_seconds: float, machine_cpu_seconds: float
) -> None:
    """Print what each command took, those that took most processor time first."""
    rows = [
        (execution.group.read_seconds(execution.own_cpu_seconds) + labs.seconds_of(execution.step.lab), execution)
        for execution in executions
    ]
    print(f"\n{'part':<28} {'clock s':>8} {'processor s':>12}  result")
    for cpu_seconds, execution in sorted(rows, key=lambda row: -row[0]):
        step_seconds = execution.ended_at - execution.started_at
        result = "FAILED" if execution.status else "passed"
        print(f"{execution.step.name:<28} {step_seconds:>8.0f} {cpu_seconds:>12.0f}  {result}")
    counted_seconds = sum(cpu_seconds for cpu_seconds, _row in rows)
    print(f"{'container engine and others':<28} {'':>8} {machine_cpu_seconds - counted_seconds:>12.0f}")
    print(f"{'total':<28} {elapsed_seconds:>8.0f} {machine_cpu_seconds:>12.0f}\n")


def find_clean_tree() -> str:
    """Return the hash of the tree that is checked out, or an empty text if files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

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
    LOG_DIRECTORY.mkdir(parents=True, exist_ok=True)
    scenario = os.environ.get("SCENARIO", "")
    all_selected = not scenario and set(arguments or PARTS) == set(PARTS)
    tree, started_at, machine_cpu_before, labs = find_clean_tree(), time.monotonic(), machine_seconds(), LabUsage()
    steps = plan_steps(arguments or PARTS, scenario.split() or find_scenarios(ROOT))
    executions = run_steps(steps, int(os.environ.get("JOBS") or (os.cpu_count() or 1) + 2), labs)
    show_table(executions, labs, time.monotonic() - started_at, machine_seconds() - machine_cpu_before)
    for execution in executions:
        execution.group.close()
    failed_executions = [execution for execution in executions if execution.status != 0]
    for execution in failed_executions:
        show_reasons(execution)
    if all_selected and not failed_executions and tree and find_clean_tree() == tree:
        PASSED_TREE.write_text(f"{tree}\n", encoding="ascii")
    print(f"{len(executions) - len(failed_executions)} passed, {len(failed_executions)} failed")
    return 1 if failed_executions else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Leave through the handlers that end the commands."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main(sys.argv[1:]))
