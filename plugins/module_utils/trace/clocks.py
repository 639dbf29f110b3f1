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

from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import Clock, Exchange, Probe, RankTrace

#: The share of the collectives that are used: the fastest ones.
_BEST = 0.5
#: The share of these that lie within the error.
_AGREE = 0.9
Collective = Mapping[int, Exchange]


def by_probes(probes: Sequence[Probe]) -> Tuple[float, float, float]:
    """The offset of rank 0 at time 0, its drift per microsecond, and the error.

    A drift is assumed only if the errors do not explain the difference.
    """
    first, last = probes[0], probes[-1]
    apart = last.ahead - first.ahead
    if last.at > first.at and abs(apart) > first.error + last.error:
        drift = apart / (last.at - first.at)
        return first.ahead - drift * first.at, drift, max(first.error, last.error)
    low = max(probe.ahead - probe.error for probe in probes)
    high = min(probe.ahead + probe.error for probe in probes)
    return (low + high) / 2, 0.0, (high - low) / 2


def by_ends(differences: Sequence[Tuple[float, float]]) -> Tuple[float, float]:
    """The offset of a rank, and the error.

    ``differences``: for each collective, the minimum duration, and by how much earlier it ended here than there.
    """
    best = sorted(differences)[: max(1, int(len(differences) * _BEST))]
    middle = median(apart for _took, apart in best)
    off = sorted(abs(apart - middle) for _took, apart in best)
    return middle, off[int((len(off) - 1) * _AGREE)] + median(took for took, _apart in best)


def align(traces: Mapping[int, RankTrace], collectives: Sequence[Collective]) -> Dict[int, Clock]:
    """The clock of each rank. Time 0 is the start of the first step of the lowest one."""
    lowest = min(traces)
    zero = traces[lowest].steps[0].begin
    bases = {rank: (trace.origin - traces[lowest].origin) / 1e3 - zero for rank, trace in traces.items()}
    found: Dict[int, Clock] = {}
    for rank, trace in traces.items():
        if trace.probes:
            ahead, drift, error = by_probes(trace.probes)
            here = -(ahead + drift * trace.steps[0].begin)
            found[rank] = Clock(bases[rank] + ahead, drift, here, error, "probes")
    if 0 in traces or not found:
        found[lowest] = Clock(bases[lowest], 0.0, 0.0, 0.0, "reference")
    if len(found) < len(traces):
        _by_collectives(collectives, bases, found)
    for rank in traces:
        found.setdefault(rank, Clock(bases[rank], 0.0, 0.0, None, "none"))
    return found


def _by_collectives(collectives: Sequence[Collective], bases: Mapping[int, float], found: Dict[int, Clock]) -> None:
    """Add the clocks of ranks that share a collective with one whose clock is known, those that share most first."""
    shortest = [min(part.end - part.begin for part in collective.values()) for collective in collectives]
    numbers: Dict[int, List[int]] = defaultdict(list)
    for number, collective in enumerate(collectives):
        for rank in collective:
            numbers[rank].append(number)
    #: For each collective, when it ended on the ranks whose clocks are known; and of others, how many they share.
    ends: List[List[float]] = [[] for _collective in collectives]
    shared: Dict[int, int] = defaultdict(int)

    def add(rank: int) -> None:
        shared.pop(rank, None)
        for number in numbers[rank]:
            for other in () if ends[number] else collectives[number]:
                if other not in found:
                    shared[other] += 1
            insort(ends[number], found[rank].at(collectives[number][rank].end))

    for rank in list(found):
        add(rank)
    while shared:
        rank = max(shared, key=lambda rank: (shared[rank], -rank))
        differences = [
            (shortest[number], _middle(ends[number]) - collectives[number][rank].end)
            for number in numbers[rank]
            if ends[number]
        ]
        shift, error = by_ends(differences)
        found[rank] = Clock(shift, 0.0, bases[rank] - shift, error, "collectives")
        add(rank)


def _middle(ordered: Sequence[float]) -> float:
    """The median."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def late(collectives: Sequence[Collective], clocks: Mapping[int, Clock]) -> float:
    """By how much a collective ends on a rank before another one starts it; 0 if none does."""
    most = 0.0
    for collective in collectives:
        begun = max(clocks[rank].at(part.begin) for rank, part in collective.items())
        ended = min(clocks[rank].at(part.end) for rank, part in collective.items())
        most = max(most, begun - ended)
    return most
