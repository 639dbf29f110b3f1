# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of tracking_test. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import settings
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.tracking import uri


class ActionModule(HostAction):
    """Takes the address of the server from the record."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            record={"type": "raw"},
            uri={"type": "str", "default": ""},
            trust={"type": "str", "default": ""},
            timeout={"type": "float", "default": 20},
            write={"type": "bool", "default": False},
        )
        arguments = {name: given[name] for name in ("uri", "trust", "timeout", "write")}
        if given["record"] is not None:
            record = self.record()
            tracking = record["tracking"]
            if tracking is None:
                raise InputError(f"Cluster '{record['name']}' has no tracking server.", "Run the playbook tracking.")
            trust = settings.trust_of(record["name"]) if tracking["tls"] else ""
            serves = tracking["server"] == self.machine
            arguments.update(uri=uri(record, tracking), trust=trust, write=serves)
        return self.module("gpumesh.cluster.tracking_test", arguments)
