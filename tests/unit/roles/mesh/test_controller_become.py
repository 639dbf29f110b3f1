# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventories that set ansible_become for all hosts, with a controller on which nobody can become root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays, run_tasks
from ansible_collections.gpumesh.cluster.tests.support.task_files import ROOT, TASK_FILES, load_tasks

#: The user is not the one of the tests, so Ansible tries to become it, and the program does not exist.
NO_SUDO = {"ansible_become": True, "ansible_become_user": "nobody", "ansible_become_exe": "/opt/none/sudo"}
RECORD: dict[str, Any] = {
    "name": "lab",
    "mesh": {"backend": "tailscale"},
    "members": [{"machine": "n2", "mesh": {"address": "100.64.0.7"}}],
}


def test_a_control_server_is_queried_without_sudo(tmp_path: Path) -> None:
    role = {"name": "gpumesh.cluster.mesh", "tasks_from": "delete_devices"}
    variables = {
        "cluster_record": RECORD,
        "mesh_deleted_machines": ["n2"],
        "mesh_api_key": "k",
        # Nothing listens there.
        "mesh_login_server": "https://127.0.0.1:1",
    }
    plays = [{"hosts": "n1", "vars": variables, "tasks": [{"ansible.builtin.include_role": role}]}]
    run = run_plays(tmp_path, {"n1": NO_SUDO, "n2": NO_SUDO, "localhost": NO_SUDO}, plays)
    assert "https://127.0.0.1:1" in run.output and "Connection refused" in run.output, run.output


def test_no_task_on_the_controller_becomes_another_user() -> None:
    """A keyword is not enough, since a variable wins over it."""
    found = {
        f"{path.relative_to(ROOT)}: {task['name']}"
        for path in TASK_FILES
        for task in load_tasks(path)
        if task.get("delegate_to") == "localhost"
        # This needs no connection.
        and "ansible.builtin.set_fact" not in task
        and task.get("vars", {}).get("ansible_become", "") is not False
    }
    assert found == set()
    (play,) = load_tasks(ROOT / "playbooks" / "awx" / "setup.yml")[:1]
    assert play["vars"]["ansible_become"] is False


def test_no_keyword_sets_the_user_of_a_task() -> None:
    """Only whole plays set a user, which is root everywhere."""
    assert {str(path) for path in TASK_FILES for task in load_tasks(path) if {"become_user"} & task.keys()} == set()
    plays = {str(path): task.get("become") for path in TASK_FILES for task in load_tasks(path) if "become" in task}
    assert set(plays.values()) == {True}


#: Stands for sudo: it writes down which user it was asked for, and runs the command.
SUDO = """#!/bin/sh
while test "$1" != /bin/sh; do
  if test "$1" = -u; then echo "$2" > "$0.user"; fi
  shift
done
exec "$@"
"""


@pytest.mark.parametrize(("kind", "user"), [("session", "alice"), ("train", "alice"), ("train", "")])
def test_a_run_belongs_to_the_given_user(tmp_path: Path, kind: str, user: str) -> None:
    """The task has the variables of the role's task, and a command in place of its module."""
    module = f"gpumesh.cluster.{kind}_run"
    (task,) = [task for task in load_tasks(ROOT / "roles" / kind / "tasks" / "run.yml") if module in task]
    sudo = tmp_path / "sudo"
    sudo.write_text(SUDO, encoding="utf-8")
    sudo.chmod(0o755)
    hosts = {"n1": {"ansible_become": True, "ansible_become_user": "daemon", "ansible_become_exe": str(sudo)}}
    tasks = [{"ansible.builtin.raw": "true", "vars": task.get("vars", {}), "become": True}]
    run = run_tasks(tmp_path, hosts, {f"{kind}_user": user}, tasks)
    assert run.exit_status == 0, run.output
    asked = tmp_path / "sudo.user"
    assert (asked.read_text(encoding="utf-8").strip() if asked.exists() else "") == user
