# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of the page of a verdict: text, groups and figures. The template only formats it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import crowd, figures
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import (
    SECTIONS,
    count_statuses,
    find_changes,
    format_headline,
    summarise_run,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.volumes import (
    format_rows,
    format_span,
    has_speeds,
)

STATUS_LABELS = {"pass": "Passed", "fail": "Failed", "error": "Not checked", "skipped": "Skipped"}
_LINK_LABELS = {
    "lan": "direct, over the LAN",
    "tunnel": "encrypted tunnel",
    "relayed": "tunnel relayed by a third member",
    "slow": "too slow",
    "broken": "unreachable",
    "unmeasured": "not measured",
}
#: A matrix cell has room for its value up to this number of machines.
_MAX_NUMBERED_MACHINES = 8
#: The key that marks a measured value as too low.
_SLOW_KEYS = {"bandwidth_gbps": "slow", "rdma_gbps": "rdma_slow"}
#: The maximum number of findings, and of failed pairs, that the page shows individually. The others are in
#: verdict.json.
_MAX_FINDINGS = 200
#: The properties of a pair on the page.
_PAIR_KEYS = (
    "message",
    "remedy",
    "rtt_ms",
    "path_mtu",
    "offset_s",
    "bandwidth_gbps",
    "rdma_gbps",
    "rdma_latency_us",
)
#: The node health table has room for the values up to this number of machines.
_MAX_VALUE_COLUMNS = 5


def format_moment(iso_time: str) -> str:
    """Format a time such as ``2026-11-20T20:31:00Z`` in a readable form."""
    parsed_time = datetime.strptime(iso_time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return f"{parsed_time.day} {parsed_time:%b %Y, %H:%M} UTC"


def format_number(value: float) -> str:
    """Format a number with two or three significant figures, without an exponent, down to a millionth."""
    if 0 < value < 0.01:
        return f"{value:.6f}".rstrip("0") if value < 0.0001 else f"{value:.4f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


#: Units that are plurals.
_PLURAL_UNITS = frozenset({"GPUs", "links", "mounts", "peers", "ports", "users", "volumes"})


def format_quantity(value: Any, unit: str) -> str:
    """Format the value of a check with its unit; a dash if there is none."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text} {unit[:-1] if value == 1 and unit in _PLURAL_UNITS else unit}".strip()


def _format_range(checks: Sequence[Mapping[str, Any]]) -> str:
    """Format the range of the values of checks with the same unit; empty if they have none."""
    numeric_checks = [
        check for check in checks if isinstance(check["actual"], (int, float)) and not isinstance(check["actual"], bool)
    ]
    return (
        f"{format_span([check['actual'] for check in numeric_checks])} {numeric_checks[0]['unit']}".strip()
        if numeric_checks
        else ""
    )


def collect_findings(
    checks: Sequence[Mapping[str, Any]], statuses: Sequence[str], merge_by_remedy: bool = False
) -> list[dict[str, Any]]:
    """Collect the checks with these statuses in the order of the layers, and merge hosts with the same message.

    With ``merge_by_remedy``, checks that only have the same remedy are merged, too: the messages of a thousand members
    may all differ.
    """
    checks_by_key: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    section_order = [section.id for section in SECTIONS]
    for status in statuses:
        matching_checks = [check for check in checks if check["status"] == status]
        for check in sorted(matching_checks, key=lambda candidate: section_order.index(candidate["id"].split(".")[0])):
            actual, required = (
                format_quantity(check["actual"], check["unit"]),
                format_quantity(check["required"], check["unit"]),
            )
            # Skipped checks have the same reason for all hosts, whatever would have been required of each.
            compared_texts = () if status == "skipped" else (actual, required)
            group_key: tuple[str, ...] = (status, check["id"], *compared_texts, check["reason"], check["remedy"])
            if merge_by_remedy and check["remedy"]:
                group_key = (status, check["id"], check["remedy"])
            checks_by_key.setdefault(group_key, []).append(check)
    return [_make_finding(same_checks) for same_checks in checks_by_key.values()]


def _make_finding(same_checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first_check = same_checks[0]
    return {
        **first_check,
        "actual": format_quantity(first_check["actual"], first_check["unit"]),
        "required": format_quantity(first_check["required"], first_check["unit"]),
        # Skipped checks with the same reason may still have different values.
        "measured": _format_range(same_checks) if first_check["status"] == "skipped" else "",
        "hosts": [check["host"] or "cluster" for check in same_checks],
    }


def build_matrix(
    machines: Sequence[str], pairs: Mapping[tuple[str, str], Mapping[str, Any]], metric: str, unit: str
) -> dict[str, Any] | None:
    """Return rows of cells for one measured value of the pairs; None if no pair has it or failed."""
    measurements = [
        pair[metric] for pair in pairs.values() if pair.get(metric) is not None and pair["status"] == "pass"
    ]
    upper_bounds = figures.class_bounds(measurements)
    matrix_rows = []
    any_slow = False
    for source in machines:
        cells = []
        for target in machines:
            pair = pairs.get((source, target))
            cell = {"text": "", "kind": "none", "label": f"{source} to {target}: not measured"}
            if source == target and pair is None:
                cell.update(kind="self", label="")
            elif pair is not None and pair["status"] != "pass":
                cell.update(
                    kind="bad" if pair["status"] == "fail" else "none",
                    text="✕" if pair["status"] == "fail" else "–",
                    label=f"{source} to {target}: {pair['verdict']}",
                )
            elif pair is not None and pair.get(metric) is not None:
                is_slow = bool(pair.get(_SLOW_KEYS.get(metric, "")))
                any_slow = any_slow or is_slow
                cell.update(
                    kind="slow" if is_slow else f"h{figures.find_class(pair[metric], upper_bounds)}",
                    text=format_number(pair[metric])
                    if len(machines) <= _MAX_NUMBERED_MACHINES
                    else "!"
                    if is_slow
                    else "",
                    label=f"{source} to {target}: {format_number(pair[metric])} {unit}{', too slow' if is_slow else ''}",
                )
            elif pair is not None:
                cell.update(kind="plain", text="✓", label=f"{source} to {target}: reachable, no {metric} measured")
            cells.append(cell)
        matrix_rows.append({"machine": source, "cells": cells})
    legend, lower_bound = [], min(measurements, default=0.0)
    for index, upper_bound in enumerate(upper_bounds):
        legend.append({"kind": f"h{index}", "text": f"{format_number(lower_bound)} – {format_number(upper_bound)}"})
        lower_bound = upper_bound
    return {
        "rows": matrix_rows,
        "legend": legend,
        "unit": unit,
        "measured": len(measurements),
        "slow": any_slow,
        "wide": len(machines) > _MAX_NUMBERED_MACHINES,
    }


def count_by_check(checks: Sequence[Mapping[str, Any]], id_prefix: str = "") -> list[dict[str, Any]]:
    """Count the results of each check, and list the hosts that failed it, instead of a table of a thousand columns."""
    rows_by_check: dict[str, dict[str, Any]] = {}
    for check in checks:
        if not check["id"].startswith(id_prefix):
            continue
        row = rows_by_check.setdefault(
            check["id"],
            {"id": check["id"], "purpose": check["purpose"], "counts": dict.fromkeys(STATUS_LABELS, 0), "failing": []},
        )
        row["counts"][check["status"]] += 1
        if check["status"] in ("fail", "error"):
            row["failing"].append(check["host"] or "cluster")
    return list(rows_by_check.values())


def build_health_table(machines: Sequence[str], checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return node health as a table: one row per check, one column per member."""
    health_checks = [check for check in checks if check["id"].startswith("health.")]
    checks_by_cell = {(check["id"], check["host"]): check for check in health_checks}
    table_rows = []
    first_checks = {check["id"]: check for check in reversed(health_checks)}
    for check_id in dict.fromkeys(check["id"] for check in health_checks):
        cells = []
        for machine in machines:
            check = checks_by_cell.get((check_id, machine))
            status = check["status"] if check else "none"
            displayed_quantity = format_quantity(check["actual"], check["unit"]) if check else "–"
            cells.append(
                {
                    "status": status,
                    "value": displayed_quantity if status not in ("skipped", "none") else "",
                    "label": f"{machine}: {STATUS_LABELS.get(status, 'no result')}"
                    + (f", {displayed_quantity}" if displayed_quantity != "–" else ""),
                    "reason": check["reason"] if check else "",
                }
            )
        table_rows.append(
            {"id": check_id.split(".", 1)[1], "purpose": first_checks[check_id]["purpose"], "cells": cells}
        )
    return {"rows": table_rows, "values": len(machines) <= _MAX_VALUE_COLUMNS}


def count_pairs(verdict: Mapping[str, Any]) -> dict[str, int]:
    """Count the ordered pairs with each status."""
    reachability = verdict["reachability"]
    if "summary" in reachability:
        return dict(reachability["summary"]["counts"])
    return count_statuses(reachability["pairs"])


def _find_slowest_pair(verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    reachability = verdict["reachability"]
    if "summary" in reachability:
        slowest_pair: Mapping[str, Any] | None = reachability["summary"]["slowest"]
        return slowest_pair
    timed_pairs = [
        timed_pair
        for timed_pair in reachability["pairs"]
        if timed_pair["status"] == "pass" and timed_pair.get("rtt_ms") is not None
    ]
    return max(timed_pairs, key=lambda pair: float(pair["rtt_ms"]), default=None)


def _build_facts(verdict: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the main numbers, which are below the headline."""
    members = verdict["cluster"]["members"]
    pair_totals = count_pairs(verdict)
    probed_count = sum(pair_totals.values()) - pair_totals["skipped"]
    slowest_pair = _find_slowest_pair(verdict)
    gpu_count = sum(member["gpus"] for member in members)
    facts = [
        {
            "name": "Members that answer",
            "value": f"{sum(1 for answering_member in members if answering_member['answered'])} of {len(members)}",
            "note": f"{gpu_count} GPU{'' if gpu_count == 1 else 's'}",
        }
    ]
    if probed_count:
        facts.append(
            {
                "name": "Pairs that reach each other",
                "value": f"{pair_totals['pass']} of {probed_count}",
                "note": "each direction counted",
            }
        )
    if slowest_pair:
        facts.append(
            {
                "name": "Slowest round trip",
                "value": f"{format_number(slowest_pair['rtt_ms'])} ms",
                "note": f"{slowest_pair['from']} to {slowest_pair['to']}",
            }
        )
    status_counts = verdict["counts"]
    other_counts = [
        f"{status_counts[status]} {label}"
        for status, label in (("fail", "failed"), ("error", "not checked"), ("skipped", "skipped"))
        if status_counts[status]
    ]
    facts.append(
        {
            "name": "Checks passed",
            "value": str(status_counts["pass"]),
            "note": ", ".join(other_counts) or "none failed or skipped",
        }
    )
    return facts


def _group_cluster(cluster: Mapping[str, Any], machines_by_group: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a cluster whose members are the groups, for the figure of its topology."""
    members_by_machine = {member["machine"]: member for member in cluster["members"]}
    group_summaries = []
    for group_name, machines in machines_by_group.items():
        group_members = [members_by_machine[machine] for machine in machines]
        group_summaries.append(
            {
                "machine": group_name,
                "site": group_members[0]["site"],
                "endpoint": next((member["endpoint"] for member in group_members if member["endpoint"]), None),
                "gpus": sum(member["gpus"] for member in group_members),
                "answered": all(member["answered"] for member in group_members),
                "address": f"{len(group_members)} member{'' if len(group_members) == 1 else 's'}",
                "mesh_address": None,
            }
        )
    manager_group = next(
        (group_name for group_name, machines in machines_by_group.items() if cluster["manager"] in machines), None
    )
    return {**cluster, "members": group_summaries, "manager": manager_group}


def build_page(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that the template needs. The template escapes all text."""
    document = dict(verdict)
    cluster, checks = verdict["cluster"], verdict["checks"]
    listed_pairs, summary = verdict["reachability"]["pairs"], verdict["reachability"].get("summary")
    if summary:
        pairs_by_ends = crowd.pairs_from_summary(summary)
        cluster = _group_cluster(cluster, {crowd.format_group_name(group): group for group in summary["groups"]})
    else:
        pairs_by_ends = {(pair["from"], pair["to"]): pair for pair in listed_pairs}
    # The rows and columns of the figures: groups if there are too many members.
    machines = [member["machine"] for member in cluster["members"]]
    machine_indexes = {machine: index for index, machine in enumerate(machines)}
    pair_totals = count_pairs(verdict)
    probed_count = sum(pair_totals.values()) - pair_totals["skipped"]
    bandwidth_matrix = build_matrix(machines, pairs_by_ends, "bandwidth_gbps", "Gbit/s")
    rdma_matrix = build_matrix(machines, pairs_by_ends, "rdma_gbps", "Gbit/s")
    topology = figures.draw_topology(cluster, list(pairs_by_ends.values()))
    for site in topology["sites"]:
        site["members"] = sum(1 for member in verdict["cluster"]["members"] if member["site"] == site["name"])
    broken_pairs = [pair for pair in listed_pairs if pair["status"] == "fail"]
    problem_findings = collect_findings(checks, ("fail", "error"), merge_by_remedy=bool(summary))
    skipped_findings = collect_findings(checks, ("skipped",))
    unmeasured_findings = [finding for finding in skipped_findings if not finding["measured"]]
    return {
        "verdict": document,
        "headline": format_headline(document),
        "moment": format_moment(verdict["generated_at"]),
        "facts": _build_facts(verdict),
        "words": STATUS_LABELS,
        "large": bool(summary),
        "findings": problem_findings[:_MAX_FINDINGS],
        "more_findings": len(problem_findings[_MAX_FINDINGS:]),
        "measured": [finding for finding in skipped_findings if finding["measured"]],
        "skipped": unmeasured_findings,
        "skipped_count": sum(len(finding["hosts"]) for finding in unmeasured_findings),
        "all_checks": []
        if summary
        else [
            {
                **check,
                "actual": format_quantity(check["actual"], check["unit"]),
                "required": format_quantity(check["required"], check["unit"]),
            }
            for check in checks
        ],
        "counted": count_by_check(checks) if summary else [],
        "topology": topology,
        "link_words": _LINK_LABELS,
        "latency": build_matrix(machines, pairs_by_ends, "rtt_ms", "ms") if probed_count else None,
        "probed": "Every ordered pair was probed."
        if not pair_totals["skipped"]
        else f"{probed_count} of {sum(pair_totals.values())} ordered pairs were probed.",
        "bandwidth": bandwidth_matrix if bandwidth_matrix and bandwidth_matrix["measured"] else None,
        "rdma": rdma_matrix if rdma_matrix and rdma_matrix["measured"] else None,
        "broken": broken_pairs[:_MAX_FINDINGS],
        "more_broken": pair_totals["fail"] - len(broken_pairs[:_MAX_FINDINGS]),
        "curves": figures.draw_curves(verdict["collectives"]),
        "health": {"rows": [], "values": False} if summary else build_health_table(machines, checks),
        "health_counts": count_by_check(checks, "health.") if summary else [],
        "volumes": format_rows(verdict.get("volumes", []), len(verdict["cluster"]["members"])),
        "volume_speeds": any(has_speeds(volume) for volume in verdict.get("volumes", [])),
        "bars": figures.draw_history(verdict["history"], summarise_run(document)),
        "runs": [
            {**run, "moment": format_moment(run["generated_at"])}
            for run in [*verdict["history"], summarise_run(document)][::-1]
        ],
        "changes": find_changes(document),
        "machines": machines,
        "pair_data": {
            "machines": machines,
            "pairs": {
                f"{machine_indexes[source]},{machine_indexes[target]}": {
                    key: pair.get(key) for key in _PAIR_KEYS if pair.get(key) not in (None, "")
                }
                for (source, target), pair in pairs_by_ends.items()
                if source in machine_indexes and target in machine_indexes
            },
        },
    }
