# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the checks of a node have seen, for faults that only two snapshots show.

It is only valid until the next boot, as the counters of the hardware are. Only the health program writes it.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, Mapping, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json

_UPTIME_KEY, _BOOT_KEY = "uptime", "boot_id"
#: A snapshot that follows another one sooner, as in the prolog of a job, does not replace it.
_MIN_INTERVAL = 60.0

Snapshot = Dict[str, Any]


def read_uptime(tree: Tree) -> Optional[float]:
    """Seconds since the boot, which no change of the clock affects."""
    uptime = re.match(r"[0-9]+(?:\.[0-9]+)?", tree.read("proc", "uptime") or "")
    return float(uptime.group()) if uptime else None


def _read_boot_id(tree: Tree) -> Optional[str]:
    return tree.read("proc/sys/kernel/random/boot_id")


def read_snapshot(tree: Tree, path: str) -> Snapshot:
    """The last snapshot since the boot; empty if there is none, or if it is damaged."""
    try:
        snapshot = parse_json(tree.read(path) or "")
    except ValueError:
        return {}
    return snapshot if isinstance(snapshot, dict) and snapshot.get(_BOOT_KEY) == _read_boot_id(tree) else {}


def read_part(snapshot: Mapping[str, Any], name: str) -> Dict[str, Any]:
    """A part of a snapshot that is a mapping; empty if it has none."""
    part = snapshot.get(name)
    return part if isinstance(part, dict) else {}


def write_snapshot(tree: Tree, path: str, snapshot: Mapping[str, Any], urgent: Mapping[str, Any]) -> None:
    """Record this snapshot, unless the last one is recent: then only ``urgent``, which has to be up to date."""
    uptime, last_snapshot = read_uptime(tree), read_snapshot(tree, path)
    last_uptime = last_snapshot.get(_UPTIME_KEY)
    # In some containers, it is the container's own, which starts again without a boot.
    is_recent = (
        isinstance(last_uptime, (int, float)) and uptime is not None and 0 <= uptime - last_uptime < _MIN_INTERVAL
    )
    next_snapshot = {**last_snapshot, **urgent}
    if not is_recent:
        next_snapshot = {**next_snapshot, **snapshot, **urgent, _UPTIME_KEY: uptime, _BOOT_KEY: _read_boot_id(tree)}
    if next_snapshot != last_snapshot and os.path.isdir(tree.path(os.path.dirname(path))):
        files.write_atomic(tree.path(path), json.dumps(next_snapshot) + "\n")
