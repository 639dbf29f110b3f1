# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of collective_test. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.collective import describe_unused, place_ranks
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction

_MODULE = "gpumesh.cluster.collective_test"


class ActionModule(HostAction):
    """Runs the module, on the nodes and with the ranks that follow from the record."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = dict(self._task.args)
        if "record" not in module_args:
            return self.run_module(_MODULE, module_args)
        record = self.record()
        del module_args["record"]
        uses_binaries = bool(module_args.get("path"))
        placement_options = place_ranks(record, self.userspace_only, uses_binaries)
        result = self.run_module(_MODULE, {**module_args, **placement_options})
        return {**result, "left_out": describe_unused(record, self.userspace_only, placement_options, uses_binaries)}
