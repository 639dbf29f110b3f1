# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Match the parts of each collective in the traces of all ranks."""

from __future__ import annotations

from collections import defaultdict
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import Exchange, RankTrace

_Key = Tuple[Tuple[int, ...], str, int]


class Matched(NamedTuple):
    """``collectives``: for each, the part of every rank that has one. ``unmatched``: the number of remaining parts,
    except those whose group is unknown: ``ungrouped``.
    """

    collectives: List[Dict[int, Exchange]]
    unmatched: int
    ungrouped: int


def common_steps(traces: Mapping[int, RankTrace]) -> List[int]:
    """The steps that all ranks have recorded, except those without duration."""
    numbers = [{step.number for step in trace.steps if step.end > step.begin} for trace in traces.values()]
    return sorted(set.intersection(*numbers)) if numbers else []


def match(traces: Mapping[int, RankTrace], steps: Sequence[int]) -> Matched:
    """The n-th collective of a kind in a step is the same on all of its ranks, if all have the same number of them."""
    wanted = set(steps)
    found: Dict[_Key, Dict[int, List[Exchange]]] = defaultdict(lambda: defaultdict(list))
    unmatched = ungrouped = 0
    for rank, trace in traces.items():
        for exchange in trace.exchanges:
            if exchange.waits and exchange.step in wanted:
                if exchange.group is None:
                    ungrouped += 1
                else:
                    found[exchange.group, exchange.name, exchange.step][rank].append(exchange)
    made: List[Dict[int, Exchange]] = []
    for (group, _name, _step), parts in found.items():
        members = [rank for rank in group if rank in traces] if group else list(traces)
        counts = {len(parts.get(rank, ())) for rank in members}
        if len(counts) == 1 and set(parts) == set(members):
            made += [{rank: parts[rank][place] for rank in members} for place in range(counts.pop())]
        else:
            unmatched += sum(map(len, parts.values()))
    return Matched([one for one in made if len(one) > 1], unmatched, ungrouped)
