# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of mesh. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.mesh_host import (
    TAILNET_OPTIONS,
    set_up_tunnel,
    update_tailnet,
)


class ActionModule(HostAction):
    """Does what the action of the record's backend does."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        record = self.resolve_record(self._task.args["record"])
        backend = record["mesh"]["backend"]
        if backend == "wireguard":
            options = self.options("mesh_relays", "mesh_preshared_keys")
            tunnel_options = {"relays": options["mesh_relays"], "preshared": options["mesh_preshared_keys"]}
            return set_up_tunnel(self, record, tunnel_options, {})
        if backend == "tailscale":
            return update_tailnet(self, record, self.options(*TAILNET_OPTIONS), {"login": False})
        return {"changed": False, "ready": True}
