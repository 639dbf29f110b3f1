# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of ssh_trust. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, STATE, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh_trust import STANDARD_PORT, desired, registration


class ActionModule(HostAction):
    """Derives the files from the record, and returns what has to be registered in it."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            record=RECORD,
            state=STATE,
            users={"type": "list", "elements": "str", "default": []},
            port={"type": "int", "default": STANDARD_PORT},
        )
        record = self.record()
        result = self.module(
            "gpumesh.cluster.ssh_trust", desired(record, self.machine, given["users"], given["port"], given["state"])
        )
        entry = registration(record, self.machine, result)
        return {**result, "registration": entry} if entry else result
