# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The log of a rank on the shared volume, written by a thread of its own.

A volume that does not answer blocks whoever writes to it. If that were the thread that reads the output of the rank, the
rank would block as well, as soon as the pipe is full.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from pathlib import Path
from typing import Deque

from ansible_collections.gpumesh.cluster.plugins.module_utils.files import write_all

#: The number of bytes that are kept for a volume that does not answer.
_LIMIT = 4 << 20


class RankLog:
    """The log. What it cannot keep is dropped from the middle: the beginning has been written, and the end is kept."""

    def __init__(self, path: Path, limit: int = _LIMIT) -> None:
        self._path = path
        self._limit = limit
        self._parts: Deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._closed = False
        self._changed = threading.Condition()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def add(self, part: bytes) -> None:
        """Add output, without waiting for the volume."""
        with self._changed:
            self._parts.append(part)
            self._size += len(part)
            while self._size > self._limit and len(self._parts) > 1:
                oldest = self._parts.popleft()
                self._size -= len(oldest)
                self._dropped += len(oldest)
            self._changed.notify()

    def close(self, patience: float) -> None:
        """Write the rest, for at most this many seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._writer.join(patience)

    def _write(self) -> None:
        descriptor = -1
        for text in iter(self._take, b""):
            # A volume that cannot be written to, such as a full one, may have room later.
            with contextlib.suppress(OSError):
                if descriptor < 0:
                    self._path.parent.mkdir(exist_ok=True)
                    descriptor = os.open(str(self._path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                write_all(descriptor, text)
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def _take(self) -> bytes:
        """What is to be written next; empty at the end."""
        with self._changed:
            while not self._parts and not self._closed:
                self._changed.wait()
            text = b"".join(self._parts)
            if self._dropped:
                missing = (
                    f"\n[gpumesh-train: {self._dropped} bytes are missing here, since the volume did not answer]\n"
                )
                text = missing.encode("ascii") + text
            self._parts.clear()
            self._size = self._dropped = 0
            return text
