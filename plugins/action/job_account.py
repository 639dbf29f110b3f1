# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of job_account. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction

_MODULE = "gpumesh.cluster.job_account"


class ActionModule(HostAction):
    """Checks the account on the host, unless the inventory allows accounts that can become root."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            user={"type": "str", "default": ""},
            option={"type": "str", "required": True},
        )
        if boolean(self.resolve_inventory_variable(task_args["option"], False), strict=False):
            return {"changed": False, "user": task_args["user"]}
        return self.run_module(_MODULE, task_args)
