# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A profile of examples/toy with PyTorch names a slow link. The guide's own profiles are in the scenario tracking."""

from __future__ import annotations

import json
import shutil

from lab_hosts import ROOT
from train_programs import MANAGER
from train_runs import TrainLab

#: Megabits a second.
RATE = 20


def test_a_slow_link_is_named() -> None:
    lab = TrainLab("molecule-work")
    shutil.copy(ROOT / "examples" / "toy" / "train.py", lab.shared_volume / "toy.py")
    lab.clear_queue()
    options = ("--name", "limited", "--nodes", "3", "--profile", "torch:2", "--hang-timeout", "120", "--detach")
    program = ("env", "USE_LIBUV=0", "OMP_NUM_THREADS=1", "python3", "/mnt/shared/toy.py", "--steps", "12")
    lab.limit_network("gpu2", f"{RATE}mbit")
    try:
        lab.run_train(*options, "--sbatch", "--nodelist=gpu1,gpu2,gpu3", "--", *program)
        assert lab.await_end("limited")["state"] == "finished"
    finally:
        lab.limit_network("gpu2", "")
    lab.run(MANAGER, "gpumesh-trace", "limited")
    (found,) = json.loads(
        (lab.runs_directory / "limited" / "profile" / "001" / "report.json").read_text(encoding="utf-8")
    )
    rank = lab.read_status("limited")["attempts"][0]["nodes"].index("gpu2")
    # How much less than the limit allows depends on the machine.
    limited = next(link for link in found["links"] if link["source"] == rank)
    assert 0 < limited["mbits"] <= RATE, found["links"]
    # The link to gpu2 may be slower still, since its acknowledgements wait behind what it sends; and on a busy machine
    # another link may be slow, too.
    assert any(link["slow"] and rank in (link["source"], link["target"]) for link in found["links"]), found["links"]
