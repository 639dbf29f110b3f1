# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the logs of daemons within bounds on hosts without logrotate, such as containers.

The daemons append to their files, so a file is copied and truncated, which needs no signal and no name of a process,
and is right for slurmstepd as well. What is written in the instant between is lost.
"""

from __future__ import annotations

import os
import stat
from typing import Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import files

#: The logs that grow without an end: the others go to the journal, or to files that supervisord rotates.
DAEMON_LOGS = (
    "/var/log/slurm/slurmctld.log",
    "/var/log/slurm/slurmd.log",
    "/var/log/slurm/slurmdbd.log",
    "/var/log/ganesha/ganesha.log",
)
#: Bytes. Above the size at which Debian's own settings rotate them, if logrotate runs.
MAX_LOG_BYTES = 10 * 1024 * 1024
#: The suffix of the copy; logrotate uses others.
_COPY_SUFFIX = ".old"


def limit_logs(paths: Sequence[str] = DAEMON_LOGS, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Move the end of each log that has grown too large to a second file. What cannot be written stays as it is."""
    for path in paths:
        try:
            _limit_log(path, max_bytes)
        except OSError:
            # A full or read-only disk has a check of its own.
            continue


def _limit_log(log_path: str, max_bytes: int) -> None:
    # The directory belongs to the daemon's account, which must not make root truncate another file.
    log_descriptor = os.open(log_path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        log_stat = os.fstat(log_descriptor)
        if not stat.S_ISREG(log_stat.st_mode) or log_stat.st_nlink != 1 or log_stat.st_size <= max_bytes:
            return
        log_tail = _read_tail(log_descriptor, log_stat.st_size, max_bytes)
        if log_tail is not None:
            files.write_atomic(
                log_path + _COPY_SUFFIX, log_tail, stat.S_IMODE(log_stat.st_mode), (log_stat.st_uid, log_stat.st_gid)
            )
            os.ftruncate(log_descriptor, 0)
    finally:
        os.close(log_descriptor)


def _read_tail(handle: int, size: int, max_bytes: int) -> Optional[bytes]:
    """Return the last lines of a file, at most ``max_bytes``; None if another process has shortened it meanwhile."""
    tail_bytes = b""
    while len(tail_bytes) < max_bytes:
        part = os.pread(handle, max_bytes - len(tail_bytes), size - max_bytes + len(tail_bytes))
        if not part:
            return None
        tail_bytes += part
    _cut, _newline, lines = tail_bytes.partition(b"\n")
    return lines or tail_bytes
