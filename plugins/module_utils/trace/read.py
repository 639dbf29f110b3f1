# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a trace in Chrome's format in pieces, since its values may need more memory than there is."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from typing import Any, Callable, Dict, TextIO

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import open_plain

_PART = 1 << 21
_SPACE = re.compile(r"[\s,:]*")
_EVENTS = "traceEvents"


class DamagedError(ValueError):
    """The text is not JSON, or incomplete."""


class _Source:
    """The text with a position. Text that was read is discarded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text = ""
        self._place = 0
        self._more = True
        self._decode = json.JSONDecoder().raw_decode

    def _fill(self) -> None:
        part = self._stream.read(_PART)
        self._more = bool(part)
        self._text = self._text[self._place :] + part
        self._place = 0

    def peek(self) -> str:
        """The next character that is not white space, a comma or a colon; empty at the end. Raises DamagedError."""
        while True:
            found = _SPACE.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more:
                return ""
            self._fill()

    def skip(self) -> None:
        """Skip that character."""
        self._place += 1

    def value(self) -> Any:
        """The value that starts there. Raises DamagedError."""
        self.peek()
        while True:
            try:
                found, end = self._decode(self._text, self._place)
            except RecursionError as failure:
                raise DamagedError("it is nested too deeply") from failure
            except ValueError as failure:
                if not self._more:
                    raise DamagedError(str(failure)) from failure
                self._fill()
                continue
            # A number at the end of the text read so far may be incomplete.
            if end == len(self._text) and self._more:
                self._fill()
                continue
            self._place = end
            return found


def _read(stream: TextIO, event: Callable[[Dict[str, Any]], None]) -> Dict[str, Any]:
    source = _Source(stream)
    about: Dict[str, Any] = {}
    first = source.peek()
    if first not in ("{", "["):
        raise DamagedError("it begins with neither { nor [")
    if first == "[":
        _each(source, event)
        return about
    source.skip()
    while source.peek() != "}":
        name = source.value()
        if name == _EVENTS and source.peek() == "[":
            _each(source, event)
        elif source.peek():
            about[str(name)] = source.value()
        else:
            raise DamagedError("its end is missing")
    return about


def _each(source: _Source, event: Callable[[Dict[str, Any]], None]) -> None:
    source.skip()
    while source.peek() != "]":
        value = source.value()
        if isinstance(value, dict):
            event(value)
    source.skip()


def read(path: str, event: Callable[[Dict[str, Any]], None]) -> Dict[str, Any]:
    """Call ``event`` for each event. Returns the other values of the trace. Raises HostStateError."""
    try:
        with os.fdopen(open_plain(path), "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            unpacked: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(io.BufferedReader(unpacked, _PART), encoding="utf-8", errors="replace") as stream:
                return _read(stream, event)
    except (DamagedError, EOFError, zlib.error) as failure:
        raise HostStateError(f"{path} is damaged: {failure}.", "Record the profile again.") from failure
    except OSError as failure:
        raise HostStateError(f"{path} cannot be read: {failure}.", "Record the profile again.") from failure
