# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of tracking_settings. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    ControllerAction,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.tracking import (
    SETTING_OPTIONS,
    changed_settings,
    makes_own_certificate,
    refuse_failed,
    was_enabled,
    with_certificates,
)


class ActionModule(ControllerAction):
    """Compares the given settings with the record, and adds the certificates of the server to them."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            record=RECORD_OPTION,
            start={"type": "bool", "default": False},
            settings={"type": "raw"},
            registered={"type": "str"},
        )
        record = self.record()
        if task_args["registered"]:
            host_results = self.registered_results(task_args["registered"], self.active_hosts)
            refuse_failed(host_results)
            new_certificates = next(
                (result["certificates"] for result in host_results.values() if result.get("certificates")), None
            )
            return {
                "changed": False,
                "settings": with_certificates(record, task_args["settings"] or None, new_certificates),
            }
        options = self.options(*SETTING_OPTIONS)
        tracking = record["tracking"]
        return {
            "changed": False,
            "settings": changed_settings(record, options, task_args["start"]),
            "own_certificate": makes_own_certificate(record, options, task_args["start"]),
            "former_server": tracking["server"] if tracking else "",
            "was_enabled": was_enabled(record),
        }
