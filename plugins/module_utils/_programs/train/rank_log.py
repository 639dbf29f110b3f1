# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The log of a rank on the shared volume, written by a thread of its own.

A volume that does not answer blocks whoever writes to it. If that were the thread that reads the output of the rank,
the rank would block as well, as soon as the pipe is full.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from pathlib import Path
from typing import Deque

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import write_all

#: The number of bytes that are kept for a volume that does not answer.
_BUFFER_LIMIT = 4 << 20


class RankLog:
    """The log. Excess output is dropped from the middle: the beginning has been written, and the end is kept."""

    def __init__(self, log_path: Path, buffer_limit: int = _BUFFER_LIMIT) -> None:
        self._path = log_path
        self._buffer_limit = buffer_limit
        self._chunks: Deque[bytes] = deque()
        self._buffered_size = 0
        self._dropped_bytes = 0
        self._closed = False
        self._changed = threading.Condition()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def add(self, chunk: bytes) -> None:
        """Add output, without waiting for the volume."""
        with self._changed:
            self._chunks.append(chunk)
            self._buffered_size += len(chunk)
            while self._buffered_size > self._buffer_limit and len(self._chunks) > 1:
                oldest_chunk = self._chunks.popleft()
                self._buffered_size -= len(oldest_chunk)
                self._dropped_bytes += len(oldest_chunk)
            self._changed.notify()

    def close(self, write_timeout: float) -> None:
        """Write the rest, for at most this many seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._writer.join(write_timeout)

    def _write(self) -> None:
        descriptor = -1
        for output in iter(self._next_output, b""):
            # A volume that cannot be written to, such as a full one, may have free space later.
            with contextlib.suppress(OSError):
                if descriptor < 0:
                    self._path.parent.mkdir(exist_ok=True)
                    descriptor = os.open(str(self._path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                write_all(descriptor, output)
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def _next_output(self) -> bytes:
        """Return the output to be written next; empty at the end."""
        with self._changed:
            while not self._chunks and not self._closed:
                self._changed.wait()
            buffered_output = b"".join(self._chunks)
            if self._dropped_bytes:
                missing_notice = f"\n[gpumesh-train: {self._dropped_bytes} bytes are missing here, since the volume did not answer]\n"
                buffered_output = missing_notice.encode("ascii") + buffered_output
            self._chunks.clear()
            self._buffered_size = self._dropped_bytes = 0
            return buffered_output
