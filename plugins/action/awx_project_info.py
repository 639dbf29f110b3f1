# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of awx_project_info. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core import awx
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.awx_action import AwxAction


class ActionModule(AwxAction):
    """Queries a project and the output of its last update."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            collection={"type": "str", "required": True},
            organization={"type": "str", "required": True},
            name={"type": "str", "required": True},
        )
        collection, name = task_args["collection"], task_args["name"]
        projects = self.query_api(collection, "projects", name=name, organization__name=task_args["organization"])
        if not projects:
            return {"changed": False, "status": "", "needs_update": False, "summary": f"There is no project '{name}'."}
        (project,) = projects
        output = "" if awx.is_fetched(project) else self._read_output(collection, awx.last_update_id(project))
        return {
            "changed": False,
            "status": project.get("status"),
            "needs_update": not awx.is_fetched(project),
            "summary": awx.describe_update(project, output),
        }

    def _read_output(self, collection: str, update_id: int | None) -> str:
        if update_id is None:
            return ""
        (document,) = self.query_api(collection, f"project_updates/{update_id}/stdout", format="json")
        return str(document["content"])
