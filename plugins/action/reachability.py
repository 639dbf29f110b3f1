# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of reachability. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability import ReachabilityAction

_MODULE = "gpumesh.cluster.reachability"


class ActionModule(ReachabilityAction):
    """Derives the address of the host from the members."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = dict(self._task.args)
        if "members" not in module_args:
            return self.run_module(_MODULE, module_args)
        layer = str(module_args.pop("layer", "mesh"))
        own_target = self.own_target(self.require_targets(module_args.pop("members"), layer))
        if own_target is None:
            return {"changed": False, "skipped": True, "msg": f"{self.machine} is not among the members."}
        return self.run_module(_MODULE, {"check_name": layer == "mesh", **module_args, **own_target.identity_options()})
