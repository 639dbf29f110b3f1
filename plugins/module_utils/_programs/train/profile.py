# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The profiles that --profile and GPUMESH_PROFILE request, and how a rank gets one.

`torch:5`: PyTorch's profiler records 5 steps of each rank. The program needs one line for this, gpumesh_run.progress()
after each step. `nsys:10`: Nsight Systems records 10 seconds of each rank, without a change to the program.

The profile of an attempt is in its own directory, on the shared volume:

    rank-0.trace.json.gz    what the rank did, in Chrome's trace format
    rank-0.json             the recorded steps, the clock of the rank and its link; written last
    key                     with which the ranks prove to each other that they belong to the run; only for their user
    rank-0.nsys-rep         what Nsight Systems recorded; rank-0.qdstrm if it lacks some of its libraries
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

_PROFILE_PATTERN = re.compile(r"(torch|nsys)(?::([0-9]{1,6}))?")
#: The default amount, in steps or seconds, and the maximum: a trace may have 10 MB per step.
_DEFAULT_AMOUNT = {"torch": 5, "nsys": 10}
_MAX_AMOUNT = {"torch": 100, "nsys": 600}
_AMOUNT_UNIT = {"torch": "steps", "nsys": "seconds"}
#: Seconds after the start of a rank at which Nsight Systems starts recording: programs load libraries and data first.
NSYS_DELAY = 30
NSYS_COMMAND = "nsys"
#: `nsys profile --duration` would end before the program does, or end it, so it is started and stopped explicitly.
_NSYS_SCRIPT = """
session=gpumesh$$ target=$1 delay=$2 seconds=$3
shift 3
(
    sleep "$delay" &&
    nsys start --session="$session" --sample=none --cpuctxsw=none --force-overwrite=true --output="$target" &&
    sleep "$seconds" &&
    nsys stop --session="$session"
) &
exec nsys launch --session-new="$session" --trace=cuda,nvtx,osrt --wait=primary "$@"
"""
#: The files of a rank that show that its profile is complete, of either kind.
_COMPLETE_PROFILE_FILES = ("rank-*.json", "rank-*.nsys-rep", "rank-*.qdstrm")
#: The message if they are missing.
NSYS_REMEDY = "Install the package nsight-systems from Debian's non-free section on every node, or use --profile torch."


class Profile(NamedTuple):
    """A requested profile. ``kind``: torch or nsys; ``amount``: steps or seconds."""

    kind: str
    amount: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.amount}"


def parse_profile(profile_text: str) -> Profile:
    """Parse a requested profile. Raises InputError."""
    form_match = _PROFILE_PATTERN.fullmatch(profile_text)
    if not form_match:
        raise InputError(f"Invalid profile '{profile_text}'.", "Give torch, torch:STEPS, nsys or nsys:SECONDS.")
    kind = form_match[1]
    amount = int(form_match[2] or _DEFAULT_AMOUNT[kind])
    if not 1 <= amount <= _MAX_AMOUNT[kind]:
        raise InputError(
            f"A profile of {amount} {_AMOUNT_UNIT[kind]} cannot be recorded.",
            f"Give 1 to {_MAX_AMOUNT[kind]} {_AMOUNT_UNIT[kind]}.",
        )
    return Profile(kind, amount)


def profile_directory(run_dir: str, attempt: int) -> str:
    """The directory of an attempt's profile. ``run_dir``: the directory of the run."""
    return f"{run_dir}/profile/{attempt:03}"


def is_complete(profile_dir: Path, rank_count: int) -> bool:
    """Whether there are profiles of all ranks, so that they need not be recorded again."""
    return sum(len(list(profile_dir.glob(pattern))) for pattern in _COMPLETE_PROFILE_FILES) >= rank_count > 0


def required_commands(requested_profile: str) -> List[str]:
    """The commands that a node must have for a profile."""
    return [NSYS_COMMAND] if requested_profile and parse_profile(requested_profile).kind == NSYS_COMMAND else []


def rank_variables(requested_profile: str, profile_dir: str, profiled_nodes: Sequence[str]) -> Dict[str, str]:
    """Return the environment variables of a rank for a profile of these nodes; empty without a profile."""
    if not requested_profile:
        return {}
    return {
        "GPUMESH_PROFILE": str(parse_profile(requested_profile)),
        "GPUMESH_PROFILE_DIR": profile_dir,
        "GPUMESH_PROFILE_NODES": ",".join(profiled_nodes),
    }


def rank_command(requested_profile: str, argv: Sequence[str], profile_dir: str, rank: int) -> List[str]:
    """The command of a rank. Nsight Systems starts it, and leaves it running after the recording."""
    if not required_commands(requested_profile):
        return list(argv)
    output_path = f"{profile_dir}/rank-{rank}"
    return [
        "/bin/sh",
        "-c",
        _NSYS_SCRIPT,
        "gpumesh-profile",
        output_path,
        str(NSYS_DELAY),
        str(parse_profile(requested_profile).amount),
        *argv,
    ]
