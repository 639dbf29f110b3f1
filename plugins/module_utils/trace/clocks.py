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

from statistics import median
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

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
    while len(found) < len(traces):
        following = _next(traces, collectives, found)
        if following is None:
            break
        shift, error = by_ends(_differences(following, collectives, found))
        found[following] = Clock(shift, 0.0, bases[following] - shift, error, "collectives")
    for rank in traces:
        found.setdefault(rank, Clock(bases[rank], 0.0, 0.0, None, "none"))
    return found


def _next(
    traces: Mapping[int, RankTrace], collectives: Sequence[Collective], found: Mapping[int, Clock]
) -> Optional[int]:
    """A rank that shares a collective with one whose clock is known."""
    shared: Dict[int, int] = {}
    for collective in collectives:
        if any(rank in found for rank in collective):
            for rank in collective:
                if rank in traces and rank not in found:
                    shared[rank] = shared.get(rank, 0) + 1
    return max(shared, key=lambda rank: (shared[rank], -rank)) if shared else None


def _differences(rank: int, collectives: Sequence[Collective], found: Mapping[int, Clock]) -> List[Tuple[float, float]]:
    made = []
    for collective in collectives:
        known = [found[other].at(part.end) for other, part in collective.items() if other in found]
        if rank in collective and known:
            took = min(part.end - part.begin for part in collective.values())
            made.append((took, median(known) - collective[rank].end))
    return made


def late(collectives: Sequence[Collective], clocks: Mapping[int, Clock]) -> float:
    """By how much a collective ends on a rank before another one starts it; 0 if none does."""
    most = 0.0
    for collective in collectives:
        begun = max(clocks[rank].at(part.begin) for rank, part in collective.items())
        ended = min(clocks[rank].at(part.end) for rank, part in collective.items())
        most = max(most, begun - ended)
    return most
