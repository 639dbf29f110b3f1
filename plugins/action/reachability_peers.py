# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of reachability_peers. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reach_evidence import peers
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reachability import LAYER, ReachabilityAction


class ActionModule(ReachabilityAction):
    """Reads the results of the listeners on all hosts of the play."""

    _requires_connection = False

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            members={"type": "raw", "required": True}, layer=LAYER, registered={"type": "str", "required": True}
        )
        members = self.targets(given["members"], given["layer"])
        listening = self.registered(given["registered"], self.asked(members))
        return {"changed": False, "peers": peers(listening, members)}
