# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of slurm_accounting. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.accounting import Accounting
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction

_STEPS = {
    "present": Accounting.create,
    "saved": Accounting.save,
    "stopped": Accounting.stop,
    "absent": Accounting.delete,
}


class ActionModule(HostAction):
    """Runs MariaDB, and applies the state with other modules."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(state={"type": "str", "choices": list(_STEPS), "default": "present"})
        accounting = Accounting(self)
        _STEPS[given["state"]](accounting)
        return {"changed": accounting.changed, "socket": accounting.socket}
