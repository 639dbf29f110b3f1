# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernel settings and limits that affect distributed training."""

from __future__ import annotations

import resource
from typing import Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import LocalPorts


def read_local_ports(tree: Tree) -> Optional[LocalPorts]:
    """Read the ephemeral ports; None if the kernel does not report them."""
    range_bounds = (tree.read("proc/sys/net/ipv4/ip_local_port_range") or "").split()
    if len(range_bounds) != 2 or not all(bound.isdecimal() for bound in range_bounds):
        return None
    reserved_text = tree.read("proc/sys/net/ipv4/ip_local_reserved_ports") or ""
    return {
        "first": int(range_bounds[0]),
        "last": int(range_bounds[1]),
        "reserved": [part for part in reserved_text.split(",") if part],
    }


def may_lock_memory() -> bool:
    """Whether this process may lock unlimited memory, as RDMA requires. Raises its own limit to find out."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        return False
    return True
