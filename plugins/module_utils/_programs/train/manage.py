# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of `gpumesh-train` for existing runs."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import print_error, print_line, write_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import logs, runs, show, store
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import ENDED_STATES, TrainingRun
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.paths import PROGRAM_NAME
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory

USAGE_TEXT = """gpumesh-train --nodes N --name NAME [options] [--sbatch OPTION...] -- COMMAND [ARGUMENT...]
       gpumesh-train list | show NAME | attach NAME | logs NAME [--rank N|all] [--follow]
       gpumesh-train cancel NAME | resume NAME [--again] [-- COMMAND...] | delete NAME --yes"""
#: Seconds between two queries of the run that is shown.
_POLL_INTERVAL = 2.0
#: Seconds between two lines about an unchanged run, if lines are not redrawn.
_PRINT_INTERVAL = 30.0


class RunCommand(NamedTuple):
    """A command for an existing run. ``new_command``: the arguments after ``--``."""

    host: runs.SubmitHost
    run_directory: RunDirectory
    options: argparse.Namespace
    new_command: Sequence[str]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser for the options of the commands for existing runs."""
    argument_parser = argparse.ArgumentParser(PROGRAM_NAME, USAGE_TEXT)
    argument_parser.add_argument("command", choices=COMMAND_NAMES)
    argument_parser.add_argument("name", nargs="?", default="", help="name of the run")
    argument_parser.add_argument("--run-dir", default="", help="directory that contains the runs")
    argument_parser.add_argument(
        "--rank", type=_parse_rank, default=0, metavar="N|all", help="logs: the rank (default: 0), or all"
    )
    argument_parser.add_argument("--attempt", type=int, default=0, help="logs: the attempt (default: the last one)")
    argument_parser.add_argument(
        "--follow", "-f", action="store_true", help="logs: follow the output until the run has ended"
    )
    argument_parser.add_argument("--detach", action="store_true", help="resume: return as soon as the run is submitted")
    argument_parser.add_argument("--again", action="store_true", help="resume: also a run that has finished")
    argument_parser.add_argument(
        "--yes", action="store_true", help="delete: delete the run with its checkpoints, without asking"
    )
    return argument_parser


def _parse_rank(text: str) -> Optional[int]:
    """Parse a rank; None for all ranks."""
    return None if text == "all" else int(text)


def main(
    host: runs.SubmitHost, find_base: Callable[[str], str], arguments: Sequence[str], new_command: Sequence[str]
) -> int:
    """Perform a command. ``find_base`` returns the directory of the runs for a ``--run-dir``. Raises GpumeshError."""
    argument_parser = build_parser()
    options = argument_parser.parse_args(arguments)
    if new_command and options.command != "resume":
        argument_parser.error(f"{options.command} takes no command after '--'")
    if options.command == "list":
        return _list_runs(host, find_base(options.run_dir))
    if not options.name:
        argument_parser.error(f"give the name of a run: {PROGRAM_NAME} {options.command} NAME")
    return _RUN_COMMANDS[options.command](
        RunCommand(host, runs.find_run(find_base(options.run_dir), options.name), options, new_command)
    )


def _list_runs(host: runs.SubmitHost, base_directory: str) -> int:
    run_names = store.run_names(base_directory)
    if not run_names:
        # This goes to standard error, since programs read a line for each run on standard output.
        print_error(f"There are no runs in {base_directory}.")
    for run_name in run_names:
        try:
            status_line = show.format_line(*_read_run(host, runs.find_run(base_directory, run_name)))
        except (HostStateError, InputError) as failure:
            # The remaining runs are still shown.
            status_line = f"{run_name}: {failure.message}"
        print_line(" ".join(status_line.split("\n")))
    return 0


def _read_run(host: runs.SubmitHost, run_directory: RunDirectory) -> Tuple[TrainingRun, float, str]:
    run, waiting_reason = runs.inspect_run(host, run_directory)
    return run, time.time(), waiting_reason


def _show_run(run_command: RunCommand) -> int:
    print_line(
        show.format_details(
            run_command.run_directory.read_request(), *_read_run(run_command.host, run_command.run_directory)
        )
    )
    return 0


def _attach_run(run_command: RunCommand) -> int:
    return follow_run(
        run_command.host,
        run_command.run_directory,
        runs.inspect_run(run_command.host, run_command.run_directory)[0],
        run_command.options.detach,
    )


def _show_logs(run_command: RunCommand) -> int:
    if run_command.options.follow:
        return _follow_logs(run_command)
    logs.copy_logs(run_command.run_directory, run_command.options.rank, run_command.options.attempt, write_text)
    return 0


def _cancel_run(run_command: RunCommand) -> int:
    print_line(show.format_line(runs.cancel_run(run_command.host, run_command.run_directory), time.time()))
    return 0


def _resume_run(run_command: RunCommand) -> int:
    run, was_submitted = runs.resume_run(
        run_command.host, run_command.run_directory, run_command.options.again, run_command.new_command
    )
    if run.state == "finished" and not was_submitted:
        print_error(f"The run has finished. To run its command once more: {PROGRAM_NAME} resume {run.name} --again")
    return follow_run(run_command.host, run_command.run_directory, run, run_command.options.detach)


def _delete_run(run_command: RunCommand) -> int:
    run_directory, run_name = run_command.run_directory, run_command.run_directory.path.name
    remedy = f"To delete all of it: {PROGRAM_NAME} delete {run_name} --yes"
    try:
        if not run_command.options.yes:
            status_line = show.format_line(run_directory.read(), time.time())
            raise InputError(
                f"{status_line}: {run_directory.path} has {run_directory.total_size() / 1e9:.1f} GB, checkpoints included.",
                remedy,
            )
        runs.delete_run(run_command.host, run_directory)
    except OSError as failure:
        raise HostStateError(
            f"{failure.filename or run_directory.path} cannot be deleted: {failure.strerror}.", remedy
        ) from failure
    print_line(f"{run_name}: deleted")
    return 0


_RUN_COMMANDS: Dict[str, Callable[[RunCommand], int]] = {
    "show": _show_run,
    "attach": _attach_run,
    "logs": _show_logs,
    "cancel": _cancel_run,
    "resume": _resume_run,
    "delete": _delete_run,
}
#: The commands for existing runs.
COMMAND_NAMES = ("list", *_RUN_COMMANDS)


def _follow_logs(run_command: RunCommand) -> int:
    """Show the output of the last attempt and of the following ones, until the run has ended."""
    log_follower, shown_attempt = logs.LogFollower(run_command.run_directory, run_command.options.rank, write_text), 0
    try:
        while True:
            run = runs.poll_run(run_command.host, run_command.run_directory)[0]
            has_ended, last_attempt = run.state in ENDED_STATES, len(run.attempts)
            for attempt_number in range(shown_attempt or max(last_attempt, 1), last_attempt + 1):
                if attempt_number != shown_attempt:
                    print_error(f"--- attempt {attempt_number}")
                log_follower.copy_new(attempt_number, has_ended or attempt_number < last_attempt)
                shown_attempt = attempt_number
            sys.stdout.flush()
            if has_ended:
                return 0 if run.state == "finished" else 1
            time.sleep(_POLL_INTERVAL)
    except KeyboardInterrupt:
        return 0


def follow_run(host: runs.SubmitHost, run_directory: RunDirectory, run: TrainingRun, detach: bool) -> int:
    """Show the run until it has ended. Ctrl-C stops the display, and not the run."""
    if detach:
        print_line(show.format_line(run, time.time()))
        return 0
    progress_line = ProgressLine()
    try:
        while True:
            run, waiting_reason = runs.poll_run(host, run_directory)
            progress_line.show(
                show.format_line(run, time.time(), waiting_reason),
                f"{run.state} {run.job} {len(run.attempts)} {waiting_reason}",
            )
            if run.state in ENDED_STATES:
                write_text("\n" if sys.stdout.isatty() else "")
                return 0 if run.state == "finished" else 1
            time.sleep(_POLL_INTERVAL)
    except KeyboardInterrupt:
        print_line(f"\nThe run continues. To end it: {PROGRAM_NAME} cancel {run.name}")
        return 0


class ProgressLine:
    """Show progress in one line that is redrawn on a terminal, otherwise in a line for each event and now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._shown_state = ""
        self._printed_at = 0.0

    def show(self, status_text: str, run_state: str) -> None:
        """Show a text. ``run_state``: a new line is printed when it changes."""
        now = time.monotonic()
        if self._is_terminal:
            write_text(status_text, "\r\x1b[K")
        elif run_state != self._shown_state or now - self._printed_at > _PRINT_INTERVAL:
            self._shown_state, self._printed_at = run_state, now
            print_line(status_text)
        sys.stdout.flush()
