# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health program of a node and its settings, for those who install it without running it."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DEFAULT_DIRECTORY

PROGRAM_NAME = "gpumesh-node-health"
PROGRAM_PATH = f"/usr/local/sbin/{PROGRAM_NAME}"
#: The module with the program's main function.
ENTRY_MODULE = f"{__name__.rpartition('.')[0]}.program"

#: The checks of what programs compute and communicate with.
HARDWARE_CHECKS = (
    "health.gpu_ecc",
    "health.gpu_retired",
    "health.gpu_xid",
    "health.nvlink",
    "health.fabric_manager",
    "health.pcie",
    "health.rdma",
)

#: The check of the shared volumes.
VOLUME_CHECK = "storage.mounts"

#: The checks that make a node unfit for all jobs. The clock, swap, names and connections to other members are not among
#: them: they are judged by the check playbook, and one dead peer must not drain the others.
DRAINING_CHECKS = (
    "health.gpu_count",
    *HARDWARE_CHECKS,
    "health.memlock",
    "health.disk",
    VOLUME_CHECK,
)


class HealthSettings(NamedTuple):
    """The node, and the faults for which it is drained."""

    cluster: str
    machine: str
    folder: str = DEFAULT_DIRECTORY
    drain_on: Sequence[str] = DRAINING_CHECKS
    max_disk_percent: float = 95.0
    rdma_rate_gbps: Optional[float] = None
    mount_timeout: float = 10.0
    max_drained_percent: float = 25.0
