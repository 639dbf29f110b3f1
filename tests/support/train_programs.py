# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs for tests of training runs: a small one without PyTorch, and examples/full."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from lab_hosts import ROOT, Lab

MANAGER, OTHER_HOSTS = "gpu1", ("gpu2", "gpu3", "gpu4")
SCENARIO = ROOT / "extensions" / "molecule" / "work"
TRAINER_PATH = "/mnt/shared/trainer.py"
#: Seconds of a step of the small program. In `make chaos`, its 120 steps must last longer than a volume is full.
STEP_SECONDS = float(os.environ.get("GPUMESH_STEP_SECONDS", "0.2"))
#: Seconds of a step in runs that are only killed.
SHORT_STEP_SECONDS = 0.1
#: The code of examples/full is only on the manager, in a directory of its own; the corpus is only on the shared volume.
CODE_DIRECTORY, CORPUS_DIRECTORY = "/root/full", "/mnt/shared/corpus"
#: A model that two processors can train in seconds.
_MODEL_OPTIONS = (
    "--layers",
    "2",
    "--width",
    "64",
    "--length",
    "64",
    "--batch",
    "24",
    "--warm-up",
    "10",
    "--rate",
    "3e-3",
)
_FULL_COMMAND = ("env", "USE_LIBUV=0", "OMP_NUM_THREADS=1", "python3", "train.py", *_MODEL_OPTIONS)


class TrainingOutcome(NamedTuple):
    """The result of a run: the model as one number, and whether each sample was read once, as text."""

    model_number: str
    samples: str


class TrainingProgram(NamedTuple):
    """A program to train.

    ``train_options`` are those of gpumesh-train, ``process_pattern`` is the pattern with which pgrep finds the ranks,
    ``draft_pattern`` the file name of a checkpoint while it is written, ``slow_saving`` makes writing slow enough to be
    hit, and ``step_seconds`` is the length of a step, where it can be given.
    """

    command: tuple[str, ...]
    process_pattern: str
    draft_pattern: str
    train_options: tuple[str, ...] = ()
    slow_saving: tuple[str, ...] = ()
    step_seconds: float = STEP_SECONDS

    def rank_command(self, steps: int, interval: int, extra_arguments: Sequence[str] = ()) -> list[str]:
        """Return the command line of a rank."""
        if self.train_options:
            return [*self.command, "--steps", str(steps), "--interval", str(interval), *extra_arguments]
        return [*self.command, str(steps), str(self.step_seconds), *extra_arguments]

    def copy_program(self, lab: Lab) -> None:
        """Copy the program to where a run expects it."""
        if not self.train_options:
            shutil.copy(SCENARIO / "tests" / "trainer.py", ROOT / ".lab" / lab.name / "shared" / "trainer.py")
            return
        lab.run(MANAGER, "rm", "-rf", CODE_DIRECTORY, CORPUS_DIRECTORY)
        lab.copy(ROOT / "examples" / "full", MANAGER, CODE_DIRECTORY)
        lab.run(
            MANAGER, "python3", f"{CODE_DIRECTORY}/prepare.py", CORPUS_DIRECTORY, "--megabytes", "2", "--shard", "0.5"
        )
        for node in (MANAGER, *OTHER_HOSTS):
            lab.run(node, "rm", "-rf", "/var/tmp/gpumesh-root")

    def parse_outcome(self, line: str) -> TrainingOutcome:
        """Parse the last line that rank 0 printed."""
        if self.train_options:
            _step, loss, samples = line.split(", ")
            return TrainingOutcome(loss, samples)
        fields = line.split()
        return TrainingOutcome(" ".join(fields[:2]), " ".join(fields[2:]))


SMALL_PROGRAM = TrainingProgram(
    ("python3", TRAINER_PATH), f"^python3 {TRAINER_PATH}", "latest.new", slow_saving=("--saving", "1.5")
)
FULL_PROGRAM = TrainingProgram(
    _FULL_COMMAND, "^python3 train.py", "step-*.new", ("--code", CODE_DIRECTORY, "--stage", CORPUS_DIRECTORY)
)
