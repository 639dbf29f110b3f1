# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of train_run. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, HostAction, stats
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.train import artifacts, volumes

_MODULE = "gpumesh.cluster.train_run"
#: Seconds between two queries.
_SPACING = 5.0
_OWN = {"record": RECORD, "wait": {"type": "bool", "default": True}}


class ActionModule(HostAction):
    """Starts the run on the host, and follows it until it has ended."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        self.refuse_converted("train", "run")
        own, given = self.own_options(_OWN)
        # The task of the role runs on the manager, whichever host is the first of the play: it may be a pod.
        given["volumes"] = volumes(self.record(), str(self._task.delegate_to or self.machine))
        result = self.module(_MODULE, given)
        changed = result["changed"]
        if own["wait"] and not self.check_mode:
            look = {**given, "state": "followed"}
            result = self.follow(result, lambda one: not one["ended"], lambda: self.module(_MODULE, look), _SPACING)
        result = {**result, **stats(artifacts(given["name"], result))}
        failed = result["run"]["state"] in ("failed", "cancelled")
        if failed and not self.check_mode:
            return {**result, "changed": changed, "failed": True, "msg": result["line"]}
        return {**result, "changed": changed}
