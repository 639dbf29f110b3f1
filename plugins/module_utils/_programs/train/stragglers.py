# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the rank that slows down the others while all of them run, and what that costs.

Ranks that exchange gradients advance at the same rate, that of the slowest. So the duration of a step is not
sufficient, but these are:

    the program's report       how long a rank has waited for the others: the rank that they wait for waits least
    the kernel's report        how long a rank was ready to run without a processor (a CPU limit, other programs)
    the distance of a node     the time of a TCP handshake with the others has risen, and so has that of a step
    different rates            if ranks do not wait for each other, a slow one makes fewer steps

A single disturbed moment is not sufficient: it takes several measurements in a row, and the named rank must differ from
most of the others. Nothing here waits or runs anything.
"""

from __future__ import annotations

from collections import deque
from statistics import mean, median
from typing import Any, Callable, Deque, Dict, FrozenSet, Hashable, List, Mapping, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Progress, Straggler

#: The minimum seconds between two measurements: each rank must have made a step meanwhile.
EVALUATION_INTERVAL = 5.0
#: The number of consecutive measurements after which a rank is named, and after which it no longer counts as slow.
_CONSECUTIVE_COUNT = 4
#: Fractions of the time. A rank that costs less is not reported.
_MIN_COST = 0.2
_MIN_STARVATION = 0.25
#: The number of measurements whose median is used as the current pace or distance.
_MEDIAN_WINDOW = 3
#: The factor by which a rank's own step, or its time without a processor, must exceed that of the others.
_SLOWER_FACTOR = 1.5
#: A handshake counts as slower if it takes this factor, and this many milliseconds, longer than before.
_RTT_FACTOR, _RTT_INCREASE_MS = 2.0, 5.0


class Slowdown(NamedTuple):
    """The current difference of a node from the others. ``cost``: the fraction of the time that is lost."""

    rank: Optional[int]
    cost: float
    description: str


class StepReport(NamedTuple):
    """The last report of a rank, and when it arrived."""

    received_at: float
    step: int
    waited_seconds: Optional[float]


NodePair = FrozenSet[str]


def _find_outliers(
    value_by_rank: Mapping[int, float],
    node_by_rank: Mapping[int, str],
    compare: Callable[[float, float], Optional[Slowdown]],
) -> Dict[str, Slowdown]:
    """Return the most deviating rank of each node, if only few nodes have one, with the rank set in its slowdown.

    ``compare``: receives the value of a rank, and the median of those on other nodes. In a run on one node, ranks are
    compared with each other. If many deviate from the median, there is no reference to compare them with.
    """
    single_node = len(set(node_by_rank.values())) == 1
    group_by_rank: Dict[int, Hashable] = {rank: rank if single_node else node_by_rank[rank] for rank in value_by_rank}
    median_by_group = _peer_medians(value_by_rank, group_by_rank)
    outlier_by_rank: Dict[int, Slowdown] = {}
    for rank, value in value_by_rank.items():
        peer_median = median_by_group.get(group_by_rank[rank])
        slowdown = None if peer_median is None else compare(value, peer_median)
        if slowdown is not None:
            outlier_by_rank[rank] = slowdown._replace(rank=rank)
    affected_units = outlier_by_rank if single_node else {node_by_rank[rank] for rank in outlier_by_rank}
    if len(affected_units) > max(1, len(value_by_rank if single_node else set(node_by_rank.values())) // 4):
        return {}
    ascending_cost = sorted(outlier_by_rank.values(), key=lambda slowdown: slowdown.cost)
    return {node_by_rank[slowdown.rank]: slowdown for slowdown in ascending_cost if slowdown.rank is not None}


def _peer_medians(value_by_rank: Mapping[int, float], group_by_rank: Mapping[int, Hashable]) -> Dict[Hashable, float]:
    """Return, for each group, the median of the values of all other groups. A group without others is omitted.

    The values are sorted once, since a run may have thousands of ranks.
    """
    sorted_ranks = sorted(value_by_rank, key=lambda rank: value_by_rank[rank])
    positions_by_group: Dict[Hashable, List[int]] = {}
    for position, rank in enumerate(sorted_ranks):
        positions_by_group.setdefault(group_by_rank[rank], []).append(position)

    def value_without(own_positions: List[int], index: int) -> float:
        for position in own_positions:
            index += position <= index
        return value_by_rank[sorted_ranks[index]]

    peer_counts = {group: len(sorted_ranks) - len(own_positions) for group, own_positions in positions_by_group.items()}
    return {
        group: (
            value_without(own_positions, (peer_counts[group] - 1) // 2)
            + value_without(own_positions, peer_counts[group] // 2)
        )
        / 2
        for group, own_positions in positions_by_group.items()
        if peer_counts[group]
    }


def find_awaited_ranks(
    wait_times: Mapping[int, float], step_seconds: float, node_by_rank: Mapping[int, str]
) -> Dict[str, Slowdown]:
    """Return the ranks for which the others wait. ``wait_times``: seconds per step; a step takes ``step_seconds``."""

    def compare(own_wait: float, peer_wait: float) -> Optional[Slowdown]:
        cost = min(1.0, (peer_wait - own_wait) / step_seconds)
        return Slowdown(None, cost, f"the others wait for it {cost:.0%} of the time") if cost >= _MIN_COST else None

    return _find_outliers(wait_times, node_by_rank, compare)


def find_starved_ranks(run_delays: Mapping[int, float], node_by_rank: Mapping[int, str]) -> Dict[str, Slowdown]:
    """Return the ranks that get no processor when they need one. ``run_delays``: fractions of the time."""

    def compare(own_delay: float, peer_delay: float) -> Optional[Slowdown]:
        if own_delay < _SLOWER_FACTOR * peer_delay or own_delay < peer_delay + _MIN_STARVATION:
            return None
        return Slowdown(
            None, own_delay - peer_delay, f"ready to run, but waiting for a processor {own_delay:.0%} of the time"
        )

    return _find_outliers(run_delays, node_by_rank, compare)


def find_slow_ranks(step_times: Mapping[int, float], node_by_rank: Mapping[int, str]) -> Dict[str, Slowdown]:
    """Return the ranks whose own steps take longer. ``step_times``: seconds per step."""

    def compare(own_time: float, peer_time: float) -> Optional[Slowdown]:
        if own_time < _SLOWER_FACTOR * peer_time:
            return None
        return Slowdown(
            None, 1 - peer_time / own_time, f"a step takes {own_time:.3g} s, but {peer_time:.3g} s on the others"
        )

    return _find_outliers(step_times, node_by_rank, compare)


def find_distant_node(
    round_trips: Mapping[NodePair, float], earlier_trips: Mapping[NodePair, float], cost: float
) -> Dict[str, Slowdown]:
    """Return the node whose round trips have all become slower. Times are in milliseconds by pair of nodes."""
    comparable_trips = {
        node_pair: round_trip for node_pair, round_trip in round_trips.items() if node_pair in earlier_trips
    }
    slower_pairs = [
        node_pair
        for node_pair, round_trip in comparable_trips.items()
        if round_trip > _RTT_FACTOR * earlier_trips[node_pair] + _RTT_INCREASE_MS
    ]
    if not slower_pairs or cost < _MIN_COST:
        return {}
    common_nodes = set(frozenset.intersection(*slower_pairs))
    # A node whose distance to others is unchanged is not the cause of the only slower pair.
    unaffected_nodes = {node for node_pair in comparable_trips if node_pair not in slower_pairs for node in node_pair}
    suspect_nodes = common_nodes - unaffected_nodes if len(common_nodes) > 1 else common_nodes
    if len(suspect_nodes) != 1:
        return {}
    (node,) = suspect_nodes
    current_ms, earlier_ms = (
        median(trip_times[node_pair] for node_pair in slower_pairs) for trip_times in (round_trips, earlier_trips)
    )
    return {node: Slowdown(None, cost, f"its round trips take {current_ms:.3g} ms, up from {earlier_ms:.2g} ms")}


class _BestMeasurement:
    """The minimum of a duration over some time, as the median of several consecutive measurements."""

    def __init__(self) -> None:
        self._recent: Deque[float] = deque(maxlen=_MEDIAN_WINDOW)
        self.value: Optional[float] = None

    def add(self, measurement: float) -> None:
        """Add a measurement."""
        self._recent.append(measurement)
        if len(self._recent) == _MEDIAN_WINDOW:
            recent_median = median(self._recent)
            self.value = recent_median if self.value is None else min(self.value, recent_median)


class _Suspicion:
    """The number of consecutive evaluations in which a node differed from the others, and since when."""

    def __init__(self) -> None:
        self.slow_count = 0
        self.normal_count = 0
        self.since = 0.0
        self.straggler: Optional[Straggler] = None


class StragglerDetector:
    """Finds the stragglers of one attempt."""

    def __init__(self, rank_count: int) -> None:
        self._rank_count = rank_count
        self._node_by_rank: Dict[int, str] = {}
        self._latest_reports: Dict[int, StepReport] = {}
        self._previous_reports: Dict[int, StepReport] = {}
        self._evaluated_at = 0.0
        self._run_delays: Dict[int, List[float]] = {}
        self._round_trips: Dict[NodePair, List[float]] = {}
        self._best_trips: Dict[NodePair, _BestMeasurement] = {}
        self._best_step = _BestMeasurement()
        self._suspicions: Dict[str, _Suspicion] = {}

    @property
    def stragglers(self) -> List[Straggler]:
        """All ranks that were named in this attempt, including those that are no longer slow."""
        return [suspicion.straggler for suspicion in self._suspicions.values() if suspicion.straggler is not None]

    def add_report(self, rank: int, node: str, progress: Progress, now: float) -> None:
        """Process the report of a rank."""
        if progress.step is not None:
            self._node_by_rank[rank] = node
            self._latest_reports[rank] = StepReport(now, progress.step, progress.waited)

    def add_load(self, node: str, measurements: Mapping[str, Any]) -> None:
        """Process the load measurements of an agent."""
        for rank, delay_share in measurements["held"].items():
            self._run_delays.setdefault(int(rank), []).append(float(delay_share))
        for other_node, round_trip in measurements["trips"].items():
            self._round_trips.setdefault(frozenset((node, other_node)), []).append(float(round_trip))

    def evaluate(self, now: float, wall_time: float) -> List[Straggler]:
        """Evaluate again, if due. Return the new stragglers. ``wall_time``: seconds since 1970."""
        if now - self._evaluated_at < EVALUATION_INTERVAL or len(self._latest_reports) < self._rank_count:
            return []
        steps_made = {
            rank: report.step - self._previous_reports[rank].step
            for rank, report in self._latest_reports.items()
            if rank in self._previous_reports
        }
        if any(step_count == 0 for step_count in steps_made.values()):
            return []
        new_stragglers: List[Straggler] = []
        if len(steps_made) == self._rank_count and min(steps_made.values()) > 0:
            new_stragglers = self._update_suspicions(
                self._find_slowdowns(steps_made), wall_time - (now - self._evaluated_at)
            )
        self._previous_reports, self._evaluated_at = dict(self._latest_reports), now
        self._run_delays, self._round_trips = {}, {}
        return new_stragglers

    def _find_slowdowns(self, steps_made: Mapping[int, int]) -> Dict[str, Slowdown]:
        """Return the strongest slowdown of each node."""
        node_by_rank, previous_reports = self._node_by_rank, self._previous_reports
        step_times = {
            rank: (report.received_at - previous_reports[rank].received_at) / steps_made[rank]
            for rank, report in self._latest_reports.items()
        }
        step_seconds = max(median(step_times.values()), 1e-6)
        wait_times = {
            rank: (report.waited_seconds - (previous_reports[rank].waited_seconds or 0.0)) / steps_made[rank]
            for rank, report in self._latest_reports.items()
            if report.waited_seconds is not None
        }
        run_delays = {
            rank: mean(delay_shares) for rank, delay_shares in self._run_delays.items() if rank in node_by_rank
        }
        lost_share = 0.0 if self._best_step.value is None else max(0.0, 1 - self._best_step.value / step_seconds)
        starved_ranks = find_starved_ranks(run_delays, node_by_rank) if len(run_delays) == self._rank_count else {}
        slowdown_by_node = self._find_distant_nodes(lost_share)
        slowdown_by_node.update(find_slow_ranks(step_times, node_by_rank))
        if len(wait_times) == self._rank_count:
            # The program's report shows the rank; the processors' load shows the reason.
            for node, slowdown in find_awaited_ranks(wait_times, step_seconds, node_by_rank).items():
                reason_suffix = f"; {starved_ranks[node].description}" if node in starved_ranks else ""
                slowdown_by_node[node] = slowdown._replace(description=slowdown.description + reason_suffix)
        else:
            # The earlier pace, if it is known, is a better measure of the loss.
            cost = lost_share if lost_share >= _MIN_COST else 0.0
            slowdown_by_node.update(
                {node: slowdown._replace(cost=cost or slowdown.cost) for node, slowdown in starved_ranks.items()}
            )
        self._best_step.add(step_seconds)
        return slowdown_by_node

    def _find_distant_nodes(self, lost_share: float) -> Dict[str, Slowdown]:
        round_trips = {node_pair: median(trip_times) for node_pair, trip_times in self._round_trips.items()}
        best_trips = {
            node_pair: best_trip.value
            for node_pair, best_trip in self._best_trips.items()
            if best_trip.value is not None
        }
        distant_nodes = find_distant_node(round_trips, best_trips, lost_share)
        for node_pair, round_trip in round_trips.items():
            self._best_trips.setdefault(node_pair, _BestMeasurement()).add(round_trip)
        return distant_nodes

    def _update_suspicions(self, slowdown_by_node: Mapping[str, Slowdown], period_start: float) -> List[Straggler]:
        """Update the suspicion of each node, and return the new stragglers."""
        for node in slowdown_by_node:
            self._suspicions.setdefault(node, _Suspicion())
        return [
            new_straggler
            for node, suspicion in self._suspicions.items()
            for new_straggler in [_update_suspicion(suspicion, node, slowdown_by_node.get(node), period_start)]
            if new_straggler is not None
        ]


def _update_suspicion(
    suspicion: _Suspicion, node: str, slowdown: Optional[Slowdown], period_start: float
) -> Optional[Straggler]:
    """Return the straggler if this evaluation names it for the first time."""
    last_straggler = suspicion.straggler
    if slowdown is None:
        suspicion.slow_count = 0
        suspicion.normal_count += 1
        if last_straggler is not None and last_straggler.until is None and suspicion.normal_count == _CONSECUTIVE_COUNT:
            suspicion.straggler = last_straggler._replace(until=period_start)
        return None
    suspicion.normal_count = 0
    suspicion.slow_count += 1
    if suspicion.slow_count == 1:
        suspicion.since = period_start
    still_slow = last_straggler is not None and last_straggler.until is None
    if not still_slow and suspicion.slow_count < _CONSECUTIVE_COUNT:
        return None
    slow_since = last_straggler.since if last_straggler is not None else suspicion.since
    suspicion.straggler = Straggler(slowdown.rank, node, slow_since, round(slowdown.cost, 2), slowdown.description)
    return None if still_slow else suspicion.straggler
