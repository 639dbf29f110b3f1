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
        task_args = self.arguments(registration={"type": "str", "required": True})
        decision = self.variables[task_args["registration"]]
        preflight_plan = decision["preflight"]
        options = self.options("cluster_name", "cluster_unsupported_release", *preflight.READ_OPTIONS)
        host_needs = preflight.host_requirements(
            options["cluster_name"],
            self.machine,
            decision["manager"],
            preflight_plan["volumes"],
            options,
            self.machine in preflight_plan["pods"],
        )
        return self.run_module("gpumesh.cluster.preflight", host_needs)
