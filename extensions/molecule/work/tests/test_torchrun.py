# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""examples/ddp/torchrun.sbatch as it is shipped: its agents rendezvous through a file on the volume, not on a node."""

from __future__ import annotations

import re
import shutil

from lab_hosts import ROOT
from train_programs import MANAGER
from train_runs import WAIT_TIMEOUT, TrainLab


def test_torchrun_by_a_script_that_people_write_themselves() -> None:
    lab = TrainLab("molecule-work")
    lab.clear_queue()
    shutil.copytree(ROOT / "examples" / "ddp", lab.shared_volume / "ddp", dirs_exist_ok=True)
    script = ("sbatch", "--wait", "--chdir=/mnt/shared/ddp", "--output=/mnt/shared/ddp/said", "torchrun.sbatch")
    # Debian's PyTorch is built without libuv.
    of_debian = ("env", "--chdir=/mnt/shared/ddp", "USE_LIBUV=0", "OMP_NUM_THREADS=1")
    lab.run(MANAGER, *of_debian, *script, timeout=WAIT_TIMEOUT)
    said = (lab.shared_volume / "ddp" / "said").read_text(encoding="utf-8").splitlines()
    end = re.fullmatch(r"3 processes on cpu: loss ([\d.]+) -> ([\d.]+), weights equal on all ranks", said[-1])
    assert end and float(end[2]) < float(end[1]), said
    assert not list((lab.shared_volume / "ddp").glob(".rendezvous-*"))
