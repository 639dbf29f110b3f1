# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles of examples/toy with PyTorch: a slow rank and a slow link are named, with their cost."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from lab_hosts import ROOT
from train_programs import MANAGER, SCENARIO
from train_runs import TrainLab

NAME = "molecule-work"
#: The recorded steps: 5 are skipped, and the profiler warms up in 2.
STEPS, RECORDED = 20, 8
FIRST = 8
#: Seconds: long compared to what a busy machine adds to the steps of all other ranks, which does not count as a delay.
SLOW, DELAY = 1, 1.5
VARIABLES = ("env", "USE_LIBUV=0", "OMP_NUM_THREADS=1")
#: Megabits a second.
RATE = 20


@pytest.fixture(name="lab", scope="module")
def _lab() -> TrainLab:
    lab = TrainLab(NAME)
    shutil.copy(ROOT / "examples" / "toy" / "train.py", lab.shared / "toy.py")
    shutil.copy(SCENARIO / "tests" / "slowed.py", lab.shared / "slowed.py")
    return lab


def train(lab: TrainLab, name: str, *before: str, nodes: str = "") -> dict[str, Any]:
    """Run a training with a profile, on these ``nodes`` if given. Returns the results of gpumesh-trace."""
    options = ["--name", name, "--nodes", "3", "--profile", f"torch:{RECORDED}", "--hang-timeout", "120", "--detach"]
    if nodes:
        options += ["--sbatch", f"--nodelist={nodes}"]
    program = ("python3", *before, "/mnt/shared/toy.py", "--steps", str(STEPS))
    lab.train(*options, "--", *VARIABLES, *program)
    assert lab.finish(name)["state"] == "finished"
    return trace(lab, name)


def trace(lab: TrainLab, *runs: str) -> dict[str, Any]:
    lab.run(MANAGER, "gpumesh-trace", *runs)
    page = "report-2" if len(runs) > 1 else "report"
    found = json.loads((lab.runs / runs[0] / "profile" / "001" / f"{page}.json").read_text(encoding="utf-8"))
    assert len(found) == len(runs)
    return dict(found[0])


def test_the_slow_rank_is_named_with_what_it_costs(lab: TrainLab) -> None:
    lab.idle()
    found = train(lab, "profiled", "/mnt/shared/slowed.py", str(SLOW), str(DELAY))
    nodes = lab.state("profiled")["attempts"][0]["nodes"]
    assert found["steps"] == list(range(FIRST, FIRST + RECORDED))
    assert (found["slowest"]["ranks"], found["slowest"]["node"]) == ([SLOW], nodes[SLOW])
    delays = json.loads((lab.runs / "profiled" / "delays.json").read_text(encoding="ascii"))
    lost = sum(delays[str(step)] for step in found["steps"]) / RECORDED * 1000
    # On a busy machine all ranks are slowed, and unequally. The unit tests check traces with known values to within 5
    # %.
    assert found["slowest"]["cost_ms"] == pytest.approx(lost, rel=0.25), found["slowest"]
    assert found["missing"] == [] and found["unmatched"] == 0
    described = (lab.runs / "profiled" / "profile" / "001").glob("rank-[0-9].json")
    recordings = {json.loads(path.read_text(encoding="utf-8"))["recording"] for path in described}
    assert len(recordings) == 1 and "" not in recordings
    # The hosts of a lab have one clock.
    for clock in found["clocks"]:
        assert abs(clock["ahead_ms"]) <= clock["error_ms"] < 5, clock
    text = (lab.runs / "profiled" / "profile" / "001" / "report.html").read_text(encoding="utf-8")
    assert f"Rank {SLOW} on {nodes[SLOW]} holds the others up" in text


def test_a_slow_link_is_named(lab: TrainLab) -> None:
    lab.idle()
    lab.limit_network("gpu2", f"{RATE}mbit")
    try:
        found = train(lab, "limited", nodes="gpu1,gpu2,gpu3")
    finally:
        lab.limit_network("gpu2", "")
    rank = lab.state("limited")["attempts"][0]["nodes"].index("gpu2")
    # On a busy machine another link may be slow, too.
    slowest = min(found["links"], key=lambda link: link["mbits"])
    assert slowest["source"] == rank and slowest["slow"], found["links"]
    # TCP headers add about 5 %, and a busy machine may send less than the limit allows.
    assert RATE * 0.6 < slowest["mbits"] <= RATE, slowest


def test_two_runs_side_by_side(lab: TrainLab) -> None:
    trace(lab, "profiled", "limited")
    text = (lab.runs / "profiled" / "profile" / "001" / "report-2.html").read_text(encoding="utf-8")
    assert "A step of limited takes" in text


def test_a_job_without_gpumesh_train(lab: TrainLab) -> None:
    lab.idle()
    folder, checkpoints = "/mnt/shared/own-profile", "/mnt/shared/own-checkpoints"
    lab.run(MANAGER, "rm", "-rf", folder, checkpoints)
    lab.run(MANAGER, "mkdir", checkpoints)
    own = ("GPUMESH_PROFILE=torch:3", f"GPUMESH_PROFILE_DIR={folder}", f"GPUMESH_CHECKPOINT_DIR={checkpoints}")
    program = ("gpumesh-trace", "record", "python3", "/mnt/shared/toy.py", "--steps", str(STEPS))
    lab.run(MANAGER, *VARIABLES, *own, "srun", "--nodes=3", "--chdir=/tmp", *program)
    lab.run(MANAGER, "gpumesh-trace", folder)
    found = json.loads((lab.shared / "own-profile" / "report.json").read_text(encoding="utf-8"))[0]
    assert [share["rank"] for share in found["ranks"]] == [0, 1, 2]
    assert found["steps"] == list(range(FIRST, FIRST + 3))
