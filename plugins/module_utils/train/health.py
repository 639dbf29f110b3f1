# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node on which a failure occurred may be used again, as far as a user can tell.

The node's health program runs as root every few minutes, and drains the node if it finds a fault. Here the same checks
are made at once, as the user, in a step on the node: those of GPUs, links and shared volumes. What a user cannot read
is not evaluated, and nothing is written: a full volume is not a fault of the node.
"""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import find as find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.run import HARDWARE, Context, make_checks
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.shapes import Expected, Result
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree

#: The exit status of a node that is unhealthy.
UNHEALTHY = 14
_MOUNTS = "storage.mounts"
#: Seconds in which a volume must respond.
_PATIENCE = 5.0


def examine(
    volumes: Sequence[str],
    gpus: bool,
    runner: Runner = run,
    tree: Optional[Tree] = None,
    find: Callable[[str], Optional[str]] = find_program,
) -> List[Result]:
    """The checks that this node fails. ``volumes``: mount points; ``gpus``: whether the run uses any."""
    expected = Expected(external_mounts=volumes, read_only_mounts=volumes, mount_timeout=_PATIENCE)
    only = [*(HARDWARE if gpus else ()), *([_MOUNTS] if volumes else ())]
    results = make_checks(Context(expected, tree or Tree(), runner, find), None, only) if only else []
    return [result for result in results if result["status"] == "fail"]


def of_hardware(reason: str) -> bool:
    """Whether these words name a fault of the node itself. A volume may fail on all nodes for the same reason."""
    return any(name in reason for name in HARDWARE)


def words(failing: Sequence[Result]) -> str:
    """The failures in one line."""
    return "; ".join(f"{result['id']}: {result['reason'].rstrip('.')}" for result in failing)
