# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_member. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.copies import refuse_other


class ActionModule(HostAction):
    """Runs the module, with the members that tasks before have returned on the hosts of the play."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = {**self.older_version(), **self._task.args}
        registered = given.pop("registered", None)
        if registered is None:
            return self.module("gpumesh.cluster.cluster_member", given)
        members = self._returned(str(registered))
        # In check mode, joining machines are not in the record, which would refuse them.
        if not members or self.check_mode:
            return {"changed": bool(members)}
        result = self.module("gpumesh.cluster.cluster_member", {**given, "members": members})
        # The tasks after this one use the record, and delegate tasks to the manager that it names.
        refuse_other(model.parse(result["record"]), str(given["cluster"]), str(self._task.delegate_to or self.machine))
        return result

    def _returned(self, name: str) -> list[Any]:
        """The ``registration`` in the variable of this name, for each host that is still in the play."""
        return [
            result["registration"]
            for result in self.registered(name, self.present).values()
            if result.get("registration")
        ]
