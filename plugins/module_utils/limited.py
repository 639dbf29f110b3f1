# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what another account or host writes: never more than a limit, whatever that is: a file, a socket or a pipe.

`gpumesh_track` and `gpumesh_profile` do the same without this module, since they need only Python.
"""

from __future__ import annotations

from typing import IO, AnyStr, Iterator, List, Optional

#: What is held in memory as a whole is at most as large, in bytes or characters.
LARGEST = 32 << 20
_PART = 1 << 16
#: Longer lines are handled in parts.
LONGEST_LINE = 1 << 16


def read(stream: IO[AnyStr], limit: int = LARGEST) -> Optional[AnyStr]:
    """Everything up to the end; None if that is more than ``limit``. Raises OSError."""
    parts: List[AnyStr] = []
    left = limit + 1
    # In parts: below /proc/sys, the kernel allocates as much memory as is requested, which may fail.
    while left > 0:
        part = stream.read(min(_PART, left))
        if not part:
            return stream.read(0) if not parts else parts[0][:0].join(parts)
        parts.append(part)
        left -= len(part)
    return None


def lines(stream: IO[AnyStr]) -> Iterator[AnyStr]:
    """The lines; one without an end comes in parts."""
    while True:
        line = stream.readline(LONGEST_LINE)
        if not line:
            return
        yield line
