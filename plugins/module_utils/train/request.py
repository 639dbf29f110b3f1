# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of a run, and the resulting request to Slurm."""

from __future__ import annotations

import json
import math
import re
import shlex
from typing import Any, Dict, List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json, printable
from ansible_collections.gpumesh.cluster.plugins.module_utils.time_limit import unit_minutes
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import profile
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Request, known
from ansible_collections.gpumesh.cluster.plugins.module_utils.version import VERSION

#: A name is used for a directory, for a job, and as a word of a command line.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
#: In the form of Slurm's --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on.
_TIME = re.compile(r"\d+(?:-\d{1,2}(?::\d{1,2}){0,2}|(?::\d{1,2}){0,2})|UNLIMITED|INFINITE", re.IGNORECASE)
#: Options of sbatch that would override decisions of `gpumesh-train`.
_RESERVED = (
    "--array",
    "--error",
    "--job-name",
    "--no-requeue",
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--open-mode",
    "--output",
    "--parsable",
    "--requeue",
    "--signal",
    "--time",
    "--wrap",
)
#: Options that set the processors of a rank mean that nodes are shared.
_SHARING = ("--cpus-per-gpu", "--cpus-per-task", "--exclusive", "--oversubscribe")
#: Signals by which programs are asked for a checkpoint. SIGUSR2 is for the stacks of those that hang.
WARN_SIGNALS = ("SIGUSR1", "SIGTERM", "SIGINT", "SIGHUP")
#: A job ends with its batch script. ``wait`` returns early when a signal is trapped. A supervisor that is killed again and
#: again, each time within a minute, is not started any more. It gets the ID of the daemon that runs the script, and the
#: signal that has killed the one before it.
_SCRIPT = """#!/bin/sh
trap 'test -z "$pid" || kill -USR1 $pid' USR1
trap 'over=yes; test -z "$pid" || kill -TERM $pid' TERM
pid= over= killed=0 deaths=0
while :; do
    began=$(date +%s)
    {command} $PPID $killed &
    pid=$!
    test -z "$over" || kill -TERM $pid
    wait $pid
    status=$?
    while kill -0 $pid 2>/dev/null; do
        wait $pid
        status=$?
    done
    test -z "$over" && test $status -gt 128 || exit $status
    killed=$((status - 128))
    deaths=$(($(date +%s) - began < 60 ? deaths + 1 : 1))
    test $deaths -lt 5 || exit $status
done
"""
#: Seconds between Slurm's warning and the end of the time that a run has to save a checkpoint.
_RESERVE = 30


def checked(request: Request) -> Request:
    """Return the request. Raises InputError if it is invalid."""
    if not request.name:
        raise InputError("The run has no name.", "Set --name, or train_name in Ansible.")
    if not _NAME.fullmatch(request.name):
        raise InputError(
            f"Invalid run name '{request.name}'.",
            "Use up to 64 letters, digits, '.', '_' and '-', beginning and ending with a letter or a digit.",
        )
    if not request.command or not request.command[0]:
        raise InputError(
            "There is no command to run.", "Give it after '--', for example: -- python3 train.py, or in train_command."
        )
    _check_numbers(request)
    if request.time and not _TIME.fullmatch(slurm_time(request.time)):
        raise InputError(
            f"Invalid --time '{request.time}'.", "Use Slurm's format, for example 12:00:00 or 2-00, or 90m, 12h or 2d."
        )
    for option, path in (("--code", request.code), ("--stage", request.stage)):
        if path and not path.startswith("/"):
            raise InputError(f"Invalid {option} '{path}'.", "Give an absolute path.")
    _check_options(request.sbatch)
    if request.warn_signal not in WARN_SIGNALS:
        raise InputError(f"Invalid --warn-signal '{request.warn_signal}'.", f"Give one of {', '.join(WARN_SIGNALS)}.")
    if request.profile:
        profile.parse(request.profile)
    return request


def option(name: str) -> str:
    """The option of the program that sets this field."""
    return "--ranks-per-node" if name == "ranks" else f"--{name.replace('_', '-')}"


def _check_numbers(request: Request) -> None:
    lowest = {"nodes": 1, "min_nodes": 1, "spare": 0, "gpus_per_node": 0, "ranks": 0, "max_restarts": 0}
    for name, least in lowest.items():
        if getattr(request, name) < least:
            raise InputError(f"Invalid {option(name)} {getattr(request, name)}.", f"Give {least} or more.")
    if request.min_nodes > request.nodes:
        raise InputError(
            f"--min-nodes {request.min_nodes} is more than --nodes {request.nodes}.", "Give at most that many."
        )
    if not all(math.isfinite(limit) and limit > 0 for limit in (request.hang_timeout, request.grace)):
        raise InputError(
            "A time limit must be a number of more than 0 seconds.", "Give --hang-timeout and --grace in seconds."
        )


