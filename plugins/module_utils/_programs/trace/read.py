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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import open_regular_file

_CHUNK_SIZE = 1 << 21
#: Text that is not a value after this many characters is damaged: more must not be kept. A value may take thirty times
#: as much memory as its text.
_MAX_VALUE_LENGTH = 1 << 22
#: An error this close to the end of the text may be due to the end, within a literal or an escaped character.
_NEAR_END = 16
_SEPARATORS = re.compile(r"[\s,:]*")
_EVENTS_KEY = "traceEvents"
#: The key that every event has.
_PHASE_KEY = "ph"


class DamagedError(ValueError):
    """The text is not JSON."""


class CutOffError(ValueError):
    """The text ends too early."""


class _JsonText:
    """The text with a position. Text that was read is discarded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text = ""
        self._position = 0
        self._has_more = True
        self._decode = json.JSONDecoder(strict=False).raw_decode

    def _read_more(self) -> None:
        chunk = self._stream.read(_CHUNK_SIZE)
        self._has_more = bool(chunk)
        self._text = self._text[self._position :] + chunk
        self._position = 0

    def peek(self) -> str:
        """The next character that is not white space, a comma or a colon; empty at the end."""
        while True:
            separators = _SEPARATORS.match(self._text, self._position)
            self._position = separators.end() if separators else self._position
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._has_more:
                return ""
            self._read_more()

    def skip(self) -> None:
        """Skip that character."""
        self._position += 1

    def read_value(self) -> Any:
        """The value that starts there. Raises DamagedError and CutOffError."""
        self.peek()
        while True:
            try:
                parsed, end = self._decode(self._text, self._position)
            except RecursionError as failure:
                raise DamagedError("it is nested too deeply") from failure
            except json.JSONDecodeError as failure:
                if not self._incomplete(failure):
                    raise DamagedError(failure.msg) from failure
                if not self._has_more:
                    raise CutOffError("its end is missing") from failure
                self._read_more()
                continue
            except ValueError as failure:
                # A number with thousands of digits.
                raise DamagedError(str(failure)) from failure
            # A number at the end of the text read so far may be incomplete.
            if end == len(self._text) and self._has_more:
                self._read_more()
                continue
            self._position = end
            return parsed

    def _incomplete(self, failure: json.JSONDecodeError) -> bool:
        """Whether more text may make it a value."""
        at_end = failure.pos >= len(self._text) - _NEAR_END or failure.msg.startswith("Unterminated string")
        return at_end and len(self._text) - self._position < _MAX_VALUE_LENGTH

    def next_event(self) -> Dict[str, Any]:
        """The first event after the start of a damaged one. Raises CutOffError if there is none."""
        self._position += 1
        while True:
            brace_position = self._text.find("{", self._position)
            self._position = len(self._text) if brace_position < 0 else brace_position
            if brace_position < 0:
                if not self._has_more:
                    raise CutOffError("its end is missing")
                self._read_more()
                continue
            try:
                candidate = self.read_value()
            except DamagedError:
                self._position += 1
                continue
            if _PHASE_KEY in candidate:
                return dict(candidate)


def _read_document(
    stream: TextIO, on_event: Callable[[Dict[str, Any]], None], header_keys: Collection[str]
) -> Tuple[Dict[str, Any], int]:
    source = _JsonText(stream)
    header: Dict[str, Any] = {}
    skipped_count = 0
    first_character = source.peek()
    if first_character not in ("{", "["):
        raise DamagedError("it begins with neither { nor [")
    if first_character == "[":
        return header, _read_event_array(source, on_event)
    source.skip()
    while source.peek() != "}":
        key = source.read_value()
        if key == _EVENTS_KEY and source.peek() == "[":
            skipped_count += _read_event_array(source, on_event)
            continue
        value = source.read_value()
        if key in header_keys:
            header[key] = value
    return header, skipped_count


def _read_event_array(source: _JsonText, on_event: Callable[[Dict[str, Any]], None]) -> int:
    """Read an array of events. Return how often events had to be skipped."""
    skipped_count = 0
    source.skip()
    while source.peek() != "]":
        try:
            value = source.read_value()
        except DamagedError:
            value = source.next_event()
            skipped_count += 1
        if isinstance(value, dict):
            on_event(value)
    source.skip()
    return skipped_count


def read_events(
    path: str, on_event: Callable[[Dict[str, Any]], None], header_keys: Collection[str] = ()
) -> Tuple[Dict[str, Any], int]:
    """Call ``on_event`` for each event.

    Return the other values with ``header_keys``, and in how many places damaged events were skipped. Raises
    HostStateError.
    """
    try:
        with os.fdopen(open_regular_file(path), "rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            unpacked: Any = gzip.GzipFile(fileobj=raw) if is_gzip else raw
            with io.TextIOWrapper(
                io.BufferedReader(unpacked, _CHUNK_SIZE), encoding="utf-8", errors="replace"
            ) as stream:
                return _read_document(stream, on_event, header_keys)
    except (CutOffError, EOFError, zlib.error) as failure:
        raise HostStateError(f"{path} is damaged: {failure}.", "Record the profile again.") from failure
    except DamagedError as failure:
        raise HostStateError(f"{path} is damaged: {failure}.", "Give a trace as torch.profiler writes it.") from failure
    except OSError as failure:
        raise HostStateError(f"{path} cannot be read: {failure}.", "Record the profile again.") from failure
