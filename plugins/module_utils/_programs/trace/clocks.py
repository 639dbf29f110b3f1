# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert the times of all ranks to the clock of rank 0.

While the profile was recorded, each rank asked rank 0 for its time, before and after the profiled steps. The error of
an answer is at most half of its round-trip time. For a rank that did not ask, the ends of collectives are used: all
ranks leave an all-reduce at about the same time. The fastest ones are the most precise, and their variation is the
error.

Both are checked for impossible results: a collective that ends on a rank before another rank has started it.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from statistics import median
from typing import Dict, List, Mapping, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import (
    ClockProbe,
    Exchange,
    RankClock,
    RankTrace,
)

#: The share of the collectives that are used: the fastest ones.
_FASTEST_SHARE = 0.5
#: The share of these that lie within the error.
_AGREEING_SHARE = 0.9
Collective = Mapping[int, Exchange]


def estimate_from_probes(probes: Sequence[ClockProbe]) -> Tuple[float, float, float]:
    """The offset of rank 0 at time 0, its drift per microsecond, and the error.

    A drift is assumed only if the errors do not explain the difference.
    """
    first, last = probes[0], probes[-1]
    difference = last.ahead - first.ahead
    if last.at > first.at and abs(difference) > first.error + last.error:
        drift = difference / (last.at - first.at)
        return first.ahead - drift * first.at, drift, max(first.error, last.error)
    lower_bound = max(probe.ahead - probe.error for probe in probes)
    upper_bound = min(probe.ahead + probe.error for probe in probes)
    return (lower_bound + upper_bound) / 2, 0.0, (upper_bound - lower_bound) / 2


def estimate_from_ends(differences: Sequence[Tuple[float, float]]) -> Tuple[float, float]:
    """The offset of a rank, and the error.

    ``differences``: for each collective, the minimum duration, and by how much earlier it ended here than there.
    """
    fastest = sorted(differences)[: max(1, int(len(differences) * _FASTEST_SHARE))]
    median_offset = median(offset for _duration, offset in fastest)
    deviations = sorted(abs(offset - median_offset) for _duration, offset in fastest)
    return median_offset, deviations[int((len(deviations) - 1) * _AGREEING_SHARE)] + median(
        duration for duration, _offset in fastest
    )


def align_clocks(trace_by_rank: Mapping[int, RankTrace], collectives: Sequence[Collective]) -> Dict[int, RankClock]:
    """The clock of each rank. Time 0 is the start of the first step of the lowest one."""
    lowest_rank = min(trace_by_rank)
    time_zero = trace_by_rank[lowest_rank].steps[0].start
    base_by_rank = {
        rank: (trace.origin - trace_by_rank[lowest_rank].origin) / 1e3 - time_zero
        for rank, trace in trace_by_rank.items()
    }
    clock_by_rank: Dict[int, RankClock] = {}
    for rank, trace in trace_by_rank.items():
        if trace.probes:
            ahead, drift, error = estimate_from_probes(trace.probes)
            ahead_at_start = -(ahead + drift * trace.steps[0].start)
            clock_by_rank[rank] = RankClock(base_by_rank[rank] + ahead, drift, ahead_at_start, error, "probes")
    if 0 in trace_by_rank or not clock_by_rank:
        clock_by_rank[lowest_rank] = RankClock(base_by_rank[lowest_rank], 0.0, 0.0, 0.0, "reference")
    if len(clock_by_rank) < len(trace_by_rank):
        _add_from_collectives(collectives, base_by_rank, clock_by_rank)
    for rank in trace_by_rank:
        clock_by_rank.setdefault(rank, RankClock(base_by_rank[rank], 0.0, 0.0, None, "none"))
    return clock_by_rank


def _add_from_collectives(
    collectives: Sequence[Collective], base_by_rank: Mapping[int, float], clock_by_rank: Dict[int, RankClock]
) -> None:
    """Add the clocks of ranks that share a collective with one whose clock is known, those that share most first."""
    shortest = [min(part.end - part.start for part in collective.values()) for collective in collectives]
    indexes_by_rank: Dict[int, List[int]] = defaultdict(list)
    for collective_index, collective in enumerate(collectives):
        for rank in collective:
            indexes_by_rank[rank].append(collective_index)
    #: Times at which each collective ended on ranks with known clocks, and the number of these that other ranks share.
    known_ends: List[List[float]] = [[] for _collective in collectives]
    shared_counts: Dict[int, int] = defaultdict(int)

    def add_rank(rank: int) -> None:
        shared_counts.pop(rank, None)
        for collective_index in indexes_by_rank[rank]:
            for other_rank in () if known_ends[collective_index] else collectives[collective_index]:
                if other_rank not in clock_by_rank:
                    shared_counts[other_rank] += 1
            insort(
                known_ends[collective_index], clock_by_rank[rank].to_reference(collectives[collective_index][rank].end)
            )

    for rank in list(clock_by_rank):
        add_rank(rank)
    while shared_counts:
        rank = max(shared_counts, key=lambda rank: (shared_counts[rank], -rank))
        differences = [
            (
                shortest[collective_index],
                _sorted_median(known_ends[collective_index]) - collectives[collective_index][rank].end,
            )
            for collective_index in indexes_by_rank[rank]
            if known_ends[collective_index]
        ]
        shift, error = estimate_from_ends(differences)
        clock_by_rank[rank] = RankClock(shift, 0.0, base_by_rank[rank] - shift, error, "collectives")
        add_rank(rank)


def _sorted_median(sorted_times: Sequence[float]) -> float:
    """Return the median of sorted times."""
    return (sorted_times[(len(sorted_times) - 1) // 2] + sorted_times[len(sorted_times) // 2]) / 2


def clock_contradiction(collectives: Sequence[Collective], clock_by_rank: Mapping[int, RankClock]) -> float:
    """Return the time by which a collective ends on a rank before another rank starts it; 0 if none does."""
    contradiction = 0.0
    for collective in collectives:
        latest_start = max(clock_by_rank[rank].to_reference(part.start) for rank, part in collective.items())
        earliest_end = min(clock_by_rank[rank].to_reference(part.end) for rank, part in collective.items())
        contradiction = max(contradiction, latest_start - earliest_end)
    return contradiction
