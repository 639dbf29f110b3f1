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

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.statuses import STATUSES

Pair = dict[str, Any]

#: Pairs are summarized if there are more members than this.
_LARGE = 100
#: The number of groups, plus one for each site that ends inside of one. With more sites than this, sites are ignored.
_GROUPS = 36
#: The maximum number of pairs with a fault that are listed individually.
_LISTED = 2000
#: The measured values, and which extreme of each is the worst.
_MEASURED = {"rtt_ms": max, "bandwidth_gbps": min, "rdma_gbps": min, "rdma_latency_us": max}


def is_large(record: Mapping[str, Any]) -> bool:
    """Whether the pairs of a cluster are summarized."""
    return len(record["members"]) > _LARGE


def has_fault(pair: Mapping[str, Any]) -> bool:
    """Whether a pair is worth listing."""
    return pair["status"] in ("fail", "error") or bool(pair.get("slow")) or bool(pair.get("rdma_slow"))


def listed(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs with a fault, the worst kind first, up to the limit."""
    faulty = [pair for pair in pairs if has_fault(pair)]
    return sorted(faulty, key=lambda pair: -STATUSES.index(pair["status"]))[:_LISTED]


def groups(members: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The members in groups of about equal size, in their order, site by site."""
    sites: dict[str, list[Mapping[str, Any]]] = {}
    for member in members:
        sites.setdefault(member.get("site") or "default", []).append(member)
    parts = list(sites.values()) if len(sites) <= _GROUPS else [list(members)]
    size = -(-len(members) // _GROUPS)
    return [part[start : start + size] for part in parts for start in range(0, len(part), size)]


class _Block:
    """The summary of all pairs from one group to another."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(STATUSES, 0)
        self.slow = 0
        self.rdma_slow = 0
        self.values: dict[str, list[float]] = {key: [] for key in _MEASURED}

    def add(self, pair: Mapping[str, Any]) -> None:
        self.counts[pair["status"]] += 1
        self.slow += bool(pair.get("slow"))
        self.rdma_slow += bool(pair.get("rdma_slow"))
        for key, values in self.values.items():
            value = pair.get(key)
            if value is not None:
                values.append(value)

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {**self.counts, "slow": self.slow, "rdma_slow": self.rdma_slow}
        for key, worst in _MEASURED.items():
            values = self.values[key]
            found[key] = round(median(values), 3) if values else None
            found[f"worst_{key}"] = worst(values) if values else None
        return found


def sum_up(members: Sequence[Mapping[str, Any]], pairs: Sequence[Pair]) -> dict[str, Any]:
    """Summarize all pairs, as described in ``verdict.schema.json``. ``members`` have machine and site."""
    made = groups(members)
    place = {member["machine"]: index for index, group in enumerate(made) for member in group}
    blocks: dict[tuple[int, int], _Block] = {}
    counts = dict.fromkeys(STATUSES, 0)
    faults = 0
    slowest: Mapping[str, Any] | None = None
    for pair in pairs:
        ends = (place[pair["from"]], place[pair["to"]])
        block = blocks.get(ends)
        if block is None:
            block = blocks[ends] = _Block()
        block.add(pair)
        counts[pair["status"]] += 1
        faults += has_fault(pair)
        if pair.get("rtt_ms") is not None and (slowest is None or pair["rtt_ms"] > slowest["rtt_ms"]):
            slowest = pair
    return {
        "counts": counts,
        "left_out": max(0, faults - _LISTED),
        "slowest": {key: slowest[key] for key in ("from", "to", "rtt_ms")} if slowest else None,
        "groups": [[member["machine"] for member in group] for group in made],
        "blocks": [{"from": one, "to": other, **block.as_dict()} for (one, other), block in sorted(blocks.items())],
    }


def name_of(group: Sequence[str]) -> str:
    """The first and the last member of a group."""
    return group[0] if len(group) == 1 else f"{group[0]} – {group[-1]}"


def as_pairs(summary: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The summaries in the form of pairs, as the figures expect them, by the names of their groups."""
    names = [name_of(group) for group in summary["groups"]]
    found = {}
    for block in summary["blocks"]:
        ends = names[block["from"]], names[block["to"]]
        found[ends] = {
            **block,
            "from": ends[0],
            "to": ends[1],
            "status": next((status for status in ("fail", "error", "pass") if block[status]), "skipped"),
            "verdict": _words(block),
            "message": f"{_words(block)[0].upper()}{_words(block)[1:]}. The values are the medians of these pairs."
            + "".join(_worst(block, key, words) for key, words in _WORST_WORDS.items()),
            "remedy": "",
            "slow": bool(block["slow"]),
            "rdma_slow": bool(block["rdma_slow"]),
        }
    return found


_WORST_WORDS = {
    "rtt_ms": "The slowest round trip is {:.3g} ms.",
    "bandwidth_gbps": "The lowest bandwidth is {:.3g} Gbit/s.",
    "rdma_gbps": "The lowest RDMA bandwidth is {:.3g} Gbit/s.",
    "rdma_latency_us": "The highest RDMA latency is {:.3g} µs.",
}


def _worst(block: Mapping[str, Any], key: str, words: str) -> str:
    value = block[f"worst_{key}"]
    return "" if value is None else f" {words.format(value)}"


def _words(block: Mapping[str, Any]) -> str:
    number = sum(block[status] for status in STATUSES)
    parts = [f"{block['pass']} of {number} pairs reach each other"]
    parts += [
        f"{block[status]} {word}"
        for status, word in (("fail", "fail"), ("error", "could not be checked"), ("skipped", "were not probed"))
        if block[status]
    ]
    return ", ".join(parts)
