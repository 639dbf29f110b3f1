# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Match the parts of each collective in the traces of all ranks."""

from __future__ import annotations

from collections import defaultdict
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import Exchange, RankTrace

_CollectiveKey = Tuple[Tuple[int, ...], str, int]


class MatchedCollectives(NamedTuple):
    """``collectives``: for each, the part of every rank that has one. ``unmatched``: the number of remaining parts,
    except those whose group is unknown: ``ungrouped``.
    """

    collectives: List[Dict[int, Exchange]]
    unmatched: int
    ungrouped: int


def common_steps(trace_by_rank: Mapping[int, RankTrace]) -> List[int]:
    """The steps that all ranks have recorded, except those without duration."""
    step_sets = [{step.number for step in trace.steps if step.end > step.start} for trace in trace_by_rank.values()]
    return sorted(set.intersection(*step_sets)) if step_sets else []


def match_collectives(trace_by_rank: Mapping[int, RankTrace], steps: Sequence[int]) -> MatchedCollectives:
    """Match the n-th collectives of a kind in a step on all of its ranks, if all have the same number of them."""
    included_steps = set(steps)
    exchanges_by_key: Dict[_CollectiveKey, Dict[int, List[Exchange]]] = defaultdict(lambda: defaultdict(list))
    unmatched = ungrouped = 0
    for rank, trace in trace_by_rank.items():
        for exchange in trace.exchanges:
            if exchange.is_blocking and exchange.step in included_steps:
                if exchange.group is None:
                    ungrouped += 1
                else:
                    exchanges_by_key[exchange.group, exchange.name, exchange.step][rank].append(exchange)
    collectives: List[Dict[int, Exchange]] = []
    for (group, _name, _step), exchanges_by_rank in exchanges_by_key.items():
        members = [rank for rank in group if rank in trace_by_rank] if group else list(trace_by_rank)
        counts = {len(exchanges_by_rank.get(rank, ())) for rank in members}
        if len(counts) == 1 and set(exchanges_by_rank) == set(members):
            collectives += [
                {rank: exchanges_by_rank[rank][position] for rank in members} for position in range(counts.pop())
            ]
        else:
            unmatched += sum(map(len, exchanges_by_rank.values()))
    return MatchedCollectives([collective for collective in collectives if len(collective) > 1], unmatched, ungrouped)
