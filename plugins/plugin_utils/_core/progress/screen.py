# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw a live line at the bottom of a terminal that makes room for other output."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO, cast

_CLEAR_LINE = "\r\x1b[K"


class _YieldingStream:
    """A stream that removes the live line before it writes.

    Warnings and the output of other plugins are written to sys.stdout and sys.stderr directly; without this class, they
    would appear in the middle of the live line.
    """

    def __init__(self, stream: TextIO, live_line: LiveLine) -> None:
        self._stream = stream
        self._live_line = live_line

    def write(self, text: str) -> int:
        with self._live_line.hide_for(text):
            written_count = self._stream.write(text)
            self._stream.flush()
        return written_count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _HiddenLine:
    """A context in which there is no live line on the screen, and none is drawn."""

    def __init__(self, live_line: LiveLine, written_text: str) -> None:
        self._live_line = live_line
        self._written_text = written_text

    def __enter__(self) -> None:
        self._live_line.acquire()

    def __exit__(self, *_exception: object) -> None:
        self._live_line.release(self._written_text)


class LiveLine:
    """A live line. ``render_text`` is called for its content each time that it is drawn."""

    def __init__(self, render_text: Callable[[], str], redraw_interval: float = 0.5) -> None:
        self._render_text = render_text
        self._redraw_interval = redraw_interval
        self._lock = threading.RLock()
        self._is_drawn = False
        # Drawing would hide an incomplete line that something else has written, such as a prompt.
        self._line_incomplete = False
        self._stop_event = threading.Event()
        self._owner_pid = os.getpid()
        self._original_streams: tuple[TextIO, TextIO] | None = None
        self._drawing_thread: threading.Thread | None = None

    def start(self) -> None:
        """Replace the standard streams, and start drawing."""
        self._original_streams = (sys.stdout, sys.stderr)
        sys.stdout = cast("TextIO", _YieldingStream(sys.stdout, self))
        sys.stderr = cast("TextIO", _YieldingStream(sys.stderr, self))
        self._drawing_thread = threading.Thread(target=self._redraw_until_stopped, name="progress", daemon=True)
        self._drawing_thread.start()

    def stop(self) -> None:
        """Remove the line, and restore the streams."""
        self._stop_event.set()
        if self._drawing_thread is not None:
            self._drawing_thread.join(timeout=2)
        with self._lock:
            self._clear()
        if self._original_streams is not None:
            sys.stdout, sys.stderr = self._original_streams
            self._original_streams = None

    def hide_for(self, written_text: str) -> _HiddenLine:
        """Return a context in which ``written_text`` is written."""
        return _HiddenLine(self, written_text)

    def acquire(self) -> None:
        """Remove the line. In a forked worker, there is no line, and the lock's owner may not exist."""
        if os.getpid() == self._owner_pid:
            self._lock.acquire()
            self._clear()

    def release(self, written_text: str) -> None:
        """Allow the line to be drawn again, once a complete line has been written."""
        if os.getpid() == self._owner_pid:
            self._line_incomplete = bool(written_text) and not written_text.endswith("\n")
            self._lock.release()

    def _clear(self) -> None:
        if self._is_drawn:
            # os.write bypasses the buffer of Python and its lock, since a worker may be forked at this moment.
            os.write(1, _CLEAR_LINE.encode())
            self._is_drawn = False

    def draw(self) -> None:
        """Draw the line now."""
        with self._lock:
            line_text = self._render_text()
            if line_text and not self._line_incomplete and not self._stop_event.is_set():
                os.write(1, (_CLEAR_LINE + line_text).encode("utf-8", "replace"))
                self._is_drawn = True

    def _redraw_until_stopped(self) -> None:
        while not self._stop_event.wait(self._redraw_interval):
            self.draw()
