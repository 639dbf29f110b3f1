# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of collective_test. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.collective import left_out, placement

_MODULE = "gpumesh.cluster.collective_test"


class ActionModule(HostAction):
    """Runs the module, on the nodes and with the ranks that follow from the record."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = dict(self._task.args)
        if "record" not in given:
            return self.module(_MODULE, given)
        record = self.record()
        del given["record"]
        binaries = bool(given.get("path"))
        derived = placement(record, self.userspace_only, binaries)
        result = self.module(_MODULE, {**given, **derived})
        return {**result, "left_out": left_out(record, self.userspace_only, derived, binaries)}
