# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the logs of daemons within bounds on hosts without logrotate, such as containers.

The daemons append to their files, so a file is copied and truncated, which needs no signal and no name of a process, and
is right for slurmstepd as well. What is written in the instant between is lost.
"""

from __future__ import annotations

import os
import stat
from typing import Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils import files

#: The logs that grow without an end: the others go to the journal, or to files that supervisord rotates.
LOGS = (
    "/var/log/slurm/slurmctld.log",
    "/var/log/slurm/slurmd.log",
    "/var/log/slurm/slurmdbd.log",
    "/var/log/ganesha/ganesha.log",
)
#: Bytes. Above the size at which Debian's own settings rotate them, if logrotate runs.
LARGEST = 10 * 1024 * 1024
#: The suffix of the copy; logrotate uses others.
_OLD = ".old"


def bound(paths: Sequence[str] = LOGS, largest: int = LARGEST) -> None:
    """Move the end of each log that has grown too large to a second file. What cannot be written stays as it is."""
    for path in paths:
        try:
            _bound(path, largest)
        except OSError:
            # A full or read-only disk has a check of its own.
            continue


def _bound(path: str, largest: int) -> None:
    # The folder belongs to the daemon's account, which must not make root truncate another file.
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1 or about.st_size <= largest:
            return
        end = _end(handle, about.st_size, largest)
        if end is not None:
            files.write_atomic(path + _OLD, end, stat.S_IMODE(about.st_mode), (about.st_uid, about.st_gid))
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _end(handle: int, size: int, largest: int) -> Optional[bytes]:
    """The last lines of a file, at most ``largest`` bytes; None if another process has shortened it meanwhile."""
    content = b""
    while len(content) < largest:
        part = os.pread(handle, largest - len(content), size - largest + len(content))
        if not part:
            return None
        content += part
    _cut, _newline, lines = content.partition(b"\n")
    return lines or content
