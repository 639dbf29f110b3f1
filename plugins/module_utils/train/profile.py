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

import inspect
import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import (
    gpumesh_frameworks,
    gpumesh_profile,
    gpumesh_run,
    gpumesh_track,
)

_FORM = re.compile(r"(torch|nsys)(?::([0-9]{1,6}))?")
#: The default amount, in steps or seconds, and the maximum: a trace may have 10 MB per step.
_DEFAULT = {"torch": 5, "nsys": 10}
_MOST = {"torch": 100, "nsys": 600}
_UNIT = {"torch": "steps", "nsys": "seconds"}
#: Seconds after the start of a rank at which Nsight Systems starts recording: programs load libraries and data first.
DELAY = 30
NSYS = "nsys"
#: `nsys profile --duration` would end before the program does, or end it, so it is started and stopped explicitly.
_SCRIPT = """
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
_FILES = ("rank-*.json", "rank-*.nsys-rep", "rank-*.qdstrm")
#: The message if they are missing.
INSTALL = "Install the package nsight-systems from Debian's non-free section on every node, or use --profile torch."


class Profile(NamedTuple):
    """A requested profile. ``kind``: torch or nsys; ``amount``: steps or seconds."""

    kind: str
    amount: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.amount}"


def parse(text: str) -> Profile:
    """Parse a requested profile. Raises InputError."""
    found = _FORM.fullmatch(text)
    if not found:
        raise InputError(f"Invalid profile '{text}'.", "Give torch, torch:STEPS, nsys or nsys:SECONDS.")
    kind = found[1]
    amount = int(found[2] or _DEFAULT[kind])
    if not 1 <= amount <= _MOST[kind]:
        raise InputError(
            f"A profile of {amount} {_UNIT[kind]} cannot be recorded.", f"Give 1 to {_MOST[kind]} {_UNIT[kind]}."
        )
    return Profile(kind, amount)


def directory(run: str, attempt: int) -> str:
    """The directory of an attempt's profile. ``run``: the directory of the run."""
    return f"{run}/profile/{attempt:03}"


def complete(folder: Path, ranks: int) -> bool:
    """Whether there are profiles of all ranks, so that they need not be recorded again."""
    return sum(len(list(folder.glob(pattern))) for pattern in _FILES) >= ranks > 0


def modules() -> Dict[str, str]:
    """The modules that a Python program of a rank can import, by file name."""
    return {f"{name}.py": inspect.getsource(one) for name, one in _MODULES.items()}


_MODULES = {
    "gpumesh_run": gpumesh_run,
    "gpumesh_profile": gpumesh_profile,
    "gpumesh_track": gpumesh_track,
    "gpumesh_frameworks": gpumesh_frameworks,
}


def needed(profile: str) -> List[str]:
    """The commands that a node must have for a profile."""
    return [NSYS] if profile and parse(profile).kind == NSYS else []


def variables(profile: str, folder: str, nodes: Sequence[str]) -> Dict[str, str]:
    """The environment variables of a rank; empty without a profile. ``nodes``: those whose ranks are recorded."""
    if not profile:
        return {}
    return {
        "GPUMESH_PROFILE": str(parse(profile)),
        "GPUMESH_PROFILE_DIR": folder,
        "GPUMESH_PROFILE_NODES": ",".join(nodes),
    }


def command(profile: str, argv: Sequence[str], folder: str, rank: int) -> List[str]:
    """The command of a rank. Nsight Systems starts it, and leaves it running after the recording."""
    if not needed(profile):
        return list(argv)
    target = f"{folder}/rank-{rank}"
    return ["/bin/sh", "-c", _SCRIPT, "gpumesh-profile", target, str(DELAY), str(parse(profile).amount), *argv]
