# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of train. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    STATE_OPTION,
    HostAction,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import train

_MODULE = "gpumesh.cluster.train"


class ActionModule(HostAction):
    """Takes the mount points of the shared volumes from the record, and pushes the programs."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(record=RECORD_OPTION, state=STATE_OPTION)
        module_args = train.desired_parameters(
            self.record(), self.machine, self.options(*train.ROLE_OPTIONS), task_args["state"]
        )
        return self.push_sources(_MODULE, module_args, self.run_module(_MODULE, module_args), train.program_sources)
