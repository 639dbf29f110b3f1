# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of this node, as reported by the kernel in /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Collection, Dict, Iterator, List, Tuple

_PROC_DIR = "/proc"
_CGROUP_ROOT = "/sys/fs/cgroup"
#: States in which a process does not run, and will not without intervention.
_STOPPED_STATES = {"T": "stopped (SIGSTOP)", "t": "stopped by a debugger", "D": "waiting for a disk or a file server"}


def group_members(group_id: int) -> List[int]:
    """The processes of a process group."""
    return members_by_group([group_id])[group_id]


def members_by_group(group_ids: Collection[int]) -> Dict[int, List[int]]:
    """Return the processes of several process groups."""
    pids_by_group: Dict[int, List[int]] = {group_id: [] for group_id in group_ids}
    for pid, stat_fields in _process_stats():
        pids_by_group.get(int(stat_fields[2]), []).append(pid)
    return pids_by_group


def run_delays(pid: int) -> Dict[int, int]:
    """Nanoseconds for which each thread was ready to run without a processor.

    Empty if the kernel does not count them.
    """
    delay_by_thread: Dict[int, int] = {}
    with contextlib.suppress(OSError):
        for thread_id in os.listdir(f"{_PROC_DIR}/{pid}/task"):
            schedstat_path = f"{_PROC_DIR}/{pid}/task/{thread_id}/schedstat"
            with contextlib.suppress(OSError), open(schedstat_path, encoding="ascii") as stream:
                delay_by_thread[int(thread_id)] = int(stream.read().split()[1])
    return delay_by_thread


def stop_reason(group_id: int) -> str:
    """Return why a process of the group cannot run; empty while all can."""
    reasons = [
        _STOPPED_STATES[stat_fields[0]]
        for _pid, stat_fields in _process_stats()
        if int(stat_fields[2]) == group_id and stat_fields[0] in _STOPPED_STATES
    ]
    return reasons[0] if reasons else ""


def oom_kill_count() -> int:
    """The number of processes of this process's Slurm step that the kernel has killed since its memory was used up.

    Return 0 if it is unknown: without a limit, or if Slurm does not use cgroups.
    """
    for cgroup_dir, events_file in _memory_cgroups():
        with contextlib.suppress(OSError, ValueError), open(f"{cgroup_dir}/{events_file}", encoding="ascii") as stream:
            event_counts = dict(line.split() for line in stream)
            return int(event_counts["oom_kill"]) if "oom_kill" in event_counts else 0
    return 0


def _memory_cgroups() -> Iterator[Tuple[str, str]]:
    """Yield the cgroups of this process that count kills, with the name of the counts file, from the innermost up to
    that of the job: those above belong to other jobs too.
    """
    with contextlib.suppress(OSError), open(f"{_PROC_DIR}/self/cgroup", encoding="utf-8", errors="replace") as stream:
        for line in stream:
            _hierarchy_id, controllers, cgroup_path = line.rstrip("\n").split(":", 2)
            if controllers in ("", "memory"):
                mount_point = f"{_CGROUP_ROOT}/memory" if controllers else _CGROUP_ROOT
                while "/job_" in cgroup_path:
                    yield mount_point + cgroup_path, "memory.oom_control" if controllers else "memory.events"
                    cgroup_path = cgroup_path.rpartition("/")[0]


def _process_stats() -> Iterator[Tuple[int, List[str]]]:
    """Yield each process with its fields after the name in proc_pid_stat(5): state, parent, process group and so on."""
    for pid_name in os.listdir(_PROC_DIR):
        if pid_name.isdigit():
            with contextlib.suppress(OSError), open(
                f"{_PROC_DIR}/{pid_name}/stat", encoding="ascii", errors="replace"
            ) as stat_stream:
                yield int(pid_name), stat_stream.read().rpartition(")")[2].split()


def signal_handlers(group_id: int, signal_number: int) -> None:
    """Send a signal to the processes of a group that have a handler for it. The signal would end the others."""
    for pid in group_members(group_id):
        if _has_handler(pid, signal_number):
            with contextlib.suppress(OSError):
                os.kill(pid, signal_number)


def _has_handler(pid: int, signal_number: int) -> bool:
    with contextlib.suppress(OSError), open(f"{_PROC_DIR}/{pid}/status", encoding="ascii", errors="replace") as stream:
        caught_masks = [line.split()[1] for line in stream if line.startswith("SigCgt:")]
        return bool(caught_masks) and bool(int(caught_masks[0], 16) >> (signal_number - 1) & 1)
    return False


def in_any_environment(path: str) -> bool:
    """Whether a process of this user has the path, or one below it, among its variables."""
    return any(os.fsencode(path) in environ_block for _pid, environ_block in _environments())


def _environments() -> Iterator[Tuple[int, bytes]]:
    """The variables of each process of this user, as they were when its program started."""
    for pid_name in os.listdir(_PROC_DIR):
        if pid_name.isdigit():
            with contextlib.suppress(OSError), open(f"{_PROC_DIR}/{pid_name}/environ", "rb") as stream:
                yield int(pid_name), stream.read()


def kill_ranks(run_dir: str, last_attempt: int) -> None:
    """Kill every process of a job of this user that belongs to a run, up to this attempt, whatever its parent is.

    Processes that the user has started in a shell with the variables are not killed.
    """
    for pid, environ_block in _environments():
        variables = dict(assignment.partition(b"=")[::2] for assignment in environ_block.split(b"\0"))
        attempt_number = variables.get(b"GPUMESH_ATTEMPT", b"")
        belongs_to_run = variables.get(b"GPUMESH_RUN_DIR") == os.fsencode(run_dir) and b"SLURM_JOB_ID" in variables
        if (
            pid != os.getpid()
            and belongs_to_run
            and not (attempt_number.isdigit() and int(attempt_number) > last_attempt)
        ):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
