# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of job_environment. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, STATE, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.job_environment import desired


class ActionModule(HostAction):
    """Derives the settings of the node from the record, and sends them with the programs that read them."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            record=RECORD,
            state=STATE,
            port_range={"type": "list", "elements": "int", "default": [15000, 24999]},
            dialects={"type": "list", "elements": "str", "default": []},
            variables={"type": "dict", "default": {}},
            rdma={"type": "bool", "default": True},
            logins={"type": "bool", "default": True},
        )
        record = self.record()
        if given["state"] == "absent":
            return self.module("gpumesh.cluster.job_environment", {"cluster": record["name"], "state": "absent"})
        return self.module("gpumesh.cluster.job_environment", desired(record, self.machine, given))
