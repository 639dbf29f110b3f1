# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages of the kernel itself, from the records of /dev/kmsg.

Not by dmesg or the journal: a user's program has its name, and the name of its file, in what the kernel says of its crash,
and there a name with a line break in it looks like a message of its own. A record has its facility, which only the kernel
can set to its own, and what is in a message is escaped.

Source: the kernel's Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import errno
import os
import re
from typing import List, Optional

#: A message is at most 1 KiB and escaped to at most four times that; a read gives one record or fails.
_RECORD_BYTES = 16 * 1024
#: The kernel's buffer is at most a few hundred thousand records; more come only while we read.
_MOST_RECORDS = 1_000_000
_HEAD = re.compile(r"(?P<priority>[0-9]{1,4}),[0-9]+,[0-9]+,[^;]*;")
#: The facility is the part above the three bits of the level; that of the kernel is 0.
_LEVELS = 8


def read(path: str) -> Optional[str]:
    """All records that are there, one a line; None where they may not be read."""
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
    """The messages of the kernel's own, without those that programs have written to its log."""
    found = []
    # Not splitlines(), which also breaks at what is no line break here.
    for line in records.split("\n"):
        # The dictionary of a record follows it, each line after a blank.
        head = _HEAD.match(line)
        if head and int(head.group("priority")) < _LEVELS:
            found.append(line[head.end() :])
    return found
