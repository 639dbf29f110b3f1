# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the time of a step is spent, which rank the others wait for, and which link is slow. Pure.

A rank that enters a collective waits until the last rank enters it. From then on data moves: that is communication.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from statistics import mean, median, stdev
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import clocks, spans
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.match import (
    MatchedCollectives,
    common_steps,
    match_collectives,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import (
    Analysis,
    Exchange,
    ProfiledStep,
    RankClock,
    RankLink,
    RankShare,
    RankState,
    RankTrace,
    SlowRanks,
    TopOperation,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.spans import BusyTime, Span

#: A rank for which the others wait at least this share of a step is named, if it costs this many times what the next
#: one costs,
_MIN_SHARE = 0.05
_MIN_RATIO = 2.0
#: and if that is more than this many standard errors of its mean over the steps.
_MIN_STANDARD_ERRORS = 2.0
#: A link is slow below this share of the others' rate, or above this multiple of their round-trip time plus a constant.
_MIN_BANDWIDTH_RATIO = 0.5
_MAX_RTT_RATIO = 3.0
_RTT_ALLOWANCE_MS = 0.2
_TOP_COUNT = 10
#: The number of pieces into which the activity of a rank is divided.
_MAX_PIECES = 4000


class _RankTimes(NamedTuple):
    """A rank's time in the steps, by the clock of rank 0, including times in which it computes as well.

    ``waits_by_rank``: the waiting by the rank that is waited for, without the time in which data is transferred.
    """

    clock: RankClock
    busy: BusyTime
    window: Span
    transfers: List[Span]
    waits_by_rank: Dict[int, List[Span]]

    def computing_time(self, start: float, end: float) -> float:
        """Return for how much of this time the rank computes."""
        return self.busy.time_within(self.clock.from_reference(start), self.clock.from_reference(end)) * (
            1.0 + self.clock.drift
        )

    def hidden_time(self, intervals: Sequence[Span]) -> float:
        """Return for how much of the intervals the rank computes."""
        return sum(self.computing_time(start, end) for start, end in intervals)

    def exposed_time(self, intervals: Sequence[Span]) -> float:
        """Return for how much of the intervals the rank does not compute."""
        return max(0.0, spans.total_length(intervals) - self.hidden_time(intervals))

    @property
    def all_waits(self) -> List[Span]:
        """The waiting for all ranks together."""
        return spans.union(itertools.chain(*self.waits_by_rank.values()))


class _ExchangeEntry(NamedTuple):
    """A rank's part of a collective. ``last_rank``: the last rank to enter it, and when, by the clock of rank 0."""

    exchange: Exchange
    last_rank: int
    entered_at: float


def analyse(run_name: str, trace_by_rank: Mapping[int, RankTrace]) -> Analysis:
    """Analyse the traces of a run. Raises InputError if they have no step in common."""
    steps = common_steps(trace_by_rank)
    if not steps:
        raise InputError(f"The traces of {run_name} have no step in common.", "Record a profile of all ranks together.")
    matched = match_collectives(trace_by_rank, steps)
    clock_by_rank = clocks.align_clocks(trace_by_rank, matched.collectives)
    entries_by_rank = _group_entries(matched.collectives, clock_by_rank)
    times_by_rank = {
        rank: _rank_times(trace, clock_by_rank[rank], entries_by_rank.get(rank, []), steps)
        for rank, trace in sorted(trace_by_rank.items())
    }
    shares = _rank_shares(trace_by_rank, times_by_rank, matched, steps, clock_by_rank)
    links = _between_nodes([link for trace in trace_by_rank.values() for link in trace.links], trace_by_rank)
    typical_step = _typical_step(trace_by_rank, steps, clock_by_rank)
    rank_count = max(*(trace.rank_count for trace in trace_by_rank.values()), max(trace_by_rank) + 1)
    return Analysis(
        name=run_name,
        uses_gpu=any(trace.uses_gpu for trace in trace_by_rank.values()),
        steps=steps,
        shares=shares,
        slow=find_slowest(shares),
        links=links,
        slow_links=find_slow_links(links),
        operations=top_operations(trace_by_rank),
        clocks=clock_by_rank,
        typical_step=typical_step,
        states={
            rank: rank_states(rank_times, (typical_step.start, typical_step.end))
            for rank, rank_times in times_by_rank.items()
        },
        activity={rank: rank_states(rank_times, rank_times.window) for rank, rank_times in times_by_rank.items()},
        missing_ranks=[rank for rank in range(rank_count) if rank not in trace_by_rank],
        unmatched_count=matched.unmatched,
        ungrouped_count=matched.ungrouped,
        clock_contradiction=clocks.clock_contradiction(matched.collectives, clock_by_rank),
        skipped_count=sum(trace.skipped_count for trace in trace_by_rank.values()),
        shortest_kept=max(trace.slices.shortest_kept for trace in trace_by_rank.values()),
    )


def _step_spans(trace: RankTrace, steps: Sequence[int], clock: RankClock) -> Dict[int, Span]:
    included_steps = set(steps)
    return {
        step.number: (clock.to_reference(step.start), clock.to_reference(step.end))
        for step in trace.steps
        if step.number in included_steps
    }


def _group_entries(
    collectives: Sequence[Mapping[int, Exchange]], clock_by_rank: Mapping[int, RankClock]
) -> Dict[int, List[_ExchangeEntry]]:
    """Group the exchanges of all collectives by rank."""
    entries_by_rank: Dict[int, List[_ExchangeEntry]] = defaultdict(list)
    for collective in collectives:
        start_by_rank = {
            rank: clock_by_rank[rank].to_reference(exchange.start) for rank, exchange in collective.items()
        }
        last_rank = max(start_by_rank, key=lambda rank: start_by_rank[rank])
        for rank, exchange in collective.items():
            entries_by_rank[rank].append(_ExchangeEntry(exchange, last_rank, start_by_rank[last_rank]))
    return entries_by_rank


def _rank_times(
    trace: RankTrace, clock: RankClock, entries: Sequence[_ExchangeEntry], steps: Sequence[int]
) -> _RankTimes:
    step_spans = _step_spans(trace, steps, clock)
    window = (step_spans[steps[0]][0], step_spans[steps[-1]][1])
    waits_by_rank: Dict[int, List[Span]] = defaultdict(list)
    transfers: List[Span] = []
    covered_exchanges: Set[Exchange] = set()
    for entry in entries:
        covered_exchanges.add(entry.exchange)
        start, end = clock.to_reference(entry.exchange.start), clock.to_reference(entry.exchange.end)
        transfer_start = min(max(start, entry.entered_at), end)
        if entry.last_rank != trace.rank:
            waits_by_rank[entry.last_rank].append((start, transfer_start))
        transfers.append((transfer_start, end))
    transfers += [
        (clock.to_reference(occurrence.start), clock.to_reference(occurrence.end))
        for occurrence in trace.exchanges
        if occurrence not in covered_exchanges
    ]
    merged_transfers = spans.intersection(spans.union(transfers), [window])
    net_waits = {
        rank: spans.difference(spans.intersection(spans.union(occurrence), [window]), merged_transfers)
        for rank, occurrence in waits_by_rank.items()
    }
    return _RankTimes(clock, trace.busy, window, merged_transfers, net_waits)


def _rank_shares(
    trace_by_rank: Mapping[int, RankTrace],
    times_by_rank: Mapping[int, _RankTimes],
    matched: MatchedCollectives,
    steps: Sequence[int],
    clock_by_rank: Mapping[int, RankClock],
) -> List[RankShare]:
    groups_by_rank: Dict[int, List[Tuple[int, ...]]] = defaultdict(list)
    for members in {tuple(collective) for collective in matched.collectives}:
        for rank in members:
            groups_by_rank[rank].append(members)
    awaited_by_rank: Dict[int, float] = defaultdict(float)
    for rank_times in times_by_rank.values():
        for rank, waits in rank_times.waits_by_rank.items():
            awaited_by_rank[rank] += rank_times.exposed_time(waits)
    shares = []
    for rank, rank_times in times_by_rank.items():
        step_count = len(steps)
        all_waits = rank_times.all_waits
        waiting, transferring = rank_times.exposed_time(all_waits), rank_times.exposed_time(rank_times.transfers)
        computing, total_time = (
            rank_times.computing_time(*rank_times.window),
            rank_times.window[1] - rank_times.window[0],
        )
        peer_count = len(set(itertools.chain(*groups_by_rank[rank]))) - 1
        step_spans = _step_spans(trace_by_rank[rank], steps, clock_by_rank[rank])
        lost_spans = spans.union([*rank_times.transfers, *all_waits])
        shares.append(
            RankShare(
                rank=rank,
                node=trace_by_rank[rank].node,
                step=total_time / step_count,
                computing=computing / step_count,
                communicating=transferring / step_count,
                waiting=waiting / step_count,
                other=max(0.0, total_time - computing - transferring - waiting) / step_count,
                hidden=rank_times.hidden_time(lost_spans) / step_count,
                awaited=awaited_by_rank[rank] / peer_count / step_count if peer_count > 0 else 0.0,
                steps=[step_spans[step][1] - step_spans[step][0] for step in steps],
                local_times=[
                    step_spans[step][1]
                    - step_spans[step][0]
                    - rank_times.exposed_time(spans.intersection(lost_spans, [step_spans[step]]))
                    for step in steps
                ],
            )
        )
    return shares


def find_slowest(shares: Sequence[RankShare]) -> Optional[SlowRanks]:
    """The rank that delays the others, or the node if all of its ranks do; None if none clearly does."""
    shares_by_node: Dict[str, List[RankShare]] = defaultdict(list)
    for share in shares:
        shares_by_node[share.node].append(share)
    if 1 < len(shares_by_node) < len(shares):
        slowest_node = _find_slowest_group(list(shares_by_node.values()))
        other_times = [share.local_time for share in shares if slowest_node and share.rank not in slowest_node.ranks]
        if (
            slowest_node
            and min(share.local_time for share in shares if share.rank in slowest_node.ranks) - median(other_times)
            > slowest_node.cost / 2
        ):
            return slowest_node
    return _find_slowest_group([[share] for share in shares])


def _find_slowest_group(share_groups: Sequence[Sequence[RankShare]]) -> Optional[SlowRanks]:
    """Return the ranks for which the others wait.

    The cost is how much longer they need for their own work: some of the time that the others lose is not waiting, but
    an exchange that would have been hidden if it had started earlier. The cost must exceed the random variation from
    step to step.
    """
    if len(share_groups) < 2:
        return None
    awaited_times = [sum(share.awaited for share in group) for group in share_groups]
    descending_order = sorted(range(len(share_groups)), key=lambda group_index: -awaited_times[group_index])
    slowest_group = share_groups[descending_order[0]]
    other_shares = [share for group_index in descending_order[1:] for share in share_groups[group_index]]

    def excess(measure: Callable[[RankShare], float]) -> float:
        return median(map(measure, slowest_group)) - median(map(measure, other_shares))

    cost = excess(lambda share: share.local_time)
    min_cost = _MIN_SHARE * median(share.step for share in other_shares)
    if cost < min_cost or awaited_times[descending_order[0]] < max(
        min_cost, _MIN_RATIO * awaited_times[descending_order[1]]
    ):
        return None
    step_differences = [
        median(share.local_times[step] for share in slowest_group)
        - median(share.local_times[step] for share in other_shares)
        for step in range(len(slowest_group[0].local_times))
    ]
    if len(step_differences) > 1 and mean(step_differences) < _MIN_STANDARD_ERRORS * stdev(
        step_differences
    ) / math.sqrt(len(step_differences)):
        return None
    return SlowRanks(
        tuple(share.rank for share in slowest_group),
        slowest_group[0].node,
        cost,
        excess(lambda share: share.computing),
        excess(lambda share: share.other),
    )


def _between_nodes(links: Sequence[RankLink], trace_by_rank: Mapping[int, RankTrace]) -> List[RankLink]:
    """The links between two nodes; all of them if there is only one node."""
    node_by_rank = {rank: trace.node for rank, trace in trace_by_rank.items()}
    between = [link for link in links if node_by_rank.get(link.source) != node_by_rank.get(link.target)]
    return sorted(between or links)


def find_slow_links(links: Sequence[RankLink]) -> List[RankLink]:
    """The links that are much slower than most of the others, slowest first."""
    slow = []
    for link in links:
        other_links = [other_link for other_link in links if other_link is not link]
        if not other_links:
            continue
        is_narrow = link.mbits < _MIN_BANDWIDTH_RATIO * median(other_link.mbits for other_link in other_links)
        is_distant = link.ms > _MAX_RTT_RATIO * median(other_link.ms for other_link in other_links) + _RTT_ALLOWANCE_MS
        if is_narrow or is_distant:
            slow.append(link)
    return sorted(slow, key=lambda link: (link.mbits, -link.ms))


def top_operations(trace_by_rank: Mapping[int, RankTrace]) -> List[TopOperation]:
    """The operations that take the most time."""
    times_by_name: Dict[str, Dict[int, float]] = defaultdict(dict)
    calls_by_name: Dict[str, int] = defaultdict(int)
    for rank, trace in trace_by_rank.items():
        # A trace may have steps that others do not have.
        step_share = 1.0 / max(1, len(trace.steps))
        for name, operation in trace.operations.items():
            times_by_name[name][rank] = operation.time * step_share
            calls_by_name[name] += operation.calls
    total_steps = sum(max(1, len(trace.steps)) for trace in trace_by_rank.values())
    operations = []
    for name, time_by_rank in times_by_name.items():
        slowest_rank = max(time_by_rank, key=lambda rank: time_by_rank[rank])
        mean_time = sum(time_by_rank.values()) / len(trace_by_rank)
        operations.append(
            TopOperation(name, calls_by_name[name] / total_steps, mean_time, slowest_rank, time_by_rank[slowest_rank])
        )
    return sorted(operations, key=lambda total: -total.time)[:_TOP_COUNT]


def _typical_step(
    trace_by_rank: Mapping[int, RankTrace], steps: Sequence[int], clock_by_rank: Mapping[int, RankClock]
) -> ProfiledStep:
    """A step of typical duration: from its first start to its last end on any rank."""
    candidates = []
    for step_number in steps:
        step_spans = [
            _step_spans(trace, [step_number], clock_by_rank[rank])[step_number] for rank, trace in trace_by_rank.items()
        ]
        mean_duration = sum(end - start for start, end in step_spans) / len(step_spans)
        candidates.append(
            (
                mean_duration,
                ProfiledStep(
                    step_number, min(start for start, _end in step_spans), max(end for _start, end in step_spans)
                ),
            )
        )
    return sorted(candidates)[(len(candidates) - 1) // 2][1]


def rank_states(rank_times: _RankTimes, window: Span) -> List[RankState]:
    """The activity of a rank in a window, in order and without gaps.

    Pieces too short to be seen show their main activity.
    """
    busy_spans = rank_times.busy.spans_between(
        rank_times.clock.from_reference(window[0]), rank_times.clock.from_reference(window[1]), _MAX_PIECES
    )
    if busy_spans is None:
        shortest = (window[1] - window[0]) / _MAX_PIECES
        edges = [window[0] + shortest * piece_index for piece_index in range(_MAX_PIECES)] + [window[1]]
        pieces = [span for span in zip(edges, edges[1:]) if rank_times.computing_time(*span) > shortest / 2]
    else:
        pieces = [
            (rank_times.clock.to_reference(start), rank_times.clock.to_reference(end)) for start, end in busy_spans
        ]
    layer_kinds = [
        ("computing", -1),
        ("communicating", -1),
        *(("waiting", rank) for rank in rank_times.waits_by_rank),
        ("other", -1),
    ]
    layers = [spans.union(pieces), rank_times.transfers, *rank_times.waits_by_rank.values(), [window]]
    visible_spans = spans.top_layers([spans.intersection(layer, [window]) for layer in layers])
    return [(start, end, *layer_kinds[layer]) for start, end, layer in visible_spans]
