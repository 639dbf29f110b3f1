# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of preflight. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster import preflight
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction


class ActionModule(HostAction):
    """Derives from the options of the roles what the host must have."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            cluster={"type": "str", "required": True}, registration={"type": "str", "required": True}
        )
        decision = self.variables[task_args["registration"]]
        preflight_plan = decision["preflight"]
        role_options = preflight.read_role_options(self.read_role_options)
        host_needs = preflight.host_requirements(
            task_args["cluster"],
            self.machine,
            decision["manager"],
            preflight_plan["volumes"],
            role_options,
            self.machine in preflight_plan["pods"],
        )
        return self.run_module("gpumesh.cluster.preflight", host_needs)
