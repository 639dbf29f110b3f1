# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An empty answer in a survey counts as none: for every question of every survey, the inventory's value is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

ROOT = Path(__file__).resolve().parents[3]
SURVEYS = yaml.safe_load((ROOT / "playbooks" / "awx" / "data" / "surveys.yml").read_text(encoding="utf-8"))
QUESTIONS = {
    question["variable"]: question
    for survey in SURVEYS["gpumesh_awx_surveys"].values()
    for question in [SURVEYS["__gpumesh_awx_cluster"], *survey]
    # No role has this one: plays do not run on these hosts.
    if isinstance(question, dict) and question["variable"] != "cluster_without"
}
#: Writes the values that options would have in roles, read in the way of all actions.
PROBE = """
import json
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction


class ActionModule(HostAction):
    _requires_connection = False

    def work(self):
        found = {name: self.read_option(name) for name in self._task.args["options"]}
        Path(self._task.args["dest"]).write_text(json.dumps(found), encoding="utf-8")
        return {}
"""


def read_values(folder: Path, extra: dict[str, Any], *inventories: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of the questions' variables in the roles, on a host for each of the inventory's values."""
    (folder / "action_plugins").mkdir()
    (folder / "action_plugins" / "probe.py").write_text(PROBE, encoding="utf-8")
    (folder / "library").mkdir()
    (folder / "library" / "probe.py").touch()
    hosts = {f"n{number}": inventory for number, inventory in enumerate(inventories)}
    tasks = [{"probe": {"options": list(QUESTIONS), "dest": f"{folder}/{{{{ inventory_hostname }}}}.read"}}]
    run = run_tasks(folder, hosts, {}, tasks, "-e", json.dumps(extra))
    assert run.exit_status == 0, run.output
    return [json.loads((folder / f"{host}.read").read_text(encoding="utf-8")) for host in hosts]


def empty_answer(question: dict[str, Any]) -> Any:
    return [] if question["type"] == "multiselect" else ""


INVENTORY_VALUES: dict[str, Any] = {name: f"{name} of the inventory" for name in QUESTIONS}


def test_an_empty_answer_keeps_the_value_of_the_inventory(tmp_path: Path) -> None:
    """What nobody says is not set."""
    assert len(QUESTIONS) > 20
    extra = {name: empty_answer(question) for name, question in QUESTIONS.items()}
    assert read_values(tmp_path, extra, INVENTORY_VALUES, {}) == [INVENTORY_VALUES, dict.fromkeys(QUESTIONS)]


def test_an_answer_wins_over_the_inventory(tmp_path: Path) -> None:
    answers = {name: f"{name} of a person" for name in QUESTIONS}
    assert read_values(tmp_path, answers, INVENTORY_VALUES) == [answers]


def test_an_empty_value_of_the_inventory_counts(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [dict.fromkeys(QUESTIONS, value) for value in ("", [])]
    assert read_values(tmp_path, {}, *values) == values


@pytest.mark.parametrize(
    ("role", "option"), [("storage", "storage_volumes"), ("job_environment", "job_environment_dialects")]
)
def test_an_empty_list_is_an_answer_where_it_is_the_default(tmp_path: Path, role: str, option: str) -> None:
    """A run without volumes, or without the variables of other launchers."""
    tasks = [{"gpumesh.cluster.role_options": {"roles": [role]}}]
    run = run_tasks(tmp_path, {"a": {option: "wrong"}}, {}, tasks, "-e", json.dumps({option: []}))
    assert run.exit_status == 0, run.output


@pytest.mark.parametrize(("given", "run"), [([], ["all_reduce"]), (["gather"], ["gather"])])
def test_an_empty_choice_of_collectives_means_the_default(tmp_path: Path, given: list[str], run: list[str]) -> None:
    names = {"ansible.builtin.include_vars": str(ROOT / "roles" / "check" / "vars" / "main.yml")}
    tasks = [names, {"ansible.builtin.assert": {"that": "__check_collective_names == wanted"}}]
    extra = json.dumps({"check_collectives": given, "wanted": run})
    done = run_tasks(tmp_path, {"a": {}}, {}, tasks, "-e", extra)
    assert done.exit_status == 0, done.output
