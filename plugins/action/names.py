# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of names. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    STATE_OPTION,
    HostAction,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.names import desired_parameters


class ActionModule(HostAction):
    """Derives the names from the record, and writes them on the host."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(record=RECORD_OPTION, state=STATE_OPTION)
        supervisor_paths = {
            name: path for name, path in self.supervisor_options().items() if name == "supervisor_programs"
        }
        desired_names = desired_parameters(self.record(), self.machine, task_args["state"])
        return self.run_module("gpumesh.cluster.names", {**desired_names, **supervisor_paths})
