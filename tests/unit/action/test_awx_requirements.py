# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever an AWX lacks is reported at once. Setting one up shows that the real lookup plugin accepts these queries."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from action_runs import play_action

from ansible_collections.gpumesh.cluster.plugins.action import awx_requirements
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core import awx

#: The objects of a controller, by endpoint.
AWX_OBJECTS: dict[str, list[dict[str, Any]]] = {
    "organizations": [{"id": 7, "name": "Research"}],
    "organizations/7/galaxy_credentials": [{"id": 1}],
    "credentials": [{"id": 1, "name": "machines", "organization": 7}],
    "notification_templates": [{"id": 2, "name": "chat", "organization": None}],
    "execution_environments": [{"name": "ours", "organization": None}],
    "workflow_job_template_nodes": [
        {"identifier": "join", "workflow_job_template__organization": "7"},
        {"identifier": "check", "workflow_job_template__organization": "8"},
    ],
    "inventories": [{"name": "gpumesh machines", "organization": "8"}],
}
ARGUMENTS: dict[str, Any] = {
    "collection": "awx.awx",
    "organization": "Research",
    "names": {"credentials": ["machines"], "notification_templates": ["chat"]},
    "planned": {"workflow_job_template_nodes": ["join", "check"]},
    "environment": "ours",
    "project_url": "https://git.example.com/clusters.git",
    "project_branch": "main",
    "project_check": False,
}


class ControllerApiLookup:
    """Stands in for controller_api."""

    def __init__(self, api_objects: dict[str, list[dict[str, Any]]]) -> None:
        self.api_objects = api_objects

    def get(self, name: str, **_given: Any) -> ControllerApiLookup | None:
        return self if name == "awx.awx.controller_api" else None

    def run(
        self, terms: list[str], _variables: Any, query_params: dict[str, str], **_options: Any
    ) -> list[dict[str, Any]]:
        found = self.api_objects.get(terms[0], [])
        return [one for one in found if all(one[key] == value for key, value in query_params.items())]


def check_requirements(
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    api_objects: dict[str, list[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    monkeypatch.setattr(
        awx_requirements, "lookup_loader", ControllerApiLookup(AWX_OBJECTS if api_objects is None else api_objects)
    )
    return play_action(awx_requirements.ActionModule, {**ARGUMENTS, **arguments}, {}).result


def test_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {"credentials": {"machines": 1}, "notification_templates": {"chat": 2}}
    assert check_requirements(monkeypatch, {}) == {"changed": False, "missing": [], "to_create": ["check"], "ids": ids}


def test_objects_of_another_organization_do_not_count_as_existing(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = {"inventories": ["gpumesh machines"], "execution_environments": ["ours"]}
    assert check_requirements(monkeypatch, {"planned": planned})["to_create"] == ["gpumesh machines"]


def test_an_ambiguous_name_resolves_to_the_own_organization(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [{"id": 11, "name": "machines", "organization": 8}, {"id": 12, "name": "machines", "organization": 9}]
    there = {**AWX_OBJECTS, "credentials": [*others, *AWX_OBJECTS["credentials"]]}
    assert check_requirements(monkeypatch, {}, there)["ids"]["credentials"] == {"machines": 1}
    (said,) = check_requirements(monkeypatch, {}, {**AWX_OBJECTS, "credentials": others})["missing"]
    assert "more than one credential 'machines'" in said


def test_an_execution_environment_of_another_organization_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {**AWX_OBJECTS, "execution_environments": [{"name": "ours", "organization": 8}]}
    (said,) = check_requirements(monkeypatch, {"environment_image": "ee:1"}, there)["missing"]
    assert "'ours' belongs to another organization" in said
    assert check_requirements(monkeypatch, {}, there)["missing"] == []


def test_each_kind_is_queried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    lookup = ControllerApiLookup(AWX_OBJECTS)
    run = lookup.run
    monkeypatch.setattr(
        lookup, "run", lambda terms, *more, **options: asked.extend(terms) or run(terms, *more, **options)
    )
    monkeypatch.setattr(awx_requirements, "lookup_loader", lookup)
    names = {"workflow_job_template_nodes": ["a", "b", "c"]}
    assert play_action(awx_requirements.ActionModule, {**ARGUMENTS, "planned": names}, {}).result["to_create"] == [
        "a",
        "b",
        "c",
    ]
    assert asked.count("workflow_job_template_nodes") == 1


def test_all_missing_requirements_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result = check_requirements(monkeypatch, {"project_url": "", "environment": ""}, {})
    assert result["failed"]
    assert len(result["missing"]) == 5
    for words in ("'Research'", "'machines'", "'chat'", "gpumesh_awx_execution_environment_image", "no URL"):
        assert words in result["msg"]


def test_an_organization_needs_a_galaxy_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = check_requirements(monkeypatch, {}, {**AWX_OBJECTS, "organizations/7/galaxy_credentials": []})["missing"]
    assert "Galaxy credential" in said


def test_an_environment_with_an_image_need_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"environment": "other"}
    assert "'other'" in check_requirements(monkeypatch, other)["msg"]
    assert check_requirements(monkeypatch, {**other, "environment_image": "ee:1"})["missing"] == []


def test_the_branch_of_the_project_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {"project_check": True, "project_url": f"file://{tmp_path}"}
    assert str(tmp_path) in check_requirements(monkeypatch, given)["msg"]
    author = ["-c", "user.name=Jane", "-c", "user.email=jane@example.com"]
    for command in (["init", "-q", "-b", "main"], [*author, "commit", "-q", "--allow-empty", "-m", "Begin"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    assert check_requirements(monkeypatch, given)["missing"] == []
    assert "no such branch" in check_requirements(monkeypatch, {**given, "project_branch": "other"})["msg"]


def test_a_missing_collection_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ansible.controller" in check_requirements(monkeypatch, {"collection": "ansible.controller"})["msg"]


def test_the_token_in_the_url_of_the_project_is_not_shown() -> None:
    url = "https://someone:t0ken@git.example.com/clusters.git"
    said = awx.describe_missing_branch(
        url, "main", f"Command '['git', 'ls-remote', '{url}']' timed out after 30 seconds"
    )
    assert "t0ken" not in said
    assert said.count("https://git.example.com/clusters.git") == 2
    assert "git@git.example.com:clusters.git" in awx.describe_missing_branch(
        "git@git.example.com:clusters.git", "main", ""
    )
