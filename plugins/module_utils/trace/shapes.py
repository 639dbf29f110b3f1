# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data of a run's ranks, derived from their traces.

    trace of a rank ──read──▶ events ──digest──▶ RankTrace ─┬─clocks───▶ Clock        conversion to the time of rank 0
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
    """One rank's part of a collective. ``group``: the ranks that take part; empty for all, None if the trace knows
    several groups, and does not say which one it is.

    ``step``: the step in which it was started, -1 before the first one. ``waits``: whether no rank can leave it before
    all have entered, as in an all-reduce.
    """

    name: str
    group: Optional[Tuple[int, ...]]
    step: int
    begin: float
    end: float
    waits: bool


class Operation(NamedTuple):
    """How often a rank performed an operation in the profiled steps, and the total time."""

    calls: int
    time: float


class Probe(NamedTuple):
    """By how much the clock of rank 0 was ahead at the time ``at``, and the error, in microseconds."""

    at: float
    ahead: float
    error: float


class Link(NamedTuple):
    """The path from a rank to another, measured by TCP before the profiled steps: round-trip time in ms, and Mbit/s."""

    source: int
    target: int
    ms: float
    mbits: float


class Slices(NamedTuple):
    """The longest events of a rank, for the timeline.

    The four lists have the same length; ``names`` and ``threads`` are indexes.
    """

    begin: array[float]
    length: array[float]
    name: array[int]
    thread: array[int]
    names: List[str]
    threads: List[str]
    #: Shorter events were omitted.
    shortest: float


class RankTrace(NamedTuple):
    """What is kept of a trace. ``origin``: nanoseconds since 1970. ``busy``: when the rank computed.

    ``gpu``: whether it computed on a GPU; then only that counts. ``skipped``: the number of damaged events.
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
    skipped: int


class Clock(NamedTuple):
    """Converts times of a rank to those of rank 0, by adding ``shift`` and ``drift`` times the time.

    ``error``: the error in microseconds, None if unknown. ``method``: probes, collectives, none, or reference for rank
    0. ``ahead``: by how much the clock of the node was ahead of that of rank 0 in the first step.
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
        """Convert a time of rank 0 back."""
        return (time - self.shift) / (1.0 + self.drift)


class RankShare(NamedTuple):
    """Where a rank's time goes, in microseconds per step.

    ``hidden``: communication while it computed; the four fields before it add up to the step. ``awaited``: how long
    another rank waits for it, on average. ``steps``: the duration of each step, and ``owns`` the part of it that was
    neither communication nor waiting.
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
        """The part of a step that does not depend on other ranks."""
        return self.computing + self.other


class TopOperation(NamedTuple):
    """One kind of operation: the mean over the ranks, per step. ``slowest``: the slowest rank, and its time."""

    name: str
    calls: float
    time: float
    slowest: int
    slowest_time: float


class Slow(NamedTuple):
    """What delays the others: a rank, or all ranks of a node.

    ``cost``: how much longer than most of the others it needs for its own work, per step. ``computing`` and ``other``
    are the parts of it.
    """

    ranks: Tuple[int, ...]
    node: str
    cost: float
    computing: float
    other: float


#: What a rank does in an interval: computing, communicating, waiting, other; and for which rank it waits.
State = Tuple[float, float, str, int]


class Analysis(NamedTuple):
    """A run. ``moment``: the drawn step, as (number, start, end) by the clock of rank 0, with the states of each rank.

    ``activity``: the states in all steps. ``missing``: ranks without a trace. ``unmatched``: exchanges that could not be
    found in all traces; ``ungrouped``: exchanges of an unknown group. ``late``: by how much a collective ends on a rank
    before another one has started it; in microseconds, by which the clocks must be wrong. ``skipped``: the number of
    damaged events.
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
    ungrouped: int
    late: float
    skipped: int
    shortest: float

    def mean(self, what: str) -> float:
        """The mean over all ranks, per step."""
        return float(sum(getattr(share, what) for share in self.shares)) / len(self.shares)

    @property
    def nodes(self) -> List[str]:
        """The nodes in the order of their ranks."""
        return list(dict.fromkeys(share.node for share in self.shares))
