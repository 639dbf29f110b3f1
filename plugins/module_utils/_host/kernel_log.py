# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages of the kernel itself, from the records of /dev/kmsg.

dmesg and the journal are not used: the kernel logs the name of a crashed program and of its file, and there, a name
with a line break looks like a separate message. A record has a facility, of which only the kernel can use its own, and
the message is escaped.

Source: the kernel's Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import List, Optional

#: /dev/kmsg, by the kernel's Documentation/admin-guide/devices.txt.
_LOG_DEVICE = os.makedev(1, 11)
#: A message has at most 1 KiB, and up to four times that when escaped; a read returns one record or fails.
_MAX_RECORD_BYTES = 16 * 1024
#: The kernel's buffer holds at most a few hundred thousand records; more appear only while we read.
_MAX_RECORDS = 1_000_000
_RECORD_HEADER = re.compile(r"(?P<priority>[0-9]{1,4}),[0-9]+,[0-9]+,[^;]*;")
#: The facility is above the three bits of the level; that of the kernel is 0.
_LEVEL_COUNT = 8


def open_log(path: str) -> Optional[int]:
    """Return a descriptor of the log, before its oldest record; None if it may not be read, as in most containers."""
    try:
        log_descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    log_status = os.fstat(log_descriptor)
    if stat.S_ISCHR(log_status.st_mode) and log_status.st_rdev != _LOG_DEVICE:
        # Some containers have a link to /dev/null or to a console instead.
        os.close(log_descriptor)
        return None
    return log_descriptor


def can_read(path: str) -> bool:
    """Whether the log may be read on this host."""
    log_descriptor = open_log(path)
    if log_descriptor is not None:
        os.close(log_descriptor)
    return log_descriptor is not None


def read_available(log_descriptor: int) -> str:
    """Return the records that were not read yet, one per line. Raises OSError."""
    raw_records: List[bytes] = []
    while len(raw_records) < _MAX_RECORDS:
        try:
            raw_record = os.read(log_descriptor, _MAX_RECORD_BYTES)
        except BlockingIOError:
            break
        except OSError as failure:
            if failure.errno == errno.EPIPE:
                # Overwritten by newer records while reading: the next read continues with the oldest remaining one.
                continue
            raise
        if not raw_record:
            break
        raw_records.append(raw_record)
    return b"".join(raw_records).decode("utf-8", "replace")


def read_records(path: str) -> Optional[str]:
    """Return all available records, one per line; None if they may not be read."""
    log_descriptor = open_log(path)
    if log_descriptor is None:
        return None
    try:
        return read_available(log_descriptor)
    except OSError:
        return None
    finally:
        os.close(log_descriptor)


def extract_messages(records: str) -> List[str]:
    """The kernel's own messages, without those that programs have written to its log."""
    kernel_messages = []
    # splitlines() would also break at characters that do not end a line here.
    for line in records.split("\n"):
        # The dictionary of a record follows it, with each line after a blank.
        head = _RECORD_HEADER.match(line)
        if head and int(head.group("priority")) < _LEVEL_COUNT:
            kernel_messages.append(line[head.end() :])
    return kernel_messages
