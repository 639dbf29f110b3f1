# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of mesh_paths. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.tables import render
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.terminal import room


class ActionModule(ControllerAction):
    """Shows what all hosts have registered."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        options, given = self.own_options({"registered": {"type": "str", "required": True}})
        rows = mesh.path_rows(self.named(given["record"]), self.registered(options["registered"], self.present))
        self.print_text(printable(render(rows, ["from", "to", "path", "by"], width=room(0))))
        return {"changed": False, "paths": rows}
