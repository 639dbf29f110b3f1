# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of awx_requirements. Its documentation is in the module of the same name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core import awx
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.awx_action import AwxAction

#: Git must not prompt for a password.
_GIT_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
_GIT_TIMEOUT = 60


class ActionModule(AwxAction):
    """Queries the controller, and the project's URL."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        text_option = {"type": "str", "default": ""}
        task_args = self.arguments(
            collection={"type": "str", "required": True},
            organization={"type": "str", "required": True},
            names={"type": "dict", "default": {}},
            planned={"type": "dict", "default": {}},
            credential_types={"type": "list", "elements": "dict", "default": []},
            environment=text_option,
            environment_image=text_option,
            project_url=text_option,
            project_branch=text_option,
            project_check={"type": "bool", "default": True},
        )
        self._collection_name = task_args["collection"]
        names_by_kind, environment_name = task_args["names"], task_args["environment"]
        organizations = self._query_api("organizations", name=task_args["organization"])
        organization_id = organizations[0]["id"] if organizations else None
        objects_by_kind = {
            kind: self._query_api(kind) if wanted_names else [] for kind, wanted_names in names_by_kind.items()
        }
        environments = self._query_api("execution_environments", name=environment_name) if environment_name else []
        outdated_types = awx.find_outdated_types(
            task_args["credential_types"], self._query_api("credential_types") if task_args["credential_types"] else []
        )
        new_names = self._find_new_names(task_args["planned"], organizations[0]["id"]) if organizations else []
        missing_requirements = [
            *self._check_organization(task_args["organization"], organization_id),
            *(awx.check_organization_rights(organizations[0]) if organizations and new_names else []),
            *(awx.check_rights(self._query_api("me"), outdated_types) if outdated_types else []),
            *awx.find_wrong_names(names_by_kind, objects_by_kind, organization_id, outdated_types),
            *awx.check_environment(
                environment_name, bool(task_args["environment_image"]), environments, organization_id
            ),
            *self._check_project(task_args["project_url"], task_args["project_branch"], task_args["project_check"]),
        ]
        if missing_requirements:
            return {
                "failed": True,
                "missing": missing_requirements,
                "msg": f"Nothing has been created. {' '.join(missing_requirements)}",
            }
        return {
            "changed": False,
            "missing": [],
            "to_create": new_names,
            "ids": awx.object_ids(names_by_kind, objects_by_kind, organization_id),
        }

    def _query_api(self, endpoint: str, **query: str) -> list[dict[str, Any]]:
        return self.query_api(self._collection_name, endpoint, **query)

    def _find_new_names(self, planned_names: Mapping[str, Sequence[str]], organization_id: int) -> list[str]:
        new_names = []
        for kind, names in planned_names.items():
            existing_names = {
                awx.object_name(existing_object)
                for existing_object in self._query_api(kind, **awx.organization_query(kind, organization_id))
            }
            new_names += [name for name in names if name not in existing_names]
        return new_names

    def _check_organization(self, name: str, organization_id: int | None) -> list[str]:
        credentials = (
            self._query_api(f"organizations/{organization_id}/galaxy_credentials")
            if organization_id is not None
            else []
        )
        return awx.check_organization(name, organization_id is not None, bool(credentials))

    def _check_project(self, url: str, branch: str, check: bool) -> list[str]:
        if not url:
            return ["The project has no URL: set gpumesh_awx_project_url."]
        if not check:
            return []
        argv = ["git", "ls-remote", "--exit-code", "--", url, branch or "HEAD"]
        try:
            completed = subprocess.run(
                argv,
                env={**os.environ, **_GIT_ENVIRONMENT},
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_GIT_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as failure:
            return [awx.describe_missing_branch(url, branch, str(failure))]
        return [awx.describe_missing_branch(url, branch, completed.stderr)] if completed.returncode else []
