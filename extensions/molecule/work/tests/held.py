# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program that, in its first attempt, waits after some steps until it is killed, however fast it is.

held.py STEP PROGRAM [ARGUMENT...]
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import gpumesh_run

report = gpumesh_run.progress


def progress(step: int, *more: Any, **named: Any) -> None:
    """Take the place of gpumesh_run.progress."""
    report(step, *more, **named)
    while step >= HELD and os.environ["GPUMESH_ATTEMPT"] == "1":
        time.sleep(0.2)


if __name__ == "__main__":
    HELD = int(sys.argv[1])
    del sys.argv[:2]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    gpumesh_run.progress = progress
    runpy.run_path(sys.argv[0], run_name="__main__")
