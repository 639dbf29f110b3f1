# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run action plugins as Ansible does, with given results instead of the modules on a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.template import Templar

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.push import decode_content


class ActionRun(NamedTuple):
    """The result of a task, the modules that it ran on the host, with their arguments, and its scripts.

    ``derived_from``: that argument of each module, which is not among the others.
    """

    result: dict[str, Any]
    module_calls: list[tuple[str, dict[str, Any]]]
    scripts: list[str]
    derived_from: list[tuple[str, Any]]


def unpack_files(packed_files: Mapping[str, str]) -> dict[str, bytes]:
    """Unpack the contents of files that an action sends to a module."""
    return {name: decode_content(text) for name, text in packed_files.items()}


def play_action(
    action: type,
    arguments: Mapping[str, Any],
    results_by_module: Mapping[str, Sequence[Mapping[str, Any]]],
    variables: Mapping[str, Any] | None = None,
    check_mode: bool = False,
    delegate_to: str | None = None,
) -> ActionRun:
    """Run an action.

    ``results_by_module`` has the results of each module in order; a module that is not named must not run.
    """
    task = Task()
    task.delegate_to = delegate_to
    task.args, task.check_mode = dict(arguments), check_mode
    host_variables = dict(variables or {})
    loader = DataLoader()
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nonexistent"))
    action_plugin = action(task, connection, None, loader, Templar(loader, variables=host_variables), None)
    remaining_results = {
        name: [dict(result) for result in module_results] for name, module_results in results_by_module.items()
    }
    module_calls: list[tuple[str, dict[str, Any]]] = []
    derived_from: list[tuple[str, Any]] = []

    def execute_module(module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        assert task_vars == host_variables
        derived_from.append((module_name, module_args.pop("derived_from", None)))
        module_calls.append((module_name, module_args))
        return remaining_results[module_name].pop(0)

    scripts: list[str] = []

    def run_script(text: str) -> dict[str, Any]:
        scripts.append(text)
        return {"rc": 0, "stdout": "", "stderr": ""}

    action_plugin._execute_module = execute_module
    action_plugin._low_level_execute_command = run_script
    return ActionRun(action_plugin.run(task_vars=host_variables), module_calls, scripts, derived_from)
