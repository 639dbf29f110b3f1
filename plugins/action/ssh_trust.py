# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of ssh_trust. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    STATE_OPTION,
    HostAction,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.ssh_trust import (
    ROLE_OPTIONS,
    desired_parameters,
    key_registration,
)


class ActionModule(HostAction):
    """Derives the files from the record, and returns what has to be registered in it."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(record=RECORD_OPTION, state=STATE_OPTION)
        record = self.record()
        result = self.ensure_packages(
            "gpumesh.cluster.ssh_trust",
            desired_parameters(record, self.machine, self.options(*ROLE_OPTIONS), task_args["state"]),
            lambda module_result: ["openssh-client"] if module_result.get("missing") else [],
        )
        self.refuse_missing_programs(result.get("missing", []))
        registration_entry = key_registration(record, self.machine, result)
        return {**result, "registration": registration_entry} if registration_entry else result
