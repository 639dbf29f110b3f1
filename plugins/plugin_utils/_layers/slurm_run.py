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
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction, PackageError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm import (
    packages_for_programs,
    pushed_sources,
)

_MODULE = "gpumesh.cluster.slurm"
_COMPILER = "gcc"


def run_slurm_module(
    action: HostAction, module_parameters: Mapping[str, Any], manager_library: str = ""
) -> dict[str, Any]:
    """Run the module, and again with what was missing. Raises ModuleFailedError or HostStateError.

    ``manager_library``: the library of the manager's plugin for jobs, encoded.
    """
    module_args = {**module_parameters, **action.supervisor_options()}
    requested_packages: list[str] = []

    def find_missing_packages(module_result: Mapping[str, Any]) -> list[str]:
        if not module_result["missing"]:
            return []
        missing_packages = packages_for_programs(module_result["missing"], action.package_manager)
        requested_packages.extend(missing_packages)
        return missing_packages

    try:
        result = action.ensure_packages(_MODULE, module_args, find_missing_packages)
    except PackageError as failure:
        if _COMPILER not in requested_packages:
            raise
        # Slurm works without the plugin for jobs, for which a compiler is needed.
        module_args["install_compiler"] = False
        result = action.ensure_packages(_MODULE, module_args, find_missing_packages)
        action.warn(
            f"{action.machine}: {', '.join(packages_for_programs([_COMPILER], action.package_manager))} cannot be installed, "
            f"so a TaskProlog sets the environment of jobs, and steps in containers fail: {failure.message} "
            "Mend the package sources, or set slurm_job_plugin: false."
        )
    action.refuse_missing_programs(result["missing"])
    return action.push_sources(_MODULE, module_args, result, lambda: pushed_sources(manager_library))


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
