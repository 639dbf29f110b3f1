# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of `gpumesh-train` for existing runs."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.program import complain, say, write
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import logs, runs, show, store
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.paths import NAME
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import ENDED, Run
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.store import Folder

USAGE = """gpumesh-train --nodes N --name NAME [options] [--sbatch OPTION...] -- COMMAND [ARGUMENT...]
       gpumesh-train list | show NAME | attach NAME | logs NAME [--rank N|all] [--follow]
       gpumesh-train cancel NAME | resume NAME [--again] [-- COMMAND...] | delete NAME --yes"""
#: Seconds between two queries of a run that is followed.
_FOLLOW = 2.0
#: Seconds between two lines of a running run, if they are not redrawn.
_SELDOM = 30.0


class Order(NamedTuple):
    """A command about a run. ``given``: its options; ``command``: the words after ``--``."""

    host: runs.Host
    folder: Folder
    given: argparse.Namespace
    command: Sequence[str]


def parser() -> argparse.ArgumentParser:
    """The options of the commands for existing runs."""
    made = argparse.ArgumentParser(NAME, USAGE)
    made.add_argument("command", choices=COMMANDS)
    made.add_argument("name", nargs="?", default="", help="name of the run")
    made.add_argument("--run-dir", default="", help="directory that contains the runs")
    made.add_argument("--rank", type=_rank, default=0, metavar="N|all", help="logs: the rank (default: 0), or all")
    made.add_argument("--attempt", type=int, default=0, help="logs: the attempt (default: the last one)")
    made.add_argument("--follow", "-f", action="store_true", help="logs: show what is added until the run has ended")
    made.add_argument("--detach", action="store_true", help="resume: return as soon as the run is submitted")
    made.add_argument("--again", action="store_true", help="resume: also a run that has finished")
    made.add_argument("--yes", action="store_true", help="delete: with its checkpoints, without a question")
    return made


def _rank(text: str) -> Optional[int]:
    """A rank; None for all."""
    return None if text == "all" else int(text)


def main(host: runs.Host, base: Callable[[str], str], words: Sequence[str], command: Sequence[str]) -> int:
    """Perform a command. ``base``: the directory of the runs for a ``--run-dir``. Raises GpumeshError."""
    made = parser()
    given = made.parse_args(words)
    if command and given.command != "resume":
        made.error(f"{given.command} takes no command after '--'")
    if given.command == "list":
        return _list(host, base(given.run_dir))
    if not given.name:
        made.error(f"give the name of a run: {NAME} {given.command} NAME")
    return _ORDERS[given.command](Order(host, runs.find(base(given.run_dir), given.name), given, command))


def _list(host: runs.Host, base: str) -> int:
    names = store.names(base)
    if not names:
        # Not for programs, which read a line for each run.
        complain(f"There are no runs in {base}.")
    for name in names:
        try:
            text = show.line(*_seen(host, runs.find(base, name)))
        except (HostStateError, InputError) as failure:
            # The remaining runs are still shown.
            text = f"{name}: {failure.message}"
        say(" ".join(text.split("\n")))
    return 0


def _seen(host: runs.Host, folder: Folder) -> Tuple[Run, float, str]:
    run, waits = runs.look(host, folder)
    return run, time.time(), waits


def _show(order: Order) -> int:
    say(show.full(order.folder.request(), *_seen(order.host, order.folder)))
    return 0


def _attach(order: Order) -> int:
    return follow(order.host, order.folder, runs.look(order.host, order.folder)[0], order.given.detach)


def _logs(order: Order) -> int:
    if order.given.follow:
        return _follow_logs(order)
    logs.copy(order.folder, order.given.rank, order.given.attempt, write)
    return 0


def _cancel(order: Order) -> int:
    say(show.line(runs.cancel(order.host, order.folder), time.time()))
    return 0


def _resume(order: Order) -> int:
    run, submitted = runs.resume(order.host, order.folder, order.given.again, order.command)
    if run.state == "finished" and not submitted:
        complain(f"The run has finished. To run its command once more: {NAME} resume {run.name} --again")
    return follow(order.host, order.folder, run, order.given.detach)


def _delete(order: Order) -> int:
    folder, name = order.folder, order.folder.path.name
    remedy = f"To delete all of it: {NAME} delete {name} --yes"
    try:
        if not order.given.yes:
            state = show.line(folder.read(), time.time())
            raise InputError(f"{state}: {folder.path} has {folder.size() / 1e9:.1f} GB, checkpoints included.", remedy)
        runs.delete(order.host, folder)
    except OSError as failure:
        raise HostStateError(
            f"{failure.filename or folder.path} cannot be deleted: {failure.strerror}.", remedy
        ) from failure
    say(f"{name}: deleted")
    return 0


_ORDERS: Dict[str, Callable[[Order], int]] = {
    "show": _show,
    "attach": _attach,
    "logs": _logs,
    "cancel": _cancel,
    "resume": _resume,
    "delete": _delete,
}
#: The commands for existing runs.
COMMANDS = ("list", *_ORDERS)


def _follow_logs(order: Order) -> int:
    """Show the output of the last attempt and of those that follow it, until the run has ended."""
    follower, shown = logs.Follower(order.folder, order.given.rank, write), 0
    try:
        while True:
            run = runs.follow(order.host, order.folder)[0]
            ended, last = run.state in ENDED, len(run.attempts)
            for number in range(shown or max(last, 1), last + 1):
                if number != shown:
                    complain(f"--- attempt {number}")
                follower.copy(number, ended or number < last)
                shown = number
            sys.stdout.flush()
            if ended:
                return 0 if run.state == "finished" else 1
            time.sleep(_FOLLOW)
    except KeyboardInterrupt:
        return 0


def follow(host: runs.Host, folder: Folder, run: Run, detach: bool) -> int:
    """Show the run until it has ended. Stopping to watch does not end it."""
    if detach:
        say(show.line(run, time.time()))
        return 0
    screen = Screen()
    try:
        while True:
            run, waits = runs.follow(host, folder)
            screen.show(show.line(run, time.time(), waits), f"{run.state} {run.job} {len(run.attempts)} {waits}")
            if run.state in ENDED:
                write("\n" if sys.stdout.isatty() else "")
                return 0 if run.state == "finished" else 1
            time.sleep(_FOLLOW)
    except KeyboardInterrupt:
        say(f"\nThe run continues. To end it: {NAME} cancel {run.name}")
        return 0


class Screen:
    """On a terminal, one line that is redrawn; otherwise a line for each event, and one from time to time."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._state = ""
        self._said = 0.0

    def show(self, text: str, state: str) -> None:
        """Show a text. ``state``: a new line is started when it changes."""
        now = time.monotonic()
        if self._terminal:
            write(text, "\r\x1b[K")
        elif state != self._state or now - self._said > _SELDOM:
            self._state, self._said = state, now
            say(text)
        sys.stdout.flush()
