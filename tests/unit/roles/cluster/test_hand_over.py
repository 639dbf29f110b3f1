# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which former manager stops its controller for its successor."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks


@pytest.mark.parametrize(("foreign", "stopped"), [(False, "['n1']"), (True, "[]")])
def test_the_controller_foreign_cluster_keeps_running(tmp_path: Path, foreign: bool, stopped: str) -> None:
    tasks = yaml.safe_load((ROOT / "roles" / "cluster" / "tasks" / "remove.yml").read_text(encoding="utf-8"))
    (facts,) = (task["ansible.builtin.set_fact"] for task in tasks if task["name"].endswith("the following plays"))
    given = {"cluster_former_manager": "n1", "__cluster_drained": {"foreign": foreign, "scheduler": False}}
    shown = {"ansible.builtin.debug": {"msg": "stopped on " + facts["cluster_play_former_manager"] + "."}}
    run = run_tasks(tmp_path, {"n1": {}, "n2": {}}, given, [{**shown, "run_once": True}])
    assert f"stopped on {stopped}." in run.output, run.output
