# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of reachability. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reachability import ReachabilityAction

_MODULE = "gpumesh.cluster.reachability"


class ActionModule(ReachabilityAction):
    """Derives the address of the host from the members."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = dict(self._task.args)
        if "members" not in given:
            return self.module(_MODULE, given)
        layer = str(given.pop("layer", "mesh"))
        own = self.own(self.targets(given.pop("members"), layer))
        if own is None:
            return {"changed": False, "skipped": True, "msg": f"{self.machine} is not among the members."}
        return self.module(_MODULE, {"check_name": layer == "mesh", **given, **own.parameters()})
