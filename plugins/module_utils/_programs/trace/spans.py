# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arithmetic with spans of time. A list of spans is sorted, and no two of them touch."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

#: Start and end, in microseconds.
Span = Tuple[float, float]


def union(spans: Iterable[Span]) -> List[Span]:
    """Merge overlapping spans."""
    merged: List[Span] = []
    start = end = 0.0
    for first, last in sorted(spans):
        if last <= first:
            continue
        if end > start and first <= end:
            end = max(end, last)
        else:
            if end > start:
                merged.append((start, end))
            start, end = first, last
    if end > start:
        merged.append((start, end))
    return merged


def intersection(first_spans: List[Span], second_spans: List[Span]) -> List[Span]:
    """Return the time that is in both lists."""
    shorter, longer = sorted((first_spans, second_spans), key=len)
    return [
        (max(start, first), min(end, last))
        for (start, end), overlapping in _overlaps(shorter, longer)
        for first, last in overlapping
    ]


def difference(first_spans: List[Span], second_spans: List[Span]) -> List[Span]:
    """Return the time that is in the first list but not in the second."""
    remaining: List[Span] = []
    for (start, end), overlapping in _overlaps(first_spans, second_spans):
        position = start
        for first, last in overlapping:
            if first > position:
                remaining.append((position, first))
            position = max(position, last)
        if position < end:
            remaining.append((position, end))
    return remaining


def _overlaps(first_spans: List[Span], second_spans: List[Span]) -> Iterator[Tuple[Span, List[Span]]]:
    """Yield each span of the first list with those of the second that overlap it."""
    first_index = 0
    for span in first_spans:
        first_index = bisect_left(second_spans, span[:1], first_index)
        if first_index and second_spans[first_index - 1][1] > span[0]:
            # The previous span extends into this one.
            first_index -= 1
        end_index = first_index
        while end_index < len(second_spans) and second_spans[end_index][0] < span[1]:
            end_index += 1
        yield span, second_spans[first_index:end_index]


def top_layers(layers: Sequence[Sequence[Span]]) -> List[Tuple[float, float, int]]:
    """Return the number of the first layer that contains each time, as (start, end, number)."""
    spans = sorted((start, number, end) for number, layer in enumerate(layers) for start, end in layer)
    edges = sorted({edge for start, _number, end in spans for edge in (start, end)})
    top_spans: List[Tuple[float, float, int]] = []
    open_layers: List[Tuple[int, float]] = []
    next_span = 0
    for start, end in zip(edges, edges[1:]):
        while next_span < len(spans) and spans[next_span][0] <= start:
            heapq.heappush(open_layers, spans[next_span][1:])
            next_span += 1
        while open_layers and open_layers[0][1] <= start:
            heapq.heappop(open_layers)
        if open_layers and top_spans and top_spans[-1][1:] == (start, open_layers[0][0]):
            top_spans[-1] = (top_spans[-1][0], end, open_layers[0][0])
        elif open_layers:
            top_spans.append((start, end, open_layers[0][0]))
    return top_spans


def merge_short_parts(parts: Iterable[Tuple[float, float, str]], shortest: float) -> Iterator[Tuple[float, float, str]]:
    """Adjacent parts, in order: those shorter than ``shortest`` are merged, and become the longest kind of them.

    There are at most two per ``shortest``.
    """
    start = end = 0.0
    time_by_kind: Dict[str, float] = {}
    for first, last, kind in parts:
        if not time_by_kind:
            start = first
        elif last - start > shortest and (end - start >= shortest or last - first >= shortest):
            yield start, end, max(time_by_kind, key=lambda candidate: time_by_kind[candidate])
            start, time_by_kind = first, {}
        time_by_kind[kind] = time_by_kind.get(kind, 0.0) + last - first
        end = last
    if time_by_kind:
        yield start, end, max(time_by_kind, key=lambda candidate: time_by_kind[candidate])


def total_length(spans: Iterable[Span]) -> float:
    """The total length."""
    return sum(end - start for start, end in spans)


class BusyTime:
    """Many spans, with a fast query of how much of them is within an interval."""

    def __init__(self, busy_spans: List[Span]) -> None:
        self._starts = array("d", (start for start, _end in busy_spans))
        self._ends = array("d", (end for _start, end in busy_spans))
        #: The total length before each span, and after the last one.
        self._time_before = array("d", [0.0])
        for start, end in busy_spans:
            self._time_before.append(self._time_before[-1] + end - start)

    def spans_between(self, start: float, end: float, max_count: int) -> Optional[List[Span]]:
        """The spans between two times; None if there are more than ``max_count``."""
        first, last = bisect_right(self._starts, start), bisect_right(self._starts, end)
        # A span that began earlier may extend into it.
        first = max(0, first - 1)
        return list(zip(self._starts[first:last], self._ends[first:last])) if last - first <= max_count else None

    def time_within(self, start: float, end: float) -> float:
        """The total length of the spans between two times."""
        return self._time_until(end) - self._time_until(start)

    def _time_until(self, time: float) -> float:
        span_count = bisect_right(self._starts, time)
        return self._time_before[span_count] - (max(0.0, self._ends[span_count - 1] - time) if span_count else 0.0)
