# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`tracked.py STEPS SECONDS`: ranks that wait for each other in each step, which is tracked. Rank 0 writes to
times.json when each step ended, how long it took, and how long the tracking in it took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import gpumesh_run
import gpumesh_track
import torch
import torch.distributed as dist

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("gloo")
gpumesh_track.params(steps=steps)
times = []
# One tensor for all steps: if a thread of gloo frees one at exit, it may wait forever for a thread that waits for it.
exchanged = torch.ones(1000)
begun = time.monotonic()
for step in range(1, steps + 1):
    time.sleep(seconds)
    dist.all_reduce(exchanged)
    before = time.monotonic()
    gpumesh_track.log(step, loss=1.0 / step, rate=seconds)
    tracking = time.monotonic() - before
    gpumesh_run.progress(step, steps)
    now = time.monotonic()
    times.append({"end": time.time(), "took": now - begun, "tracking": tracking})
    begun = now
if dist.get_rank() == 0:
    Path(os.environ["GPUMESH_RUN_DIR"], "times.json").write_text(json.dumps(times), encoding="ascii")
dist.destroy_process_group()
