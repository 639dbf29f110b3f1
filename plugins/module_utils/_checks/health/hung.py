# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that hang in the kernel: programs of vendors whose driver does not answer, and any others.

A program of a vendor that only exceeds its time limit may be slow: it is killed, and ends. One that hangs cannot be killed: it stays
in uninterruptible sleep with SIGKILL pending. Starting another one would only add one more.

Any other process in uninterruptible sleep may just wait for a disk. It hangs if it has not run at all between two snapshots.

Source: proc(5), proc_pid_stat(5) and proc_pid_status(5); the kernel's admin-guide/sysctl/kernel.rst,
hung_task_timeout_secs.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterable, Mapping, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    Judgement,
    failed,
    passed,
    skipped,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import (
    find_process_times,
    read_stat,
    read_stat_fields,
    runs_as_root,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

#: The time after its start in which a killed program may still end. Our own ones are killed after 20 seconds at most.
_MIN_SECONDS = 60.0
_PENDING_SIGNALS = re.compile(r"^(?:SigPnd|ShdPnd):\s*(?P<mask>[0-9a-fA-F]+)$", re.MULTILINE)
#: The name, in which line breaks are escaped, and the state, in /proc/PID/status.
_PROCESS_STATUS = re.compile(r"Name:\t(?P<name>.*)\n(?:.*\n)*?State:\t(?P<state>\w)")
#: A function of NVIDIA's driver in /proc/PID/task/TID/stack, which only root can read.
_DRIVER_FRAME = re.compile(r"\[nvidia\w*\]\s*$", re.MULTILINE)
#: The function in which a process waits that version 1 of control groups has frozen, such as one of a paused container.
_FROZEN_IN = "refrigerator"
_SIGKILL_BIT = 1 << (9 - 1)
#: The index of the flags among the fields of read_stat_fields(), and that of a thread of the kernel, which may wait for work.
_FLAGS_FIELD = 6
_KERNEL_THREAD = 0x00200000
#: Seconds after which the kernel itself reports a task that has not run.
_HUNG_SECONDS = 120.0
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s*(?P<count>[0-9]+)$", re.MULTILINE)


def _read_age(proc: str, pid: str) -> Optional[float]:
    """How many seconds ago a process in uninterruptible sleep was started; None for any other process."""
    stat_fields = read_stat_fields(proc, pid)
    times = find_process_times(proc, stat_fields) if stat_fields[:1] == ["D"] else None
    return None if times is None else times.now - times.started


def _has_sigkill(status: str) -> bool:
    """Whether SIGKILL is pending, by /proc/PID/status."""
    return any(int(pending.group("mask"), 16) & _SIGKILL_BIT for pending in _PENDING_SIGNALS.finditer(status))


def find_hung_process(tree: Tree, program: str) -> Optional[str]:
    """Return a process of root that runs this program and cannot be killed, with its age: "PID 4711 for 320 s"."""
    for pid in tree.list_names("proc"):
        age = _read_age(tree.path("proc"), pid) if pid.isdigit() else None
        if (
            age is not None
            and age >= _MIN_SECONDS
            and _has_sigkill(tree.read("proc", pid, "status") or "")
            and runs_as_root(tree.path("proc"), int(pid), [program])
        ):
            return f"PID {pid} for {age:.0f} s"
    return None


def find_unkillable(tree: Tree, pids: Iterable[int]) -> Dict[int, str]:
    """The names of those of the processes that hang in NVIDIA's driver although they were killed.

    Elsewhere in the kernel, users can make their processes hang, for instance by a file system of their own (FUSE).
    """
    name_by_pid = {}
    for pid in pids:
        for thread in tree.list_names("proc", str(pid), "task"):
            directory = os.path.join("proc", str(pid), "task", thread)
            status = tree.read(directory, "status") or ""
            head = _PROCESS_STATUS.match(status)
            if (
                head
                and head.group("state") == "D"
                and _has_sigkill(status)
                and _DRIVER_FRAME.search(tree.read(directory, "stack") or "")
            ):
                name_by_pid[pid] = head.group("name")
    return name_by_pid


def follow_sleeping(tree: Tree, earlier: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
    """The processes in uninterruptible sleep by PID, each with the uptime since which it is known not to have run.

    ``earlier``: those of the earlier snapshot.
    """
    sleeping_by_pid: Dict[str, Dict[str, Any]] = {}
    proc = tree.path("proc")
    for pid in filter(str.isdigit, tree.list_names("proc")):
        name, stat_fields = read_stat(proc, pid)
        times = find_process_times(proc, stat_fields) if stat_fields[:1] == ["D"] else None
        if times is None or int(stat_fields[_FLAGS_FIELD]) & _KERNEL_THREAD:
            continue
        if _FROZEN_IN in (tree.read("proc", pid, "wchan") or ""):
            continue
        switches = [int(count) for count in _SWITCHES.findall(tree.read("proc", pid, "status") or "")]
        process = {"name": name, "start": times.started, "switches": switches}
        earlier_process = earlier.get(pid)
        if isinstance(earlier_process, dict) and process.items() <= earlier_process.items():
            sleeping_by_pid[pid] = {**process, "since": earlier_process.get("since")}
        else:
            sleeping_by_pid[pid] = {**process, "since": times.now}
    return sleeping_by_pid


def judge_sleeping(sleeping_by_pid: Mapping[str, Mapping[str, Any]], uptime: Optional[float]) -> Judgement:
    """Judge whether processes hang in the kernel."""
    if uptime is None:
        return skipped("The kernel shows no /proc/uptime.")
    hung_texts = [
        f"{process['name']} ({pid}) for {uptime - process['since']:.0f} s"
        for pid, process in sleeping_by_pid.items()
        if isinstance(process["since"], (int, float)) and uptime - process["since"] >= _HUNG_SECONDS
    ]
    if not hung_texts:
        return passed(0, 0, "processes")
    return failed(
        len(hung_texts),
        0,
        f"Processes hang in the kernel: {', '.join(hung_texts[:8])}.",
        "See in /proc/PID/stack what they wait for: a volume whose server is down, a disk, or a driver.",
        "processes",
    )
