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
    if isinstance(question, dict)
}
#: Returns options with the values that roles would have, in the way that all actions use.
PROBE = """
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction


class ActionModule(HostAction):
    _requires_connection = False

    def work(self):
        options = self._task.args["options"]
        return {"read": {name: self.option(name, option) for name, option in options.items()}}
"""


def read(folder: Path, inventory: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """The values of the questions' variables in the roles."""
    (folder / "action_plugins").mkdir()
    (folder / "action_plugins" / "probe.py").write_text(PROBE, encoding="utf-8")
    (folder / "library").mkdir()
    (folder / "library" / "probe.py").touch()
    options = {
        name: {"choices": question.get("choices")} if "choices" in question else {}
        for name, question in QUESTIONS.items()
    }
    tasks = [
        {"probe": {"options": options}, "register": "result"},
        {"ansible.builtin.copy": {"content": "{{ result.read | to_json }}", "dest": str(folder / "read.json")}},
    ]
    run = run_tasks(folder, {"a": inventory}, {}, tasks, "-e", json.dumps(extra))
    assert run.code == 0, run.output
    found: dict[str, Any] = json.loads((folder / "read.json").read_text(encoding="utf-8"))
    return found


def empty(question: dict[str, Any]) -> Any:
    return [] if question["type"] == "multiselect" else ""


SET: dict[str, Any] = {name: f"{name} of the inventory" for name in QUESTIONS}


def test_an_empty_answer_leaves_it_to_the_inventory(tmp_path: Path) -> None:
    assert len(QUESTIONS) > 20
    assert read(tmp_path, SET, {name: empty(question) for name, question in QUESTIONS.items()}) == SET


def test_an_answer_wins_over_the_inventory(tmp_path: Path) -> None:
    answers = {name: f"{name} of a person" for name in QUESTIONS}
    assert read(tmp_path, SET, answers) == answers


def test_what_nobody_says_is_not_set(tmp_path: Path) -> None:
    extra = {name: empty(question) for name, question in QUESTIONS.items()}
    assert read(tmp_path, {}, extra) == dict.fromkeys(QUESTIONS)


@pytest.mark.parametrize("value", ["", []])
def test_what_is_empty_in_the_inventory_is_so(tmp_path: Path, value: Any) -> None:
    assert read(tmp_path, dict.fromkeys(QUESTIONS, value), {}) == dict.fromkeys(QUESTIONS, value)


def test_an_empty_list_of_something_else_is_an_answer(tmp_path: Path) -> None:
    """A run without volumes."""
    tasks = [{"gpumesh.cluster.role_options": {"roles": ["storage"]}}]
    run = run_tasks(tmp_path, {"a": {"storage_volumes": "wrong"}}, {}, tasks, "-e", '{"storage_volumes": []}')
    assert run.code == 0, run.output


@pytest.mark.parametrize(("given", "run"), [([], ["all_reduce"]), (["gather"], ["gather"])])
def test_no_collectives_are_the_default_ones(tmp_path: Path, given: list[str], run: list[str]) -> None:
    names = {"ansible.builtin.include_vars": str(ROOT / "roles" / "check" / "vars" / "main.yml")}
    tasks = [names, {"ansible.builtin.assert": {"that": "__check_collective_names == wanted"}}]
    extra = json.dumps({"check_collectives": given, "wanted": run})
    done = run_tasks(tmp_path, {"a": {}}, {}, tasks, "-e", extra)
    assert done.code == 0, done.output
