# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module slurm on a host, and install the packages that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.slurm import packages


def run_slurm(action: HostAction, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Run the module, and again after installing missing packages. Raises ModuleFailedError or HostStateError."""
    result = action.equipped_module(
        "gpumesh.cluster.slurm",
        {**parameters, **action.supervisor()},
        lambda found: packages(found["missing"], action.package_manager) if found["missing"] else [],
    )
    action.refuse_missing(result["missing"])
    return result
