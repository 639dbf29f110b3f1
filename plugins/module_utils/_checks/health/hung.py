# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of vendors that hang in the kernel, because their driver does not answer.

A program that only exceeds its time limit may be slow: it is killed, and ends. One that hangs cannot be killed: it stays
in uninterruptible sleep with SIGKILL pending. Starting another one would only add one more.

Source: proc(5), proc_pid_stat(5) and proc_pid_status(5).
"""

from __future__ import annotations

import os
import re
from typing import Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import runs_as_root
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number

#: The time after its start in which a killed program may still end. Our own ones are killed after 20 seconds at most.
_MIN_SECONDS = 60.0
_PENDING_SIGNALS = re.compile(r"^(?:SigPnd|ShdPnd):\s*(?P<mask>[0-9a-fA-F]+)$", re.MULTILINE)
_SIGKILL_BIT = 1 << (9 - 1)
#: Fields of /proc/PID/stat after the name, which is in brackets: the state, and the start in ticks after the boot.
_STATE_FIELD, _START_FIELD = 0, 19


def _read_age(tree: Tree, pid: str) -> Optional[float]:
    """How many seconds ago a process in uninterruptible sleep was started; None for any other process."""
    # The name, in brackets, may contain any character.
    fields = (tree.read("proc", pid, "stat") or "").rpartition(")")[2].split()
    uptime = re.match(r"[0-9]+(?:\.[0-9]+)?", tree.read("proc", "uptime") or "")
    start_ticks = parse_whole_number(fields[_START_FIELD]) if len(fields) > _START_FIELD else None
    if uptime is None or start_ticks is None or fields[_STATE_FIELD] != "D":
        return None
    return float(uptime.group()) - start_ticks / os.sysconf("SC_CLK_TCK")


def _is_killed(tree: Tree, pid: str) -> bool:
    """Whether SIGKILL is pending."""
    status = tree.read("proc", pid, "status") or ""
    return any(int(pending.group("mask"), 16) & _SIGKILL_BIT for pending in _PENDING_SIGNALS.finditer(status))


def find_hung_process(tree: Tree, program: str) -> Optional[str]:
    """Return a process of root that runs this program and cannot be killed, with its age: "PID 4711 for 320 s"."""
    for pid in tree.list_names("proc"):
        age = _read_age(tree, pid) if pid.isdigit() else None
        if (
            age is not None
            and age >= _MIN_SECONDS
            and _is_killed(tree, pid)
            and runs_as_root(tree.path("proc"), int(pid), [program])
        ):
            return f"PID {pid} for {age:.0f} s"
    return None
