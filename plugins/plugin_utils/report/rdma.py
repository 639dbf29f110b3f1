# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA between the members as checks: each reports what was measured, or why nothing was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import RdmaEnd
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.checks import by_sender, check, unjudged
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.verdict import Check, Pair

#: The minimum fraction of the slower port's rate that RDMA reaches on a healthy fabric.
_SHARE_OF_RATE = 0.8
#: A latency is an outlier above this multiple of the median, if there are at least this many measurements.
_TIMES_MEDIAN = 5
_ENOUGH_LINKS = 6

_LOOK = (
    "Check both ends: the port's rate and errors (ibstat, perfquery, rdma link), the NIC's PCIe width, and for RoCE "
    "the MTU and flow control of the switch."
)


#: The port of each member that could be queried.
Ends = Mapping[str, RdmaEnd]


class Limits(NamedTuple):
    """The requirements of links. 0: derived from the rate of the ports, and from the latency of the others."""

    min_gbps: float = 0.0
    max_latency_us: float = 0.0


BY_THEIR_KIND = Limits()


class _Kind(NamedTuple):
    """One of the two measured values."""

    name: str
    purpose: str
    key: str
    unit: str
    words: str
    sign: str
    without_gate: str


_BANDWIDTH = _Kind(
    "reachability.rdma_bandwidth",
    "RDMA to every other member is fast enough",
    "rdma_gbps",
    "Gbit/s",
    "carries {:.3g} Gbit/s, but {:.3g} are required",
    "≥",
    "Measured, but not judged: ports of software RDMA have no rate to compare it with. Set check_min_rdma_gbps to require "
    "a minimum.",
)
_LATENCY = _Kind(
    "reachability.rdma_latency",
    "RDMA to every other member has low latency",
    "rdma_latency_us",
    "µs",
    "takes {:.3g} µs, but only {:.3g} are allowed",
    "≤",
    "Measured, but not judged: there are too few links to compare. Set check_max_rdma_latency_us to require a maximum.",
)


def mark_slow(pairs: Sequence[Pair], ends: Ends, limits: Limits) -> list[Pair]:
    """Add ``rdma_slow`` to the pairs whose RDMA was measured."""
    return [
        pair
        if pair.get("rdma_gbps") is None
        else {**pair, "rdma_slow": _is_slow(_BANDWIDTH, pair, _least(pair, ends, limits))}
        for pair in pairs
    ]


def checks(pairs: Sequence[Pair], ends: Ends, limits: Limits, asked: Sequence[str], level: str) -> list[Check]:
    """For each member with RDMA, its slowest link and its longest latency; for the others, why they have none."""
    able = [machine for machine in asked if machine in ends and ends[machine]["device"]]
    why = ""
    if not any(pair.get("bandwidth_gbps") is not None or pair.get("rdma_gbps") is not None for pair in pairs):
        why = "RDMA is only measured at levels full and burn." if level == "quick" else "No throughput was measured."
    elif not able:
        why = f"Not checked: {_reasons(ends, asked)}."
    if why:
        return [check(kind.name, kind.purpose, None, "skipped", reason=why) for kind in (_BANDWIDTH, _LATENCY)]
    latencies = [float(pair["rdma_latency_us"]) for pair in pairs if pair.get("rdma_latency_us") is not None]
    longest = limits.max_latency_us or (median(latencies) * _TIMES_MEDIAN if len(latencies) >= _ENOUGH_LINKS else None)
    made = []
    leaving, reached = by_sender(pairs), set(able)
    for machine in asked:
        own = [pair for pair in leaving.get(machine, []) if pair["to"] in reached and pair["status"] == "pass"]
        for kind in (_BANDWIDTH, _LATENCY):
            gates = [_least(pair, ends, limits) if kind is _BANDWIDTH else longest for pair in own]
            made += _judge(kind, machine, own, gates, _absent(machine, able, ends, own))
    return made


def _judge(kind: _Kind, machine: str, own: Sequence[Pair], gates: Sequence[float | None], absent: str) -> list[Check]:
    """The check of a member, and one for its links that have no requirement."""
    if absent:
        return [check(kind.name, kind.purpose, machine, "skipped", reason=f"Not checked: {absent}.")]
    lost = [pair for pair in own if pair.get(kind.key) is None]
    found = [(pair, gate) for pair, gate in zip(own, gates) if pair.get(kind.key) is not None]
    judged = [(pair, gate) for pair, gate in found if gate is not None]
    alone = [(pair, gate) for pair, gate in found if gate is None]
    slow = [(pair, gate) for pair, gate in judged if _is_slow(kind, pair, gate)]
    words = [
        f"RDMA from {machine} to {pair['to']} {kind.words.format(pair[kind.key], gate)}." for pair, gate in slow
    ] + [
        f"RDMA from {machine} to {pair['to']} returned no result: {pair.get('rdma_error') or 'none'}." for pair in lost
    ]
    worst, gate = _worst(kind, slow or judged or alone)
    status = "fail" if slow else "error" if lost else "pass" if judged else "skipped"
    made = check(
        kind.name,
        kind.purpose,
        machine,
        status,
        worst,
        f"{kind.sign} {gate:.3g}" if gate is not None else None,
        kind.unit,
        " ".join(words) if status != "skipped" else kind.without_gate,
        _LOOK if words else "",
    )
    if not alone or status == "skipped":
        return [made]
    return [made, unjudged(made, kind.without_gate, _worst(kind, alone)[0], kind.unit)]


def _worst(kind: _Kind, found: Sequence[tuple[Pair, float | None]]) -> tuple[float | None, float | None]:
    """The worst measured value, and what is required of its link."""
    sign = 1 if kind is _BANDWIDTH else -1
    worst, gate = min(found, key=lambda one: sign * float(one[0][kind.key]), default=(None, None))
    return round(float(worst[kind.key]), 3) if worst else None, gate


def _least(pair: Pair, ends: Ends, limits: Limits) -> float | None:
    """The rate that a link must reach; None if there is no requirement, and the ports are not hardware."""
    rates = [ends[pair[end]]["rate_gbps"] if pair[end] in ends else None for end in ("from", "to")]
    known = [float(rate) for rate in rates if rate]
    return limits.min_gbps or (min(known) * _SHARE_OF_RATE if len(known) == len(rates) else None)


def _is_slow(kind: _Kind, pair: Mapping[str, Any], gate: float | None) -> bool:
    if gate is None:
        return False
    value = float(pair[kind.key])
    return value < gate if kind is _BANDWIDTH else value > gate


def _absent(machine: str, able: Sequence[str], ends: Ends, own: Sequence[Pair]) -> str:
    """Why there is nothing to judge."""
    if machine not in able:
        return _reasons(ends, [machine])
    if len(able) == 1:
        return f"no other member has RDMA, {machine} has {ends[machine]['device']}"
    return "" if own else f"{machine} cannot reach another member that has RDMA"


def _reasons(ends: Ends, machines: Sequence[str]) -> str:
    """Each reason once, with the machines to which it applies."""
    found: dict[str, list[str]] = {}
    for machine in machines:
        reason = ends[machine]["reason"] if machine in ends else "its ports were not examined"
        found.setdefault(reason, []).append(machine)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in found.items())
