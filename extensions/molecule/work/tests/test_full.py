# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""examples/full with PyTorch: an interrupted run gives the same losses as an undisturbed one, to the bit.

GPUMESH_SEED repeats a sample.
"""

from __future__ import annotations

import json
import math
import os
import random
import time

import pytest
from train_programs import FULL_PROGRAM
from train_runs import CHECKPOINT_INTERVAL, WAIT_TIMEOUT, RunStatus, TrainLab

NAME = "molecule-work"
STEPS = 50
SEED = int(os.environ.get("GPUMESH_SEED") or time.time())


@pytest.fixture(name="lab", scope="module")
def _lab() -> TrainLab:
    lab = TrainLab(NAME, FULL_PROGRAM)
    lab.copy_program()
    print(f"GPUMESH_SEED={SEED}")
    return lab


def start(lab: TrainLab, name: str) -> None:
    lab.start_run(name, "--nodes", "2", step_count=STEPS)


def finish(lab: TrainLab, name: str) -> RunStatus:
    found = lab.await_end(name)
    assert found["state"] == "finished", found
    return found


def losses(lab: TrainLab, name: str) -> dict[int, list[float]]:
    """The losses of each step, one for each time that the step was made."""
    found: dict[int, list[float]] = {}
    log = lab.runs_directory / name / "loss.jsonl"
    # The last line may be incomplete.
    for line in log.read_text(encoding="ascii").split("\n")[:-1] if log.exists() else []:
        made = json.loads(line)
        found.setdefault(made["step"], []).append(made["loss"])
    return found


def letters(lab: TrainLab) -> float:
    """The entropy of the corpus by byte: a lower bound for a model that only knows the frequency of each byte."""
    raw = b"".join(path.read_bytes() for path in sorted((lab.shared_volume / "corpus").glob("shard-*")))
    parts = [raw.count(value) / len(raw) for value in set(raw)]
    return -sum(part * math.log(part) for part in parts)


def test_a_model_learns_the_same_whether_a_rank_is_killed_or_not(lab: TrainLab) -> None:
    start(lab, "gpt-calm")
    assert [attempt["cause"]["kind"] for attempt in finish(lab, "gpt-calm")["attempts"]] == ["finished"]
    start(lab, "gpt")
    step = random.Random(SEED).randrange(CHECKPOINT_INTERVAL + 1, STEPS - 20)
    # By the program's own log, which is up to date: the program makes some ten steps a second, and has two seconds left.
    lab.wait_until(f"step {step}", lambda: step in losses(lab, "gpt"), WAIT_TIMEOUT, 0.05)
    victim = lab.read_status("gpt")["attempts"][0]["nodes"][SEED % 2]
    lab.send_signal(victim, "KILL")
    attempts = finish(lab, "gpt")["attempts"]
    assert [attempt["cause"]["kind"] for attempt in attempts] == ["crash", "finished"], attempts
    assert (attempts[0]["cause"]["rank"], attempts[0]["cause"]["node"]) == (SEED % 2, victim)
    assert attempts[0]["last"] - attempts[1]["first"] < CHECKPOINT_INTERVAL
    calm, disturbed = losses(lab, "gpt-calm"), losses(lab, "gpt")
    assert sorted(calm) == sorted(disturbed) == list(range(1, STEPS + 1))
    # Including those of steps that were repeated.
    assert all(set(disturbed[step]) == set(calm[step]) for step in calm)
    end = lab.read_result("gpt")
    assert end == lab.read_result("gpt-calm") and end.samples == "each sample once"
    assert calm[1][0] > letters(lab) > calm[STEPS][0]
    # The second run uses the copy that the first one made.
    for node in attempts[-1]["nodes"]:
        assert len(lab.run(node, "ls", "/var/tmp/gpumesh-root").split()) == 1
