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
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import awx

#: The objects of a controller, by endpoint.
THERE: dict[str, list[dict[str, Any]]] = {
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
    ids = {"credentials": {"machines": 1}, "notification_templates": {"chat": 2}}
    assert looked(monkeypatch, {}) == {"changed": False, "missing": [], "to_make": ["check"], "ids": ids}


def test_what_another_organization_has_is_still_to_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = {"inventories": ["gpumesh machines"], "execution_environments": ["ours"]}
    assert looked(monkeypatch, {"planned": planned})["to_make"] == ["gpumesh machines"]


def test_a_name_that_others_use_too_means_the_own_one(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [{"id": 11, "name": "machines", "organization": 8}, {"id": 12, "name": "machines", "organization": 9}]
    there = {**THERE, "credentials": [*others, *THERE["credentials"]]}
    assert looked(monkeypatch, {}, there)["ids"]["credentials"] == {"machines": 1}
    (said,) = looked(monkeypatch, {}, {**THERE, "credentials": others})["missing"]
    assert "more than one credential 'machines'" in said


def test_an_environment_of_others_is_not_taken_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {**THERE, "execution_environments": [{"name": "ours", "organization": 8}]}
    (said,) = looked(monkeypatch, {"environment_image": "ee:1"}, there)["missing"]
    assert "'ours' belongs to another organization" in said
    assert looked(monkeypatch, {}, there)["missing"] == []


def test_each_kind_is_queried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    lookup = Lookup(THERE)
    run = lookup.run
    monkeypatch.setattr(
        lookup, "run", lambda terms, *more, **options: asked.extend(terms) or run(terms, *more, **options)
    )
    monkeypatch.setattr(awx_requirements, "lookup_loader", lookup)
    names = {"workflow_job_template_nodes": ["a", "b", "c"]}
    assert play(awx_requirements.ActionModule, {**GIVEN, "planned": names}, {}).result["to_make"] == ["a", "b", "c"]
    assert asked.count("workflow_job_template_nodes") == 1


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


def test_the_token_in_the_url_of_the_project_is_not_shown() -> None:
    url = "https://someone:t0ken@git.example.com/clusters.git"
    said = awx.missing_branch(url, "main", f"Command '['git', 'ls-remote', '{url}']' timed out after 30 seconds")
    assert "t0ken" not in said
    assert said.count("https://git.example.com/clusters.git") == 2
    assert "git@git.example.com:clusters.git" in awx.missing_branch("git@git.example.com:clusters.git", "main", "")
