# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A line at the bottom of a terminal that is redrawn, and makes room for other output."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO, cast

_CLEAR = "\r\x1b[K"


class _GivingWay:
    """A stream that removes the live line before it writes.

    Warnings and the output of other plugins are written to sys.stdout and sys.stderr directly; without this class, they
    would appear in the middle of the live line.
    """

    def __init__(self, stream: TextIO, line: LiveLine) -> None:
        self._stream = stream
        self._line = line

    def write(self, text: str) -> int:
        with self._line.hidden(text):
            written = self._stream.write(text)
            self._stream.flush()
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Hidden:
    """In this context, there is no live line on the screen, and none is drawn."""

    def __init__(self, line: LiveLine, text: str) -> None:
        self._line = line
        self._text = text

    def __enter__(self) -> None:
        self._line.acquire()

    def __exit__(self, *_exception: object) -> None:
        self._line.release(self._text)


class LiveLine:
    """The live line. ``text`` is called for its content each time that it is drawn."""

    def __init__(self, text: Callable[[], str], interval: float = 0.5) -> None:
        self._text = text
        self._interval = interval
        self._lock = threading.RLock()
        self._drawn = False
        # Something has written half a line, such as a prompt, which drawing would hide.
        self._held = False
        self._stop = threading.Event()
        self._owner = os.getpid()
        self._streams: tuple[TextIO, TextIO] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Replace the streams, and start drawing."""
        self._streams = (sys.stdout, sys.stderr)
        sys.stdout = cast("TextIO", _GivingWay(sys.stdout, self))
        sys.stderr = cast("TextIO", _GivingWay(sys.stderr, self))
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Remove the line, and restore the streams."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2)
        with self._lock:
            self._clear()
        if self._streams is not None:
            sys.stdout, sys.stderr = self._streams
            self._streams = None

    def hidden(self, text: str) -> _Hidden:
        """A context in which ``text`` is written."""
        return _Hidden(self, text)

    def acquire(self) -> None:
        """Remove the line. In a forked worker, there is no line, and the lock's owner may not exist."""
        if os.getpid() == self._owner:
            self._lock.acquire()
            self._clear()

    def release(self, text: str) -> None:
        """Allow the line to be drawn again, once a complete line has been written."""
        if os.getpid() == self._owner:
            self._held = bool(text) and not text.endswith("\n")
            self._lock.release()

    def _clear(self) -> None:
        if self._drawn:
            # Bypass Python's own buffer and its lock, since a worker may be forked at this moment.
            os.write(1, _CLEAR.encode())
            self._drawn = False

    def draw(self) -> None:
        """Draw the line now."""
        with self._lock:
            text = self._text()
            if text and not self._held and not self._stop.is_set():
                os.write(1, (_CLEAR + text).encode("utf-8", "replace"))
                self._drawn = True

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self.draw()
