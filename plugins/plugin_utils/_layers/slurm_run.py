# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module slurm on a host, and install the packages and the program that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm import (
    packages_for_programs,
    pushed_sources,
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
    return action.push_sources(_MODULE, module_args, result, pushed_sources)
