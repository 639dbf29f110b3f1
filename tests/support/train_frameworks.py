# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""examples/frameworks with its packages, on the shared volume of a lab."""

from __future__ import annotations

import shutil

from lab_hosts import ROOT
from train_programs import MANAGER
from train_runs import WAIT_TIMEOUT, TrainLab

PROGRAM_DIRECTORY, VENV_DIRECTORY = "/mnt/shared/frameworks/examples", "/mnt/shared/frameworks/venv"
VENV_PYTHON = f"{VENV_DIRECTORY}/bin/python"
ENV_COMMAND = ("env", "USE_LIBUV=0", "OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1")


def install_frameworks(lab: TrainLab, *requirement_files: str) -> None:
    """Copy the programs to the volume, and install what these files require."""
    shutil.copytree(ROOT / "examples" / "frameworks", lab.shared_volume / "frameworks" / "examples", dirs_exist_ok=True)
    lab.run(MANAGER, "sh", "-c", "apt-get update --quiet && apt-get install --yes python3-venv", timeout=WAIT_TIMEOUT)
    lab.run(MANAGER, "python3", "-m", "venv", "--system-site-packages", VENV_DIRECTORY, timeout=WAIT_TIMEOUT)
    for file_name in requirement_files:
        install_arguments = (
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "-r",
            f"{PROGRAM_DIRECTORY}/{file_name}",
        )
        lab.run(MANAGER, f"{VENV_DIRECTORY}/bin/pip", *install_arguments, timeout=2 * WAIT_TIMEOUT)
