# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of tracking_change. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.tracking import find_moved_server, refuse_failed


class ActionModule(ControllerAction):
    """Evaluates what the hosts of the play have registered."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            record={"type": "raw"},
            registered={"type": "str", "required": True},
            former_server={"type": "str", "default": ""},
        )
        refuse_failed(self.registered_results(task_args["registered"], self.active_hosts))
        if task_args["record"] is None:
            return {"changed": False}
        # Userspace-only members are in the play, but run nothing of this layer.
        participants = [machine for machine in self.active_hosts if machine not in self.userspace_only]
        preview_results = self.registered_results(task_args["registered"], participants)
        is_forced = self.options("cluster_force")["cluster_force"]
        moved_from = find_moved_server(self.record(), task_args["former_server"], preview_results, is_forced)
        return {"changed": False, "moved_from": moved_from}
