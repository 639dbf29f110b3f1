# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""examples/frameworks with the real frameworks: each is killed, and goes on where it was; then it is told to stop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import train_frameworks
from train_frameworks import FOLDER, PYTHON, VARIABLES
from train_programs import MANAGER
from train_runs import Found, TrainLab, causes

#: Enough to be killed in between, also where that takes seconds.
STEPS = 1000


@pytest.fixture(name="lab", scope="module")
def _lab() -> TrainLab:
    lab = TrainLab("molecule-work")
    lab.idle()
    train_frameworks.bring(lab, "requirements.txt")
    return lab


def begin(lab: TrainLab, name: str, program: str, options: Sequence[str], steps: int) -> None:
    command = (*VARIABLES, PYTHON, f"{FOLDER}/{program}", "--steps", str(steps))
    lab.train("--detach", "--name", name, "--nodes", "2", *options, "--", *command)


def with_checkpoint(lab: TrainLab, name: str) -> Found:
    return lab.await_run(
        name,
        "has saved a checkpoint and made another step",
        lambda found: found["attempts"] and (found["attempts"][-1]["checkpoint"] or 10**9) < (found["step"] or 0),
        spacing=0.3,
    )


@pytest.mark.parametrize("program", ["hf.py", "lightning_fit.py"])
def test_a_framework_goes_on_where_it_was(lab: TrainLab, program: str) -> None:
    name = program.partition(".")[0]
    begin(lab, name, program, (), STEPS)
    before = with_checkpoint(lab, name)
    # As people do. The agent, and srun on the node of the supervisor, must not have the program in their command lines.
    lab.run(before["attempts"][0]["nodes"][1], "pkill", "-KILL", "-f", program)
    found = lab.finish(name)
    assert [kind for kind, _rank, _node in causes(found)] == ["crash", "finished"], found
    first, second = found["attempts"]
    assert first["cause"]["rank"] == 1 and "SIGKILL" in first["cause"]["detail"]
    assert first["checkpoint"] < second["first"] <= first["last"] + 1
    assert (second["last"], found["steps"]) == (STEPS, STEPS)
    log = lab.runs / name / "attempts" / "002" / "rank-0.log"
    assert log.read_text(encoding="utf-8").splitlines()[-1] == f"2 ranks: step {STEPS}"


@pytest.mark.parametrize("program", ["hf.py", "lightning_fit.py"])
def test_a_framework_saves_and_stops_when_its_job_ends(lab: TrainLab, program: str) -> None:
    name = f"{program.partition('.')[0]}-stopped"
    begin(lab, name, program, (), 100000)
    before = with_checkpoint(lab, name)
    # As Slurm does before a preemption.
    lab.run(MANAGER, "scancel", "--batch", "--signal=USR1", str(before["attempts"][0]["job"]))
    found = lab.await_run(name, "has saved and stopped", lambda now: now["attempts"][0]["cause"])
    (cause, *_later) = [attempt["cause"] for attempt in found["attempts"]]
    assert (cause["kind"], cause["rank"]) == ("warned", None), cause
    first = found["attempts"][0]
    assert first["checkpoint"] == first["last"], "the last step has been saved"
    found = lab.await_run(
        name, "goes on", lambda now: now["attempts"][-1]["number"] == 2 and now["attempts"][1]["first"]
    )
    assert found["attempts"][1]["first"] == first["last"] + 1
    lab.train("cancel", name)
