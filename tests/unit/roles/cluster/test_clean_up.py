# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The layers are removed in a fixed order, whatever else is on the machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

ROLE = ROOT / "roles" / "cluster"


@pytest.mark.parametrize(
    ("others", "order"),
    [
        (
            ["storage", "ssh_trust"],
            ["session", "train", "slurm", "munge", "job_environment", "tracking", "firewall", "names", "mesh"],
        ),
        (["munge", "job_environment", "slurm"], ["tracking", "storage", "ssh_trust", "firewall", "names", "mesh"]),
    ],
)
def test_layers_that_use_the_mesh_are_removed_before_it(tmp_path: Path, others: list[str], order: list[str]) -> None:
    tasks = yaml.safe_load((ROLE / "tasks" / "clean_up.yml").read_text(encoding="utf-8"))
    (loop,) = (task["loop"] for task in tasks if task["name"] == "Remove the layers")
    facts = {"__cluster_owner": {"others": others}}
    said = [
        {"ansible.builtin.include_vars": {"file": str(ROLE / "vars" / "main.yml")}},
        {"ansible.builtin.debug": {"msg": "in this order: {{ " + loop.strip("{} ") + " | join(' ') }}."}},
    ]
    run = run_tasks(tmp_path, {"n1": {}}, facts, said)
    found = re.search(r"in this order: ([a-z_ ]+)\.", run.output)
    assert found, run.output
    assert found[1].split() == order


def test_claims_are_released_after_the_layers_are_removed() -> None:
    """A run that was interrupted before has to find out again whose munge it is."""
    tasks = yaml.safe_load((ROLE / "tasks" / "clean_up.yml").read_text(encoding="utf-8"))
    names = [task["name"] for task in tasks]
    asked, released = (number for number, task in enumerate(tasks) if "gpumesh.cluster.host_owner" in task)
    assert tasks[asked]["check_mode"] and "check_mode" not in tasks[released]
    assert asked < names.index("Remove the layers") < released < names.index("Delete the copy of the record")
