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

from ansible_collections.gpumesh.cluster.plugins.action import awx_project_info, awx_requirements
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core import awx, awx_action

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
        return [one for one in found if all(one.get(key, value) == value for key, value in query_params.items())]


def check_requirements(
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    api_objects: dict[str, list[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    monkeypatch.setattr(
        awx_action, "lookup_loader", ControllerApiLookup(AWX_OBJECTS if api_objects is None else api_objects)
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
    monkeypatch.setattr(awx_action, "lookup_loader", lookup)
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


@pytest.mark.parametrize("edits", [True, False])
def test_who_is_logged_in_must_be_allowed_to_create_objects(monkeypatch: pytest.MonkeyPatch, edits: bool) -> None:
    """Otherwise, the setup would end in the middle."""
    organization = {**AWX_OBJECTS["organizations"][0], "summary_fields": {"user_capabilities": {"edit": edits}}}
    missing = check_requirements(monkeypatch, {}, {**AWX_OBJECTS, "organizations": [organization]})["missing"]
    assert [("administrator of the organization 'Research'" in text) for text in missing] == ([] if edits else [True])


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


HOST_KEYS_TYPE = {"name": "gpumesh host keys", "description": "Keys", "kind": "cloud", "inputs": {}, "injectors": {}}
JANE = {"username": "jane", "is_superuser": False}


@pytest.mark.parametrize("existing", [[], [{**HOST_KEYS_TYPE, "inputs": {"fields": []}}]], ids=["missing", "outdated"])
def test_only_a_system_administrator_may_create_credential_types(
    monkeypatch: pytest.MonkeyPatch, existing: list[dict[str, Any]]
) -> None:
    given = {"credential_types": [HOST_KEYS_TYPE]}
    there = {**AWX_OBJECTS, "credential_types": existing, "me": [JANE]}
    (said,) = check_requirements(monkeypatch, given, there)["missing"]
    assert "Only a system administrator can create or update the credential types gpumesh host keys, and 'jane'" in said
    assert check_requirements(monkeypatch, given, {**there, "me": [{**JANE, "is_superuser": True}]})["missing"] == []
    assert check_requirements(monkeypatch, given, {**there, "credential_types": [HOST_KEYS_TYPE]})["missing"] == []


def test_a_credential_whose_type_does_not_exist_yet_can_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {**AWX_OBJECTS, "credentials": [], "me": [{**JANE, "is_superuser": True}]}
    (said,) = check_requirements(monkeypatch, {"credential_types": [HOST_KEYS_TYPE]}, there)["missing"]
    assert "run this playbook with --tags credential_types" in said
    (said,) = check_requirements(monkeypatch, {}, there)["missing"]
    assert "--tags" not in said


def query_project(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> dict[str, Any]:
    project = {"name": "gpumesh", "summary_fields": {"last_update": {"id": 4}}, **fields}
    lines = [f"line {number}\r" for number in range(30)]
    lines += ["", "\x1b[0;31mfatal: https://jane:t0ken@git.example.com/\x1b[0m"]
    outputs = {"project_updates/4/stdout": [{"content": "\n".join(lines)}]}
    monkeypatch.setattr(awx_action, "lookup_loader", ControllerApiLookup({"projects": [project], **outputs}))
    arguments = {"collection": "awx.awx", "organization": "Research", "name": "gpumesh"}
    return play_action(awx_project_info.ActionModule, arguments, {}).result


def test_the_end_of_a_failed_update_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    result = query_project(monkeypatch, status="failed")
    assert result["needs_update"]
    first, *lines = result["summary"].splitlines()
    assert first == "The status of the project 'gpumesh' is 'failed'. The end of the output of its update:"
    assert lines == [*(f"line {number}" for number in range(11, 30)), "fatal: https://git.example.com/"]


def test_a_project_that_was_fetched_needs_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    result = query_project(monkeypatch, status="successful")
    assert not result["needs_update"]
    assert result["summary"] == "The status of the project 'gpumesh' is 'successful'."


def test_an_update_that_nobody_runs_has_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    result = query_project(monkeypatch, status="pending", summary_fields={})
    assert result["needs_update"] and "Its update has no output" in result["summary"]


def test_a_project_that_does_not_exist_needs_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awx_action, "lookup_loader", ControllerApiLookup({}))
    arguments = {"collection": "awx.awx", "organization": "Research", "name": "gpumesh"}
    assert not play_action(awx_project_info.ActionModule, arguments, {}).result["needs_update"]
