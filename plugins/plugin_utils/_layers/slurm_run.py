# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module slurm on a host with what it needs: packages, the program, and the options of other members."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ansible.errors import AnsibleError

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm import (
    health_program_sources,
    packages_for_programs,
)

_MODULE = "gpumesh.cluster.slurm"


def run_slurm_module(action: HostAction, module_parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Run the module, and again with what was missing. Raises ModuleFailedError or HostStateError."""
    module_args = {**module_parameters, **action.supervisor_options()}
    result = action.ensure_packages(
        _MODULE,
        module_args,
        lambda module_result: (
            packages_for_programs(module_result["missing"], action.package_manager) if module_result["missing"] else []
        ),
    )
    action.refuse_missing_programs(result["missing"])
    return action.push_sources(_MODULE, module_args, result, health_program_sources)


def collect_gres(action: HostAction, record: Record) -> dict[str, Any]:
    """Return the option slurm_gres of the members, whether they are in the play or not.

    Members that are not in this inventory, or whose value is invalid or has a template that needs their facts, are left
    out.
    """
    variables_by_host = action.variables.get("hostvars", {})
    gres_by_machine = {}
    for machine in (member["machine"] for member in record["members"]):
        if machine in variables_by_host:
            with suppress(AnsibleError, InputError):
                gres_by_machine[machine] = action.options("slurm_gres", machine=machine)["slurm_gres"]
    return gres_by_machine
