# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of wireguard_preshared, whose documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import mesh


class ActionModule(HostAction):
    """Determines the peers with which the host shares a key, and runs the module."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = dict(self._task.args)
        record = self.resolve_record(module_args.pop("record", None))
        if record is not None:
            options = self.options("mesh_relays", "mesh_rotate_preshared_keys")
            module_args = {
                "renew": options["mesh_rotate_preshared_keys"],
                "interface": record["mesh"]["interface"],
                "machine": self.machine,
                "peers": mesh.key_sharing_peers(record, self.machine, options["mesh_relays"], self.active_hosts),
                **module_args,
            }
        return self.run_module("gpumesh.cluster.wireguard_preshared", module_args)
