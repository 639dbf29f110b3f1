# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe what is missing in AWX before it can be set up."""

from __future__ import annotations

from collections.abc import Collection, Mapping

#: The name of a kind of object, and the setting that names it.
_KINDS = {
    "credentials": ("credential", "gpumesh_awx_credentials"),
    "notification_templates": ("notification template", "gpumesh_awx_notifications"),
    "execution_environments": ("execution environment", "gpumesh_awx_execution_environment"),
}
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


def missing_names(wanted: Mapping[str, Collection[str]], found: Mapping[str, Collection[str]]) -> list[str]:
    """The names in the settings that do not exist on the controller."""
    return [
        f"There is no {_KINDS[kind][0]} '{name}': create it, or correct {_KINDS[kind][1]}."
        for kind, names in wanted.items()
        for name in names
        if name not in found[kind]
    ]


def missing_branch(url: str, branch: str, reason: str) -> str:
    """The project cannot be read, or has no such branch."""
    return (
        f"The branch '{branch}' was not found at {url}: {reason.strip() or 'no such branch'}. Correct "
        "gpumesh_awx_project_url and gpumesh_awx_project_branch, or set gpumesh_awx_project_check=false if only the "
        "controller can read it."
    )
