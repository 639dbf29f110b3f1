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

MANAGER, OTHERS = "gpu1", ("gpu2", "gpu3", "gpu4")
SCENARIO = ROOT / "extensions" / "molecule" / "work"
TRAINER = "/mnt/shared/trainer.py"
#: Seconds of a step of the small program. In `make chaos`, its 120 steps must last longer than a volume is full.
SECONDS = float(os.environ.get("GPUMESH_STEP_SECONDS", "0.2"))
#: Seconds of a step in runs that are only killed.
SHORT = 0.1
#: The code of examples/full is only on the manager, in a directory of its own; the corpus is only on the shared volume.
CODE, CORPUS = "/root/full", "/mnt/shared/corpus"
#: A model that two processors can train in seconds.
_SIZE = ("--layers", "2", "--width", "64", "--length", "64", "--batch", "24", "--warm-up", "10", "--rate", "3e-3")
_FULL = ("env", "USE_LIBUV=0", "OMP_NUM_THREADS=1", "python3", "train.py", *_SIZE)


class Outcome(NamedTuple):
    """The result of a run: the model as one number, and whether each sample was read once, as text."""

    value: str
    samples: str


class Program(NamedTuple):
    """A program to train.

    ``train_options`` are those of gpumesh-train, ``process_pattern`` is the pattern with which pgrep finds the ranks,
    ``draft_pattern`` the file name of a checkpoint while it is written, ``slow_saving`` makes writing slow enough to be
    hit, and ``step_seconds`` is the length of a step, where it can be given.
    """

    command: tuple[str, ...]
    process: str
    draft: str
    options: tuple[str, ...] = ()
    saving: tuple[str, ...] = ()
    seconds: float = SECONDS

    def argv(self, steps: int, interval: int, extra: Sequence[str] = ()) -> list[str]:
        """Return the command line of a rank."""
        if self.options:
            return [*self.command, "--steps", str(steps), "--interval", str(interval), *extra]
        return [*self.command, str(steps), str(self.seconds), *extra]

    def bring(self, lab: Lab) -> None:
        """Copy the program to where a run expects it."""
        if not self.options:
            shutil.copy(SCENARIO / "tests" / "trainer.py", ROOT / ".lab" / lab.name / "shared" / "trainer.py")
            return
        lab.run(MANAGER, "rm", "-rf", CODE, CORPUS)
        lab.copy(ROOT / "examples" / "full", MANAGER, CODE)
        lab.run(MANAGER, "python3", f"{CODE}/prepare.py", CORPUS, "--megabytes", "2", "--shard", "0.5")
        for node in (MANAGER, *OTHERS):
            lab.run(node, "rm", "-rf", "/var/tmp/gpumesh-root")

    def outcome(self, line: str) -> Outcome:
        """Parse the last line that rank 0 printed."""
        if self.options:
            _step, loss, samples = line.split(", ")
            return Outcome(loss, samples)
        words = line.split()
        return Outcome(" ".join(words[:2]), " ".join(words[2:]))


SMALL = Program(("python3", TRAINER), f"^python3 {TRAINER}", "latest.new", saving=("--saving", "1.5"))
FULL = Program(_FULL, "^python3 train.py", "step-*.new", ("--code", CODE, "--stage", CORPUS))
