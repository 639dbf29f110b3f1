# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guide "See your training", typed as written: its commands, files and programs are taken from its text.

The tests run in the order of the file. test_server.py continues with the commands that change the server.
"""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest
from desk import GuideRunner
from tracking_lab import (
    GUIDE_NAME,
    GUIDE_STEPS,
    MACHINES,
    MANAGER,
    SHARED_VOLUME,
    StartRuns,
    TrackingLab,
    read_guide_file,
    run_tags,
)

HERE = "/mnt/shared/alice/tracking"
RUNS = SHARED_VOLUME / "alice" / "runs"
#: The slow rank, and the milliseconds by which it pauses in each step.
SLOW, PAUSE = 1, 1000.0
#: The recorded steps: 5 are skipped, and the profiler warms up in 2.
FIRST, RECORDED = 8, 5


def alice(desk: GuideRunner, line: str, now: str = "", machine: str = MANAGER, folder: str = HERE) -> str:
    """Type a line as the user in the guide."""
    return desk.type_as_user(machine, "alice", folder, GUIDE_NAME, line, now)


def report(name: str) -> list[dict[str, Any]]:
    """The machine-readable results of gpumesh-trace."""
    return list(json.loads((RUNS / name).read_text(encoding="utf-8")))


def test_track(desk: GuideRunner, lab: TrackingLab, told: StartRuns) -> None:
    assert told.tracking_run.exit_status == 0, told.tracking_run.failure_report
    assert lab.is_responding()
    for machine in MACHINES:
        made = f"mkdir -p ~/.mlflow && cat > ~/.mlflow/credentials <<END\n{read_guide_file('~/.mlflow/credentials')}END"
        lab.run(machine, "su", "-", "alice", "-c", made)
        alice(desk, "chmod 700 ~/.mlflow && chmod 600 ~/.mlflow/credentials", machine=machine, folder="/")


def test_a_run_with_its_metrics_and_its_file(desk: GuideRunner, lab: TrackingLab) -> None:
    alice(desk, "mkdir -p /mnt/shared/alice", folder="/")
    alice(desk, "cp -r /mnt/shared/examples/tracking /mnt/shared/alice/", folder="/")
    alice(desk, f"cd {HERE}", folder="/")
    alice(desk, "gpumesh-train --name tracked --nodes 3 -- python3 track.py")
    # What was not sent before the program ended.
    alice(desk, "srun python3 /usr/local/lib/gpumesh/python/gpumesh_track.py /mnt/shared/alice/runs/tracked/track")
    run = lab.find_runs("alice")["tracked"]
    assert lab.stored_steps(run, "loss") == list(range(1, GUIDE_STEPS + 1))
    assert run["info"]["status"] == "FINISHED"
    assert {one["key"]: one["value"] for one in run["data"]["params"]}["steps"] == str(GUIDE_STEPS)
    nodes = set(run_tags(run)["gpumesh.nodes"].split(","))
    assert nodes == set(MACHINES)
    lines = lab.read_artifact(run, "losses.csv").split()
    assert (lines[0], len(lines)) == ("step,loss", GUIDE_STEPS + 1)


def test_a_profile_whose_page_names_the_slow_rank(desk: GuideRunner) -> None:
    alice(desk, "gpumesh-train --name slow --nodes 3 --profile torch -- python3 track.py --slow 1")
    said = alice(desk, "gpumesh-trace slow")
    print(said)
    (found,) = report("slow/profile/001/report.json")
    (node,) = (share["node"] for share in found["ranks"] if share["rank"] == SLOW)
    assert found["slowest"]["ranks"] == [SLOW] and found["slowest"]["node"] == node
    # Rank 1 pauses in each step, and what the others do meanwhile depends on the machine. The unit tests check traces with
    # known values to within 5 %.
    own = {share["rank"]: share["computing_ms"] + share["other_ms"] for share in found["ranks"]}
    slow = own.pop(SLOW)
    assert slow >= PAUSE
    assert found["slowest"]["cost_ms"] == pytest.approx(slow - median(own.values()), abs=0.01)
    assert found["steps"] == list(range(FIRST, FIRST + RECORDED))
    assert found["missing"] == [] and found["unmatched"] == 0
    described = (RUNS / "slow" / "profile" / "001").glob("rank-[0-9].json")
    recordings = {json.loads(path.read_text(encoding="utf-8"))["recording"] for path in described}
    assert len(recordings) == 1 and "" not in recordings
    # The hosts of a lab have one clock. How exactly it is measured depends on the machine.
    for clock in found["clocks"]:
        assert abs(clock["ahead_ms"]) <= clock["error_ms"], clock
    assert f"because rank {SLOW} on {node} is slower than the others" in said
    page = (RUNS / "slow" / "profile" / "001" / "report.html").read_text(encoding="utf-8")
    assert f"Rank {SLOW} on {node} slows down the others" in page


def test_two_runs_side_by_side(desk: GuideRunner) -> None:
    alice(desk, "gpumesh-train --name even --nodes 3 --profile torch -- python3 track.py")
    print(alice(desk, "gpumesh-trace slow even"))
    slow, even = report("slow/profile/001/report-2.json")
    assert (slow["name"], even["name"]) == ("slow", "even")
    page = (RUNS / "slow" / "profile" / "001" / "report-2.html").read_text(encoding="utf-8")
    assert "A step of even takes" in page


def test_jobs_of_your_own(desk: GuideRunner, lab: TrackingLab) -> None:
    lab.run(MANAGER, "su", "-", "alice", "-c", f"cat > {HERE}/own.sbatch <<'END'\n{read_guide_file('own.sbatch')}END")
    number = alice(desk, "GPUMESH_PROFILE=torch:10 sbatch own.sbatch").split()[-1]
    lab.wait_until("the job has ended", lambda: not lab.run(MANAGER, "squeue", "-hj", number, check=False).strip(), 600)
    alice(desk, "gpumesh-trace profile-41", f"gpumesh-trace profile-{number}")
    (found,) = json.loads((SHARED_VOLUME / "alice" / "tracking" / f"profile-{number}" / "report.json").read_text())
    assert [share["rank"] for share in found["ranks"]] == [0, 1, 2]
    assert len(found["steps"]) == 10
