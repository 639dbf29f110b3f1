# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of awx_requirements. Its documentation is in the module of the same name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
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
        names, environment = given["names"], given["environment"]
        organizations = self._ask("organizations", name=given["organization"])
        organization = organizations[0]["id"] if organizations else None
        found = {kind: self._ask(kind) if wanted else [] for kind, wanted in names.items()}
        environments = self._ask("execution_environments", name=environment) if environment else []
        missing = [
            *self._organization(given["organization"], organization),
            *awx.wrong_names(names, found, organization),
            *awx.wrong_environment(environment, bool(given["environment_image"]), environments, organization),
            *self._project(given["project_url"], given["project_branch"], given["project_check"]),
        ]
        if missing:
            return {"failed": True, "missing": missing, "msg": f"Nothing has been created. {' '.join(missing)}"}
        return {
            "changed": False,
            "missing": [],
            "to_make": self._to_make(given["planned"], organizations[0]["id"]),
            "ids": awx.identifiers(names, found, organization),
        }

    def _ask(self, endpoint: str, **query: str) -> list[dict[str, Any]]:
        name = f"{self._collection}.controller_api"
        lookup = lookup_loader.get(name, loader=self._loader, templar=self._templar)
        if lookup is None:
            raise InputError(f"There is no lookup plugin {name}.", f"Install the collection {self._collection}.")
        found: list[dict[str, Any]] = lookup.run(
            [endpoint], self.variables, query_params=query, return_all=True, return_objects=True, max_objects=100000
        )
        return found

    def _to_make(self, planned: Mapping[str, Sequence[str]], organization: int) -> list[str]:
        made = []
        for kind, names in planned.items():
            there = {awx.name_of(one) for one in self._ask(kind, **awx.owned_by(kind, organization))}
            made += [name for name in names if name not in there]
        return made

    def _organization(self, name: str, number: int | None) -> list[str]:
        credentials = self._ask(f"organizations/{number}/galaxy_credentials") if number is not None else []
        return awx.missing_organization(name, number is not None, bool(credentials))

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
