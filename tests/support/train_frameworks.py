# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""examples/frameworks with its packages, on the shared volume of a lab."""

from __future__ import annotations

import shutil

from lab_hosts import ROOT
from train_programs import MANAGER
from train_runs import PATIENCE, TrainLab

FOLDER, ENVIRONMENT = "/mnt/shared/frameworks/examples", "/mnt/shared/frameworks/venv"
PYTHON = f"{ENVIRONMENT}/bin/python"
VARIABLES = ("env", "USE_LIBUV=0", "OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1")


def bring(lab: TrainLab, *requirements: str) -> None:
    """Copy the programs to the volume, and install what these files require."""
    shutil.copytree(ROOT / "examples" / "frameworks", lab.shared / "frameworks" / "examples", dirs_exist_ok=True)
    lab.run(MANAGER, "sh", "-c", "apt-get update --quiet && apt-get install --yes python3-venv", timeout=PATIENCE)
    lab.run(MANAGER, "python3", "-m", "venv", "--system-site-packages", ENVIRONMENT, timeout=PATIENCE)
    for name in requirements:
        install = ("install", "--quiet", "--no-deps", "--only-binary=:all:", "-r", f"{FOLDER}/{name}")
        lab.run(MANAGER, f"{ENVIRONMENT}/bin/pip", *install, timeout=2 * PATIENCE)
