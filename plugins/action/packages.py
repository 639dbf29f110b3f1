# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of packages. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction


class ActionModule(HostAction):
    """Installs packages in the same way as all layers."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            name={"type": "list", "elements": "str", "default": []}, refresh={"type": "bool", "default": False}
        )
        changed = self.check_mode or self.install_packages(task_args["name"], task_args["refresh"])
        return {"changed": changed, "packages": task_args["name"]}
