# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of this node, as reported by the kernel in /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Collection, Dict, Iterator, List, Tuple

_PROC = "/proc"
_CGROUPS = "/sys/fs/cgroup"
#: States in which a process does not run, and will not without intervention.
_STOPPED = {"T": "stopped (SIGSTOP)", "t": "stopped by a debugger", "D": "waiting for a disk or a file server"}


def group(number: int) -> List[int]:
    """The processes of a process group."""
    return groups([number])[number]


def groups(numbers: Collection[int]) -> Dict[int, List[int]]:
    """The same for several groups."""
    found: Dict[int, List[int]] = {number: [] for number in numbers}
    for pid, words in _all():
        found.get(int(words[2]), []).append(pid)
    return found


def run_delays(pid: int) -> Dict[int, int]:
    """Nanoseconds for which each thread was ready to run without a processor.

    Empty if the kernel does not count them.
    """
    found: Dict[int, int] = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"{_PROC}/{pid}/task"):
            path = f"{_PROC}/{pid}/task/{thread}/schedstat"
            with contextlib.suppress(OSError), open(path, encoding="ascii") as stream:
                found[int(thread)] = int(stream.read().split()[1])
    return found


def stopped(number: int) -> str:
    """Why a process of the group cannot run; empty while all can."""
    reasons = [_STOPPED[words[0]] for _pid, words in _all() if int(words[2]) == number and words[0] in _STOPPED]
    return reasons[0] if reasons else ""


def killed_for_memory() -> int:
    """The number of processes of this process's Slurm step that the kernel has killed since its memory was used up.

    0 if it does not tell: without a limit, or if Slurm does not use cgroups.
    """
    for path, file in _cgroups():
        with contextlib.suppress(OSError, ValueError), open(f"{path}/{file}", encoding="ascii") as stream:
            counts = dict(line.split() for line in stream)
            return int(counts["oom_kill"]) if "oom_kill" in counts else 0
    return 0


def _cgroups() -> Iterator[Tuple[str, str]]:
    """The cgroups of this process that count, with the file of the counts, the innermost first, up to that of the job:
    those above are of other jobs too.
    """
    with contextlib.suppress(OSError), open(f"{_PROC}/self/cgroup", encoding="utf-8", errors="replace") as stream:
        for line in stream:
            _number, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers in ("", "memory"):
                root = f"{_CGROUPS}/memory" if controllers else _CGROUPS
                while "/job_" in path:
                    yield root + path, "memory.oom_control" if controllers else "memory.events"
                    path = path.rpartition("/")[0]


def _all() -> Iterator[Tuple[int, List[str]]]:
    """Each process, with its state, parent, process group and so on, as in proc_pid_stat(5) after the name."""
    for name in os.listdir(_PROC):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"{_PROC}/{name}/stat", encoding="ascii", errors="replace") as file:
                yield int(name), file.read().rpartition(")")[2].split()


def send(number: int, signal_number: int) -> None:
    """Send a signal to the processes of a group that have a handler for it. It would end the others."""
    for pid in group(number):
        if _catches(pid, signal_number):
            with contextlib.suppress(OSError):
                os.kill(pid, signal_number)


def _catches(pid: int, signal_number: int) -> bool:
    with contextlib.suppress(OSError), open(f"{_PROC}/{pid}/status", encoding="ascii", errors="replace") as stream:
        masks = [line.split()[1] for line in stream if line.startswith("SigCgt:")]
        return bool(masks) and bool(int(masks[0], 16) >> (signal_number - 1) & 1)
    return False


def mentions(path: str) -> bool:
    """Whether a process of this user has the path, or one below it, among its variables."""
    return any(os.fsencode(path) in variables for _pid, variables in _environments())


def _environments() -> Iterator[Tuple[int, bytes]]:
    """The variables of each process of this user, as they were when its program started."""
    for name in os.listdir(_PROC):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"{_PROC}/{name}/environ", "rb") as stream:
                yield int(name), stream.read()


def kill_ranks(folder: str, attempt: int) -> None:
    """Kill every process of a job of this user that belongs to a run, up to this attempt, whatever its current parent is.

    ``folder``: that of the run. Processes that the user has started in a shell with the variables are left alone.
    """
    for pid, text in _environments():
        variables = dict(word.partition(b"=")[::2] for word in text.split(b"\0"))
        number = variables.get(b"GPUMESH_ATTEMPT", b"")
        of_run = variables.get(b"GPUMESH_RUN_DIR") == os.fsencode(folder) and b"SLURM_JOB_ID" in variables
        if pid != os.getpid() and of_run and not (number.isdigit() and int(number) > attempt):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
