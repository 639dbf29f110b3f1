# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program that reports its progress as it is, with a pause after each step, and do what a fault would do.

    launched.py SECONDS PROGRAM [ARGUMENT...]

The file `fault` in the directory of the run orders it: {"kind": "error", "step": 45, "rank": 1}. Instead of a rank, it
may name a node; with an attempt, it is done only in that one.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import gpumesh_run

ORDER = Path(os.environ["GPUMESH_RUN_DIR"], "fault")
SELF = {
    "rank": int(os.environ["RANK"]),
    "node": os.uname().nodename,
    "attempt": int(os.environ["GPUMESH_ATTEMPT"]),
}
PAUSE = float(sys.argv[1])
#: The bytes of a part, and the number of parts that exceeds the memory of the job.
PART, PARTS = 1 << 26, 48
report = gpumesh_run.progress


def ordered(step: int) -> str:
    """Return the kind of fault that this rank has to produce at this step; empty for none."""
    if not ORDER.exists():
        return ""
    order: dict[str, Any] = json.loads(ORDER.read_text(encoding="ascii"))
    mine = all(order.get(key) in (None, value) for key, value in SELF.items())
    return str(order["kind"]) if mine and step >= order["step"] else ""


def progress(step: int, steps: int | None = None, loss: float | None = None, checkpoint: int | None = None) -> None:
    """Take the place of gpumesh_run.progress."""
    kind = ordered(step)
    if kind == "error":
        raise IndexError("sample 7 is out of range")
    if kind == "ecc":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if kind == "memory":
        # Nothing would be allocated for zeros, so the parts are of ones.
        print(len([b"\1" * PART for _part in range(PARTS)]), "parts are allocated, and nothing has happened")
    report(step, steps, float("nan") if kind == "nan" else loss, checkpoint)
    time.sleep(PAUSE)


def main() -> None:
    """Become the program."""
    del sys.argv[:2]
    program = sys.argv[0]
    gpumesh_run.progress = progress
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
