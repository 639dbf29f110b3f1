# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of tailscale, whose documentation is in the module of the same name.

An auth key is sent to a host only if the module has reported that it is needed.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.mesh_host import (
    TAILNET_OPTIONS,
    ensure_logged_in,
    supervisor_program_options,
    update_tailnet,
)


class ActionModule(HostAction):
    """Runs the module, and runs it again with the auth key if the host has to log in."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = dict(self._task.args)
        record = self.resolve_record(module_args.pop("record", None))
        if record is None:
            return ensure_logged_in(
                self, {**supervisor_program_options(self), **module_args}, self.options("mesh_auth_key_file")
            )
        return update_tailnet(self, record, self.options(*TAILNET_OPTIONS), module_args)
