# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health program of a node and its settings, for those who install it without running it."""

from __future__ import annotations

import os
from typing import NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DEFAULT_DIRECTORY

PROGRAM_NAME = "gpumesh-node-health"
PROGRAM_PATH = f"/usr/local/sbin/{PROGRAM_NAME}"
#: The module with the program's main function.
ENTRY_MODULE = f"{__name__.rpartition('.')[0]}.program"

#: The option with which the program watches the kernel log, and the daemon that runs it.
WATCH_OPTION = "--watch"
WATCH_DAEMON = "gpumesh-health"
WATCHED_LOG = "/dev/kmsg"


class HealthSettings(NamedTuple):
    """The node, and the faults for which it is drained: without ``drain_on``, all that the catalogue has for that."""

    cluster: str
    machine: str
    folder: str = DEFAULT_DIRECTORY
    drain_on: Optional[Sequence[str]] = None
    max_disk_percent: float = 95.0
    rdma_rate_gbps: Optional[float] = None
    mount_timeout: float = 10.0
    max_drained_percent: float = 25.0


def find_state_folder(records_folder: str = DEFAULT_DIRECTORY) -> str:
    """Return the directory of what the program remembers, beside that of the records."""
    return os.path.join(os.path.dirname(records_folder.rstrip("/")), "health")


def locate_snapshot(records_folder: str = DEFAULT_DIRECTORY) -> str:
    """Return the path of what the checks have seen last."""
    return os.path.join(find_state_folder(records_folder), "snapshot.json")
