# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arithmetic with spans of time. A list of spans is sorted, and no two of them touch."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

#: Begin and end, in microseconds.
Span = Tuple[float, float]


def union(spans: Iterable[Span]) -> List[Span]:
    """The same time without overlaps."""
    made: List[Span] = []
    begin = end = 0.0
    for first, last in sorted(spans):
        if last <= first:
            continue
        if end > begin and first <= end:
            end = max(end, last)
        else:
            if end > begin:
                made.append((begin, end))
            begin, end = first, last
    if end > begin:
        made.append((begin, end))
    return made


def common(one: List[Span], other: List[Span]) -> List[Span]:
    """The time in both."""
    short, long = sorted((one, other), key=len)
    return [
        (max(begin, first), min(end, last)) for (begin, end), beside in _beside(short, long) for first, last in beside
    ]


def without(one: List[Span], other: List[Span]) -> List[Span]:
    """The time in the first but not in the second."""
    made: List[Span] = []
    for (begin, end), beside in _beside(one, other):
        at = begin
        for first, last in beside:
            if first > at:
                made.append((at, first))
            at = max(at, last)
        if at < end:
            made.append((at, end))
    return made


def _beside(one: List[Span], other: List[Span]) -> Iterator[Tuple[Span, List[Span]]]:
    """Each span of the first list, with those of the second that overlap it."""
    place = 0
    for span in one:
        place = bisect_left(other, span[:1], place)
        if place and other[place - 1][1] > span[0]:
            # It began earlier.
            place -= 1
        index = place
        while index < len(other) and other[index][0] < span[1]:
            index += 1
        yield span, other[place:index]


def uppermost(layers: Sequence[Sequence[Span]]) -> List[Tuple[float, float, int]]:
    """The number of the first layer that contains each time: begin, end, number."""
    spans = sorted((begin, number, end) for number, layer in enumerate(layers) for begin, end in layer)
    edges = sorted({edge for begin, _number, end in spans for edge in (begin, end)})
    made: List[Tuple[float, float, int]] = []
    open_: List[Tuple[int, float]] = []
    place = 0
    for begin, end in zip(edges, edges[1:]):
        while place < len(spans) and spans[place][0] <= begin:
            heapq.heappush(open_, spans[place][1:])
            place += 1
        while open_ and open_[0][1] <= begin:
            heapq.heappop(open_)
        if open_ and made and made[-1][1:] == (begin, open_[0][0]):
            made[-1] = (made[-1][0], end, open_[0][0])
        elif open_:
            made.append((begin, end, open_[0][0]))
    return made


def predominant(parts: Iterable[Tuple[float, float, str]], shortest: float) -> Iterator[Tuple[float, float, str]]:
    """Adjacent parts, in order: those shorter than ``shortest`` are merged, and become the longest kind of them.

    There are at most two per ``shortest``.
    """
    begin = end = 0.0
    times: Dict[str, float] = {}
    for first, last, what in parts:
        if not times:
            begin = first
        elif last - begin > shortest and (end - begin >= shortest or last - first >= shortest):
            yield begin, end, max(times, key=lambda one: times[one])
            begin, times = first, {}
        times[what] = times.get(what, 0.0) + last - first
        end = last
    if times:
        yield begin, end, max(times, key=lambda one: times[one])


def length(spans: Iterable[Span]) -> float:
    """The total length."""
    return sum(end - begin for begin, end in spans)


class Busy:
    """Many spans, with a fast query of how much of them is within an interval."""

    def __init__(self, made: List[Span]) -> None:
        self._begin = array("d", (begin for begin, _end in made))
        self._end = array("d", (end for _begin, end in made))
        #: The total length before each span, and after the last one.
        self._before = array("d", [0.0])
        for begin, end in made:
            self._before.append(self._before[-1] + end - begin)

    def between(self, begin: float, end: float, most: int) -> Optional[List[Span]]:
        """The spans between two times; None if there are more than ``most``."""
        first, last = bisect_right(self._begin, begin), bisect_right(self._begin, end)
        # A span that began earlier may extend into it.
        first = max(0, first - 1)
        return list(zip(self._begin[first:last], self._end[first:last])) if last - first <= most else None

    def within(self, begin: float, end: float) -> float:
        """The total length of the spans between two times."""
        return self._until(end) - self._until(begin)

    def _until(self, time: float) -> float:
        place = bisect_right(self._begin, time)
        return self._before[place] - (max(0.0, self._end[place - 1] - time) if place else 0.0)
