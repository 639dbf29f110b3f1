# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The description of a rank's trace, rank-N.json, as written by gpumesh_profile."""

from __future__ import annotations

import math
import re
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import ClockProbe, RankLink

#: More ranks or steps than this are considered an error.
MAX_RANKS = 1 << 16
_MAX_STEPS = 1 << 53
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}")
#: The maximum length of a node's name and of what identifies a recording.
_MAX_TEXT_LENGTH = 64
#: The latest plausible time in nanoseconds since 1970, and the largest difference of two clocks.
_MAX_TIME = 1 << 62


class RankMetadata(NamedTuple):
    """The description of a trace. ``recording``: an identifier that all ranks of a recording share, empty if unknown.

    ``clock_samples``: the time in nanoseconds since 1970, the lead of rank 0's clock, and the error.
    """

    trace_name: str
    rank: int
    ranks: int
    node: str = ""
    first_step: int = 0
    clock_samples: Tuple[Tuple[int, int, int], ...] = ()
    links: Tuple[RankLink, ...] = ()
    recording: str = ""

    def clock_probes(self, origin: int) -> List[ClockProbe]:
        """The clocks, in microseconds since ``origin``, which is in nanoseconds."""
        return [ClockProbe((at - origin) / 1e3, ahead / 1e3, error / 1e3) for at, ahead, error in self.clock_samples]


def bounded_int(value: Any, minimum: int, maximum: int) -> Optional[int]:
    """The number, if it is valid and within these bounds."""
    return value if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum else None


def _require_int(values: Mapping[str, Any], name: str, minimum: int, maximum: int) -> int:
    number = bounded_int(values.get(name), minimum, maximum)
    if number is None:
        raise ValueError(f"'{name}' is not a number from {minimum} to {maximum}")
    return number


def _require_measure(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MAX_TIME
    if not is_number or not math.isfinite(value or 0):
        raise ValueError(f"'{name}' is not a number that could be measured")
    return float(value or 0)


def _require_text(values: Mapping[str, Any], name: str) -> str:
    text = values.get(name, "")
    if not isinstance(text, str) or len(text) > _MAX_TEXT_LENGTH or not text.isprintable():
        raise ValueError(f"'{name}' is not a string of at most {_MAX_TEXT_LENGTH} characters")
    return text


def _require_objects(values: Mapping[str, Any], name: str) -> List[Mapping[str, Any]]:
    entries = values.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"'{name}' is not a list of objects")
    return entries


def parse_metadata(values: Any) -> RankMetadata:
    """Parse the description of a trace. Raises ValueError if it is invalid."""
    values = values if isinstance(values, dict) else {}
    trace_name = values.get("trace")
    if not isinstance(trace_name, str) or not _FILE_NAME.fullmatch(trace_name):
        raise ValueError("'trace' is not a file name")
    rank = _require_int(values, "rank", 0, MAX_RANKS - 1)
    clocks = tuple(
        (
            _require_int(entry, "at", 0, _MAX_TIME),
            _require_int(entry, "ahead", -_MAX_TIME, _MAX_TIME),
            _require_int(entry, "error", 0, _MAX_TIME),
        )
        for entry in _require_objects(values, "clocks")
    )
    links = tuple(
        RankLink(
            rank,
            _require_int(entry, "to", 0, MAX_RANKS - 1),
            _require_measure(entry, "ms"),
            _require_measure(entry, "mbits"),
        )
        for entry in _require_objects(values, "links")
    )
    return RankMetadata(
        trace_name,
        rank,
        _require_int(values, "ranks", 1, MAX_RANKS),
        _require_text(values, "node"),
        _require_int(values, "first", 0, _MAX_STEPS),
        clocks,
        links,
        _require_text(values, "recording"),
    )
