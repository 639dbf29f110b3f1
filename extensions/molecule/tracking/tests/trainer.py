# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`trainer.py STEPS SECONDS`: a program that tracks each step, and says how long all of it and the tracking took."""

from __future__ import annotations

import sys
import time

import gpumesh_run
import gpumesh_track

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
gpumesh_track.params(steps=steps)
begun, tracking = time.monotonic(), 0.0
for step in range(1, steps + 1):
    time.sleep(seconds)
    before = time.monotonic()
    gpumesh_track.log(step, loss=1.0 / step, rate=seconds)
    tracking += time.monotonic() - before
    gpumesh_run.progress(step, steps)
print("took", time.monotonic() - begun, tracking)
