# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts the plays after the removal are for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks


@pytest.mark.parametrize(("scheduler", "asked"), [(True, "n1"), (False, "nobody")])
def test_a_manager_without_a_scheduler_of_this_cluster_hands_none_over(
    tmp_path: Path, scheduler: bool, asked: str
) -> None:
    """The one on it belongs to another cluster, and would be stopped."""
    tasks = yaml.safe_load((ROOT / "roles" / "cluster" / "tasks" / "remove.yml").read_text(encoding="utf-8"))
    (task,) = (task for task in tasks if task["name"] == "Set the hosts of the following plays")
    former = task["ansible.builtin.set_fact"]["cluster_play_former_manager"].strip("{} \n")
    facts = {"cluster_former_manager": "n1", "__cluster_drained": {"scheduler": scheduler}}
    said = [{"ansible.builtin.debug": {"msg": "hands over: {{ (" + former + ") | join(' ') or 'nobody' }}."}}]
    run = run_tasks(tmp_path, {"n1": {}, "n2": {}}, facts, said)
    found = re.search(r"hands over: ([a-z0-9 ]+)\.", run.output)
    assert found, run.output
    assert found[1] == asked
