# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the node or link that makes a collective slow: by measuring pairs, then halves. Pure except for ``measure``."""

from __future__ import annotations

from itertools import combinations
from typing import Callable, Dict, FrozenSet, List, NamedTuple, Sequence, Tuple

#: Up to this number, every pair is measured: 28 runs. Above it, pairs of neighbours, and halves if those are all fast.
_ALL_PAIRS_UP_TO = 8


class Culprit(NamedTuple):
    """``kind`` is node, link, group (slow only together) or none. ``names`` are the nodes; ``words`` describe it."""

    kind: str
    names: Tuple[str, ...]
    words: str


class _Bench:
    """Remembers the measurements.

    A slow result is measured again, and counts only if it is slow again: one disturbed run would send an administrator
    to a healthy node.
    """

    def __init__(self, measure: Callable[[Sequence[str]], bool]) -> None:
        self._measure = measure
        self._known: Dict[FrozenSet[str], bool] = {}

    def good(self, *nodes: str) -> bool:
        """Whether the collective is fast enough on these nodes."""
        key = frozenset(nodes)
        if key not in self._known:
            self._known[key] = self._measure(sorted(nodes)) or self._measure(sorted(nodes))
        return self._known[key]


def find(nodes: Sequence[str], measure: Callable[[Sequence[str]], bool]) -> Culprit:
    """Find what is slow. ``measure(nodes)`` runs the collective on these nodes, and returns whether it is fast enough."""
    bench = _Bench(measure)
    if len(nodes) < 2:
        return Culprit("none", (), "A single node has no link to another one.")
    if len(nodes) <= _ALL_PAIRS_UP_TO:
        return _from_pairs(list(nodes), bench)
    bad = _bad_neighbours(list(nodes), bench)
    if bad:
        # Both ends of each slow pair, with nodes that are known to be fast: enough to tell a node from a link.
        suspects = sorted({name for pair in bad for name in pair})
        healthy = [name for name in nodes if name not in suspects][: max(2, _ALL_PAIRS_UP_TO - len(suspects))]
        return _from_pairs(suspects[: _ALL_PAIRS_UP_TO - 2] + healthy, bench)
    return _from_halves(list(nodes), bench)


def _bad_neighbours(nodes: List[str], bench: _Bench) -> List[Tuple[str, str]]:
    """Measure each node with one other: a slow node is in a slow pair, with half as many runs as there are nodes."""
    pairs = list(zip(nodes[::2], nodes[1::2]))
    if len(nodes) % 2:
        pairs.append((nodes[-1], nodes[0]))
    return [pair for pair in pairs if not bench.good(*pair)]


def _from_pairs(nodes: List[str], bench: _Bench) -> Culprit:
    pairs = list(combinations(nodes, 2))
    bad = [pair for pair in pairs if not bench.good(*pair)]
    if not bad:
        if len(nodes) > 2:
            return Culprit(
                "group",
                tuple(nodes),
                f"Every pair of {', '.join(nodes)} is fast enough on its own: "
                "something that they share is slow, such as a switch.",
            )
        return Culprit("none", (), f"{' and '.join(nodes)} are fast enough in a second measurement.")
    if len(bad) == len(pairs):
        names = ", ".join(nodes)
        return Culprit("group", tuple(nodes), f"Every pair of {names} is slow: check what all of them share.")
    # A node whose every pair is slow is slow itself, and explains all of its pairs.
    slow = [node for node in nodes if all(not bench.good(node, other) for other in nodes if other != node)]
    left = [pair for pair in bad if not set(pair) & set(slow)]
    if slow and not left:
        return Culprit("node", tuple(slow), f"Every pair with {' or '.join(slow)} is slow, but no other pair is.")
    words = [f"the link between {a} and {b}" for a, b in left] + [f"node {name}" for name in slow]
    return Culprit("link", left[0], f"Slow: {', '.join(words)}.")


def _from_halves(nodes: List[str], bench: _Bench) -> Culprit:
    """No pair of neighbours is slow: halve the nodes until the smallest slow set is small enough to measure all pairs."""
    while len(nodes) > _ALL_PAIRS_UP_TO:
        middle = len(nodes) // 2
        halves = [half for half in (nodes[:middle], nodes[middle:]) if not bench.good(*half)]
        if len(halves) != 1:
            where = "across the two halves" if not halves else "in both halves"
            return Culprit(
                "group",
                tuple(nodes),
                f"{nodes[0]} to {nodes[-1]} are slow together {where}, but no neighbouring pair is: check the "
                "switches between them.",
            )
        nodes = halves[0]
    return _from_pairs(nodes, bench)
