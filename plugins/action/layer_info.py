# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of layer_info. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any, Callable

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.drift import layer_queries
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_OPTION, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import (
    job_environment,
    names,
    session,
    ssh_trust,
    storage,
    tracking,
    train,
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
        parameters_by_layer: dict[str, Any] = {}
        refusals_by_layer: dict[str, str] = {}
        for layer, derive_parameters in self._layers(record).items():
            try:
                parameters_by_layer[layer] = derive_parameters()
            except InputError as error:
                refusals_by_layer[layer] = error.message.rstrip(".")
        drift_queries = layer_queries(
            record,
            self.machine,
            accounting=self.options("slurm_accounting")["slurm_accounting"],
        )
        result = self.run_module("gpumesh.cluster.layer_info", {**drift_queries, "modules": parameters_by_layer})
        is_confined = self._is_userspace_only(record)
        return {**result, "userspace_only": is_confined, "drift": {**refusals_by_layer, **result["drift"]}}

    def _tracking(self, record: model.Record) -> dict[str, Any]:
        options = self.options("tracking_uid", "tracking_unconfined")
        return tracking.desired_parameters(
            record, self.machine, options["tracking_uid"], options["tracking_unconfined"]
        )

    def _is_userspace_only(self, record: model.Record) -> bool:
        """Whether the host is a userspace-only member, according to what the role cluster has read of it."""
        interface_results = {self.machine: self.variables.get("__cluster_held") or {}}
        options_by_machine = {self.machine: self.options(*MESH_OPTIONS)}
        return record["mesh"]["backend"] == "tailscale" and bool(
            userspace_only_machines(interface_results, options_by_machine)
        )

    def _layers(self, record: model.Record) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return the functions that derive the parameters of each layer's module for this host."""
        return {
            "names": lambda: names.desired_parameters(record, self.machine),
            "ssh": lambda: ssh_trust.desired_parameters(record, self.machine, self.options(*ssh_trust.ROLE_OPTIONS)),
            "job environment": lambda: job_environment.desired_parameters(
                record, self.machine, self.options(*job_environment.ROLE_OPTIONS)
            ),
            "storage": lambda: storage.desired_parameters(record, self.machine, self.options(*storage.ROLE_OPTIONS)),
            **({"tracking": lambda: self._tracking(record)} if record["tracking"] else {}),
            "train": lambda: train.desired_parameters(record, self.machine, self.options(*train.ROLE_OPTIONS)),
            "session": lambda: session.desired_parameters(record, self.machine, self.options(*session.ROLE_OPTIONS)),
        }
