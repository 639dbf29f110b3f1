# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_member. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.copies import refuse_unexpected_record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction


class ActionModule(HostAction):
    """Runs the module, with the members that earlier tasks have returned on the hosts of the play."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = {**self.older_version(), **self._task.args}
        registered_name = module_args.pop("registered", None)
        if registered_name is None:
            return self.run_module("gpumesh.cluster.cluster_member", module_args)
        registered_members = self._collect_registrations(str(registered_name))
        # Joining machines are not in the record in check mode, so the module would refuse them.
        if not registered_members or self.check_mode:
            return {"changed": bool(registered_members)}
        result = self.run_module("gpumesh.cluster.cluster_member", {**module_args, "members": registered_members})
        # The tasks after this one use the record, and delegate tasks to the manager that it names.
        refuse_unexpected_record(
            model.parse(result["record"]), str(module_args["cluster"]), str(self._task.delegate_to or self.machine)
        )
        return result

    def _collect_registrations(self, variable_name: str) -> list[Any]:
        """Return the ``registration`` in the variable of this name, for each host that is still in the play."""
        return [
            result["registration"]
            for result in self.registered_results(variable_name, self.active_hosts).values()
            if result.get("registration")
        ]
