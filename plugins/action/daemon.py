# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module daemon, which has the documentation, and installs supervisord if it is missing."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction


class ActionModule(HostAction):
    """Runs the module, and runs it again after installing missing packages."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = {**self.supervisor_options(), **self._task.args}
        return self.ensure_packages(
            "gpumesh.cluster.daemon", module_args, lambda result: ["supervisor"] if result["missing"] else []
        )
