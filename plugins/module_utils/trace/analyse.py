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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace import clocks, spans
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.match import Matched, common_steps, match
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import (
    Analysis,
    Clock,
    Exchange,
    Link,
    RankShare,
    RankTrace,
    Slow,
    State,
    Step,
    TopOperation,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.spans import Busy, Span

#: A rank for which the others wait at least this share of a step is named, if it costs this many times what the next
#: one costs,
_SHARE = 0.05
_TIMES = 2.0
#: and if that is more than this many standard errors of its mean over the steps.
_SURE = 2.0
#: A link is slow below this share of the others' rate, or above this multiple of their round-trip time plus a constant.
_LEAST = 0.5
_MOST = 3.0
_BESIDES = 0.2
_TOP = 10
#: The number of pieces into which the activity of a rank is divided.
_PIECES = 4000


class _Rank(NamedTuple):
    """A rank's time in the steps, by the clock of rank 0, including times in which it computes as well.

    ``waiting``: by the awaited rank, without the time in which data is transferred.
    """

    clock: Clock
    busy: Busy
    window: Span
    moving: List[Span]
    waiting: Dict[int, List[Span]]

    def computing(self, begin: float, end: float) -> float:
        """How much of this time it computes."""
        return self.busy.within(self.clock.back(begin), self.clock.back(end)) * (1.0 + self.clock.drift)

    def hidden(self, parts: Sequence[Span]) -> float:
        """How much of the spans it computes."""
        return sum(self.computing(begin, end) for begin, end in parts)

    def exposed(self, parts: Sequence[Span]) -> float:
        """How much of the spans it does not."""
        return max(0.0, spans.length(parts) - self.hidden(parts))

    @property
    def all_waiting(self) -> List[Span]:
        """The waiting for all ranks together."""
        return spans.union(itertools.chain(*self.waiting.values()))


class _Part(NamedTuple):
    """A rank's part of a collective. ``last``: the last rank to enter it, and when, by the clock of rank 0."""

    exchange: Exchange
    last: int
    entered: float


def analyse(name: str, traces: Mapping[int, RankTrace]) -> Analysis:
    """Analyse the traces of a run. Raises InputError if they have no step in common."""
    steps = common_steps(traces)
    if not steps:
        raise InputError(f"The traces of {name} have no step in common.", "Record a profile of all ranks together.")
    matched = match(traces, steps)
    aligned = clocks.align(traces, matched.collectives)
    parts = _parts(matched.collectives, aligned)
    ranks = {rank: _rank(trace, aligned[rank], parts.get(rank, []), steps) for rank, trace in sorted(traces.items())}
    shares = _shares(traces, ranks, matched, steps, aligned)
    links = _between_nodes([link for trace in traces.values() for link in trace.links], traces)
    moment = _moment(traces, steps, aligned)
    expected = max(*(trace.ranks for trace in traces.values()), max(traces) + 1)
    return Analysis(
        name=name,
        gpu=any(trace.gpu for trace in traces.values()),
        steps=steps,
        shares=shares,
        slow=slowest(shares),
        links=links,
        slow_links=slow_links(links),
        operations=top(traces),
        clocks=aligned,
        moment=moment,
        states={rank: states(one, (moment.begin, moment.end)) for rank, one in ranks.items()},
        activity={rank: states(one, one.window) for rank, one in ranks.items()},
        missing=[rank for rank in range(expected) if rank not in traces],
        unmatched=matched.unmatched,
        ungrouped=matched.ungrouped,
        late=clocks.late(matched.collectives, aligned),
        skipped=sum(trace.skipped for trace in traces.values()),
        shortest=max(trace.slices.shortest for trace in traces.values()),
    )


def _step_spans(trace: RankTrace, steps: Sequence[int], clock: Clock) -> Dict[int, Span]:
    wanted = set(steps)
    return {step.number: (clock.at(step.begin), clock.at(step.end)) for step in trace.steps if step.number in wanted}


def _parts(collectives: Sequence[Mapping[int, Exchange]], aligned: Mapping[int, Clock]) -> Dict[int, List[_Part]]:
    """The parts of each rank."""
    found: Dict[int, List[_Part]] = defaultdict(list)
    for collective in collectives:
        begins = {rank: aligned[rank].at(part.begin) for rank, part in collective.items()}
        last = max(begins, key=lambda rank: begins[rank])
        for rank, part in collective.items():
            found[rank].append(_Part(part, last, begins[last]))
    return found


def _rank(trace: RankTrace, clock: Clock, parts: Sequence[_Part], steps: Sequence[int]) -> _Rank:
    own = _step_spans(trace, steps, clock)
    window = (own[steps[0]][0], own[steps[-1]][1])
    waiting: Dict[int, List[Span]] = defaultdict(list)
    moving: List[Span] = []
    split: Set[Exchange] = set()
    for part in parts:
        split.add(part.exchange)
        begin, end = clock.at(part.exchange.begin), clock.at(part.exchange.end)
        come = min(max(begin, part.entered), end)
        if part.last != trace.rank:
            waiting[part.last].append((begin, come))
        moving.append((come, end))
    moving += [(clock.at(one.begin), clock.at(one.end)) for one in trace.exchanges if one not in split]
    moved = spans.common(spans.union(moving), [window])
    waited = {rank: spans.without(spans.common(spans.union(one), [window]), moved) for rank, one in waiting.items()}
    return _Rank(clock, trace.busy, window, moved, waited)


def _shares(
    traces: Mapping[int, RankTrace],
    ranks: Mapping[int, _Rank],
    matched: Matched,
    steps: Sequence[int],
    aligned: Mapping[int, Clock],
) -> List[RankShare]:
    groups: Dict[int, List[Tuple[int, ...]]] = defaultdict(list)
    for members in {tuple(collective) for collective in matched.collectives}:
        for rank in members:
            groups[rank].append(members)
    awaited: Dict[int, float] = defaultdict(float)
    for one in ranks.values():
        for rank, waited in one.waiting.items():
            awaited[rank] += one.exposed(waited)
    made = []
    for rank, one in ranks.items():
        number = len(steps)
        waits = one.all_waiting
        waiting, moving = one.exposed(waits), one.exposed(one.moving)
        computing, total = one.computing(*one.window), one.window[1] - one.window[0]
        peers = len(set(itertools.chain(*groups[rank]))) - 1
        own = _step_spans(traces[rank], steps, aligned[rank])
        lost = spans.union([*one.moving, *waits])
        made.append(
            RankShare(
                rank=rank,
                node=traces[rank].node,
                step=total / number,
                computing=computing / number,
                communicating=moving / number,
                waiting=waiting / number,
                other=max(0.0, total - computing - moving - waiting) / number,
                hidden=one.hidden(lost) / number,
                awaited=awaited[rank] / peers / number if peers > 0 else 0.0,
                steps=[own[step][1] - own[step][0] for step in steps],
                owns=[own[step][1] - own[step][0] - one.exposed(spans.common(lost, [own[step]])) for step in steps],
            )
        )
    return made


def slowest(shares: Sequence[RankShare]) -> Optional[Slow]:
    """The rank that delays the others, or the node if all of its ranks do; None if none clearly does."""
    by_node: Dict[str, List[RankShare]] = defaultdict(list)
    for share in shares:
        by_node[share.node].append(share)
    if 1 < len(by_node) < len(shares):
        found = _slowest_of(list(by_node.values()))
        others = [share.own for share in shares if found and share.rank not in found.ranks]
        if found and min(share.own for share in shares if share.rank in found.ranks) - median(others) > found.cost / 2:
            return found
    return _slowest_of([[share] for share in shares])


def _slowest_of(groups: Sequence[Sequence[RankShare]]) -> Optional[Slow]:
    """The rank that is awaited.

    Its cost is how much longer it needs for its own work: some of the time that the others lose is not waiting, but an
    exchange that would have been hidden if it had started earlier. The cost must exceed the random variation from step
    to step.
    """
    if len(groups) < 2:
        return None
    awaited = [sum(share.awaited for share in group) for group in groups]
    order = sorted(range(len(groups)), key=lambda place: -awaited[place])
    here = groups[order[0]]
    others = [share for place in order[1:] for share in groups[place]]

    def more(what: Callable[[RankShare], float]) -> float:
        return median(map(what, here)) - median(map(what, others))

    cost = more(lambda share: share.own)
    least = _SHARE * median(share.step for share in others)
    if cost < least or awaited[order[0]] < max(least, _TIMES * awaited[order[1]]):
        return None
    steps = [
        median(share.owns[step] for share in here) - median(share.owns[step] for share in others)
        for step in range(len(here[0].owns))
    ]
    if len(steps) > 1 and mean(steps) < _SURE * stdev(steps) / math.sqrt(len(steps)):
        return None
    return Slow(
        tuple(share.rank for share in here),
        here[0].node,
        cost,
        more(lambda share: share.computing),
        more(lambda share: share.other),
    )


def _between_nodes(links: Sequence[Link], traces: Mapping[int, RankTrace]) -> List[Link]:
    """The links between two nodes; all of them if there is only one node."""
    nodes = {rank: trace.node for rank, trace in traces.items()}
    between = [link for link in links if nodes.get(link.source) != nodes.get(link.target)]
    return sorted(between or links)


def slow_links(links: Sequence[Link]) -> List[Link]:
    """The links that are much slower than most of the others, slowest first."""
    found = []
    for link in links:
        others = [other for other in links if other is not link]
        if not others:
            continue
        narrow = link.mbits < _LEAST * median(other.mbits for other in others)
        far = link.ms > _MOST * median(other.ms for other in others) + _BESIDES
        if narrow or far:
            found.append(link)
    return sorted(found, key=lambda link: (link.mbits, -link.ms))


def top(traces: Mapping[int, RankTrace]) -> List[TopOperation]:
    """The operations that take the most time."""
    times: Dict[str, Dict[int, float]] = defaultdict(dict)
    calls: Dict[str, int] = defaultdict(int)
    for rank, trace in traces.items():
        # A trace may have steps that others do not have.
        share = 1.0 / max(1, len(trace.steps))
        for name, operation in trace.operations.items():
            times[name][rank] = operation.time * share
            calls[name] += operation.calls
    number = sum(max(1, len(trace.steps)) for trace in traces.values())
    found = []
    for name, by_rank in times.items():
        slowest_rank = max(by_rank, key=lambda rank: by_rank[rank])
        mean = sum(by_rank.values()) / len(traces)
        found.append(TopOperation(name, calls[name] / number, mean, slowest_rank, by_rank[slowest_rank]))
    return sorted(found, key=lambda one: -one.time)[:_TOP]


def _moment(traces: Mapping[int, RankTrace], steps: Sequence[int], aligned: Mapping[int, Clock]) -> Step:
    """A step of typical duration: from its first start to its last end on any rank."""
    found = []
    for number in steps:
        own = [_step_spans(trace, [number], aligned[rank])[number] for rank, trace in traces.items()]
        mean = sum(end - begin for begin, end in own) / len(own)
        found.append((mean, Step(number, min(begin for begin, _end in own), max(end for _begin, end in own))))
    return sorted(found)[(len(found) - 1) // 2][1]


def states(one: _Rank, window: Span) -> List[State]:
    """The activity of a rank in a window, in order and without gaps.

    Pieces too short to be seen show their main activity.
    """
    few = one.busy.between(one.clock.back(window[0]), one.clock.back(window[1]), _PIECES)
    if few is None:
        shortest = (window[1] - window[0]) / _PIECES
        edges = [window[0] + shortest * place for place in range(_PIECES)] + [window[1]]
        pieces = [span for span in zip(edges, edges[1:]) if one.computing(*span) > shortest / 2]
    else:
        pieces = [(one.clock.at(begin), one.clock.at(end)) for begin, end in few]
    kinds = [
        ("computing", -1),
        ("communicating", -1),
        *(("waiting", rank) for rank in one.waiting),
        ("other", -1),
    ]
    layers = [spans.union(pieces), one.moving, *one.waiting.values(), [window]]
    found = spans.uppermost([spans.common(layer, [window]) for layer in layers])
    return [(begin, end, *kinds[layer]) for begin, end, layer in found]
