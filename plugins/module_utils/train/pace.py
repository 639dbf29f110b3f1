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

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Progress, Straggler

#: The minimum seconds between two measurements: each rank must have made a step meanwhile.
LOOK = 5.0
#: The number of consecutive measurements after which a rank is named, and after which it no longer counts as slow.
_IN_A_ROW = 4
#: Fractions of the time. A rank that costs less is not reported.
_COSTLY = 0.2
_STARVED = 0.25
#: The number of measurements whose median is used as the current pace or distance.
_SPAN = 3
#: The factor by which a rank's own step, or its time without a processor, must exceed that of the others.
_SLOWER = 1.5
#: By how much a handshake must be slower than before: by this factor, and by this many milliseconds.
_FARTHER, _FARTHER_MS = 2.0, 5.0


class Sign(NamedTuple):
    """How a node currently differs from the others. ``cost``: the fraction of the time."""

    rank: Optional[int]
    cost: float
    words: str


class Told(NamedTuple):
    """The last report of a rank, and when it arrived."""

    at: float
    step: int
    waited: Optional[float]


Pair = FrozenSet[str]


def _apart(
    values: Mapping[int, float], nodes: Mapping[int, str], unlike: Callable[[float, float], Optional[Sign]]
) -> Dict[str, Sign]:
    """The most deviating rank of each node, if only few nodes have one. The sign's rank is set here.

    ``unlike``: receives the value of a rank, and the median of those on other nodes. In a run on one node, ranks are
    compared with each other. If many deviate from the median, there is no reference to compare them with.
    """
    alone = len(set(nodes.values())) == 1
    groups: Dict[int, Hashable] = {rank: rank if alone else nodes[rank] for rank in values}
    medians = _of_others(values, groups)
    found: Dict[int, Sign] = {}
    for rank, value in values.items():
        others = medians.get(groups[rank])
        sign = None if others is None else unlike(value, others)
        if sign is not None:
            found[rank] = sign._replace(rank=rank)
    units = found if alone else {nodes[rank] for rank in found}
    if len(units) > max(1, len(values if alone else set(nodes.values())) // 4):
        return {}
    worst = sorted(found.values(), key=lambda sign: sign.cost)
    return {nodes[sign.rank]: sign for sign in worst if sign.rank is not None}


def _of_others(values: Mapping[int, float], groups: Mapping[int, Hashable]) -> Dict[Hashable, float]:
    """For each group, the median of the values of all others. The only group is omitted.

    The values are sorted once, since a run may have thousands of ranks.
    """
    ordered = sorted(values, key=lambda rank: values[rank])
    places: Dict[Hashable, List[int]] = {}
    for place, rank in enumerate(ordered):
        places.setdefault(groups[rank], []).append(place)

    def without(own: List[int], number: int) -> float:
        for place in own:
            number += place <= number
        return values[ordered[number]]

    lefts = {group: len(ordered) - len(own) for group, own in places.items()}
    return {
        group: (without(own, (lefts[group] - 1) // 2) + without(own, lefts[group] // 2)) / 2
        for group, own in places.items()
        if lefts[group]
    }


def awaited(waits: Mapping[int, float], seconds: float, nodes: Mapping[int, str]) -> Dict[str, Sign]:
    """The ranks for which the others wait. ``waits``: seconds per step that a rank waited; a step takes ``seconds``."""

    def unlike(own: float, others: float) -> Optional[Sign]:
        cost = min(1.0, (others - own) / seconds)
        return Sign(None, cost, f"the others wait for it {cost:.0%} of the time") if cost >= _COSTLY else None

    return _apart(waits, nodes, unlike)


def held_up(held: Mapping[int, float], nodes: Mapping[int, str]) -> Dict[str, Sign]:
    """The ranks that get no processor when they need one. ``held``: the fraction of the time."""

    def unlike(own: float, others: float) -> Optional[Sign]:
        if own < _SLOWER * others or own < others + _STARVED:
            return None
        return Sign(None, own - others, f"ready to run, but waiting for a processor {own:.0%} of the time")

    return _apart(held, nodes, unlike)


def slower(steps: Mapping[int, float], nodes: Mapping[int, str]) -> Dict[str, Sign]:
    """The ranks whose own steps take longer. ``steps``: seconds per step."""

    def unlike(own: float, others: float) -> Optional[Sign]:
        if own < _SLOWER * others:
            return None
        return Sign(None, 1 - others / own, f"a step takes {own:.3g} s, but {others:.3g} s on the others")

    return _apart(steps, nodes, unlike)


def farther(trips: Mapping[Pair, float], before: Mapping[Pair, float], cost: float) -> Dict[str, Sign]:
    """The node whose connections all take longer than before. Milliseconds by pair of nodes."""
    known = {pair: trip for pair, trip in trips.items() if pair in before}
    risen = [pair for pair, trip in known.items() if trip > _FARTHER * before[pair] + _FARTHER_MS]
    if not risen or cost < _COSTLY:
        return {}
    ends = set(frozenset.intersection(*risen))
    # In a single pair, a node whose distance to others is unchanged is not the cause.
    near = {node for pair in known if pair not in risen for node in pair}
    blamed = ends - near if len(ends) > 1 else ends
    if len(blamed) != 1:
        return {}
    (node,) = blamed
    now, then = (median(times[pair] for pair in risen) for times in (trips, before))
    return {node: Sign(None, cost, f"its round trips take {now:.3g} ms, up from {then:.2g} ms")}


class _Best:
    """The minimum of a duration over some time, as the median of several consecutive measurements."""

    def __init__(self) -> None:
        self._last: Deque[float] = deque(maxlen=_SPAN)
        self.value: Optional[float] = None

    def add(self, value: float) -> None:
        """Add a measurement."""
        self._last.append(value)
        if len(self._last) == _SPAN:
            lately = median(self._last)
            self.value = lately if self.value is None else min(self.value, lately)


class _Suspicion:
    """How many times in a row a node has differed from the others, and since when."""

    def __init__(self) -> None:
        self.seen = 0
        self.unseen = 0
        self.since = 0.0
        self.named: Optional[Straggler] = None


class Pace:
    """The pace of one attempt. ``ranks``: their number."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._nodes: Dict[int, str] = {}
        self._told: Dict[int, Told] = {}
        self._before: Dict[int, Told] = {}
        self._looked = 0.0
        self._held: Dict[int, List[float]] = {}
        self._trips: Dict[Pair, List[float]] = {}
        self._nearest: Dict[Pair, _Best] = {}
        self._quickest = _Best()
        self._suspicions: Dict[str, _Suspicion] = {}

    @property
    def stragglers(self) -> List[Straggler]:
        """All ranks that were named in this attempt, including those that are no longer slow."""
        return [one.named for one in self._suspicions.values() if one.named is not None]

    def tell(self, rank: int, node: str, progress: Progress, now: float) -> None:
        """Process the report of a rank."""
        if progress.step is not None:
            self._nodes[rank] = node
            self._told[rank] = Told(now, progress.step, progress.waited)

    def load(self, node: str, values: Mapping[str, Any]) -> None:
        """Process the measurements of an agent: see `load`."""
        for rank, share in values["held"].items():
            self._held.setdefault(int(rank), []).append(float(share))
        for other, trip in values["trips"].items():
            self._trips.setdefault(frozenset((node, other)), []).append(float(trip))

    def look(self, now: float, wall: float) -> List[Straggler]:
        """Evaluate again, if due. Returns those that are named for the first time. ``wall``: seconds since 1970."""
        if now - self._looked < LOOK or len(self._told) < self._ranks:
            return []
        made = {rank: told.step - self._before[rank].step for rank, told in self._told.items() if rank in self._before}
        if any(steps == 0 for steps in made.values()):
            return []
        named: List[Straggler] = []
        if len(made) == self._ranks and min(made.values()) > 0:
            named = self._weigh(self._signs(made), wall - (now - self._looked))
        self._before, self._looked = dict(self._told), now
        self._held, self._trips = {}, {}
        return named

    def _signs(self, made: Mapping[int, int]) -> Dict[str, Sign]:
        """The strongest sign, by node."""
        nodes, before = self._nodes, self._before
        steps = {rank: (told.at - before[rank].at) / made[rank] for rank, told in self._told.items()}
        seconds = max(median(steps.values()), 1e-6)
        waits = {
            rank: (told.waited - (before[rank].waited or 0.0)) / made[rank]
            for rank, told in self._told.items()
            if told.waited is not None
        }
        held = {rank: mean(shares) for rank, shares in self._held.items() if rank in nodes}
        lost = 0.0 if self._quickest.value is None else max(0.0, 1 - self._quickest.value / seconds)
        starved = held_up(held, nodes) if len(held) == self._ranks else {}
        found = self._far(lost)
        found.update(slower(steps, nodes))
        if len(waits) == self._ranks:
            # The program's report shows the rank; the processors' load shows the reason.
            for node, sign in awaited(waits, seconds, nodes).items():
                why = f"; {starved[node].words}" if node in starved else ""
                found[node] = sign._replace(words=sign.words + why)
        else:
            # If the earlier pace is known, it is a better measure of the loss.
            cost = lost if lost >= _COSTLY else 0.0
            found.update({node: sign._replace(cost=cost or sign.cost) for node, sign in starved.items()})
        self._quickest.add(seconds)
        return found

    def _far(self, lost: float) -> Dict[str, Sign]:
        trips = {pair: median(times) for pair, times in self._trips.items()}
        before = {pair: best.value for pair, best in self._nearest.items() if best.value is not None}
        found = farther(trips, before, lost)
        for pair, trip in trips.items():
            self._nearest.setdefault(pair, _Best()).add(trip)
        return found

    def _weigh(self, signs: Mapping[str, Sign], since: float) -> List[Straggler]:
        """Update the suspicion of each node. ``since``: the start of the evaluated period."""
        for node in signs:
            self._suspicions.setdefault(node, _Suspicion())
        return [
            named
            for node, suspicion in self._suspicions.items()
            for named in [_weigh_one(suspicion, node, signs.get(node), since)]
            if named is not None
        ]


def _weigh_one(suspicion: _Suspicion, node: str, sign: Optional[Sign], since: float) -> Optional[Straggler]:
    """The straggler, if this evaluation names it."""
    named = suspicion.named
    if sign is None:
        suspicion.seen = 0
        suspicion.unseen += 1
        if named is not None and named.until is None and suspicion.unseen == _IN_A_ROW:
            suspicion.named = named._replace(until=since)
        return None
    suspicion.unseen = 0
    suspicion.seen += 1
    if suspicion.seen == 1:
        suspicion.since = since
    slow = named is not None and named.until is None
    if not slow and suspicion.seen < _IN_A_ROW:
        return None
    begun = named.since if named is not None else suspicion.since
    suspicion.named = Straggler(sign.rank, node, begun, round(sign.cost, 2), sign.words)
    return None if slow else suspicion.named
