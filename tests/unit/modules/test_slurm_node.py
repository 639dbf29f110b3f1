# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module slurm_node as Ansible runs it, with a controller that is a script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from module_runs import read_result, start_module, write_programs

#: The controller shows the node with its job three times, and then without.
SCONTROL = """
case $1 in
-V) echo slurm-wlm 22.05.8 ;;
show)
    echo shown >> "$0.asked"
    state=MIXED+DRAIN
    [ "$(wc -l < "$0.asked")" -gt 3 ] && state=IDLE+DRAIN
    echo "NodeName=n3 CPUTot=2 State=$state Partitions=cluster Reason=%s [root@2026-11-22T07:00:00]"
    ;;
*) echo "$@" >> "$0.changed" ;;
esac
"""


def run_drain(folder: Path, reason: str, **arguments: Any) -> dict[str, Any]:
    programs = write_programs(folder / "bin", {"scontrol": SCONTROL % reason})
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    return read_result(
        start_module("slurm_node", {"name": "n3", "state": "drained", "reason": "leaves", **arguments}, environment)
    )


@pytest.mark.parametrize("reason", ["replacing the fan", "gpumesh health: health.pcie: GPU 3 at x8 of x16"])
def test_jobs_on_a_node_that_an_administrator_drained_are_awaited(tmp_path: Path, reason: str) -> None:
    done = run_drain(tmp_path, reason, wait=30)
    assert done["nodes"][0]["state"] == "idle"
    assert done["left_alone"] == {"n3": reason}
    assert not done["changed"] and not (tmp_path / "bin" / "scontrol.changed").exists()


def test_jobs_that_do_not_end_in_time_are_a_failure(tmp_path: Path) -> None:
    failed = run_drain(tmp_path, "replacing the fan", wait=1)
    assert failed["failed"] and "n3 still has jobs (mixed+drain)" in failed["msg"]
