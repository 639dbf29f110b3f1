# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of all layers are checked before the first of them changes anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from action_runs import play_action

from ansible_collections.gpumesh.cluster.plugins.action.role_options import ActionModule
from ansible_collections.gpumesh.cluster.tests.support import task_files
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"


def roles_of(path: Path) -> list[str]:
    """The roles that a playbook runs, including those of imported playbooks."""
    found = []
    for each in yaml.safe_load(path.read_text(encoding="utf-8")):
        if "ansible.builtin.import_playbook" in each:
            found += roles_of(path.parent / each["ansible.builtin.import_playbook"])
        for task in task_files.flatten_tasks(each.get("tasks", [])):
            call = task.get("ansible.builtin.import_role") or task.get("ansible.builtin.include_role") or {}
            found += [] if "tasks_from" in call else task_files.roles_of(task)
    return found


LAYERS = [role for path in sorted((PLAYBOOKS / "layers").glob("*.yml")) for role in roles_of(path)]


def validate_options(variables: dict[str, Any], roles: list[str]) -> dict[str, Any]:
    return play_action(
        ActionModule, {"roles": roles}, {}, {"inventory_hostname": "n1", "ansible_play_batch": ["n1"], **variables}
    ).result


def test_one_host_with_a_wrong_option_stops_the_others() -> None:
    tasks = [
        task
        for path in PLAYBOOKS.glob("*.yml")
        for play in yaml.safe_load(path.read_text(encoding="utf-8"))
        for task in play.get("tasks", [])
        if "gpumesh.cluster.role_options" in task and "when" not in task
    ]
    assert len(tasks) >= 6
    assert all(task.get("any_errors_fatal") is True for task in tasks)


def test_options_that_are_not_set_are_valid() -> None:
    assert validate_options({}, LAYERS) == {"changed": False}


def test_every_wrong_option_is_named_at_once() -> None:
    result = validate_options({"mesh_port": "wide", "slurm_ready_timeout": "soon", "storage_volumes": None}, LAYERS)
    assert result["failed"]
    assert len(result["invalid"]) == 2
    assert "Nothing has been changed" in result["msg"]
    assert result["msg"].endswith("Invalid options: " + "; ".join(result["invalid"]))


def test_a_misspelt_choice_names_the_valid_choices() -> None:
    result = validate_options({"mesh_backend": "wiregard"}, LAYERS)
    assert result["invalid"] == ["value of mesh_backend must be one of: none, wireguard, tailscale, got: wiregard"]


def test_settings_of_slurm_that_would_fail_later_are_refused() -> None:
    assert validate_options({"slurm_conf": {"ClusterName": "other"}}, ["mesh"]) == {"changed": False}
    result = validate_options({"slurm_conf": {"ClusterName": "other"}, "slurm_accounting": "yes"}, LAYERS)
    assert result["failed"]
    assert result["msg"].startswith("n1: slurm_conf sets ClusterName, ")
    assert result["msg"].endswith("Remove it. Nothing has been changed.")
    assert (
        "is not among those of a"
        in validate_options(
            {"slurm_conf": {"AccountingStorageEnforce": "all"}, "slurm_accounts": {"a": {"QOS": ["b", "c"]}}}, LAYERS
        )["msg"]
    )


def test_an_unknown_role_is_refused() -> None:
    assert "no role gpumesh.cluster.mess" in validate_options({}, ["mess"])["msg"]


def test_an_option_that_refers_to_a_later_role_is_left_to_that_role(tmp_path: Path) -> None:
    tasks = [{"gpumesh.cluster.role_options": {"roles": ["slurm"]}}]
    run = run_tasks(tmp_path, {"a": {"slurm_conf": "{{ slurm_defaults_of_later }}"}}, {}, tasks)
    assert run.exit_status == 0, run.output


@pytest.mark.parametrize("name", ["site", "join", "slurm"])
def test_a_playbook_checks_the_options_of_each_layer_that_it_runs(name: str) -> None:
    path = PLAYBOOKS / f"{name}.yml"
    first = yaml.safe_load(path.read_text(encoding="utf-8"))[0]["tasks"][0]
    layers = set(roles_of(path))
    assert len(layers) > 5
    template = first["gpumesh.cluster.role_options"]["roles"]
    validated = {*re.findall(r"'([a-z_]+)'", re.sub(r"query\([^)]*\)", "", template)), *task_files.layers_in(template)}
    assert layers - {"check"} <= validated


def test_a_change_of_the_manager_begins_by_validating_the_options_of_slurm() -> None:
    """The former controller is stopped before the new one reads them."""
    first, second = yaml.safe_load((PLAYBOOKS / "remove.yml").read_text(encoding="utf-8"))[0]["tasks"]
    assert first["gpumesh.cluster.role_options"]["roles"] == ["munge", "slurm"]
    assert "cluster_new_manager" in first["when"]
    assert second["ansible.builtin.include_role"]["tasks_from"] == "remove"
