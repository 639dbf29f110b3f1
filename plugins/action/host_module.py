# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of host_module. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.host_module import NORMAL_ACTION, HostModule


class ActionModule(HostModule):
    """Runs another module, with its action if it has one."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            name={"type": "str", "required": True}, arguments={"type": "dict", "default": {}, "no_log": False}
        )
        other_task = self._task.copy()
        # The arguments are passed without validation, which would convert other values to strings.
        other_task.action, other_task.args = task_args["name"], dict(self._task.args.get("arguments") or {})
        has_action = self._shared_loader_obj.action_loader.has_plugin(other_task.action)
        return self.run_action(other_task, other_task.action if has_action else NORMAL_ACTION)
