# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of names. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, STATE, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.names import desired


class ActionModule(HostAction):
    """Derives the names from the record, and writes them on the host."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(record=RECORD, state=STATE)
        programs = {name: path for name, path in self.supervisor().items() if name == "supervisor_programs"}
        wanted = desired(self.record(), self.machine, given["state"])
        return self.module("gpumesh.cluster.names", {**wanted, **programs})
