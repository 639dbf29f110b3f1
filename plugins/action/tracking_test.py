# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of tracking_test. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import settings
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.tracking import tracking_uri


class ActionModule(HostAction):
    """Takes the address of the server from the record."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            record={"type": "raw"},
            uri={"type": "str", "default": ""},
            trust={"type": "str", "default": ""},
            timeout={"type": "float", "default": 20},
            write={"type": "bool", "default": False},
        )
        module_args = {name: task_args[name] for name in ("uri", "trust", "timeout", "write")}
        if task_args["record"] is not None:
            record = self.record()
            tracking = record["tracking"]
            if tracking is None:
                raise InputError(f"Cluster '{record['name']}' has no tracking server.", "Run the playbook tracking.")
            trust_path = settings.trust_path(record["name"]) if tracking["tls"] else ""
            is_server = tracking["server"] == self.machine
            module_args.update(uri=tracking_uri(record, tracking), trust=trust_path, write=is_server)
        return self.run_module("gpumesh.cluster.tracking_test", module_args)