def refuse_short(request: Request) -> None:
    """Raises InputError for jobs so short that they would only request a checkpoint and submit the next job."""
    # Slurm rounds to whole minutes.
    limit = -(-(seconds(slurm_time(request.time)) or 0) // 60) * 60
    if 0 < limit <= request.grace + _RESERVE:
        raise InputError(
            f"--time {request.time} leaves no time besides the {request.grace:g} s for a checkpoint.",
            f"Give more than {request.grace + _RESERVE:g} s, or a smaller --grace. Slurm reads 90 as 90 minutes.",
        )


def slurm_time(text: str) -> str:
    """A time as Slurm reads it: one with a unit in minutes, any other as it is."""
    minutes = unit_minutes(text)
    return text if minutes is None else str(minutes)


def seconds(text: str) -> Optional[int]:
    """The seconds of a time in Slurm's format; None for text that is none, such as UNLIMITED."""
    if not text[:1].isdigit() or not _TIME.fullmatch(text):
        return None
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    # Without days, the first of fewer than three numbers is that of the minutes.
    hours, minutes, more = [*parts, 0, 0][:3] if dash or len(parts) == 3 else [0, *parts, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + more


def _check_options(options: Sequence[str]) -> None:
    for option in options:
        # sbatch accepts abbreviations of options.
        name = option.partition("=")[0]
        if not re.match(r"--[a-z]", option) or any(reserved.startswith(name) for reserved in _RESERVED):
            raise InputError(
                f"'{option}' cannot be passed to sbatch.",
                "Write options as --option=value. Set name, nodes and time with the options of gpumesh-train.",
            )


def to_text(request: Request) -> str:
    """The content of request.json."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in request._asdict().items()}
    return json.dumps({**values, "version": VERSION}, indent=2) + "\n"


def from_text(text: str) -> Request:
    """The reverse of ``to_text``. Raises InputError."""
    try:
        values: Dict[str, Any] = from_json(text)
        lists = {name: tuple(values[name]) for name in ("command", "sbatch")}
        return checked(known(Request, {**values, **lists}))
    except (AttributeError, KeyError, TypeError, ValueError) as failure:
        raise InputError(
            f"The request of the run cannot be read: {failure}.", "Start the run under another name."
        ) from failure


def submission(request: Request, excluded: Sequence[str] = (), fewer: bool = False) -> List[str]:
    """The options of sbatch. The script is passed on standard input.

    ``fewer``: the job may have as few nodes as the run can continue with. ``--no-kill``: it survives the loss of nodes,
    including that of its script. ``--requeue``: if all of them fail at the same time, Slurm starts it again.
    ``--signal`` is for a preemption with a grace time; the supervisor watches the time limit itself.
    """
    most = request.nodes + request.spare
    nodes = f"{request.min_nodes}-{most}" if fewer and request.min_nodes < most else str(most)
    options = [
        "--parsable",
        f"--job-name={request.name}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        "--no-kill",
        "--requeue",
        # Slurm fails a job whose output it cannot open. The supervisor waits for the volume, and opens its log itself.
        "--output=/dev/null",
        "--chdir=/",
        f"--signal=B:USR1@{int(request.grace) + _RESERVE}",
    ]
    if not any(option.partition("=")[0] in _SHARING for option in request.sbatch):
        options.append("--exclusive")
    if request.gpus_per_node:
        options.append(f"--gpus-per-node={request.gpus_per_node}")
    if request.time:
        options.append(f"--time={slurm_time(request.time)}")
    if request.partition:
        options.append(f"--partition={request.partition}")
    options += request.sbatch
    if excluded:
        # The last of several such options takes effect.
        own = [option.partition("=")[2] for option in request.sbatch if option.startswith("--exclude=")]
        options.append(f"--exclude={','.join([*own, *excluded])}")
    return options


def batch_script(request: Request, program: str, token: str) -> str:
    """The script passes Slurm's signals on to the supervisor, and starts it again if another one kills it."""
    return _SCRIPT.format(command=f"{shlex.quote(program)} supervise {shlex.quote(request.folder)} {token}")


def shown(request: Request, program: str) -> str:
    """The script with the options of sbatch in it, as printed by ``--dry-run``."""
    first, rest = batch_script(request, program, "TOKEN").split("\n", 1)
    options = "".join(f"#SBATCH {shlex.quote(option)}\n" for option in submission(request) if option != "--parsable")
    starts = f"# The command starts in {' '.join(printable(request.directory).splitlines())}\n"
    return f"{first}\n{options}{starts}{rest}"
