# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of the ranks of a run, from their traces.

    trace of a rank ──read──▶ events ──digest──▶ RankTrace ─┬─clocks───▶ Clock        when its time is that of rank 0
                                                            ├─analyse──▶ Analysis     where the time of a step goes
                                                            └─timeline─▶ one file that Perfetto opens
                                                                         analysis ──page──▶ one HTML file

Times are microseconds, as in the traces. Those of a RankTrace are since its ``origin``, by the clock of its node.
"""

from __future__ import annotations

from array import array
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.spans import Busy


class Step(NamedTuple):
    """A step of the program."""

    number: int
    begin: float
    end: float


class Exchange(NamedTuple):
    """One rank's part of a collective. ``group``: the ranks that take part, where the trace says so.

    ``step``: the step in which it was started, -1 before the first one. ``waits``: whether no rank can leave it before all
    have come, as in an all-reduce.
    """

    name: str
    group: Tuple[int, ...]
    step: int
    begin: float
    end: float
    waits: bool


class Operation(NamedTuple):
    """How often a rank did something in the profiled steps, and how long that took altogether."""

    calls: int
    time: float


class Probe(NamedTuple):
    """How far the clock of rank 0 was ahead ``at`` a time, in microseconds, and by how much that may be wrong."""

    at: float
    ahead: float
    error: float


class Link(NamedTuple):
    """The way from a rank to another, measured by TCP before the profiled steps: ms there and back, 10^6 bits a second."""

    source: int
    target: int
    ms: float
    mbits: float


class Slices(NamedTuple):
    """The longest events of a rank, for the time line. The four are equally long; ``names`` and ``threads`` are looked up."""

    begin: array[float]
    length: array[float]
    name: array[int]
    thread: array[int]
    names: List[str]
    threads: List[str]
    #: Events that are shorter than this were left out.
    shortest: float


class RankTrace(NamedTuple):
    """What is kept of a trace. ``origin``: nanoseconds since 1970. ``busy``: when it computed.

    ``gpu``: whether it computed on one; then that is what counts.
    """

    rank: int
    ranks: int
    node: str
    gpu: bool
    origin: int
    steps: List[Step]
    exchanges: List[Exchange]
    busy: Busy
    operations: Dict[str, Operation]
    slices: Slices
    probes: List[Probe]
    links: List[Link]


class Clock(NamedTuple):
    """What is added to the times of a rank so that they are those of rank 0: ``shift`` at time 0, and ``drift`` times the time.

    ``error``: how wrong that may be, in microseconds; None where nothing tells. ``method``: probes, collectives, none, or
    reference for rank 0. ``ahead``: by how much the clock of the node was ahead of that of rank 0 in the first step.
    """

    shift: float
    drift: float
    ahead: float
    error: Optional[float]
    method: str

    def at(self, time: float) -> float:
        """The time by the clock of rank 0."""
        return time + self.shift + self.drift * time

    def back(self, time: float) -> float:
        """The reverse."""
        return (time - self.shift) / (1.0 + self.drift)


class RankShare(NamedTuple):
    """Where a rank's time goes, in microseconds a step. ``hidden``: communication while it computed; the four before make up
    the step. ``awaited``: how long another rank waits for it, on average. ``steps``: how long each of them took, and ``owns``
    what of it was neither communication nor waiting.
    """

    rank: int
    node: str
    step: float
    computing: float
    communicating: float
    waiting: float
    other: float
    hidden: float
    awaited: float
    steps: List[float]
    owns: List[float]

    @property
    def own(self) -> float:
        """What is left of a step without the others."""
        return self.computing + self.other


class TopOperation(NamedTuple):
    """One kind of operation: the mean over the ranks, a step. ``slowest``: the rank that takes longest, and its time."""

    name: str
    calls: float
    time: float
    slowest: int
    slowest_time: float


class Slow(NamedTuple):
    """What holds the others up: a rank, or all of those on a node. ``cost``: how much longer than most of the others it needs
    for what it does alone, in a step. ``computing`` and ``other``: how much of that is which.
    """

    ranks: Tuple[int, ...]
    node: str
    cost: float
    computing: float
    other: float


#: What a rank does from one time to another: computing, communicating, waiting, other; and for whom it waits.
State = Tuple[float, float, str, int]


class Analysis(NamedTuple):
    """A run. ``moment``: the step that is drawn, as (number, begin, end) by the clock of rank 0, with the states of each rank;
    ``activity``: those in all steps.

    ``missing``: ranks without a trace. ``unmatched``: exchanges that could not be found in all traces. ``late``: by how much a
    collective ends on a rank before another one has begun it; microseconds by which the clocks must be wrong.
    """

    name: str
    gpu: bool
    steps: List[int]
    shares: List[RankShare]
    slow: Optional[Slow]
    links: List[Link]
    slow_links: List[Link]
    operations: List[TopOperation]
    clocks: Mapping[int, Clock]
    moment: Step
    states: Mapping[int, Sequence[State]]
    activity: Mapping[int, Sequence[State]]
    missing: List[int]
    unmatched: int
    late: float
    shortest: float

    def mean(self, what: str) -> float:
        """Of all ranks, a step."""
        return float(sum(getattr(share, what) for share in self.shares)) / len(self.shares)

    @property
    def nodes(self) -> List[str]:
        """In the order of their ranks."""
        return list(dict.fromkeys(share.node for share in self.shares))
