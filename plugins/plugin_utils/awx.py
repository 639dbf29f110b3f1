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
#: An object of the API.
Item = Mapping[str, Any]

#: The name of a kind of object, and the setting that names it.
_KINDS = {
    "credentials": ("credential", "gpumesh_awx_credentials"),
    "notification_templates": ("notification template", "gpumesh_awx_notifications"),
}
#: How the objects of an organization are found, if not by their own field. Names of execution environments are unique
#: on the whole controller.
_OWNED_BY = {"workflow_job_template_nodes": "workflow_job_template__organization", "execution_environments": ""}
NO_ENVIRONMENT = (
    "No execution environment is set, and the controller's default one does not contain this collection: set "
    "gpumesh_awx_execution_environment_image or gpumesh_awx_execution_environment."
)


def missing_organization(name: str, exists: bool, has_galaxy: bool) -> list[str]:
    """What is missing for the organization."""
    if not exists:
        return [f"There is no organization '{name}': create it, or set gpumesh_awx_organization to another one."]
    if not has_galaxy:
        told = f"The organization '{name}' has no Galaxy credential, and without one the controller ignores "
        return [f"{told}collections/requirements.yml: add one to the organization, such as Ansible Galaxy."]
    return []


def owned_by(kind: str, organization: int) -> dict[str, str]:
    """The query for the objects of a kind that belong to an organization."""
    field = _OWNED_BY.get(kind, "organization")
    return {field: str(organization)} if field else {}


def name_of(item: Item) -> str:
    """The name of an object; nodes of workflows have an identifier."""
    return str(item.get("name", item.get("identifier")))


def _meant(name: str, found: Sequence[Item], organization: int | None) -> list[Item]:
    """The objects that a name can mean: the only one on the controller, or else those of the organization."""
    same = [item for item in found if name_of(item) == name]
    return same if len(same) < 2 else [item for item in same if item.get("organization") == organization]


def wrong_names(
    wanted: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[Item]], organization: int | None
) -> list[str]:
    """The names in the settings that do not exist on the controller, or do not say which object is meant."""
    wrong = []
    for kind, names in wanted.items():
        words, setting = _KINDS[kind]
        for name in names:
            if not any(name_of(item) == name for item in found[kind]):
                wrong.append(f"There is no {words} '{name}': create it, or correct {setting}.")
            elif len(_meant(name, found[kind], organization)) != 1:
                wrong.append(
                    f"There is more than one {words} '{name}', and not exactly one in the organization: leave only one "
                    f"there, or correct {setting}."
                )
    return wrong


def identifiers(
    wanted: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[Item]], organization: int | None
) -> dict[str, dict[str, int]]:
    """The IDs of names that exist, by kind. The modules would look for a name in all organizations."""
    return {
        kind: {name: _meant(name, found[kind], organization)[0]["id"] for name in names}
        for kind, names in wanted.items()
    }


def wrong_environment(name: str, is_made: bool, found: Sequence[Item], organization: int | None) -> list[str]:
    """Why the execution environment cannot be used, or created with an image. ``found``: those with its name."""
    if not name:
        return [NO_ENVIRONMENT]
    setting = "gpumesh_awx_execution_environment"
    if not is_made and not found:
        return [f"There is no execution environment '{name}': create it, or correct {setting}."]
    if is_made and any(one.get("organization") not in (None, organization) for one in found):
        words = f"The execution environment '{name}' belongs to another organization, and no two can have the same name"
        return [f"{words}: set {setting} to another one."]
    return []


def missing_branch(url: str, branch: str, reason: str) -> str:
    """The project cannot be read, or has no such branch. Without the password or token in its URL."""
    said = (
        f"The branch '{branch}' was not found at {url}: {reason.strip() or 'no such branch'}. Correct "
        "gpumesh_awx_project_url and gpumesh_awx_project_branch, or set gpumesh_awx_project_check=false if only the "
        "controller can read it."
    )
    return _USER_INFO.sub("//", said)
