# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A machine that cannot say what uses the cluster there does not count as unused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT, AnsibleRun
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

#: Why no module runs there: there is no Python, or no connection.
BROKEN = {"ansible_python_interpreter": "/nonexistent/python3"}
SILENT = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}


def tasks_of(name: str) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = yaml.safe_load((ROOT / "roles/cluster/tasks" / name).read_text(encoding="utf-8"))
    return tasks


def run_removal(folder: Path, own: dict[str, Any], force: bool) -> AnsibleRun:
    """Remove n2, up to the check of its volumes."""
    wanted = [task for task in tasks_of("remove.yml") if task.get("register") == "__cluster_usage"]
    wanted += [task for task in tasks_of("remove.yml") if task["name"] == "Check that the volumes are not in use"]
    assert len(wanted) == 2
    variables = {
        "__cluster_removal": {"leaving": ["n2"]},
        "__cluster_copies": {"reachable": ["n1", "n2"]},
        "__cluster_mount_points": ["/nonexistent"],
        "cluster_name": "lab",
        "cluster_force": force,
        "__cluster_drained": {"nodes": ["n2"]},
    }
    end = {"ansible.builtin.debug": {"msg": "n2 leaves"}, "run_once": True}
    return run_tasks(folder, {"n1": {}, "n2": own}, variables, [*wanted, end])


@pytest.mark.parametrize("own", [BROKEN, SILENT])
def test_a_machine_is_not_removed_while_its_use_is_unknown(tmp_path: Path, own: dict[str, Any]) -> None:
    run = run_removal(tmp_path, own, force=False)
    assert run.exit_status != 0
    assert "n2 cannot leave cluster 'lab'" in run.flat_output and "n2 leaves" not in run.flat_output, run.output
    assert "to keep it in the cluster: scontrol update nodename=n2 state=resume." in run.flat_output
    assert "n2 leaves" in run_removal(tmp_path, own, force=True).flat_output


def test_an_unused_machine_is_removed(tmp_path: Path) -> None:
    run = run_removal(tmp_path, {}, force=False)
    assert run.exit_status == 0 and "n2 leaves" in run.flat_output, run.output


def test_a_member_that_fails_before_it_is_cleaned_up_keeps_the_record(tmp_path: Path) -> None:
    """forget_last compares this list with the hosts that are left."""
    (facts,) = (
        task["ansible.builtin.set_fact"]
        for task in tasks_of("delete.yml")
        if task["name"] == "Set the members to clean up"
    )
    found = {"machines": ["n1", "n2", "n3", "n4"], "comparable": ["n1", "n2"]}
    # n3 did not answer, but is still in the play; n4 is not.
    lost = [
        {"ansible.builtin.fail": {"msg": "no"}, "when": "inventory_hostname == 'n2'"},
        {"ansible.builtin.debug": {"msg": f"cleaned up: {facts['cluster_play_members']}."}, "run_once": True},
    ]
    run = run_tasks(tmp_path, {"n1": {}, "n2": {}, "n3": {}, "n9": {}}, {"__cluster_copies": found}, lost)
    assert "cleaned up: ['n1', 'n3', 'n2']." in run.flat_output, run.output
