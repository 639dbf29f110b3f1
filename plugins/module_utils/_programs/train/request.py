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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json, printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.time_limit import parse_minutes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.version import VERSION
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import profile
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    RunRequest,
    from_known_fields,
)

#: A name is used for a directory, for a job, and as a word of a command line.
_NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
#: Slurm's formats of --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on.
_TIME_PATTERN = re.compile(r"\d+(?:-\d{1,2}(?::\d{1,2}){0,2}|(?::\d{1,2}){0,2})|UNLIMITED|INFINITE", re.IGNORECASE)
#: Options of sbatch that would override decisions of `gpumesh-train`.
_RESERVED_OPTIONS = (
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
_SHARING_OPTIONS = ("--cpus-per-gpu", "--cpus-per-task", "--exclusive", "--oversubscribe")
#: Signals by which programs are asked for a checkpoint. SIGUSR2 is for the stacks of those that hang.
WARN_SIGNALS = ("SIGUSR1", "SIGTERM", "SIGINT", "SIGHUP")
#: A job ends with its batch script. ``wait`` returns early when a signal is trapped. A supervisor that is repeatedly
#: killed within a minute is not restarted. The supervisor gets the ID of the daemon that runs the script, and the
#: signal that killed its predecessor.
_BATCH_SCRIPT = """#!/bin/sh
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
#: Seconds that Slurm's warning comes earlier than the grace time for a checkpoint requires.
_CHECKPOINT_RESERVE = 30


def check_name(name: str) -> None:
    """Raise InputError for an invalid name of a run."""
    if not name:
        raise InputError("The run has no name.", "Set --name, or train_name in Ansible.")
    if not _NAME_PATTERN.fullmatch(name):
        raise InputError(
            f"Invalid run name '{name}'.",
            "Use up to 64 letters, digits, '.', '_' and '-', beginning and ending with a letter or a digit.",
        )


def validate(request: RunRequest) -> RunRequest:
    """Return the request. Raises InputError if it is invalid."""
    check_name(request.name)
    if not request.command or not request.command[0]:
        raise InputError(
            "There is no command to run.", "Give it after '--', for example: -- python3 train.py, or in train_command."
        )
    _check_numbers(request)
    if request.time and not _TIME_PATTERN.fullmatch(format_slurm_time(request.time)):
        raise InputError(
            f"Invalid --time '{request.time}'.", "Use Slurm's format, for example 12:00:00 or 2-00, or 90m, 12h or 2d."
        )
    for path_option, path in (("--code", request.code), ("--stage", request.stage)):
        if path and not path.startswith("/"):
            raise InputError(f"Invalid {path_option} '{path}'.", "Give an absolute path.")
    _check_options(request.sbatch)
    if request.warn_signal not in WARN_SIGNALS:
        raise InputError(f"Invalid --warn-signal '{request.warn_signal}'.", f"Give one of {', '.join(WARN_SIGNALS)}.")
    if request.profile:
        profile.parse_profile(request.profile)
    return request


def option_name(field_name: str) -> str:
    """The option of the program that sets this field."""
    return "--ranks-per-node" if field_name == "ranks" else f"--{field_name.replace('_', '-')}"


def _check_numbers(request: RunRequest) -> None:
    minimum_by_field = {"nodes": 1, "min_nodes": 1, "spare": 0, "gpus_per_node": 0, "ranks": 0, "max_restarts": 0}
    for field_name, minimum in minimum_by_field.items():
        if getattr(request, field_name) < minimum:
            raise InputError(
                f"Invalid {option_name(field_name)} {getattr(request, field_name)}.", f"Give {minimum} or more."
            )
    if request.min_nodes > request.nodes:
        raise InputError(
            f"--min-nodes {request.min_nodes} is more than --nodes {request.nodes}.", "Give at most that many."
        )
    if not all(math.isfinite(duration) and duration > 0 for duration in (request.hang_timeout, request.grace)):
        raise InputError(
            "A time limit must be a number of more than 0 seconds.", "Give --hang-timeout and --grace in seconds."
        )


def refuse_short_limit(request: RunRequest) -> None:
    """Raise InputError for jobs so short that they would only request a checkpoint and submit the next job."""
    # Slurm rounds to whole minutes.
    limit_seconds = -(-(parse_slurm_time(format_slurm_time(request.time)) or 0) // 60) * 60
    if 0 < limit_seconds <= request.grace + _CHECKPOINT_RESERVE:
        raise InputError(
            f"--time {request.time} leaves no time besides the {request.grace:g} s for a checkpoint.",
            f"Give more than {request.grace + _CHECKPOINT_RESERVE:g} s, or a smaller --grace. Slurm reads 90 as 90 minutes.",
        )


def format_slurm_time(time_text: str) -> str:
    """Return a time as Slurm reads it: one with a unit becomes minutes, any other is unchanged."""
    minutes = parse_minutes(time_text)
    return time_text if minutes is None else str(minutes)


def parse_slurm_time(time_text: str) -> Optional[int]:
    """Return the seconds of a time in Slurm's format; None for other text, such as UNLIMITED."""
    if not time_text[:1].isdigit() or not _TIME_PATTERN.fullmatch(time_text):
        return None
    days, dash, clock_text = time_text.rpartition("-")
    clock_numbers = [int(number_text) for number_text in clock_text.split(":")]
    # The first of fewer than three numbers without days is that of the minutes.
    hours, minutes, remaining_seconds = (
        [*clock_numbers, 0, 0][:3] if dash or len(clock_numbers) == 3 else [0, *clock_numbers, 0][:3]
    )
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + remaining_seconds


def _check_options(sbatch_options: Sequence[str]) -> None:
    for sbatch_option in sbatch_options:
        # sbatch accepts abbreviations of options.
        option_prefix = sbatch_option.partition("=")[0]
        if not re.match(r"--[a-z]", sbatch_option) or any(
            reserved_option.startswith(option_prefix) for reserved_option in _RESERVED_OPTIONS
        ):
            raise InputError(
                f"'{sbatch_option}' cannot be passed to sbatch.",
                "Write options as --option=value. Set name, nodes and time with the options of gpumesh-train.",
            )


def format_request(request: RunRequest) -> str:
    """The content of request.json."""
    request_fields = {
        field_name: list(field) if isinstance(field, tuple) else field
        for field_name, field in request._asdict().items()
    }
    return json.dumps({**request_fields, "version": VERSION}, indent=2) + "\n"


def parse_request(request_text: str) -> RunRequest:
    """Parse the content of request.json. Raises InputError."""
    try:
        request_fields: Dict[str, Any] = parse_json(request_text)
        sequence_fields = {field_name: tuple(request_fields[field_name]) for field_name in ("command", "sbatch")}
        return validate(from_known_fields(RunRequest, {**request_fields, **sequence_fields}))
    except (AttributeError, KeyError, TypeError, ValueError) as failure:
        raise InputError(
            f"The request of the run cannot be read: {failure}.", "Start the run under another name."
        ) from failure


def sbatch_arguments(request: RunRequest, excluded_nodes: Sequence[str] = (), allow_fewer: bool = False) -> List[str]:
    """The options of sbatch. The script is passed on standard input.

    ``allow_fewer``: the job may have as few nodes as the run can continue with. ``--no-kill``: it survives the loss of
    nodes, including that of its script. ``--requeue``: if all of them fail at the same time, Slurm starts it again.
    ``--signal`` is for a preemption with a grace time; the supervisor watches the time limit itself.
    """
    max_nodes = request.nodes + request.spare
    node_range = f"{request.min_nodes}-{max_nodes}" if allow_fewer and request.min_nodes < max_nodes else str(max_nodes)
    sbatch_options = [
        "--parsable",
        f"--job-name={request.name}",
        f"--nodes={node_range}",
        "--ntasks-per-node=1",
        "--no-kill",
        "--requeue",
        # Slurm fails a job whose output it cannot open. The supervisor waits for the volume, and opens its log itself.
        "--output=/dev/null",
        "--chdir=/",
        f"--signal=B:USR1@{int(request.grace) + _CHECKPOINT_RESERVE}",
    ]
    if not any(option.partition("=")[0] in _SHARING_OPTIONS for option in request.sbatch):
        sbatch_options.append("--exclusive")
    if request.gpus_per_node:
        sbatch_options.append(f"--gpus-per-node={request.gpus_per_node}")
    if request.time:
        sbatch_options.append(f"--time={format_slurm_time(request.time)}")
    if request.partition:
        sbatch_options.append(f"--partition={request.partition}")
    sbatch_options += request.sbatch
    if excluded_nodes:
        # The last of several such options takes effect.
        user_exclusions = [option.partition("=")[2] for option in request.sbatch if option.startswith("--exclude=")]
        sbatch_options.append(f"--exclude={','.join([*user_exclusions, *excluded_nodes])}")
    return sbatch_options


def format_batch_script(request: RunRequest, program_path: str, token: str) -> str:
    """Return a script that forwards Slurm's signals to the supervisor, and restarts it if another signal kills it."""
    return _BATCH_SCRIPT.format(command=f"{shlex.quote(program_path)} supervise {shlex.quote(request.folder)} {token}")


def format_dry_run(request: RunRequest, program_path: str) -> str:
    """Return the script with the options of sbatch in it, as printed by ``--dry-run``."""
    shebang_line, script_body = format_batch_script(request, program_path, "TOKEN").split("\n", 1)
    directives = "".join(
        f"#SBATCH {shlex.quote(option)}\n" for option in sbatch_arguments(request) if option != "--parsable"
    )
    start_comment = f"# The command starts in {' '.join(printable(request.directory).splitlines())}\n"
    return f"{shebang_line}\n{directives}{start_comment}{script_body}"
