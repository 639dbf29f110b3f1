# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of preflight. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils import preflight
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction


class ActionModule(HostAction):
    """Derives from the options of the roles what the host must have."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            cluster={"type": "str", "required": True}, registration={"type": "str", "required": True}
        )
        decision = self.variables[given["registration"]]
        wanted = decision["preflight"]
        options = preflight.read_options(self.options)
        needed = preflight.needs(
            given["cluster"],
            self.machine,
            decision["manager"],
            wanted["volumes"],
            options,
            self.machine in wanted["pods"],
        )
        return self.module("gpumesh.cluster.preflight", needed)
