# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of names. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.host_names import derive_parameters
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    STATE_OPTION,
    HostAction,
    RecordArguments,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.names import (
    boot_program_sources,
    given_parameters,
)

_MODULE = "gpumesh.cluster.names"


class ActionModule(HostAction):
    """Derives the names from the record, and pushes the program that restores them in a container."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(record=RECORD_OPTION, state=STATE_OPTION)
        supervisor_paths = {
            name: path for name, path in self.supervisor_options().items() if name == "supervisor_programs"
        }
        record = self.record()
        if task_args["state"] == "absent":
            return self.run_module(_MODULE, {"cluster": record["name"], "state": "absent", **supervisor_paths})
        given_args = {**given_parameters(record, self.machine, {}), **supervisor_paths}
        module_args = RecordArguments(given_args, lambda: derive_parameters(record, given_args))
        return self.push_sources(_MODULE, module_args, self.run_module(_MODULE, module_args), boot_program_sources)
