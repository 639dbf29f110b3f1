# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of RDMA between the members: each reports what was measured, or why nothing was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import RdmaEndpoint
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.checks import (
    ONLY_AT_FULL_LEVELS,
    group_by_sender,
    make_check,
    make_unjudged_check,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import Check, Pair

#: The minimum fraction of the slower port's rate that RDMA reaches on a healthy fabric.
_MIN_RATE_SHARE = 0.8
#: A latency is an outlier above this multiple of the median, if there are at least this many measurements.
_MAX_MEDIAN_RATIO = 5
_MIN_LINK_COUNT = 6

_SLOW_REMEDY = (
    "Check both ends: the port's rate and errors (ibstat, perfquery, rdma link), the NIC's PCIe width, and for RoCE "
    "the MTU and flow control of the switch."
)


#: The port of each member that could be queried.
PortsByMachine = Mapping[str, RdmaEndpoint]


class RdmaLimits(NamedTuple):
    """The requirements for links. 0: derived from the rate of the ports, and from the latency of the other links."""

    min_gbps: float = 0.0
    max_latency_us: float = 0.0


DERIVED_LIMITS = RdmaLimits()


class _Metric(NamedTuple):
    """One of the two measured values."""

    check_id: str
    purpose: str
    pair_key: str
    unit: str
    failure_text: str
    comparison_sign: str
    unjudged_reason: str


_BANDWIDTH = _Metric(
    "reachability.rdma_bandwidth",
    "RDMA to every other member is fast enough",
    "rdma_gbps",
    "Gbit/s",
    "carries {:.3g} Gbit/s, but {:.3g} are required",
    "≥",
    "Not judged: ports of software RDMA have no rate to compare it with. Set check_min_rdma_gbps to require a minimum.",
)
_LATENCY = _Metric(
    "reachability.rdma_latency",
    "RDMA to every other member has low latency",
    "rdma_latency_us",
    "µs",
    "takes {:.3g} µs, but only {:.3g} are allowed",
    "≤",
    "Not judged: there are too few links to compare. Set check_max_rdma_latency_us to require a maximum.",
)


def mark_slow_pairs(pairs: Sequence[Pair], ports_by_machine: PortsByMachine, limits: RdmaLimits) -> list[Pair]:
    """Add ``rdma_slow`` to the pairs whose RDMA was measured."""
    return [
        pair
        if pair.get("rdma_gbps") is None
        else {**pair, "rdma_slow": _is_slow(_BANDWIDTH, pair, _required_rate(pair, ports_by_machine, limits))}
        for pair in pairs
    ]


def rdma_checks(
    pairs: Sequence[Pair],
    ports_by_machine: PortsByMachine,
    limits: RdmaLimits,
    machines_in_run: Sequence[str],
    level: str,
) -> list[Check]:
    """Check the slowest link and the longest latency of each member; for one without RDMA, report the reason."""
    rdma_machines = [
        machine for machine in machines_in_run if machine in ports_by_machine and ports_by_machine[machine]["device"]
    ]
    skip_reason = ""
    if not any(pair.get("bandwidth_gbps") is not None or pair.get("rdma_gbps") is not None for pair in pairs):
        skip_reason = ONLY_AT_FULL_LEVELS if level == "quick" else "No throughput was measured."
    elif not rdma_machines:
        skip_reason = f"Not checked: {_format_reasons(ports_by_machine, machines_in_run)}."
    if skip_reason:
        return [
            make_check(metric.check_id, metric.purpose, None, "skipped", reason=skip_reason)
            for metric in (_BANDWIDTH, _LATENCY)
        ]
    latencies = [float(pair["rdma_latency_us"]) for pair in pairs if pair.get("rdma_latency_us") is not None]
    latency_limit = limits.max_latency_us or (
        median(latencies) * _MAX_MEDIAN_RATIO if len(latencies) >= _MIN_LINK_COUNT else None
    )
    member_checks = []
    pairs_by_sender, rdma_targets = group_by_sender(pairs), set(rdma_machines)
    for machine in machines_in_run:
        sent_pairs = [
            pair for pair in pairs_by_sender.get(machine, []) if pair["to"] in rdma_targets and pair["status"] == "pass"
        ]
        for metric in (_BANDWIDTH, _LATENCY):
            link_thresholds = [
                _required_rate(pair, ports_by_machine, limits) if metric is _BANDWIDTH else latency_limit
                for pair in sent_pairs
            ]
            member_checks += _judge_member(
                metric,
                machine,
                sent_pairs,
                link_thresholds,
                _find_absence_reason(machine, rdma_machines, ports_by_machine, sent_pairs),
            )
    return member_checks


def _judge_member(
    metric: _Metric,
    machine: str,
    sent_pairs: Sequence[Pair],
    link_thresholds: Sequence[float | None],
    absence_reason: str,
) -> list[Check]:
    """Return the check of a member, and one for its links that have no requirement."""
    if absence_reason:
        return [
            make_check(metric.check_id, metric.purpose, machine, "skipped", reason=f"Not checked: {absence_reason}.")
        ]
    unmeasured_pairs = [pair for pair in sent_pairs if pair.get(metric.pair_key) is None]
    measured_pairs = [
        (pair, threshold)
        for pair, threshold in zip(sent_pairs, link_thresholds)
        if pair.get(metric.pair_key) is not None
    ]
    judged_pairs = [(pair, threshold) for pair, threshold in measured_pairs if threshold is not None]
    ungated_pairs = [(pair, threshold) for pair, threshold in measured_pairs if threshold is None]
    slow_pairs = [(pair, threshold) for pair, threshold in judged_pairs if _is_slow(metric, pair, threshold)]
    sentences = [
        f"RDMA from {machine} to {pair['to']} {metric.failure_text.format(pair[metric.pair_key], threshold)}."
        for pair, threshold in slow_pairs
    ] + [
        f"RDMA from {machine} to {pair['to']} returned no result: {pair.get('rdma_error') or 'none'}."
        for pair in unmeasured_pairs
    ]
    worst_measurement, threshold = _find_worst(metric, slow_pairs or judged_pairs or ungated_pairs)
    status = "fail" if slow_pairs else "error" if unmeasured_pairs else "pass" if judged_pairs else "skipped"
    member_check = make_check(
        metric.check_id,
        metric.purpose,
        machine,
        status,
        worst_measurement,
        f"{metric.comparison_sign} {threshold:.3g}" if threshold is not None else None,
        metric.unit,
        " ".join(sentences) if status != "skipped" else metric.unjudged_reason,
        _SLOW_REMEDY if sentences else "",
    )
    if not ungated_pairs or status == "skipped":
        return [member_check]
    return [
        member_check,
        make_unjudged_check(member_check, metric.unjudged_reason, _find_worst(metric, ungated_pairs)[0], metric.unit),
    ]


def _find_worst(
    metric: _Metric, measured_pairs: Sequence[tuple[Pair, float | None]]
) -> tuple[float | None, float | None]:
    """Return the worst measured value, and the requirement for its link."""
    sort_sign = 1 if metric is _BANDWIDTH else -1
    worst_pair, threshold = min(
        measured_pairs, key=lambda candidate: sort_sign * float(candidate[0][metric.pair_key]), default=(None, None)
    )
    return round(float(worst_pair[metric.pair_key]), 3) if worst_pair else None, threshold


def _required_rate(pair: Pair, ports_by_machine: PortsByMachine, limits: RdmaLimits) -> float | None:
    """Return the rate that a link must reach; None if there is no requirement, and the ports are not hardware."""
    port_rates = [
        ports_by_machine[pair[end]]["rate_gbps"] if pair[end] in ports_by_machine else None for end in ("from", "to")
    ]
    known_rates = [float(rate) for rate in port_rates if rate]
    return limits.min_gbps or (min(known_rates) * _MIN_RATE_SHARE if len(known_rates) == len(port_rates) else None)


def _is_slow(metric: _Metric, pair: Mapping[str, Any], threshold: float | None) -> bool:
    if threshold is None:
        return False
    measurement = float(pair[metric.pair_key])
    return measurement < threshold if metric is _BANDWIDTH else measurement > threshold


def _find_absence_reason(
    machine: str, rdma_machines: Sequence[str], ports_by_machine: PortsByMachine, sent_pairs: Sequence[Pair]
) -> str:
    """Return why there is nothing to judge; empty if there is something."""
    if machine not in rdma_machines:
        return _format_reasons(ports_by_machine, [machine])
    if len(rdma_machines) == 1:
        return f"no other member has RDMA, {machine} has {ports_by_machine[machine]['device']}"
    return "" if sent_pairs else f"{machine} cannot reach another member that has RDMA"


def _format_reasons(ports_by_machine: PortsByMachine, machines: Sequence[str]) -> str:
    """Format each reason once, with the machines to which it applies."""
    machines_by_reason: dict[str, list[str]] = {}
    for machine in machines:
        reason = (
            ports_by_machine[machine]["reason"] if machine in ports_by_machine else "its RDMA ports were not examined"
        )
        machines_by_reason.setdefault(reason, []).append(machine)
    return "; ".join(f"{', '.join(machine_names)}: {reason}" for reason, machine_names in machines_by_reason.items())
