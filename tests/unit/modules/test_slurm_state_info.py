# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module slurm_state_info as Ansible runs it, on a host that is a folder."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest
from module_runs import read_result, start_module, write_programs


@pytest.mark.parametrize(
    ("slurmctld", "version"),
    [("echo slurm-wlm 24.11.5", "24.11.5"), ("echo slurm 23.02.7", "23.02.7"), ("echo broken >&2; exit 127", None)],
)
def test_inspecting_the_queue_returns_the_slurm_version(tmp_path: Path, slurmctld: str, version: str | None) -> None:
    folder = write_programs(tmp_path / "bin", {"slurmctld": slurmctld})
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    found = read_result(start_module("slurm_state_info", {"folder": str(tmp_path)}, environment))
    assert (found["changed"], found["in_use"], found["slurm_version"]) == (False, False, version)


def test_a_packed_state_is_read_in_parts(tmp_path: Path) -> None:
    former, new = tmp_path / "former", tmp_path / "new"
    for folder in (former, new):
        folder.mkdir()
    (former / "clustername").write_text("lab")
    packed = read_result(
        start_module(
            "slurm_state", {"state": "packed", "folder": str(former), "user": getpass.getuser()}, dict(os.environ)
        )
    )
    assert packed["parts"] == 1
    read = {"part": 0, "folder": str(former), "user": getpass.getuser()}
    shown = read_result(start_module("slurm_state_info", read, dict(os.environ)))
    assert (shown["changed"], set(shown) >= {"marker"}) == (False, False)
    given = {"parts": 1, "checksum": packed["checksum"], "content": shown["content"]}
    written = read_result(
        start_module(
            "slurm_state",
            {"state": "imported", "folder": str(new), "user": getpass.getuser(), **given},
            dict(os.environ),
        )
    )
    assert written["files"] == ["clustername"] and (new / "clustername").read_text() == "lab"
