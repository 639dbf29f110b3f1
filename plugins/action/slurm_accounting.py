# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of slurm_accounting. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.accounting import SlurmAccounting

_STATE_METHODS = {
    "present": SlurmAccounting.create,
    "saved": SlurmAccounting.save,
    "stopped": SlurmAccounting.stop,
    "absent": SlurmAccounting.delete,
}


class ActionModule(HostAction):
    """Runs MariaDB, and applies the state with other modules."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(state={"type": "str", "choices": list(_STATE_METHODS), "default": "present"})
        accounting = SlurmAccounting(self)
        _STATE_METHODS[task_args["state"]](accounting)
        return {"changed": accounting.changed, "socket": accounting.socket}
