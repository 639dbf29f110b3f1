# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever an AWX lacks is reported at once. Setting one up shows that the real lookup plugin accepts these queries."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from action_runs import play

from ansible_collections.gpumesh.cluster.plugins.action import awx_requirements

#: The objects of a controller, by endpoint.
THERE: dict[str, list[dict[str, Any]]] = {
    "organizations": [{"id": 7, "name": "Research"}],
    "organizations/7/galaxy_credentials": [{"id": 1}],
    "credentials": [{"name": "machines"}],
    "notification_templates": [{"name": "chat"}],
    "execution_environments": [{"name": "ours"}],
    "workflow_job_template_nodes": [{"identifier": "join"}],
}
GIVEN: dict[str, Any] = {
    "collection": "awx.awx",
    "organization": "Research",
    "names": {"credentials": ["machines"], "notification_templates": ["chat"]},
    "planned": {"workflow_job_template_nodes": ["join", "check"]},
    "environment": "ours",
    "project_url": "https://git.example.com/clusters.git",
    "project_branch": "main",
    "project_check": False,
}


class Lookup:
    """Stands in for controller_api."""

    def __init__(self, there: dict[str, list[dict[str, Any]]]) -> None:
        self.there = there

    def get(self, name: str, **_given: Any) -> Lookup | None:
        return self if name == "awx.awx.controller_api" else None

    def run(
        self, terms: list[str], _variables: Any, query_params: dict[str, str], **_options: Any
    ) -> list[dict[str, Any]]:
        found = self.there.get(terms[0], [])
        return [one for one in found if all(one[key] == value for key, value in query_params.items())]


def looked(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], there: dict[str, list[dict[str, Any]]] | None = None
) -> dict[str, Any]:
    monkeypatch.setattr(awx_requirements, "lookup_loader", Lookup(THERE if there is None else there))
    return play(awx_requirements.ActionModule, {**GIVEN, **given}, {}).result


def test_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(monkeypatch, {}) == {"changed": False, "missing": [], "to_make": ["check"]}


def test_all_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    result = looked(monkeypatch, {"project_url": "", "environment": ""}, {})
    assert result["failed"]
    assert len(result["missing"]) == 5
    for words in ("'Research'", "'machines'", "'chat'", "gpumesh_awx_execution_environment_image", "no URL"):
        assert words in result["msg"]


def test_an_organization_needs_a_galaxy_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = looked(monkeypatch, {}, {**THERE, "organizations/7/galaxy_credentials": []})["missing"]
    assert "Galaxy credential" in said


def test_an_environment_that_is_made_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"environment": "other"}
    assert "'other'" in looked(monkeypatch, other)["msg"]
    assert looked(monkeypatch, {**other, "environment_image": "ee:1"})["missing"] == []


def test_the_branch_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {"project_check": True, "project_url": f"file://{tmp_path}"}
    assert str(tmp_path) in looked(monkeypatch, given)["msg"]
    author = ["-c", "user.name=Jane", "-c", "user.email=jane@example.com"]
    for command in (["init", "-q", "-b", "main"], [*author, "commit", "-q", "--allow-empty", "-m", "Begin"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    assert looked(monkeypatch, given)["missing"] == []
    assert "no such branch" in looked(monkeypatch, {**given, "project_branch": "other"})["msg"]


def test_a_collection_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ansible.controller" in looked(monkeypatch, {"collection": "ansible.controller"})["msg"]
