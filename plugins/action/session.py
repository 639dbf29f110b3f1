# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of session. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.desired import derive_parameters
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    STATE_OPTION,
    HostAction,
    RecordArguments,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import session

_MODULE = "gpumesh.cluster.session"


class ActionModule(HostAction):
    """Derives the settings from the record and the options of the role, and installs packages and the program."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(record=RECORD_OPTION, state=STATE_OPTION)
        if task_args["state"] == "absent":
            return self.run_module(_MODULE, {"state": "absent"})
        record = self.record()
        given_args = session.given_parameters(record, self.machine, self.options(*session.ROLE_OPTIONS))
        if given_args["state"] == "absent":
            # The module slurm, which runs anyway, reports whether anything is here, and its action removes it.
            return {"changed": False, "missing": []}
        module_args = RecordArguments(given_args, lambda: derive_parameters(record, given_args))
        result = self.ensure_packages(
            _MODULE, module_args, lambda first_result: session.missing_packages(first_result["missing"])
        )
        self.refuse_missing_programs(result["missing"])
        return self.push_sources(_MODULE, module_args, result, session.program_sources)
