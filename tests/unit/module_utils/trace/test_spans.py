# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Spans of time are sets of moments, and are compared with sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils.trace import spans

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def moments(made: list[tuple[float, float]]) -> set[int]:
    return {moment for begin, end in made for moment in range(int(begin), int(end))}


@given(SPANS, SPANS)
def test_sets_of_moments(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> None:
    first, second = spans.union(one), spans.union(other)
    assert moments(first) == moments(one)
    assert all(before[1] < after[0] for before, after in zip(first, first[1:]))
    assert moments(spans.common(first, second)) == moments(one) & moments(other)
    assert moments(spans.without(first, second)) == moments(one) - moments(other)
    assert spans.length(first) == len(moments(one))


@given(SPANS, st.integers(0, 30), st.integers(0, 30))
def test_how_much_is_busy_between_two_times(made: list[tuple[float, float]], one: int, other: int) -> None:
    busy, (begin, end) = spans.Busy(spans.union(made)), sorted((one, other))
    assert busy.within(begin, end) == len(moments(made) & set(range(begin, end)))
    few = busy.between(begin, end, 8)
    assert few is not None
    assert moments(few) & set(range(begin, end)) == moments(made) & set(range(begin, end))
