# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a trace in Chrome's format in pieces, since its values may need more memory than there is.

PyTorch writes names without escaping them (pytorch/kineto#1459), so that of `record_function` may break the event that
it is in: such an event is skipped. Line breaks in names are accepted.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from typing import Any, Callable, Collection, Dict, TextIO, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import open_plain

_PART = 1 << 21
#: Text that is no value after as many characters is damaged: more must not be kept. A value may take thirty times as
#: much memory as its text.
_LARGEST = 1 << 22
#: An error so close to the end of the text may be due to the end: it is within a literal, or an escaped character.
_NEAR = 16
_SPACE = re.compile(r"[\s,:]*")
_EVENTS = "traceEvents"
#: The key that every event has.
_PHASE = "ph"


class DamagedError(ValueError):
    """The text is not JSON."""


class CutOffError(ValueError):
    """The text ends too early."""


class _Source:
    """The text with a position. Text that was read is discarded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text = ""
        self._place = 0
        self._more = True
        self._decode = json.JSONDecoder(strict=False).raw_decode

    def _fill(self) -> None:
        part = self._stream.read(_PART)
        self._more = bool(part)
        self._text = self._text[self._place :] + part
        self._place = 0

    def peek(self) -> str:
        """The next character that is not white space, a comma or a colon; empty at the end."""
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
        """The value that starts there. Raises DamagedError and CutOffError."""
        self.peek()
        while True:
            try:
                found, end = self._decode(self._text, self._place)
            except RecursionError as failure:
                raise DamagedError("it is nested too deeply") from failure
            except json.JSONDecodeError as failure:
                if not self._incomplete(failure):
                    raise DamagedError(failure.msg) from failure
                if not self._more:
                    raise CutOffError("its end is missing") from failure
                self._fill()
                continue
            except ValueError as failure:
                # A number with thousands of digits.
                raise DamagedError(str(failure)) from failure
            # A number at the end of the text read so far may be incomplete.
            if end == len(self._text) and self._more:
                self._fill()
                continue
            self._place = end
            return found

    def _incomplete(self, failure: json.JSONDecodeError) -> bool:
        """Whether more text may make it a value."""
        at_end = failure.pos >= len(self._text) - _NEAR or failure.msg.startswith("Unterminated string")
        return at_end and len(self._text) - self._place < _LARGEST

    def resume(self) -> Dict[str, Any]:
        """The first event after the start of a damaged one. Raises CutOffError if there is none."""
        self._place += 1
        while True:
            begin = self._text.find("{", self._place)
            self._place = len(self._text) if begin < 0 else begin
            if begin < 0:
                if not self._more:
                    raise CutOffError("its end is missing")
                self._fill()
                continue
            try:
                found = self.value()
            except DamagedError:
                self._place += 1
                continue
            if _PHASE in found:
                return dict(found)


def _read(
    stream: TextIO, event: Callable[[Dict[str, Any]], None], wanted: Collection[str]
) -> Tuple[Dict[str, Any], int]:
    source = _Source(stream)
    about: Dict[str, Any] = {}
    skipped = 0
    first = source.peek()
    if first not in ("{", "["):
        raise DamagedError("it begins with neither { nor [")
    if first == "[":
        return about, _each(source, event)
    source.skip()
    while source.peek() != "}":
        name = source.value()
        if name == _EVENTS and source.peek() == "[":
            skipped += _each(source, event)
            continue
        value = source.value()
        if name in wanted:
            about[name] = value
    return about, skipped


def _each(source: _Source, event: Callable[[Dict[str, Any]], None]) -> int:
    """Returns how often events had to be skipped."""
    skipped = 0
    source.skip()
    while source.peek() != "]":
        try:
            value = source.value()
        except DamagedError:
            value = source.resume()
            skipped += 1
        if isinstance(value, dict):
            event(value)
    source.skip()
    return skipped


def read(
    path: str, event: Callable[[Dict[str, Any]], None], wanted: Collection[str] = ()
) -> Tuple[Dict[str, Any], int]:
    """Call ``event`` for each event.

    Returns the wanted ones of the other values, by name, and in how many places damaged events were skipped. Raises
    HostStateError.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            unpacked: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(io.BufferedReader(unpacked, _PART), encoding="utf-8", errors="replace") as stream:
                return _read(stream, event, wanted)
    except (CutOffError, EOFError, zlib.error) as failure:
        raise HostStateError(f"{path} is damaged: {failure}.", "Record the profile again.") from failure
    except DamagedError as failure:
        raise HostStateError(f"{path} is damaged: {failure}.", "Give a trace as torch.profiler writes it.") from failure
    except OSError as failure:
        raise HostStateError(f"{path} cannot be read: {failure}.", "Record the profile again.") from failure
