# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Results from a host that must decide nothing on the machine that runs Ansible.

The Python of a host writes the result of each module, and so whoever is root there. Ansible creates variables from
facts in it, which precede those of the inventory, and artifacts of a job from statistics: in a workflow of AWX, these
are extra variables of the next job.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import option_names
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import AnsibleRun
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays
from ansible_collections.gpumesh.cluster.tests.support.task_files import ROOT, TASK_FILES, load_tasks

FORGED_FACTS = {
    "cluster_trusted_copy": "n1",
    "mesh_login_server": "http://192.0.2.7",
    "munge_key_file": "~/.ssh/id_ed25519",
}
FORGED_ARTIFACT = {"ansible_ssh_common_args": "-o ProxyCommand=id"}
FORGED_RESULT = {
    "changed": False,
    "clusters": [],
    "interfaces": [],
    "foreign_claims": [],
    "stat": {"exists": True, "isdir": False},
    "ansible_facts": FORGED_FACTS,
    "ansible_stats": {"data": FORGED_ARTIFACT, "per_host": False},
}
#: Tasks with every kind of action: examined, without one of its own, with modules or an action of ansible-core.
HOST_TASKS: list[dict[str, Any]] = [
    {"gpumesh.cluster.cluster_info": {}},
    {"gpumesh.cluster.interface_info": {}},
    {"gpumesh.cluster.usage_info": {}},
    {"gpumesh.cluster.host_owner": {"cluster": "lab", "cluster_id": "0" * 32}},
    {"gpumesh.cluster.slurm_info": {"gather": ["nodes"]}},
    {"gpumesh.cluster.daemon": {"name": "slurmd", "state": "absent"}},
    {"gpumesh.cluster.packages": {"name": ["sl"]}},
    {"gpumesh.cluster.munge": {"record": {}}},
    {"gpumesh.cluster.host_module": {"name": "ansible.builtin.stat", "arguments": {"path": "/"}}},
    {"gpumesh.cluster.host_module": {"name": "ansible.builtin.setup"}},
    {
        "gpumesh.cluster.host_module": {
            "name": "ansible.builtin.copy",
            "arguments": {"content": "text", "dest": "/nonexistent/file"},
        }
    },
    {"gpumesh.cluster.host_module": {"name": "ansible.builtin.command", "arguments": {"argv": ["id"]}}},
]
#: The actions that run on the controller alone.
CONTROLLER_ACTIONS = [
    "assert",
    "debug",
    "fail",
    "import_playbook",
    "import_role",
    "import_tasks",
    "include_role",
    "include_tasks",
    "meta",
    "set_fact",
    "set_stats",
]
#: An action that returns nothing of what modules answer on the host: only whether it was rebooted, and how long it took.
OWN_RESULTS = ["reboot"]


def run_on_forger(directory: Path, tasks: list[dict[str, Any]], *plays: dict[str, Any]) -> AnsibleRun:
    """Run tasks on a host whose Python always gives the same result. Statistics are printed at the end."""
    python = directory / "python3"
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(FORGED_RESULT)}\nEND\n", encoding="utf-8")
    python.chmod(0o755)
    (directory / "ansible.cfg").write_text("[defaults]\nshow_custom_stats = true\n", encoding="utf-8")
    tolerant_tasks = [{**task, "ignore_errors": True} for task in tasks]
    return run_plays(
        directory,
        {"n1": {"ansible_python_interpreter": str(python)}},
        [*plays, {"hosts": "all", "tasks": [*tolerant_tasks, {"ansible.builtin.debug": {"msg": "after all"}}]}],
    )


def show_variables_task() -> dict[str, Any]:
    names = [*FORGED_FACTS, *FORGED_ARTIFACT]
    variable_text = " ".join(f"{name}={{{{ {name} | default('unset') }}}}" for name in names)
    return {"ansible.builtin.debug": {"msg": variable_text}}


def test_result_sets_neither_variables_nor_artifacts(tmp_path: Path) -> None:
    run = run_on_forger(tmp_path, [*HOST_TASKS, show_variables_task()])
    assert run.exit_status == 0 and "after all" in run.flat_output, run.output
    assert [name for name in (*FORGED_FACTS, *FORGED_ARTIFACT) if f"{name}=unset" not in run.flat_output] == [], (
        run.output
    )
    assert "CUSTOM STATS" not in run.output


def test_host_sets_both_through_an_ansible_task(tmp_path: Path) -> None:
    """Otherwise, the test above would prove nothing."""
    run = run_on_forger(tmp_path, [{"ansible.builtin.stat": {"path": "/"}}, show_variables_task()])
    assert "munge_key_file=~/.ssh/id_ed25519" in run.flat_output and "CUSTOM STATS" in run.output, run.output


@pytest.mark.parametrize(
    "task",
    [
        {"gpumesh.cluster.munge": {"record": {}, "key_file": "{{ munge_key_file }}"}},
        {"gpumesh.cluster.role_options": {"roles": ["munge"]}},
        {
            "gpumesh.cluster.host_module": {
                "name": "ansible.builtin.stat",
                "arguments": {"path": "{{ munge_key_file }}"},
            }
        },
    ],
)
def test_options_from_facts_are_rejected(tmp_path: Path, task: dict[str, Any]) -> None:
    """A playbook of the user's own may gather facts before."""
    run = run_on_forger(tmp_path, [task], {"hosts": "all", "gather_facts": True, "tasks": []})
    assert "The facts of n1 contain cluster_trusted_copy, mesh_login_server, munge_key_file" in run.flat_output, (
        run.output
    )


def test_every_module_has_an_action_that_drops_facts() -> None:
    bases = {}
    for path in (ROOT / "plugins" / "modules").glob("*.py"):
        text = (ROOT / "plugins" / "action" / path.name).read_text(encoding="utf-8")
        bases[path.stem] = re.findall(r"^class ActionModule\((\w+)\):$", text, re.MULTILINE)
    # The last ones are a ControllerAction and a HostAction, too.
    assert {base for base_names in bases.values() for base in base_names} <= {
        "HostAction",
        "ControllerAction",
        "HostModule",
        "ExaminedModule",
        "AwxAction",
        "ReachabilityAction",
    }
    assert all(len(base_names) == 1 for base_names in bases.values()), bases


def test_host_tasks_use_only_this_collection() -> None:
    used = {
        key for path in TASK_FILES for task in load_tasks(path) for key in task if re.fullmatch(r"\w+\.\w+\.\w+", key)
    }
    foreign_actions = {name for name in used if not name.startswith("gpumesh.cluster.")}
    assert foreign_actions <= {f"ansible.builtin.{name}" for name in (*CONTROLLER_ACTIONS, *OWN_RESULTS)}, (
        foreign_actions
    )


def test_option_names_are_complete() -> None:
    for path in ROOT.glob("roles/*/defaults/main.yml"):
        defaults = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        assert {name for name in defaults if not name.startswith("_")} <= option_names(), path
