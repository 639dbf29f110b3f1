# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts that YAML, or AWX on its way to Ansible, has made numbers or booleans of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.action import role_options, session_run, train_run
from ansible_collections.gpumesh.cluster.tests.support.action_runs import play_action
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

HOST_VARIABLES = {"inventory_hostname": "n1", "ansible_play_batch": ["n1"]}
#: Nothing of it is looked at before the refusal.
RECORD: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"train_time": 7200}, "train_time is the number 7200: YAML takes 2:00:00 without quotes for 7200. Write the"),
        ({"train_name": 8}, "train_name is the number 8: YAML takes 010 without quotes"),
        ({"train_command": False}, "train_command is the boolean False"),
        ({"train_user": 1.5}, "train_user is the number 1.5"),
    ],
)
def test_a_run_with_a_converted_option_is_not_started(variables: dict[str, Any], said: str) -> None:
    arguments = {"record": RECORD, "name": "nano", "command": "true"}
    result = play_action(train_run.ActionModule, arguments, {}, {**HOST_VARIABLES, **variables}).result
    assert result["failed"] and said in result["msg"]


@pytest.mark.parametrize("variables", [{"session_time": 1800}, {"session_name": 8}, {"session_partition": True}])
def test_a_session_with_a_converted_option_is_not_started(variables: dict[str, Any]) -> None:
    result = play_action(
        session_run.ActionModule, {"record": RECORD, "name": "demo"}, {}, {**HOST_VARIABLES, **variables}
    ).result
    assert result["failed"] and f"{next(iter(variables))} is the " in result["msg"]


def test_converted_options_of_roles_are_refused_together_with_other_errors() -> None:
    variables = {
        **HOST_VARIABLES,
        "cluster_name": 8,
        "mesh_port": "51821",
        "mesh_interface": True,
        "tracking_server": "",
    }
    result = play_action(role_options.ActionModule, {"roles": ["cluster", "mesh", "tracking"]}, {}, variables).result
    assert [said.partition(":")[0] for said in result["invalid"]] == [
        "cluster_name is the number 8",
        "mesh_interface is the boolean True",
    ]


def test_survey_answers_in_the_form_of_awx(tmp_path: Path) -> None:
    """Whatever this ansible-core makes of it, no other time is taken: it is refused, or still a text."""
    answers = tmp_path / "extravars"
    answers.write_text("---\n!unsafe 'train_time': !unsafe '2:00:00'\n!unsafe 'train_name': !unsafe '010'\n")
    tasks = [
        {
            "gpumesh.cluster.train_run": {"record": {}, "name": "{{ train_name }}", "command": "true"},
            "ignore_errors": True,
            "register": "refused",
        },
        {"ansible.builtin.debug": {"msg": "time: {{ train_time | type_debug }} {{ refused.msg }}"}},
    ]
    run = run_tasks(tmp_path, {"n1": {}}, {}, tasks, "-e", f"@{answers}")
    number = "train_name is the number 8" in run.flat_output or "train_time is the number 7200" in run.flat_output
    assert number == ("time: int" in run.flat_output), run.output
