# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe what is missing in AWX before it can be set up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: The part of a URL that may contain a password.
_USER_INFO = re.compile(r"//[^/\s'\"]*@")
#: An extra variable that AWX sets in every job.
AWX_JOB_VARIABLE = "awx_job_id"
#: An object of the API.
ApiObject = Mapping[str, Any]

#: The name of a kind of object, and the setting that names it.
_KIND_SETTINGS = {
    "credentials": ("credential", "gpumesh_awx_credentials"),
    "notification_templates": ("notification template", "gpumesh_awx_notifications"),
}
#: Fields that identify the organization of objects without a field of their own. Names of execution environments are
#: unique on the whole controller.
_ORGANIZATION_FIELDS = {
    "workflow_job_template_nodes": "workflow_job_template__organization",
    "execution_environments": "",
}
#: Runs only the tasks that create the credential types.
_TYPES_OPTION = "--tags credential_types"
#: The fields of a credential type that the playbook sets.
_TYPE_FIELDS = ("description", "kind", "inputs", "injectors")
#: The statuses of a project whose playbooks the controller has.
_FETCHED_STATUSES = ("successful", "ok")
#: The last lines of the output of an update that are shown.
_OUTPUT_LINES = 20
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
NO_ENVIRONMENT_MESSAGE = (
    "No execution environment is set, and the controller's default one does not contain this collection: set "
    "gpumesh_awx_execution_environment_image or gpumesh_awx_execution_environment."
)


def check_organization(organization_name: str, exists: bool, has_galaxy: bool) -> list[str]:
    """List what is missing for the organization."""
    if not exists:
        return [
            f"There is no organization '{organization_name}': create it, or set gpumesh_awx_organization to another one."
        ]
    if not has_galaxy:
        introduction = (
            f"The organization '{organization_name}' has no Galaxy credential, and without one the controller ignores "
        )
        return [f"{introduction}collections/requirements.yml: add one to the organization, such as Ansible Galaxy."]
    return []


def organization_query(kind: str, organization: int) -> dict[str, str]:
    """Return the query for the objects of a kind that belong to an organization."""
    organization_field = _ORGANIZATION_FIELDS.get(kind, "organization")
    return {organization_field: str(organization)} if organization_field else {}


def object_name(api_object: ApiObject) -> str:
    """The name of an object; nodes of workflows have an identifier."""
    return str(api_object.get("name", api_object.get("identifier")))


def _matching_objects(
    expected_name: str, existing_objects: Sequence[ApiObject], organization: int | None
) -> list[ApiObject]:
    """Return the objects that a name can mean: the only one on the controller, or else those of the organization."""
    namesakes = [candidate for candidate in existing_objects if object_name(candidate) == expected_name]
    return (
        namesakes
        if len(namesakes) < 2
        else [candidate for candidate in namesakes if candidate.get("organization") == organization]
    )


def find_wrong_names(
    names_by_kind: Mapping[str, Sequence[str]],
    objects_by_kind: Mapping[str, Sequence[ApiObject]],
    organization: int | None,
    outdated_types: Sequence[str] = (),
) -> list[str]:
    """List the names in the settings that do not exist on the controller, or are ambiguous.

    ``outdated_types``: the credential types that the playbook has yet to create or update.
    """
    problems = []
    for kind, names in names_by_kind.items():
        kind_name, setting_name = _KIND_SETTINGS[kind]
        for expected_name in names:
            if not any(object_name(api_object) == expected_name for api_object in objects_by_kind[kind]):
                type_hint = (
                    f" If its type is one of {', '.join(outdated_types)}, create the types first: run this playbook with "
                    f"{_TYPES_OPTION}."
                )
                problems.append(
                    f"There is no {kind_name} '{expected_name}': create it, or correct {setting_name}."
                    + (type_hint if kind == "credentials" and outdated_types else "")
                )
            elif len(_matching_objects(expected_name, objects_by_kind[kind], organization)) != 1:
                problems.append(
                    f"There is more than one {kind_name} '{expected_name}', and not exactly one in the organization: leave only one "
                    f"there, or correct {setting_name}."
                )
    return problems


