# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of a module that decides nothing on the controller."""

from __future__ import annotations

from typing import Any

from ansible.playbook.task import Task

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction, split_facts

#: The action with which Ansible runs modules that have none of their own.
NORMAL_ACTION = "ansible.builtin.normal"


class HostModule(HostAction):
    """Runs the module as Ansible would itself. Its answer sets no variables: facts in it are an ordinary value."""

    TRANSFERS_FILES = True

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        return self.run_action(self._task, NORMAL_ACTION)

    def run_action(self, task: Task, action_name: str) -> dict[str, Any]:
        """The result of a task with this action."""
        action_plugin = self._shared_loader_obj.action_loader.get(
            action_name,
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        result, facts = split_facts(action_plugin.run(task_vars=self.variables))
        return {**result, **({"facts": facts} if facts else {})}
