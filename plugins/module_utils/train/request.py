# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a command line to a request, and from a request to the batch script that Slurm gets."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any, Dict, List

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Request

#: A name is a folder, a name of a job and a word in a command line.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
#: As Slurm's --time has it: minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on.
_TIME = re.compile(r"\d+(?:-\d{1,2}(?::\d{1,2}){0,2}|(?::\d{1,2}){0,2})|UNLIMITED|INFINITE", re.IGNORECASE)
#: Options of sbatch that would take from `gpumesh-train` what it decides itself.
_RESERVED = (
    "--array",
    "--job-name",
    "--no-requeue",
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--open-mode",
    "--output",
    "--error",
    "--requeue",
    "--signal",
    "--time",
    "--wrap",
)


def checked(request: Request) -> Request:
    """The same request. Raises InputError for what cannot be meant."""
    if not _NAME.fullmatch(request.name):
        raise InputError(
            f"Invalid run name '{request.name}'.",
            "Use up to 64 letters, digits, '.', '_' and '-', beginning and ending with a letter or a digit.",
        )
    if not request.command or not request.command[0]:
        raise InputError("There is no command to run.", "Give it after '--', for example: -- python3 train.py")
    if request.nodes < 1:
        raise InputError(f"Invalid number of nodes: {request.nodes}.", "Give --nodes 1 or more.")
    if not 1 <= request.min_nodes <= request.nodes:
        raise InputError(
            f"--min-nodes {request.min_nodes} does not fit --nodes {request.nodes}.",
            "Give a number from 1 to the number of nodes.",
        )
    for option, value in (
        ("spare", request.spare),
        ("gpus-per-node", request.gpus_per_node),
        ("max-restarts", request.max_restarts),
    ):
        if value < 0:
            raise InputError(f"Invalid --{option}: {value}.", "Give 0 or more.")
    if request.hang_timeout <= 0 or request.grace <= 0:
        raise InputError("A limit of time is not above 0.", "Give --hang-timeout in seconds.")
    if request.time and not _TIME.fullmatch(request.time):
        raise InputError(
            f"Invalid --time '{request.time}'.", "Give it as Slurm does, for example 90, 12:00:00 or 2-00."
        )
    for option in request.sbatch:
        name = option.partition("=")[0]
        if name in _RESERVED or not option.startswith("-"):
            raise InputError(
                f"'{option}' cannot be handed to sbatch.",
                "Give further options in the form --option=value; names, nodes, time and output have options here.",
            )
    return request


def to_text(request: Request) -> str:
    """The content of request.json."""
    return (
        json.dumps(
            {
                name: list(value) if isinstance(value, (list, tuple)) else value
                for name, value in request._asdict().items()
            },
            indent=2,
        )
        + "\n"
    )


def from_text(text: str) -> Request:
    """The reverse of ``to_text``. Raises InputError."""
    try:
        values: Dict[str, Any] = from_json(text)
        return checked(Request(**values))
    except (TypeError, ValueError) as failure:
        raise InputError(
            f"The request of the run cannot be read: {failure}.", "Start the run anew under another name."
        ) from failure


def submission(request: Request, excluded: List[str]) -> List[str]:
    """The options of sbatch. The script comes by standard input.

    ``--no-kill``: the job outlives its nodes. ``--signal``: the script is told ``grace`` seconds before the time is over,
    and before a preemption where the partition grants time for it.
    """
    options = [
        "--parsable",
        f"--job-name={request.name}",
        f"--nodes={request.nodes + request.spare}",
        "--ntasks-per-node=1",
        "--exclusive" if not request.gpus_per_node else f"--gpus-per-node={request.gpus_per_node}",
        "--no-kill",
        "--requeue",
        "--open-mode=append",
        f"--output={request.folder}/supervisor.log",
        f"--signal=B:USR1@{int(request.grace) + 30}",
        f"--chdir={request.directory}",
        f"--comment=gpumesh-train:{request.folder}",
    ]
    if request.time:
        options.append(f"--time={request.time}")
    if request.partition:
        options.append(f"--partition={request.partition}")
    if excluded:
        options.append(f"--exclude={','.join(excluded)}")
    return [*options, *request.sbatch]


def batch_script(request: Request, program: str) -> str:
    """It becomes the supervisor, so that Slurm's signals reach that."""
    return f"#!/bin/sh\nexec {shlex.quote(program)} supervise {shlex.quote(request.folder)}\n"