def object_ids(
    names_by_kind: Mapping[str, Sequence[str]],
    objects_by_kind: Mapping[str, Sequence[ApiObject]],
    organization: int | None,
) -> dict[str, dict[str, int]]:
    """The IDs of names that exist, by kind. The modules would look for a name in all organizations."""
    return {
        kind: {name: _matching_objects(name, objects_by_kind[kind], organization)[0]["id"] for name in names}
        for kind, names in names_by_kind.items()
    }


def check_environment(
    name: str, is_created: bool, existing_environments: Sequence[ApiObject], organization: int | None
) -> list[str]:
    """Explain why the execution environment cannot be used, or created with an image.

    ``existing_environments``: those with its name.
    """
    if not name:
        return [NO_ENVIRONMENT_MESSAGE]
    setting_name = "gpumesh_awx_execution_environment"
    if not is_created and not existing_environments:
        return [f"There is no execution environment '{name}': create it, or correct {setting_name}."]
    if is_created and any(
        environment.get("organization") not in (None, organization) for environment in existing_environments
    ):
        introduction = (
            f"The execution environment '{name}' belongs to another organization, and no two can have the same name"
        )
        return [f"{introduction}: set {setting_name} to another one."]
    return []


def describe_missing_branch(url: str, branch: str, reason: str) -> str:
    """Describe a project that cannot be read, or a missing branch, without the password or token in its URL."""
    branch_message = (
        f"The branch '{branch}' was not found at {url}: {reason.strip() or 'no such branch'}. Correct "
        "gpumesh_awx_project_url and gpumesh_awx_project_branch, or set gpumesh_awx_project_check=false if only the "
        "controller can read it."
    )
    return _USER_INFO.sub("//", branch_message)


def find_outdated_types(wanted_types: Sequence[ApiObject], existing_types: Sequence[ApiObject]) -> list[str]:
    """Return the names of the credential types that do not exist yet or differ."""
    types_by_name = {object_name(existing_type): existing_type for existing_type in existing_types}
    return [
        object_name(wanted_type)
        for wanted_type in wanted_types
        if any(
            types_by_name.get(object_name(wanted_type), {}).get(field) != wanted_type[field] for field in _TYPE_FIELDS
        )
    ]


def check_rights(accounts: Sequence[ApiObject], outdated_types: Sequence[str]) -> list[str]:
    """List the right that is missing to create or update credential types. ``accounts``: the one that is logged in."""
    if all(account.get("is_superuser") for account in accounts):
        return []
    account_names = ", ".join(f"'{account.get('username')}'" for account in accounts)
    introduction = f"Only a system administrator can create or update the credential types {', '.join(outdated_types)}"
    return [
        f"{introduction}, and {account_names} is not one: log in as one, or let one run this playbook with {_TYPES_OPTION} first."
    ]


def check_organization_rights(organization: ApiObject) -> list[str]:
    """List the right that is missing to create objects in an organization, as AWX shows it to who is logged in."""
    if organization.get("summary_fields", {}).get("user_capabilities", {}).get("edit", True):
        return []
    return [
        f"Only an administrator of the organization '{object_name(organization)}' can create all of its objects: log in as one."
    ]


def last_update_id(project: ApiObject) -> int | None:
    """Return the ID of the current or last update of a project."""
    summary_fields = project.get("summary_fields", {})
    update = summary_fields.get("current_update") or summary_fields.get("last_update")
    return None if update is None else int(update["id"])


def is_fetched(project: ApiObject) -> bool:
    """Whether the last update of a project has succeeded."""
    return project.get("status") in _FETCHED_STATUSES


def describe_update(project: ApiObject, output: str) -> str:
    """Describe the last update of a project with the end of its output, without passwords in URLs."""
    output_lines = [line for line in _COLOR.sub("", output).splitlines() if line.strip()][-_OUTPUT_LINES:]
    description = f"The status of the project '{object_name(project)}' is '{project.get('status')}'."
    if is_fetched(project):
        return description
    if not output_lines:
        return f"{description} Its update has no output: check that the controller runs jobs (its instances and queue)."
    return _USER_INFO.sub("//", "\n".join([f"{description} The end of the output of its update:", *output_lines]))
