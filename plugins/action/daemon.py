# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module daemon, whose documentation is there, and installs supervisord where it turns out to be missing."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction

#: Options that may be set as variables of the host, since they are the same for every daemon of it.
_OF_THE_HOST = ("supervisor_config", "supervisor_programs")


class ActionModule(HostAction):
    """Runs the module, and once more when it has what it needs."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        of_the_host = {name: self.variable(f"daemon_{name}") for name in _OF_THE_HOST}
        arguments = {**{name: value for name, value in of_the_host.items() if value}, **self._task.args}
        return self.equipped_module(
            "gpumesh.cluster.daemon", arguments, lambda result: ["supervisor"] if result["missing"] else []
        )
