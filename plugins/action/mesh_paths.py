# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of mesh_paths. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils import mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import ControllerAction


class ActionModule(ControllerAction):
    """Reads what all hosts have registered."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        options, given = self.own_options({"registered": {"type": "str", "required": True}})
        return {
            "changed": False,
            "paths": mesh.path_rows(given["record"], self.registered(options["registered"], self.present)),
        }
