# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Examine whether a node on which a failure occurred may be used again, as far as a user can tell.

The node's health program runs as root every few minutes, and drains the node if it finds a fault. Here its checks of
GPUs, links and shared volumes are made at once, as the user, in a step on the node. What a user cannot read is not
evaluated, and nothing is written: a full volume is not a fault of the node.
"""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.catalogue import (
    HARDWARE_CHECKS,
    VOLUME_CHECK,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import CheckResult, ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.run import (
    CheckContext,
    run_selected_checks,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

#: The exit status of the command on an unhealthy node.
UNHEALTHY_STATUS = 14
#: Seconds in which a volume must respond.
_MOUNT_TIMEOUT = 5.0


def examine(
    mount_points: Sequence[str],
    uses_gpus: bool,
    runner: Runner = run,
    sysfs_tree: Optional[Tree] = None,
    find_tool: Callable[[str], Optional[str]] = find_program,
) -> List[CheckResult]:
    """Return the checks that this node fails. ``uses_gpus``: whether the run uses GPUs."""
    expected = ExpectedState(external_mounts=mount_points, read_only_mounts=mount_points, mount_timeout=_MOUNT_TIMEOUT)
    check_names = [*(HARDWARE_CHECKS if uses_gpus else ()), *([VOLUME_CHECK] if mount_points else ())]
    results = (
        run_selected_checks(CheckContext(expected, sysfs_tree or Tree(), runner, find_tool), None, check_names)
        if check_names
        else []
    )
    return [result for result in results if result["status"] == "fail"]


def is_hardware_fault(reason: str) -> bool:
    """Whether this reason names a fault of the node itself. A volume may fail on all nodes for the same reason."""
    return any(name in reason for name in HARDWARE_CHECKS)


def format_failures(failed_checks: Sequence[CheckResult]) -> str:
    """Format the failed checks in one line."""
    return "; ".join(f"{result['id']}: {result['reason'].rstrip('.')}" for result in failed_checks)
