# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of layer_info. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.drift import derive_parameters
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.drift import layer_queries
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    HostAction,
    RecordArguments,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.userspace_only import (
    MESH_OPTIONS,
    userspace_only_machines,
)


class ActionModule(HostAction):
    """Derives the state of the layers on the host from the record, and compares it there."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        self.arguments(record=RECORD_OPTION)
        record = self.record()
        queries = layer_queries(record, self.machine, self.options)
        result = self.run_module(
            "gpumesh.cluster.layer_info",
            RecordArguments(queries.options, lambda: derive_parameters(record, queries.options)),
        )
        return {
            **result,
            "layers": queries.layers,
            "userspace_only": self._is_userspace_only(record),
            "drift": {**queries.refusals, **result["drift"]},
        }

    def _is_userspace_only(self, record: model.Record) -> bool:
        """Whether the host is a userspace-only member, according to what the role cluster has read of it."""
        interface_results = {self.machine: self.variables.get("__cluster_info") or {}}
        options_by_machine = {self.machine: self.options(*MESH_OPTIONS)}
        return record["mesh"]["backend"] == "tailscale" and bool(
            userspace_only_machines(interface_results, options_by_machine)
        )
