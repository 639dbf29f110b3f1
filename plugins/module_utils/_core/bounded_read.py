# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what another account or host writes, but never more than a limit, from a file, a socket or a pipe.

`gpumesh_track` and `gpumesh_profile` do the same without this module, since they need only Python.
"""

from __future__ import annotations

from typing import IO, AnyStr, Iterator, List, Optional

#: A content that is kept in memory as a whole has at most this size, in bytes or characters.
MAX_SIZE = 32 << 20
_CHUNK_SIZE = 1 << 16
#: Longer lines are returned in parts.
MAX_LINE_LENGTH = 1 << 16


def read(stream: IO[AnyStr], size_limit: int = MAX_SIZE) -> Optional[AnyStr]:
    """Read everything up to the end; None if that is more than ``size_limit``. Raises OSError."""
    chunks: List[AnyStr] = []
    remaining_size = size_limit + 1
    # The reads are small since, below /proc/sys, the kernel allocates as much memory as is requested, which may fail.
    while remaining_size > 0:
        chunk = stream.read(min(_CHUNK_SIZE, remaining_size))
        if not chunk:
            return stream.read(0) if not chunks else chunks[0][:0].join(chunks)
        chunks.append(chunk)
        remaining_size -= len(chunk)
    return None


def read_lines(stream: IO[AnyStr]) -> Iterator[AnyStr]:
    """Yield the lines; a longer line comes in parts."""
    while True:
        line = stream.readline(MAX_LINE_LENGTH)
        if not line:
            return
        yield line
