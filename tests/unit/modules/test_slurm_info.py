# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module slurm_info as Ansible runs it, with a controller that is a script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from module_runs import read_result, start_module, write_programs

SCONTROL = """
case $1 in
-V) echo slurm-wlm 22.05.8 ;;
show) for node in n1=IDLE n2=DOWN n3=MIXED+DRAIN; do echo "NodeName=${node%=*} CPUTot=2 State=${node#*=}"; done ;;
esac
"""


def query(folder: Path, **arguments: Any) -> dict[str, Any]:
    programs = write_programs(folder / "bin", {"scontrol": SCONTROL})
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    return read_result(start_module("slurm_info", arguments, environment))


def test_the_readiness_of_a_node_can_be_looked_up_by_its_name(tmp_path: Path) -> None:
    shown = query(tmp_path)
    assert [node["name"] for node in shown["nodes"]] == ["n1", "n2", "n3"]
    assert shown["readiness"] == {"n1": True, "n2": False, "n3": False}


def test_the_readiness_is_that_of_the_requested_nodes(tmp_path: Path) -> None:
    assert query(tmp_path, nodes=["n[2-3]"])["readiness"] == {"n2": False, "n3": False}
