# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of train. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import paths
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, STATE, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.train import contents, desired

_MODULE = "gpumesh.cluster.train"


class ActionModule(HostAction):
    """Takes the mount points of the shared volumes from the record, and sends the programs."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            record=RECORD,
            state=STATE,
            run_dir={"type": "str", "default": ""},
            stage_dir={"type": "str", "default": paths.STAGE},
        )
        settings = desired(self.record(), self.machine, given["run_dir"], given["state"], given["stage_dir"])
        return self.supply(_MODULE, settings, self.module(_MODULE, settings), contents)
