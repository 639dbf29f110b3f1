# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of reachability_listener. Its documentation is in the module of the same name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible import constants

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reach_evidence import lifetime
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reachability import ReachabilityAction, runs_beside

_MODULE = "gpumesh.cluster.reachability_listener"


class ActionModule(ReachabilityAction):
    """Derives the address to listen on and the expected peers from the members."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = dict(self._task.args)
        if given.get("run") and given.get("state", "started") == "started":
            # The parent process of a worker is the playbook.
            given.setdefault("spared", runs_beside(given["run"], Path(constants.DEFAULT_LOCAL_TMP), os.getppid()))
        if "members" not in given:
            return self.module(_MODULE, given)
        members = self.targets(given.pop("members"), str(given.pop("layer", "mesh")))
        own = self.own(members)
        if own is None:
            return {"changed": False, "skipped": True, "msg": f"{self.machine} is not among the members."}
        seconds = int(given.get("throughput_seconds", 0))
        others = [machine for machine in self.asked(members) if machine != self.machine]
        derived = {
            **own.parameters(),
            "lifetime": lifetime(int(given.get("lifetime", 300)), len(members), seconds),
            # A listener ends once it is no longer needed. The throughput measurement needs it after the probes, too.
            "visitors": [] if seconds else others,
        }
        return self.module(_MODULE, {**given, **derived})
