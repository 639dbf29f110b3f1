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

ORDER_PATH = Path(os.environ["GPUMESH_RUN_DIR"], "fault")
RANK_IDENTITY = {
    "rank": int(os.environ["RANK"]),
    "node": os.uname().nodename,
    "attempt": int(os.environ["GPUMESH_ATTEMPT"]),
}
STEP_PAUSE = float(sys.argv[1])
#: The bytes of a part, and the number of parts that exceeds the memory of the job.
PART_BYTES, PART_COUNT = 1 << 26, 48
report_progress = gpumesh_run.progress


def read_fault(step: int) -> str:
    """Return the kind of fault that this rank has to produce at this step; empty for none."""
    if not ORDER_PATH.exists():
        return ""
    order: dict[str, Any] = json.loads(ORDER_PATH.read_text(encoding="ascii"))
    applies_here = all(order.get(key) in (None, value) for key, value in RANK_IDENTITY.items())
    return str(order["kind"]) if applies_here and step >= order["step"] else ""


def report_with_fault(
    step: int, steps: int | None = None, loss: float | None = None, checkpoint: int | None = None
) -> None:
    """Take the place of gpumesh_run.progress."""
    fault_kind = read_fault(step)
    if fault_kind == "error":
        raise IndexError("sample 7 is out of range")
    if fault_kind == "ecc":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if fault_kind == "memory":
        # Nothing would be allocated for zeros, so the parts are of ones.
        print(len([b"\1" * PART_BYTES for _part in range(PART_COUNT)]), "parts are allocated, and nothing has happened")
    report_progress(step, steps, float("nan") if fault_kind == "nan" else loss, checkpoint)
    time.sleep(STEP_PAUSE)


def main() -> None:
    """Become the program."""
    del sys.argv[:2]
    program_path = sys.argv[0]
    gpumesh_run.progress = report_with_fault
    sys.path[0] = os.path.dirname(os.path.abspath(program_path))
    runpy.run_path(program_path, run_name="__main__")


if __name__ == "__main__":
    main()
