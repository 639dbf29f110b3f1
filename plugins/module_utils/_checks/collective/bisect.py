# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the node or link that makes a collective slow: by measuring pairs, then halves. Pure except for ``measure``."""

from __future__ import annotations

from itertools import combinations
from typing import Callable, Dict, FrozenSet, List, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names

#: The largest number of nodes of which every pair is measured, in 28 runs. With more nodes, pairs of neighbours are
#: measured, and halves if those are all fast.
_MAX_NODES_FOR_ALL_PAIRS = 8


class Culprit(NamedTuple):
    """The cause of slowness. ``kind`` is node, link, group (slow only together) or none."""

    kind: str
    node_names: Tuple[str, ...]
    description: str


class _CachedMeasurements:
    """Remembers the measurements.

    A slow result is measured again, and counts only if it is slow again: one disturbed run would send an administrator
    to a healthy node.
    """

    def __init__(self, measure_nodes: Callable[[Sequence[str]], bool]) -> None:
        self._measure_nodes = measure_nodes
        self._result_by_nodes: Dict[FrozenSet[str], bool] = {}

    def is_fast(self, *nodes: str) -> bool:
        """Whether the collective is fast enough on these nodes."""
        key = frozenset(nodes)
        if key not in self._result_by_nodes:
            self._result_by_nodes[key] = self._measure_nodes(sorted(nodes)) or self._measure_nodes(sorted(nodes))
        return self._result_by_nodes[key]


def find_culprit(nodes: Sequence[str], measure_nodes: Callable[[Sequence[str]], bool]) -> Culprit:
    """Find what is slow. ``measure_nodes`` runs the collective on nodes, and returns whether it is fast enough."""
    measurements = _CachedMeasurements(measure_nodes)
    if len(nodes) < 2:
        return Culprit("none", (), "A single node has no link to another one.")
    if len(nodes) <= _MAX_NODES_FOR_ALL_PAIRS:
        return _judge_pairs(list(nodes), measurements)
    slow_pairs = _find_slow_neighbours(list(nodes), measurements)
    if slow_pairs:
        # Both ends of each slow pair, with nodes that are known to be fast: enough to tell a node from a link.
        suspects = sorted({name for pair in slow_pairs for name in pair})
        healthy = [name for name in nodes if name not in suspects][: max(2, _MAX_NODES_FOR_ALL_PAIRS - len(suspects))]
        return _judge_pairs(suspects[: _MAX_NODES_FOR_ALL_PAIRS - 2] + healthy, measurements)
    return _search_halves(list(nodes), measurements)


def _find_slow_neighbours(nodes: List[str], measurements: _CachedMeasurements) -> List[Tuple[str, str]]:
    """Measure each node with one other: a slow node is in a slow pair, with half as many runs as there are nodes."""
    pairs = list(zip(nodes[::2], nodes[1::2]))
    if len(nodes) % 2:
        pairs.append((nodes[-1], nodes[0]))
    return [pair for pair in pairs if not measurements.is_fast(*pair)]


def _judge_pairs(nodes: List[str], measurements: _CachedMeasurements) -> Culprit:
    node_pairs = list(combinations(nodes, 2))
    slow_pairs = [pair for pair in node_pairs if not measurements.is_fast(*pair)]
    if not slow_pairs:
        if len(nodes) > 2:
            return Culprit(
                "group",
                tuple(nodes),
                f"Every pair of {', '.join(nodes)} is fast enough on its own: "
                "something that they share is slow, such as a switch.",
            )
        return Culprit("none", (), f"{join_names(nodes)} are fast enough in a second measurement.")
    if len(slow_pairs) == len(node_pairs):
        names = ", ".join(nodes)
        return Culprit("group", tuple(nodes), f"Every pair of {names} is slow: check what all of them share.")
    # A node whose every pair is slow is slow itself, and explains all of its pairs.
    slow_nodes = [
        node
        for node in nodes
        if all(not measurements.is_fast(node, other_node) for other_node in nodes if other_node != node)
    ]
    unexplained_pairs = [pair for pair in slow_pairs if not set(pair) & set(slow_nodes)]
    if slow_nodes and not unexplained_pairs:
        return Culprit(
            "node", tuple(slow_nodes), f"Every pair with {join_names(slow_nodes, 'or')} is slow, but no other pair is."
        )
    problem_parts = [
        f"the link between {first_node} and {second_node}" for first_node, second_node in unexplained_pairs
    ] + [f"node {name}" for name in slow_nodes]
    return Culprit("link", unexplained_pairs[0], f"Slow: {', '.join(problem_parts)}.")


def _search_halves(nodes: List[str], measurements: _CachedMeasurements) -> Culprit:
    """Halve the nodes until the smallest slow set is small enough to measure all pairs: no neighbours are slow."""
    while len(nodes) > _MAX_NODES_FOR_ALL_PAIRS:
        middle = len(nodes) // 2
        slow_halves = [
            node_half for node_half in (nodes[:middle], nodes[middle:]) if not measurements.is_fast(*node_half)
        ]
        if len(slow_halves) != 1:
            location_text = "across the two halves" if not slow_halves else "in both halves"
            return Culprit(
                "group",
                tuple(nodes),
                f"{nodes[0]} to {nodes[-1]} are slow together {location_text}, but no neighbouring pair is: check the "
                "switches between them.",
            )
        nodes = slow_halves[0]
    return _judge_pairs(nodes, measurements)
