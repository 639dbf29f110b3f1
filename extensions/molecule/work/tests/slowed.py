# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program in which one rank sleeps for some seconds after each step, and record how long it really slept.

slowed.py RANK SECONDS PROGRAM [ARGUMENT...]
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time

import gpumesh_run

RANK, SECONDS, *PROGRAM = sys.argv[1:]
DELAYS: dict[int, float] = {}
PROGRESS = gpumesh_run.progress


def progress(step: int, *arguments: object, **named: object) -> None:
    PROGRESS(step, *arguments, **named)
    if os.environ["RANK"] == RANK:
        begun = time.perf_counter()
        time.sleep(float(SECONDS))
        # It counts as part of the next step.
        DELAYS[step + 1] = time.perf_counter() - begun


gpumesh_run.progress = progress
sys.argv = PROGRAM
sys.path.insert(0, os.path.dirname(PROGRAM[0]))
runpy.run_path(PROGRAM[0], run_name="__main__")
if DELAYS:
    with open(os.path.join(os.environ["GPUMESH_RUN_DIR"], "delays.json"), "w", encoding="ascii") as stream:
        json.dump(DELAYS, stream)
