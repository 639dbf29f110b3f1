# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of layer_info. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.drift import MODULES, derive_parameters
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.drift import layer_queries
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    HostAction,
    RecordArguments,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import slurm
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.mesh_host import absent_members
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm_run import collect_gres
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.ssh_trust import key_registration
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
        queries = layer_queries(record, self.machine, self._read_options)
        self._complete_parameters(record, queries.options["modules"])
        result = self.run_module(
            "gpumesh.cluster.layer_info",
            RecordArguments(queries.options, lambda: derive_parameters(record, queries.options)),
        )
        return {
            **result,
            "layers": queries.layers,
            "userspace_only": self._is_userspace_only(record),
            "drift": {**queries.refusals, **self._compare_keys(record, result), **result["drift"]},
        }

    def _read_options(self, *names: str) -> dict[str, Any]:
        """Return the options of roles. Raises InputError, also for a template that cannot be evaluated here."""
        read_options = self.options
        try:
            return read_options(*names)
        except AnsibleError as failure:
            raise InputError(
                f"Its options cannot be read: {str(failure).rstrip('.')}.",
                "Give values that need no facts of the host.",
            ) from failure

    def _complete_parameters(self, record: model.Record, parameters_by_module: Mapping[str, dict[str, Any]]) -> None:
        """Add to the parameters of modules what is known of supervisord, and what the options of other members decide."""
        supervisor_paths = self.supervisor_options()
        served_types = slurm.gres_types(record, collect_gres(self, record)) if self.machine == record["manager"] else {}
        if "wireguard" in parameters_by_module:
            tunnel_parameters = parameters_by_module["wireguard"]
            tunnel_parameters.update(absent_members(self, record, tunnel_parameters["preshared"]))
        for name, parameters in parameters_by_module.items():
            known_options = MODULES[name].options if name in MODULES else {}
            parameters.update({name: path for name, path in supervisor_paths.items() if name in known_options})
            if parameters.get("serve"):
                parameters.update(served_types)

    def _compare_keys(self, record: model.Record, result: Mapping[str, Any]) -> dict[str, str]:
        """Return the drift of the layer ssh_trust if the record has other keys than the host."""
        registration_entry = key_registration(record, self.machine, result.get("ssh_keys") or {})
        return {"ssh_trust": "its keys are not the ones in the record"} if registration_entry else {}

    def _is_userspace_only(self, record: model.Record) -> bool:
        """Whether the host is a userspace-only member, according to what the role cluster has read of it."""
        interface_results = {self.machine: self.variables.get("__cluster_info") or {}}
        options_by_machine = {self.machine: self.options(*MESH_OPTIONS)}
        return record["mesh"]["backend"] == "tailscale" and bool(
            userspace_only_machines(interface_results, options_by_machine)
        )
