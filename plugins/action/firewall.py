# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of firewall. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.firewall import desired


class ActionModule(HostAction):
    """Runs the module, with the members from the record, and installs nftables if it is needed."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        options = dict(self._task.args)
        if "record" not in options:
            return self.module("gpumesh.cluster.firewall", options)
        record = self.record()
        del options["record"]
        wanted = options.get("state") != "absent"
        if wanted and self.machine not in [member["machine"] for member in record["members"]]:
            return {"changed": False}
        return self.equipped_module(
            "gpumesh.cluster.firewall",
            desired(record, options),
            lambda result: ["nftables"] if wanted and not result["tools"] else [],
        )
