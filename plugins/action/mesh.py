# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of mesh. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.options import RECORD_OPTIONS, TUNNEL_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.mesh_host import set_up_tunnel, update_tailnet

_ACTION_OPTIONS = {**RECORD_OPTIONS, "preshared": TUNNEL_OPTIONS["preshared"]}


class ActionModule(HostAction):
    """Does what the action of the record's backend does."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        action_options, module_args = self.split_own_options(_ACTION_OPTIONS)
        record = self.resolve_record(module_args["record"])
        backend = record["mesh"]["backend"]
        if backend == "wireguard":
            return set_up_tunnel(self, record, action_options, {})
        if backend == "tailscale":
            return update_tailnet(self, record, {"login": False})
        return {"changed": False, "ready": True}
