# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of ssh_trust. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust.desired import derive_parameters
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    STATE_OPTION,
    HostAction,
    RecordArguments,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.ssh_trust import (
    ROLE_OPTIONS,
    given_parameters,
    key_registration,
)

_MODULE = "gpumesh.cluster.ssh_trust"


class ActionModule(HostAction):
    """Derives the files from the record, and returns what has to be registered in it."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(record=RECORD_OPTION, state=STATE_OPTION)
        record = self.record()
        if task_args["state"] == "absent":
            return self.run_module(_MODULE, {"cluster": record["name"], "state": "absent"})
        given_args = given_parameters(record, self.machine, self.options(*ROLE_OPTIONS))
        result = self.ensure_packages(
            _MODULE,
            RecordArguments(given_args, lambda: derive_parameters(record, given_args)),
            lambda module_result: ["openssh-client"] if module_result.get("missing") else [],
        )
        self.refuse_missing_programs(result.get("missing", []))
        registration_entry = key_registration(record, self.machine, result)
        return {**result, "registration": registration_entry} if registration_entry else result
