# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of reachability_peers. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability import ReachabilityAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_evidence import build_peers


class ActionModule(ReachabilityAction):
    """Reads the results of the listeners on all hosts of the play."""

    _requires_connection = False

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            members={"type": "raw", "required": True}, registered={"type": "str", "required": True}
        )
        members = self.require_targets(task_args["members"], self.options("reachability_layer")["reachability_layer"])
        listener_results = self.registered_results(task_args["registered"], self.participants(members))
        return {"changed": False, "peers": build_peers(listener_results, members)}
