# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pairs of a large cluster, summarized: a million cells can neither be read nor drawn by a browser.

Consecutive members of the same site form a group. A statement about two groups applies to all pairs from a member of
one to a member of the other. Pairs with a fault are still listed individually, up to a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.statuses import STATUSES

Pair = dict[str, Any]

#: Pairs are summarized if there are more members than this.
_MAX_UNGROUPED_MEMBERS = 100
#: The number of groups, plus one for each site that ends inside of one. With more sites than this, sites are ignored.
_GROUP_COUNT = 36
#: The maximum number of pairs with a fault that are listed individually.
_MAX_LISTED_PAIRS = 2000
#: The function that selects the worst of several values, for each measured value.
_WORST_FUNCTIONS = {"rtt_ms": max, "bandwidth_gbps": min, "rdma_gbps": min, "rdma_latency_us": max}


def is_large(record: Mapping[str, Any]) -> bool:
    """Whether the pairs of a cluster are summarized."""
    return len(record["members"]) > _MAX_UNGROUPED_MEMBERS


def has_fault(pair: Mapping[str, Any]) -> bool:
    """Whether a pair is listed individually."""
    return pair["status"] in ("fail", "error") or bool(pair.get("slow")) or bool(pair.get("rdma_slow"))


def list_faulty_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs with a fault, the worst status first, up to the limit."""
    faulty_pairs = [pair for pair in pairs if has_fault(pair)]
    return sorted(faulty_pairs, key=lambda pair: -STATUSES.index(pair["status"]))[:_MAX_LISTED_PAIRS]


def group_members(members: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Divide the members into groups of about equal size, in their order, site by site."""
    members_by_site: dict[str, list[Mapping[str, Any]]] = {}
    for member in members:
        members_by_site.setdefault(member.get("site") or "default", []).append(member)
    site_members = list(members_by_site.values()) if len(members_by_site) <= _GROUP_COUNT else [list(members)]
    group_size = -(-len(members) // _GROUP_COUNT)
    return [
        part[first_index : first_index + group_size]
        for part in site_members
        for first_index in range(0, len(part), group_size)
    ]


class _BlockSummary:
    """The summary of all pairs from one group to another."""

    def __init__(self) -> None:
        self.status_counts = dict.fromkeys(STATUSES, 0)
        self.slow_count = 0
        self.rdma_slow_count = 0
        self.values_by_metric: dict[str, list[float]] = {metric: [] for metric in _WORST_FUNCTIONS}

    def add(self, pair: Mapping[str, Any]) -> None:
        self.status_counts[pair["status"]] += 1
        self.slow_count += bool(pair.get("slow"))
        self.rdma_slow_count += bool(pair.get("rdma_slow"))
        for metric, metric_samples in self.values_by_metric.items():
            value = pair.get(metric)
            if value is not None:
                metric_samples.append(value)

    def to_dict(self) -> dict[str, Any]:
        summary: dict[str, Any] = {**self.status_counts, "slow": self.slow_count, "rdma_slow": self.rdma_slow_count}
        for metric, worst_of in _WORST_FUNCTIONS.items():
            metric_samples = self.values_by_metric[metric]
            summary[metric] = round(median(metric_samples), 3) if metric_samples else None
            summary[f"worst_{metric}"] = worst_of(metric_samples) if metric_samples else None
        return summary


def summarize_pairs(members: Sequence[Mapping[str, Any]], pairs: Sequence[Pair]) -> dict[str, Any]:
    """Summarize all pairs, as described in ``verdict.schema.json``. ``members`` have machine and site."""
    member_groups = group_members(members)
    group_indexes = {
        member["machine"]: group_index for group_index, group in enumerate(member_groups) for member in group
    }
    blocks_by_groups: dict[tuple[int, int], _BlockSummary] = {}
    status_counts = dict.fromkeys(STATUSES, 0)
    fault_count = 0
    slowest_pair: Mapping[str, Any] | None = None
    for pair in pairs:
        block_position = (group_indexes[pair["from"]], group_indexes[pair["to"]])
        block = blocks_by_groups.get(block_position)
        if block is None:
            block = blocks_by_groups[block_position] = _BlockSummary()
        block.add(pair)
        status_counts[pair["status"]] += 1
        fault_count += has_fault(pair)
        if pair.get("rtt_ms") is not None and (slowest_pair is None or pair["rtt_ms"] > slowest_pair["rtt_ms"]):
            slowest_pair = pair
    return {
        "counts": status_counts,
        "left_out": max(0, fault_count - _MAX_LISTED_PAIRS),
        "slowest": {key: slowest_pair[key] for key in ("from", "to", "rtt_ms")} if slowest_pair else None,
        "groups": [[member["machine"] for member in group] for group in member_groups],
        "blocks": [
            {"from": sender_group, "to": receiver_group, **block.to_dict()}
            for (sender_group, receiver_group), block in sorted(blocks_by_groups.items())
        ],
    }


def format_group_name(group: Sequence[str]) -> str:
    """Name a group by its first and last member."""
    return group[0] if len(group) == 1 else f"{group[0]} – {group[-1]}"


def pairs_from_summary(summary: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Convert the summaries to pairs, as the figures expect them, keyed by the names of their groups."""
    group_names = [format_group_name(group) for group in summary["groups"]]
    pairs_by_names = {}
    for block in summary["blocks"]:
        group_pair = group_names[block["from"]], group_names[block["to"]]
        pairs_by_names[group_pair] = {
            **block,
            "from": group_pair[0],
            "to": group_pair[1],
            "status": next((status for status in ("fail", "error", "pass") if block[status]), "skipped"),
            "verdict": _format_counts(block),
            "message": f"{_format_counts(block)[0].upper()}{_format_counts(block)[1:]}. The values are the medians of these pairs."
            + "".join(_format_worst(block, key, sentence) for key, sentence in _WORST_SENTENCES.items()),
            "remedy": "",
            "slow": bool(block["slow"]),
            "rdma_slow": bool(block["rdma_slow"]),
        }
    return pairs_by_names


_WORST_SENTENCES = {
    "rtt_ms": "The slowest round trip is {:.3g} ms.",
    "bandwidth_gbps": "The lowest bandwidth is {:.3g} Gbit/s.",
    "rdma_gbps": "The lowest RDMA bandwidth is {:.3g} Gbit/s.",
    "rdma_latency_us": "The highest RDMA latency is {:.3g} µs.",
}


def _format_worst(block: Mapping[str, Any], metric: str, sentence: str) -> str:
    value = block[f"worst_{metric}"]
    return "" if value is None else f" {sentence.format(value)}"


def _format_counts(block: Mapping[str, Any]) -> str:
    pair_count = sum(block[status] for status in STATUSES)
    phrases = [f"{block['pass']} of {pair_count} pairs reach each other"]
    phrases += [
        f"{block[status]} {outcome}"
        for status, outcome in (("fail", "fail"), ("error", "could not be checked"), ("skipped", "were not probed"))
        if block[status]
    ]
    return ", ".join(phrases)
