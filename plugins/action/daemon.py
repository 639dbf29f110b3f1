# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module daemon, which has the documentation, and installs supervisord if it is missing."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction


class ActionModule(HostAction):
    """Runs the module, and again after installing what it needs."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        arguments = {**self.supervisor(), **self._task.args}
        return self.equipped_module(
            "gpumesh.cluster.daemon", arguments, lambda result: ["supervisor"] if result["missing"] else []
        )
