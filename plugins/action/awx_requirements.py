# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of awx_requirements. Its documentation is in the module of the same name."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from ansible.plugins.loader import lookup_loader

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import awx
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import ControllerAction

#: Git must not prompt for a password.
_UNATTENDED = {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
_PATIENCE = 60


class ActionModule(ControllerAction):
    """Queries the controller, and the project's URL."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        text = {"type": "str", "default": ""}
        given = self.arguments(
            collection={"type": "str", "required": True},
            organization={"type": "str", "required": True},
            names={"type": "dict", "default": {}},
            planned={"type": "dict", "default": {}},
            environment=text,
            environment_image=text,
            project_url=text,
            project_branch=text,
            project_check={"type": "bool", "default": True},
        )
        self._collection = given["collection"]
        wanted = {kind: list(names) for kind, names in given["names"].items()}
        environment = given["environment"]
        if environment and not given["environment_image"]:
            wanted["execution_environments"] = [environment]
        found = {kind: self._named(kind) if names else set() for kind, names in wanted.items()}
        missing = [
            *self._organization(given["organization"]),
            *awx.missing_names(wanted, found),
            *([] if environment else [awx.NO_ENVIRONMENT]),
            *self._project(given["project_url"], given["project_branch"], given["project_check"]),
        ]
        if missing:
            return {"failed": True, "missing": missing, "msg": f"Nothing has been created. {' '.join(missing)}"}
        to_make = [name for kind, names in given["planned"].items() for name in names if name not in self._named(kind)]
        return {"changed": False, "missing": [], "to_make": to_make}

    def _ask(self, endpoint: str, **query: str) -> list[dict[str, Any]]:
        name = f"{self._collection}.controller_api"
        lookup = lookup_loader.get(name, loader=self._loader, templar=self._templar)
        if lookup is None:
            raise InputError(f"There is no lookup plugin {name}.", f"Install the collection {self._collection}.")
        found: list[dict[str, Any]] = lookup.run(
            [endpoint], self.variables, query_params=query, return_all=True, return_objects=True, max_objects=100000
        )
        return found

    def _named(self, kind: str) -> set[str]:
        return {str(one.get("name", one.get("identifier"))) for one in self._ask(kind)}

    def _organization(self, name: str) -> list[str]:
        found = self._ask("organizations", name=name)
        credentials = self._ask(f"organizations/{found[0]['id']}/galaxy_credentials") if found else []
        return awx.missing_organization(name, bool(found), bool(credentials))

    def _project(self, url: str, branch: str, check: bool) -> list[str]:
        if not url:
            return ["The project has no URL: set gpumesh_awx_project_url."]
        if not check:
            return []
        argv = ["git", "ls-remote", "--exit-code", "--", url, branch or "HEAD"]
        try:
            done = subprocess.run(
                argv,
                env={**os.environ, **_UNATTENDED},
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as failure:
            return [awx.missing_branch(url, branch, str(failure))]
        return [awx.missing_branch(url, branch, done.stderr)] if done.returncode else []
