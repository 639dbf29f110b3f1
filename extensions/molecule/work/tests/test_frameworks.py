# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""examples/frameworks with the real frameworks: each is killed, and goes on where it was; then it is told to stop."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import train_frameworks
from train_frameworks import ENV_COMMAND, PROGRAM_DIRECTORY, VENV_PYTHON
from train_programs import MANAGER
from train_runs import RunStatus, TrainLab, list_causes

#: In the first attempt, the ranks wait after HELD steps until they are killed. All save at step 20, and report it later.
HELD, STEPS = 25, 40
HELD_PROGRAM = ("/mnt/shared/held.py", str(HELD))
#: A rank: the agent, srun, torchrun and the shell before it have other command lines.
RANK = r"^\S*python\S* (-u )?/mnt/shared/held.py "
NANO = (f"{PROGRAM_DIRECTORY}/nano.py", "--init_from=auto", f"--max_iters={STEPS}")
#: For each program, the options and the command that starts it.
PROGRAMS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "hf": ((), (VENV_PYTHON, *HELD_PROGRAM, f"{PROGRAM_DIRECTORY}/hf.py", f"--steps={STEPS}")),
    # Lightning finds the ranks in Slurm's variables, which have to be those of several tasks on a node.
    "lightning": (
        ("--ranks-per-node", "2"),
        (VENV_PYTHON, *HELD_PROGRAM, f"{PROGRAM_DIRECTORY}/lightning_fit.py", f"--steps={STEPS}"),
    ),
    "accelerate": ((), (VENV_PYTHON, *HELD_PROGRAM, f"{PROGRAM_DIRECTORY}/accelerate_loop.py", f"--steps={STEPS}")),
    "jax": ((), (VENV_PYTHON, *HELD_PROGRAM, f"{PROGRAM_DIRECTORY}/jax_fit.py", f"--steps={STEPS}")),
    "nano": ((), ("python3", *HELD_PROGRAM, *NANO)),
    "torchrun": (("--ranks-per-node", "1"), (f"{PROGRAM_DIRECTORY}/torchrun.sh", "1", *HELD_PROGRAM, *NANO)),
}


@pytest.fixture(name="lab", scope="module")
def _lab() -> TrainLab:
    lab = TrainLab("molecule-work")
    lab.clear_queue()
    train_frameworks.install_frameworks(lab, "requirements.txt", "requirements-jax.txt")
    shutil.copy(Path(__file__).with_name("held.py"), lab.shared_volume)
    return lab


def begin(lab: TrainLab, name: str, program: str, options: Sequence[str], steps: int) -> None:
    command = (*ENV_COMMAND, VENV_PYTHON, f"{PROGRAM_DIRECTORY}/{program}", "--steps", str(steps))
    lab.run_train("--detach", "--name", name, "--nodes", "2", *options, "--", *command)


def with_checkpoint(lab: TrainLab, name: str) -> RunStatus:
    return lab.await_run(
        name,
        "has saved a checkpoint and made another step",
        lambda found: found["attempts"] and (found["attempts"][-1]["checkpoint"] or 10**9) < (found["step"] or 0),
        spacing=0.3,
    )


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_framework_goes_on_where_it_was(lab: TrainLab, name: str) -> None:
    options, command = PROGRAMS[name]
    lab.run_train("--detach", "--name", name, "--nodes", "2", *options, "--", *ENV_COMMAND, *command)
    before = with_checkpoint(lab, name)
    nodes, ranks = before["attempts"][0]["nodes"], before["attempts"][0]["world_size"]
    lab.run(nodes[1], "pkill", "-KILL", "-f", RANK)
    found = lab.await_end(name)
    log_tails = {
        str(path.relative_to(lab.runs_directory)): path.read_text(encoding="utf-8", errors="replace")[-3000:]
        for path in sorted((lab.runs_directory / name / "attempts").glob("*/rank-*.log"))
    }
    assert [kind for kind, _rank, _node in list_causes(found)] == ["crash", "finished"], (found, log_tails)
    first, second = found["attempts"]
    assert first["cause"]["node"] == nodes[1] and first["cause"]["rank"] in range(ranks // 2, ranks)
    assert "SIGKILL" in first["cause"]["detail"]
    assert 0 < first["checkpoint"] < second["first"] <= first["last"] + 1
    assert (second["last"], found["steps"]) == (STEPS, STEPS)
    # torchrun may number the ranks in another order.
    second_logs = [text for path, text in log_tails.items() if path.startswith(f"{name}/attempts/002/")]
    assert set(re.findall(r"^\d+ ranks: step \d+$", "\n".join(second_logs), re.MULTILINE)) == {
        f"{ranks} ranks: step {STEPS}"
    }


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
    lab.run_train("cancel", name)


def test_a_loss_of_trainer_that_is_not_a_number_stops_the_run(lab: TrainLab) -> None:
    shutil.copy(Path(__file__).with_name("diverging.py"), lab.shared_volume)
    command = (VENV_PYTHON, "/mnt/shared/diverging.py", f"{PROGRAM_DIRECTORY}/hf.py", "--steps=100000")
    lab.run_train("--detach", "--name", "nan", "--nodes", "1", "--stop-on-nan", "--", *ENV_COMMAND, *command)
    found = lab.await_end("nan")
    assert (found["state"], [kind for kind, _rank, _node in list_causes(found)]) == ("failed", ["diverged"]), found
    # From step 8 on, and logged after step 10.
    assert found["nan_since"] >= 10 and "not a number (--stop-on-nan)" in found["detail"]
