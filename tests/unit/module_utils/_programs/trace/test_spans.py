# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Spans of time are sets of moments, and are compared with sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import spans

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def moments(made: list[tuple[float, float]]) -> set[int]:
    return {moment for begin, end in made for moment in range(int(begin), int(end))}


@given(SPANS, SPANS)
def test_set_operations_on_spans(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> None:
    first, second = spans.union(one), spans.union(other)
    assert moments(first) == moments(one)
    assert all(before[1] < after[0] for before, after in zip(first, first[1:]))
    assert moments(spans.intersection(first, second)) == moments(one) & moments(other)
    assert moments(spans.difference(first, second)) == moments(one) - moments(other)
    assert spans.total_length(first) == len(moments(one))


@given(SPANS, st.integers(0, 30), st.integers(0, 30))
def test_busy_time_between_two_times(made: list[tuple[float, float]], one: int, other: int) -> None:
    busy, (begin, end) = spans.BusyTime(spans.union(made)), sorted((one, other))
    assert busy.time_within(begin, end) == len(moments(made) & set(range(begin, end)))
    few = busy.spans_between(begin, end, 8)
    assert few is not None
    assert moments(few) & set(range(begin, end)) == moments(made) & set(range(begin, end))


@given(st.lists(SPANS, max_size=5))
def test_each_moment_belongs_to_the_topmost_layer(layers: list[list[tuple[float, float]]]) -> None:
    found = spans.top_layers([spans.union(layer) for layer in layers])
    owner = {moment: number for number, layer in reversed(list(enumerate(layers))) for moment in moments(layer)}
    assert {moment: number for begin, end, number in found for moment in moments([(begin, end)])} == owner
    assert all(before[1] < after[0] or before[2] != after[2] for before, after in zip(found, found[1:]))


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("abc")), min_size=1), st.integers(1, 20))
def test_merged_parts_have_no_gaps(made: list[tuple[int, str]], shortest: int) -> None:
    parts, at = [], 0
    for length, what in made:
        parts.append((at, at + length, what))
        at += length
    found = list(spans.merge_short_parts(parts, shortest))
    assert (found[0][0], found[-1][1]) == (0, at)
    assert all(before[1] == after[0] for before, after in zip(found, found[1:]))
    assert len(found) <= 2 * at / shortest + 1
