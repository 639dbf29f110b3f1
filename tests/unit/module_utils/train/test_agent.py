# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent knows of a rank."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.agent import Rank


def test_the_last_step_counts_also_if_it_came_right_after_the_one_before(tmp_path: Path) -> None:
    told = tmp_path / "progress"
    rank = Rank(0, ["true"], str(tmp_path), {**os.environ, "GPUMESH_PROGRESS_FILE": str(told)}, tmp_path / "log")
    for step in (19, 20):
        told.write_text(f'{{"step": {step}}}', encoding="ascii")
        # Within one tick of the clock.
        os.utime(told, ns=(10**18, 10**18))
        rank.look()
    deadline = time.monotonic() + 30
    while not rank.ended() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert rank.progress.step == 19
    assert rank.look(last=True) and rank.progress.step == 20
