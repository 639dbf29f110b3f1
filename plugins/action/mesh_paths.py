# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of mesh_paths. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import render_table
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.terminal import available_width
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import mesh


class ActionModule(ControllerAction):
    """Shows what all hosts have registered."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        action_options, module_args = self.split_own_options({"registered": {"type": "str", "required": True}})
        rows = mesh.build_path_rows(
            self.resolve_record(module_args["record"]),
            self.registered_results(action_options["registered"], self.active_hosts),
        )
        self.print_text(printable(render_table(rows, ["from", "to", "path", "by"], width=available_width(0))))
        return {"changed": False, "paths": rows}
