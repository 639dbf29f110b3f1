# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of role_options. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleUndefinedVariable
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    ControllerAction,
    conversion_refusal,
    role_options,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.downloads import describe_unverified
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.variable_names import find_unknown
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import slurm_settings


class ActionModule(ControllerAction):
    """Validates the options, as Ansible does before a role."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(roles={"type": "list", "elements": "str", "required": True})
        option_specs = {name: option for role in task_args["roles"] for name, option in role_options(role).items()}
        set_options = {name: value for name, value in self._read_options(option_specs).items() if value is not None}
        spelling_questions = self._find_misspelled_names()
        if spelling_questions:
            return {"failed": True, "invalid": spelling_questions, "msg": _format_refusal(spelling_questions)}
        validation = ArgumentSpecValidator(option_specs).validate(set_options, validate_role_argument_spec=True)
        if validation.error_messages:
            # An empty value stands for an unanswered question of a survey, so nobody would choose it.
            invalid_options = [
                message.replace("must be one of: , ", "must be one of: ") for message in validation.error_messages
            ]
            message = f"Nothing has been changed. Invalid options: {'; '.join(invalid_options)}"
            return {"failed": True, "invalid": invalid_options, "msg": message}
        refusals = [
            message for role in task_args["roles"] for message in describe_unverified(role, self.machine, set_options)
        ]
        refusals += [
            str(refusal)
            for name, value in set_options.items()
            if (refusal := conversion_refusal(name, option_specs[name], value))
        ]
        if "slurm" in task_args["roles"]:
            refusals += self._refused_settings(validation.validated_parameters)
        if refusals:
            return {"failed": True, "invalid": refusals, "msg": " ".join(refusals)}
        return {"changed": False}

    def _find_misspelled_names(self) -> list[str]:
        """Return questions about variables whose names resemble an option, but which nothing reads.

        The variables are those of the inventory and of the command line. Hosts have most of them in common, so each
        host but the first judges only those that the first does not have.
        """
        if self.options("cluster_unknown_variables")["cluster_unknown_variables"] == "ignore":
            return []
        first_host = self.active_hosts[0]
        judged_names = self.defined_variable_names(self.machine)
        unknown_names = find_unknown(
            judged_names if self.machine == first_host else judged_names - self.defined_variable_names(first_host)
        )
        if unknown_names.ignored:
            self.warn(f"Ignored, because gpumesh.cluster has no such options: {', '.join(unknown_names.ignored)}.")
        return unknown_names.questions

    def _refused_settings(self, validated_options: Mapping[str, Any]) -> list[str]:
        try:
            slurm_settings.check_settings({name: validated_options[name] for name in slurm_settings.CHECKED_OPTIONS})
        except InputError as error:
            return [f"{self.machine}: {error} Nothing has been changed."]
        return []

    def _read_options(self, option_names: Iterable[str]) -> dict[str, Any]:
        option_settings = {}
        for name in option_names:
            try:
                option_settings[name] = self.read_option(name)
            except AnsibleUndefinedVariable:
                continue
        return option_settings


def _format_refusal(spelling_questions: Sequence[str]) -> str:
    return (
        f"Nothing has been changed. Unknown variables: {' '.join(spelling_questions)} Correct the names, or set "
        "cluster_unknown_variables=ignore if something else reads them."
    )
