# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of node_health. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.node_health import desired


class ActionModule(HostAction):
    """Runs the module, with the requirements of the record for the node."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = dict(self._task.args)
        if "record" in given:
            record = self.record()
            del given["record"]
            silent = set(self.variables["ansible_play_hosts_all"]) - set(self.variables["ansible_play_hosts"])
            relays = self.variable("mesh_relays", [])
            given = {**desired(record, self.machine, silent, relays), **given}
            if not given.get("ssh_user"):
                given.update(self._logins())
        return self.module("gpumesh.cluster.node_health", given)

    def _logins(self) -> dict[str, Any]:
        """The first of the users who log in to other members; without any, no login is tested."""
        users = self.options("ssh_trust", "users")["users"]
        return {"ssh_user": users[0]} if users else {"ssh_user": "root", "ssh_peers": {}}
