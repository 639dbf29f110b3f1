# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of role_options. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleUndefinedVariable
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import slurm_settings
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import (
    ControllerAction,
    conversion_refusal,
    specification,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.downloads import unverified
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.variable_names import find_unknown


class ActionModule(ControllerAction):
    """Validates the options, as Ansible does before a role."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(roles={"type": "list", "elements": "str", "required": True})
        options = {name: option for role in given["roles"] for name, option in specification(role).items()}
        values = {name: value for name, value in self._values(options).items() if value is not None}
        unknown = self._misspelled_names()
        if unknown:
            return {"failed": True, "invalid": unknown, "msg": _refusal(unknown)}
        result = ArgumentSpecValidator(options).validate(values, validate_role_argument_spec=True)
        if result.error_messages:
            # An empty value stands for an unanswered question of a survey, so nobody would choose it.
            invalid = [said.replace("must be one of: , ", "must be one of: ") for said in result.error_messages]
            said = f"Nothing has been changed. Invalid options: {'; '.join(invalid)}"
            return {"failed": True, "invalid": invalid, "msg": said}
        refusals = [said for role in given["roles"] for said in unverified(role, self.machine, values.get)]
        refusals += [
            str(refusal)
            for name, value in values.items()
            if (refusal := conversion_refusal(name, options[name], value))
        ]
        if "slurm" in given["roles"]:
            refusals += self._refused_settings(result.validated_parameters)
        if refusals:
            return {"failed": True, "invalid": refusals, "msg": " ".join(refusals)}
        return {"changed": False}

    def _misspelled_names(self) -> list[str]:
        """Questions on variables of the inventory, or of the command line, that nothing reads but an option is close to.

        Hosts have most of their variables in common, so each but the first judges only those that the first has not.
        """
        if self.variable("cluster_unknown_variables", "refuse") == "ignore":
            return []
        first = self.present[0]
        judged = self.given_names(self.machine)
        unknown = find_unknown(judged if self.machine == first else judged - self.given_names(first))
        if unknown.ignored:
            self._display.warning(f"No options of gpumesh.cluster, and ignored: {', '.join(unknown.ignored)}.")
        return unknown.questions

    def _refused_settings(self, values: Mapping[str, Any]) -> list[str]:
        try:
            slurm_settings.check({name: values[f"slurm_{name}"] for name in slurm_settings.OPTIONS})
        except InputError as error:
            return [f"{self.machine}: {error} Nothing has been changed."]
        return []

    def _values(self, options: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name, option in options.items():
            try:
                found[name] = self.option(name, option)
            except AnsibleUndefinedVariable:
                continue
        return found


def _refusal(questions: Sequence[str]) -> str:
    return (
        f"Nothing has been changed. Unknown variables: {' '.join(questions)} Correct the names, or set "
        "cluster_unknown_variables=ignore if something else reads them."
    )
