# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The description of a rank's trace, rank-N.json, as written by gpumesh_profile."""

from __future__ import annotations

import math
import re
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import Link, Probe

#: More ranks or steps than this are considered an error.
MOST_RANKS = 1 << 16
_MOST_STEPS = 1 << 53
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}")
#: The maximum length of a node's name and of what identifies a recording.
_LONGEST = 64
#: The latest plausible time in nanoseconds since 1970, and the largest difference of two clocks.
_LATEST = 1 << 62


class Described(NamedTuple):
    """``trace``: the name of the file; ``first``: the first recorded step; ``recording``: the same on all ranks of a
    recording, empty if unknown.

    ``clocks``: at which time, in nanoseconds since 1970, by how much the clock of rank 0 was ahead, and the error.
    """

    trace: str
    rank: int
    ranks: int
    node: str = ""
    first: int = 0
    clocks: Tuple[Tuple[int, int, int], ...] = ()
    links: Tuple[Link, ...] = ()
    recording: str = ""

    def probes(self, origin: int) -> List[Probe]:
        """The clocks, in microseconds since ``origin``, which is in nanoseconds."""
        return [Probe((at - origin) / 1e3, ahead / 1e3, error / 1e3) for at, ahead, error in self.clocks]


def whole(value: Any, least: int, most: int) -> Optional[int]:
    """The number, if it is valid and within these bounds."""
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def _known(values: Mapping[str, Any], name: str, least: int, most: int) -> int:
    found = whole(values.get(name), least, most)
    if found is None:
        raise ValueError(f"'{name}' is not a number from {least} to {most}")
    return found


def _measured(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _LATEST
    if not number or not math.isfinite(value or 0):
        raise ValueError(f"'{name}' is not a number that could be measured")
    return float(value or 0)


def _text(values: Mapping[str, Any], name: str) -> str:
    found = values.get(name, "")
    if not isinstance(found, str) or len(found) > _LONGEST or not found.isprintable():
        raise ValueError(f"'{name}' is not a text of up to {_LONGEST} characters")
    return found


def _objects(values: Mapping[str, Any], name: str) -> List[Mapping[str, Any]]:
    found = values.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"'{name}' is not a list of objects")
    return found


def parse(values: Any) -> Described:
    """Raises ValueError if it is invalid."""
    values = values if isinstance(values, dict) else {}
    trace = values.get("trace")
    if not isinstance(trace, str) or not _FILE.fullmatch(trace):
        raise ValueError("'trace' is not a file name")
    rank = _known(values, "rank", 0, MOST_RANKS - 1)
    clocks = tuple(
        (
            _known(one, "at", 0, _LATEST),
            _known(one, "ahead", -_LATEST, _LATEST),
            _known(one, "error", 0, _LATEST),
        )
        for one in _objects(values, "clocks")
    )
    links = tuple(
        Link(rank, _known(one, "to", 0, MOST_RANKS - 1), _measured(one, "ms"), _measured(one, "mbits"))
        for one in _objects(values, "links")
    )
    return Described(
        trace,
        rank,
        _known(values, "ranks", 1, MOST_RANKS),
        _text(values, "node"),
        _known(values, "first", 0, _MOST_STEPS),
        clocks,
        links,
        _text(values, "recording"),
    )
