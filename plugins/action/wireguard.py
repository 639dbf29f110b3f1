# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of wireguard, whose documentation is in the module of the same name.

With a cluster record, it derives the tunnel of the host, and installs missing packages.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.options import TUNNEL_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.mesh_host import (
    WIREGUARD_MODULE,
    set_up_tunnel,
    supervisor_program_options,
)


class ActionModule(HostAction):
    """Runs the module, and runs it again after installing missing packages."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        action_options, module_args = self.split_own_options(TUNNEL_OPTIONS)
        record = self.resolve_record(module_args.pop("record", None))
        if record is None:
            return self.run_module(WIREGUARD_MODULE, {**supervisor_program_options(self), **module_args})
        return set_up_tunnel(self, record, action_options, module_args)
