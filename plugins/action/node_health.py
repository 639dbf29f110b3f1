# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of node_health. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.node_health import desired_parameters
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction


class ActionModule(HostAction):
    """Runs the module, with the requirements of the record for the node."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = dict(self._task.args)
        if "record" in module_args:
            record = self.record()
            del module_args["record"]
            lost_hosts = set(self.variables["ansible_play_hosts_all"]) - set(self.variables["ansible_play_hosts"])
            mesh_relays = self.options("mesh_relays")["mesh_relays"]
            module_args = {**desired_parameters(record, self.machine, lost_hosts, mesh_relays), **module_args}
            if not module_args.get("ssh_user"):
                module_args.update(self._login_options())
        return self.run_module("gpumesh.cluster.node_health", module_args)

    def _login_options(self) -> dict[str, Any]:
        """Return the options that test the login of the first of ssh_trust_users; without users, none is tested."""
        ssh_users = self.options("ssh_trust_users")["ssh_trust_users"]
        return {"ssh_user": ssh_users[0]} if ssh_users else {"ssh_user": "root", "ssh_peers": {}}
