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

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.spans import BusyTime


class ProfiledStep(NamedTuple):
    """A step of the program."""

    number: int
    start: float
    end: float


class Exchange(NamedTuple):
    """One rank's part of a collective. ``group``: the ranks that take part; empty for all, None if the trace knows
    several groups, and does not say which one it is.

    ``step``: the step in which it was started, -1 before the first one. ``is_blocking``: whether no rank can leave it
    before all have entered, as in an all-reduce.
    """

    name: str
    group: Optional[Tuple[int, ...]]
    step: int
    start: float
    end: float
    is_blocking: bool


class OperationTotals(NamedTuple):
    """The calls of an operation on a rank in the profiled steps, and their total time."""

    calls: int
    time: float


class ClockProbe(NamedTuple):
    """The lead of rank 0's clock at the time ``at``, and the error, in microseconds."""

    at: float
    ahead: float
    error: float


class RankLink(NamedTuple):
    """The path from a rank to another, measured by TCP before the profiled steps: round-trip time in ms, and Mbit/s."""

    source: int
    target: int
    ms: float
    mbits: float


class TimelineSlices(NamedTuple):
    """The longest events of a rank, for the timeline.

    The four lists have the same length; ``names`` and ``threads`` are indexes.
    """

    starts: array[float]
    durations: array[float]
    name_indexes: array[int]
    thread_indexes: array[int]
    names: List[str]
    threads: List[str]
    #: Shorter events were omitted.
    shortest_kept: float


class RankTrace(NamedTuple):
    """The kept content of a trace. ``origin``: nanoseconds since 1970. ``busy``: when the rank computed.

    ``uses_gpu``: whether it computed on a GPU; then only that counts. ``skipped_count``: the number of damaged events.
    """

    rank: int
    rank_count: int
    node: str
    uses_gpu: bool
    origin: int
    steps: List[ProfiledStep]
    exchanges: List[Exchange]
    busy: BusyTime
    operations: Dict[str, OperationTotals]
    slices: TimelineSlices
    probes: List[ClockProbe]
    links: List[RankLink]
    skipped_count: int


class RankClock(NamedTuple):
    """Converts times of a rank to those of rank 0, by adding ``shift`` and ``drift`` times the time.

    ``error``: the error in microseconds, None if unknown. ``method``: probes, collectives, none, or reference for rank
    0. ``ahead``: by how much the clock of the node was ahead of that of rank 0 in the first step.
    """

    shift: float
    drift: float
    ahead: float
    error: Optional[float]
    method: str

    def to_reference(self, time: float) -> float:
        """The time by the clock of rank 0."""
        return time + self.shift + self.drift * time

    def from_reference(self, time: float) -> float:
        """Convert a time of rank 0 back."""
        return (time - self.shift) / (1.0 + self.drift)


class RankShare(NamedTuple):
    """The distribution of a rank's time, in microseconds per step.

    ``hidden``: communication while it computed; the four fields before it add up to the step. ``awaited``: how long
    another rank waits for it, on average. ``steps``: the duration of each step, and ``local_times`` the part of it that
    was neither communication nor waiting.
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
    local_times: List[float]

    @property
    def local_time(self) -> float:
        """The part of a step that does not depend on other ranks."""
        return self.computing + self.other


class TopOperation(NamedTuple):
    """One kind of operation: the mean over the ranks, per step. ``slowest_rank``: the slowest rank, and its time."""

    name: str
    calls: float
    time: float
    slowest_rank: int
    slowest_time: float


class SlowRanks(NamedTuple):
    """The ranks that delay the others: one, or all of a node.

    ``cost``: how much longer than most of the others it needs for its own work, per step. ``computing`` and ``other``
    are the parts of it.
    """

    ranks: Tuple[int, ...]
    node: str
    cost: float
    computing: float
    other: float


#: The activity of a rank in an interval: start, end, activity, and the rank that it waits for, or -1.
RankState = Tuple[float, float, str, int]


class Analysis(NamedTuple):
    """A run. ``typical_step``: the drawn step, as (number, start, end) by the clock of rank 0, with the states of each
    rank.

    ``activity``: the states in all steps. ``missing_ranks``: ranks without a trace. ``unmatched_count``: exchanges that
    could not be found in all traces; ``ungrouped_count``: exchanges of an unknown group. ``clock_contradiction``: by
    how much a collective ends on a rank before another one has started it; in microseconds, by which the clocks must be
    wrong. ``skipped_count``: the number of damaged events.
    """

    name: str
    uses_gpu: bool
    steps: List[int]
    shares: List[RankShare]
    slow: Optional[SlowRanks]
    links: List[RankLink]
    slow_links: List[RankLink]
    operations: List[TopOperation]
    clocks: Mapping[int, RankClock]
    typical_step: ProfiledStep
    states: Mapping[int, Sequence[RankState]]
    activity: Mapping[int, Sequence[RankState]]
    missing_ranks: List[int]
    unmatched_count: int
    ungrouped_count: int
    clock_contradiction: float
    skipped_count: int
    shortest_kept: float

    def mean(self, field: str) -> float:
        """The mean over all ranks, per step."""
        return float(sum(getattr(share, field) for share in self.shares)) / len(self.shares)

    @property
    def nodes(self) -> List[str]:
        """The nodes in the order of their ranks."""
        return list(dict.fromkeys(share.node for share in self.shares))
