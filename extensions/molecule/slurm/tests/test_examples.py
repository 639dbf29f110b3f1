# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The examples as they are shipped, run as documented: they use only what the cluster sets in a job.

PyTorch is Debian's. `torchrun.sbatch` needs a volume that the nodes share, and runs in the scenario work,
as does `tracking/track.py`.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from lab_hosts import ROOT, Lab
from slurm_members import LAB, TRAINING_MACHINES, wait_for_job, wait_until_idle

ON_ALL = f"--nodelist={','.join(TRAINING_MACHINES)}"
EXAMPLES = "/srv/examples"


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return LAB


@pytest.fixture(name="examples", scope="module", autouse=True)
def _examples(lab: Lab) -> None:
    with ThreadPoolExecutor(len(TRAINING_MACHINES)) as pool:
        list(pool.map(lambda machine: lab.copy(ROOT / "examples", machine, EXAMPLES), TRAINING_MACHINES))
    wait_until_idle(lab)


def test_training_as_a_batch_job(lab: Lab) -> None:
    folder = f"{EXAMPLES}/ddp"
    script = ("sbatch", "--parsable", ON_ALL, f"--chdir={folder}", "--output=/root/ddp", "train.sbatch")
    number = lab.run("s1", "env", f"--chdir={folder}", *script).strip()
    done = wait_for_job(lab, number, "COMPLETED")
    said = lab.read(done["BatchHost"], "/root/ddp").decode().splitlines()
    end = re.fullmatch(r"3 processes on cpu: loss ([\d.]+) -> ([\d.]+), weights equal on all ranks", said[-1])
    assert end, said
    assert float(end[2]) < float(end[1])
