# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of node_health_program, which is documented with the module."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import source_digests
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm import health_program_sources

_MODULE = "gpumesh.cluster.node_health_program"


class ActionModule(HostAction):
    """Pushes the program."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        module_args = dict(self._task.args)
        if module_args.get("state") != "absent":
            module_args["digests"] = source_digests(health_program_sources())
        return self.push_sources(_MODULE, module_args, self.run_module(_MODULE, module_args), health_program_sources)
