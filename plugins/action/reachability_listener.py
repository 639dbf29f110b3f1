# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of reachability_listener. Its documentation is in the module of the same name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible import constants

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability import (
    ReachabilityAction,
    find_concurrent_runs,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_evidence import listener_lifetime

_MODULE = "gpumesh.cluster.reachability_listener"
#: Seconds, after which a listener that nobody stops ends by itself. It has more for many members.
_MIN_LIFETIME = 300


class ActionModule(ReachabilityAction):
    """Derives the address to listen on and the expected peers from the members."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = dict(self._task.args)
        if module_args.get("run") and module_args.get("state", "started") == "started":
            # The parent process of a worker is the playbook.
            module_args.setdefault(
                "concurrent_runs",
                find_concurrent_runs(module_args["run"], Path(constants.DEFAULT_LOCAL_TMP), os.getppid()),
            )
        if "members" not in module_args:
            return self.run_module(_MODULE, module_args)
        options = self.options("reachability_layer", "reachability_ports")
        members = self.require_targets(module_args.pop("members"), options["reachability_layer"])
        own_target = self.own_target(members)
        if own_target is None:
            return {"changed": False, "skipped": True, "msg": f"{self.machine} is not among the members."}
        throughput_seconds = int(module_args.get("throughput_seconds", 0))
        other_machines = [machine for machine in self.participants(members) if machine != self.machine]
        listener_options = {
            **own_target.identity_options(),
            "ports": options["reachability_ports"],
            "lifetime": listener_lifetime(_MIN_LIFETIME, len(members), throughput_seconds),
            # A listener ends once it is no longer needed. The throughput measurement needs it after the probes, too.
            "peers": [] if throughput_seconds else other_machines,
        }
        return self.run_module(_MODULE, {**module_args, **listener_options})
