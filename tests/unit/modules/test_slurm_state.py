# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module slurm_state as Ansible runs it, on a host that is a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from module_runs import result_of, start, write_programs


@pytest.mark.parametrize(
    ("slurmctld", "version"),
    [("echo slurm-wlm 24.11.5", "24.11.5"), ("echo slurm 23.02.7", "23.02.7"), ("echo broken >&2; exit 127", None)],
)
def test_inspecting_the_queue_returns_the_slurm_version(tmp_path: Path, slurmctld: str, version: str | None) -> None:
    folder = write_programs(tmp_path / "bin", {"slurmctld": slurmctld})
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    found = result_of(start("slurm_state", {"state": "inspected", "folder": str(tmp_path)}, environment))
    assert (found["changed"], found["used"], found["slurm_version"]) == (False, False, version)
