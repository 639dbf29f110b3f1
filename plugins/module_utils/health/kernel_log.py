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
from typing import List, Optional

#: A message has at most 1 KiB, and up to four times that when escaped; a read returns one record or fails.
_RECORD_BYTES = 16 * 1024
#: The kernel's buffer holds at most a few hundred thousand records; more appear only while we read.
_MOST_RECORDS = 1_000_000
_HEAD = re.compile(r"(?P<priority>[0-9]{1,4}),[0-9]+,[0-9]+,[^;]*;")
#: The facility is above the three bits of the level; that of the kernel is 0.
_LEVELS = 8


def read(path: str) -> Optional[str]:
    """All available records, one per line; None if they may not be read."""
    records: List[bytes] = []
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        while len(records) < _MOST_RECORDS:
            try:
                record = os.read(handle, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as failure:
                if failure.errno == errno.EPIPE:
                    # Overwritten by newer records while reading: the next read continues with the oldest remaining one.
                    continue
                return None
            if not record:
                break
            records.append(record)
    finally:
        os.close(handle)
    return b"".join(records).decode("utf-8", "replace")


def messages(records: str) -> List[str]:
    """The kernel's own messages, without those that programs have written to its log."""
    found = []
    # Not splitlines(), which also breaks at characters that do not end a line here.
    for line in records.split("\n"):
        # The dictionary of a record follows it, with each line after a blank.
        head = _HEAD.match(line)
        if head and int(head.group("priority")) < _LEVELS:
            found.append(line[head.end() :])
    return found
