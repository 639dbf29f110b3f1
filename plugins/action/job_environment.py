# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of job_environment. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment.desired import derive_parameters
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    STATE_OPTION,
    HostAction,
    RecordArguments,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.job_environment import (
    ROLE_OPTIONS,
    given_parameters,
    program_sources,
)

_MODULE = "gpumesh.cluster.job_environment"


class ActionModule(HostAction):
    """Derives the settings of the node from the record, and pushes the programs that read them."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(record=RECORD_OPTION, state=STATE_OPTION)
        record = self.record()
        if task_args["state"] == "absent":
            return self.run_module(_MODULE, {"cluster": record["name"], "state": "absent"})
        given_args = given_parameters(record, self.machine, self.options(*ROLE_OPTIONS))
        module_args = RecordArguments(given_args, lambda: derive_parameters(record, given_args))
        return self.push_sources(_MODULE, module_args, self.run_module(_MODULE, module_args), program_sources)
