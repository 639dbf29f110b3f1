# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of vendors that hang in the kernel, because their driver does not answer.

A program that only exceeds its time limit may be slow: it is killed, and ends. One that hangs cannot be killed: it stays
in uninterruptible sleep with SIGKILL pending. Starting another one would only add one more.

Source: proc(5), proc_pid_stat(5) and proc_pid_status(5).
"""

from __future__ import annotations

import re
from typing import Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import (
    find_process_times,
    read_stat_fields,
    runs_as_root,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

#: The time after its start in which a killed program may still end. Our own ones are killed after 20 seconds at most.
_MIN_SECONDS = 60.0
_PENDING_SIGNALS = re.compile(r"^(?:SigPnd|ShdPnd):\s*(?P<mask>[0-9a-fA-F]+)$", re.MULTILINE)
_SIGKILL_BIT = 1 << (9 - 1)


def _read_age(proc: str, pid: str) -> Optional[float]:
    """How many seconds ago a process in uninterruptible sleep was started; None for any other process."""
    stat_fields = read_stat_fields(proc, pid)
    times = find_process_times(proc, stat_fields) if stat_fields[:1] == ["D"] else None
    return None if times is None else times.now - times.started


def _is_killed(tree: Tree, pid: str) -> bool:
    """Whether SIGKILL is pending."""
    status = tree.read("proc", pid, "status") or ""
    return any(int(pending.group("mask"), 16) & _SIGKILL_BIT for pending in _PENDING_SIGNALS.finditer(status))


def find_hung_process(tree: Tree, program: str) -> Optional[str]:
    """Return a process of root that runs this program and cannot be killed, with its age: "PID 4711 for 320 s"."""
    for pid in tree.list_names("proc"):
        age = _read_age(tree.path("proc"), pid) if pid.isdigit() else None
        if (
            age is not None
            and age >= _MIN_SECONDS
            and _is_killed(tree, pid)
            and runs_as_root(tree.path("proc"), int(pid), [program])
        ):
            return f"PID {pid} for {age:.0f} s"
    return None
