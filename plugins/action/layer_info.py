# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of layer_info. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any, Callable

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import (
    job_environment,
    names,
    session,
    ssh_trust,
    storage,
    tracking,
    train,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.dialling import OPTIONS, userspace_only
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.drift import questions


class ActionModule(HostAction):
    """Derives the state of the layers on the host from the record, and compares it there."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        self.arguments(record=RECORD)
        record = self.record()
        parameters: dict[str, Any] = {}
        refused: dict[str, str] = {}
        for layer, desired in self._layers(record).items():
            try:
                parameters[layer] = desired()
            except InputError as error:
                refused[layer] = error.message.rstrip(".")
        asked = questions(
            record,
            self.machine,
            accounting=self.options("slurm", "accounting")["accounting"],
        )
        result = self.module("gpumesh.cluster.layer_info", {**asked, "modules": parameters})
        confined = self._is_userspace_only(record)
        return {**result, "userspace_only": confined, "drift": {**refused, **result["drift"]}}

    def _tracking(self, record: model.Record) -> dict[str, Any]:
        return tracking.desired(record, self.machine, **self.options("tracking", "uid", "unconfined"))

    def _is_userspace_only(self, record: model.Record) -> bool:
        """By what the role cluster has read of the host."""
        held = {self.machine: self.variables.get("__cluster_held") or {}}
        options = {self.machine: {name: self.variable(name) for name in OPTIONS}}
        return record["mesh"]["backend"] == "tailscale" and bool(userspace_only(held, options))

    def _layers(self, record: model.Record) -> dict[str, Callable[[], dict[str, Any]]]:
        """Derives the parameters of the modules of the layers, for this host."""
        jobs = job_environment.OPTIONS
        return {
            "names": lambda: names.desired(record, self.machine),
            "ssh": lambda: ssh_trust.desired(record, self.machine, **self.options("ssh_trust", "users", "port")),
            "job environment": lambda: job_environment.desired(
                record, self.machine, self.options("job_environment", *jobs)
            ),
            "storage": lambda: storage.desired(record, self.machine, **self.options("storage", "backend", "server")),
            **({"tracking": lambda: self._tracking(record)} if record["tracking"] else {}),
            "train": lambda: train.desired(record, self.machine, **self.options("train", "run_dir", "stage_dir")),
            "session": lambda: session.desired(record, self.machine, self.options("session", *session.OPTIONS)),
        }
