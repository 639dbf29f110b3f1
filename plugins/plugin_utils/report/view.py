# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of the page, from a verdict: text, groups and figures. The template only formats it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report import crowd, figures
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.verdict import (
    LAYERS,
    changes,
    count,
    headline,
    summarise,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.volumes import has_speeds, rows, span

WORDS = {"pass": "Passed", "fail": "Failed", "error": "Not checked", "skipped": "Skipped"}
_LINK_WORDS = {
    "lan": "direct, over the LAN",
    "tunnel": "encrypted tunnel",
    "relayed": "tunnel relayed by a third member",
    "slow": "too slow",
    "broken": "unreachable",
    "unmeasured": "not measured",
}
#: Up to this number, a matrix cell has room for its value.
_NUMBERS_UP_TO = 8
#: The keys that mark a measured value as too low.
_SLOW = {"bandwidth_gbps": "slow", "rdma_gbps": "rdma_slow"}
#: The maximum number of findings, and of failed pairs, that the page shows individually. The others are in
#: verdict.json.
_SHOWN = 200
#: The properties of a pair on the page.
_TOLD = (
    "message",
    "remedy",
    "rtt_ms",
    "path_mtu",
    "offset_s",
    "bandwidth_gbps",
    "rdma_gbps",
    "rdma_latency_us",
)
#: Up to this number, the node health table has room for the values.
_VALUES_UP_TO = 5


def moment(iso: str) -> str:
    """``2026-11-20T20:31:00Z`` in a readable form."""
    when = datetime.strptime(iso, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return f"{when.day} {when:%b %Y, %H:%M} UTC"


def number(value: float) -> str:
    """Two or three significant figures without an exponent, down to a millionth."""
    if 0 < value < 0.01:
        return f"{value:.6f}".rstrip("0") if value < 0.0001 else f"{value:.4f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


#: Units that are plurals.
_COUNTED = frozenset({"GPUs", "links", "mounts", "peers", "ports", "users", "volumes"})


def quantity(value: Any, unit: str) -> str:
    """A check's value with its unit; a dash if there is none."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text} {unit[:-1] if value == 1 and unit in _COUNTED else unit}".strip()


def _measured(checks: Sequence[Mapping[str, Any]]) -> str:
    """The range of the values of checks with the same unit; empty if they have none."""
    numbers = [
        check for check in checks if isinstance(check["actual"], (int, float)) and not isinstance(check["actual"], bool)
    ]
    return f"{span([check['actual'] for check in numbers])} {numbers[0]['unit']}".strip() if numbers else ""


def findings(
    checks: Sequence[Mapping[str, Any]], statuses: Sequence[str], by_remedy: bool = False
) -> list[dict[str, Any]]:
    """Checks with these statuses in the order of the layers; those of several hosts with the same message in one entry.

    With ``by_remedy``, also those that only have the same remedy: the messages of a thousand members may all differ.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    order = [layer.id for layer in LAYERS]
    for status in statuses:
        chosen = [check for check in checks if check["status"] == status]
        for check in sorted(chosen, key=lambda one: order.index(one["id"].split(".")[0])):
            actual, required = quantity(check["actual"], check["unit"]), quantity(check["required"], check["unit"])
            # Skipped checks have the same reason for all hosts, whatever would have been required of each.
            measured = () if status == "skipped" else (actual, required)
            key: tuple[str, ...] = (status, check["id"], *measured, check["reason"], check["remedy"])
            if by_remedy and check["remedy"]:
                key = (status, check["id"], check["remedy"])
            groups.setdefault(key, []).append(check)
    return [_finding(same) for same in groups.values()]


def _finding(same: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = same[0]
    return {
        **first,
        "actual": quantity(first["actual"], first["unit"]),
        "required": quantity(first["required"], first["unit"]),
        # The values of skipped checks differ although their reason is the same.
        "measured": _measured(same) if first["status"] == "skipped" else "",
        "hosts": [check["host"] or "cluster" for check in same],
    }


def matrix(
    machines: Sequence[str], pairs: Mapping[tuple[str, str], Mapping[str, Any]], key: str, unit: str
) -> dict[str, Any] | None:
    """Rows of cells for one measured value of the pairs; None if no pair has it or failed."""
    values = [pair[key] for pair in pairs.values() if pair.get(key) is not None and pair["status"] == "pass"]
    bounds = figures.steps(values)
    rows = []
    slow = False
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
            elif pair is not None and pair.get(key) is not None:
                below = bool(pair.get(_SLOW.get(key, "")))
                slow = slow or below
                cell.update(
                    kind="slow" if below else f"h{figures.step_of(pair[key], bounds)}",
                    text=number(pair[key]) if len(machines) <= _NUMBERS_UP_TO else "!" if below else "",
                    label=f"{source} to {target}: {number(pair[key])} {unit}{', too slow' if below else ''}",
                )
            elif pair is not None:
                cell.update(kind="plain", text="✓", label=f"{source} to {target}: reachable, no {key} measured")
            cells.append(cell)
        rows.append({"machine": source, "cells": cells})
    legend, low = [], min(values, default=0.0)
    for index, bound in enumerate(bounds):
        legend.append({"kind": f"h{index}", "text": f"{number(low)} – {number(bound)}"})
        low = bound
    return {
        "rows": rows,
        "legend": legend,
        "unit": unit,
        "measured": len(values),
        "slow": slow,
        "wide": len(machines) > _NUMBERS_UP_TO,
    }


def counted(checks: Sequence[Mapping[str, Any]], prefix: str = "") -> list[dict[str, Any]]:
    """How often each check has each result, and which hosts failed it, instead of a table of a thousand columns."""
    found: dict[str, dict[str, Any]] = {}
    for check in checks:
        if not check["id"].startswith(prefix):
            continue
        row = found.setdefault(
            check["id"],
            {"id": check["id"], "purpose": check["purpose"], "counts": dict.fromkeys(WORDS, 0), "failing": []},
        )
        row["counts"][check["status"]] += 1
        if check["status"] in ("fail", "error"):
            row["failing"].append(check["host"] or "cluster")
    return list(found.values())


def health(machines: Sequence[str], checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Node health as a table: one row per check, one column per member."""
    own = [check for check in checks if check["id"].startswith("health.")]
    by_place = {(check["id"], check["host"]): check for check in own}
    rows = []
    first_of = {check["id"]: check for check in reversed(own)}
    for name in dict.fromkeys(check["id"] for check in own):
        cells = []
        for machine in machines:
            check = by_place.get((name, machine))
            status = check["status"] if check else "none"
            value = quantity(check["actual"], check["unit"]) if check else "–"
            cells.append(
                {
                    "status": status,
                    "value": value if status not in ("skipped", "none") else "",
                    "label": f"{machine}: {WORDS.get(status, 'no result')}" + (f", {value}" if value != "–" else ""),
                    "reason": check["reason"] if check else "",
                }
            )
        rows.append({"id": name.split(".", 1)[1], "purpose": first_of[name]["purpose"], "cells": cells})
    return {"rows": rows, "values": len(machines) <= _VALUES_UP_TO}


def pair_counts(verdict: Mapping[str, Any]) -> dict[str, int]:
    """The number of ordered pairs with each status."""
    reachability = verdict["reachability"]
    if "summary" in reachability:
        return dict(reachability["summary"]["counts"])
    return count(reachability["pairs"])


def _slowest(verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    reachability = verdict["reachability"]
    if "summary" in reachability:
        found: Mapping[str, Any] | None = reachability["summary"]["slowest"]
        return found
    timed = [p for p in reachability["pairs"] if p["status"] == "pass" and p.get("rtt_ms") is not None]
    return max(timed, key=lambda pair: float(pair["rtt_ms"]), default=None)


def _facts(verdict: Mapping[str, Any]) -> list[dict[str, str]]:
    """The main numbers, below the headline."""
    members = verdict["cluster"]["members"]
    pairs = pair_counts(verdict)
    number_probed = sum(pairs.values()) - pairs["skipped"]
    slowest = _slowest(verdict)
    gpus = sum(member["gpus"] for member in members)
    facts = [
        {
            "name": "Members that answer",
            "value": f"{sum(1 for m in members if m['answered'])} of {len(members)}",
            "note": f"{gpus} GPU{'' if gpus == 1 else 's'}",
        }
    ]
    if number_probed:
        facts.append(
            {
                "name": "Pairs that reach each other",
                "value": f"{pairs['pass']} of {number_probed}",
                "note": "each direction counted",
            }
        )
    if slowest:
        facts.append(
            {
                "name": "Slowest round trip",
                "value": f"{number(slowest['rtt_ms'])} ms",
                "note": f"{slowest['from']} to {slowest['to']}",
            }
        )
    counts = verdict["counts"]
    others = [
        f"{counts[status]} {word}"
        for status, word in (("fail", "failed"), ("error", "not checked"), ("skipped", "skipped"))
        if counts[status]
    ]
    facts.append(
        {"name": "Checks passed", "value": str(counts["pass"]), "note": ", ".join(others) or "none failed or skipped"}
    )
    return facts


def _crowd_cluster(cluster: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A cluster whose members are the groups, for the figure of its topology."""
    by_machine = {member["machine"]: member for member in cluster["members"]}
    members = []
    for name, machines in names.items():
        own = [by_machine[machine] for machine in machines]
        members.append(
            {
                "machine": name,
                "site": own[0]["site"],
                "endpoint": next((member["endpoint"] for member in own if member["endpoint"]), None),
                "gpus": sum(member["gpus"] for member in own),
                "answered": all(member["answered"] for member in own),
                "address": f"{len(own)} member{'' if len(own) == 1 else 's'}",
                "mesh_address": None,
            }
        )
    manager = next((name for name, machines in names.items() if cluster["manager"] in machines), None)
    return {**cluster, "members": members, "manager": manager}


def build(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the template needs. Text is not escaped here, but by the template."""
    document = dict(verdict)
    cluster, checks = verdict["cluster"], verdict["checks"]
    listed, summary = verdict["reachability"]["pairs"], verdict["reachability"].get("summary")
    if summary:
        pairs = crowd.as_pairs(summary)
        cluster = _crowd_cluster(cluster, {crowd.name_of(group): group for group in summary["groups"]})
    else:
        pairs = {(pair["from"], pair["to"]): pair for pair in listed}
    # The rows and columns of the figures: groups if there are too many members.
    machines = [member["machine"] for member in cluster["members"]]
    place = {machine: index for index, machine in enumerate(machines)}
    counts = pair_counts(verdict)
    number_probed = sum(counts.values()) - counts["skipped"]
    bandwidth = matrix(machines, pairs, "bandwidth_gbps", "Gbit/s")
    rdma = matrix(machines, pairs, "rdma_gbps", "Gbit/s")
    topology = figures.topology(cluster, list(pairs.values()))
    for site in topology["sites"]:
        site["members"] = sum(1 for member in verdict["cluster"]["members"] if member["site"] == site["name"])
    broken = [pair for pair in listed if pair["status"] == "fail"]
    found = findings(checks, ("fail", "error"), by_remedy=bool(summary))
    return {
        "verdict": document,
        "headline": headline(document),
        "moment": moment(verdict["generated_at"]),
        "facts": _facts(verdict),
        "words": WORDS,
        "large": bool(summary),
        "findings": found[:_SHOWN],
        "more_findings": len(found[_SHOWN:]),
        "skipped": findings(checks, ("skipped",)),
        "all_checks": []
        if summary
        else [
            {
                **check,
                "actual": quantity(check["actual"], check["unit"]),
                "required": quantity(check["required"], check["unit"]),
            }
            for check in checks
        ],
        "counted": counted(checks) if summary else [],
        "topology": topology,
        "link_words": _LINK_WORDS,
        "latency": matrix(machines, pairs, "rtt_ms", "ms") if number_probed else None,
        "probed": "Every ordered pair was probed."
        if not counts["skipped"]
        else f"{number_probed} of {sum(counts.values())} ordered pairs were probed.",
        "bandwidth": bandwidth if bandwidth and bandwidth["measured"] else None,
        "rdma": rdma if rdma and rdma["measured"] else None,
        "broken": broken[:_SHOWN],
        "more_broken": counts["fail"] - len(broken[:_SHOWN]),
        "curves": figures.curves(verdict["collectives"]),
        "health": {"rows": [], "values": False} if summary else health(machines, checks),
        "health_counts": counted(checks, "health.") if summary else [],
        "volumes": rows(verdict.get("volumes", []), len(verdict["cluster"]["members"])),
        "volume_speeds": any(has_speeds(volume) for volume in verdict.get("volumes", [])),
        "bars": figures.history_bars(verdict["history"], summarise(document)),
        "runs": [
            {**run, "moment": moment(run["generated_at"])} for run in [*verdict["history"], summarise(document)][::-1]
        ],
        "changes": changes(document),
        "machines": machines,
        "pair_data": {
            "machines": machines,
            "pairs": {
                f"{place[a]},{place[b]}": {key: pair.get(key) for key in _TOLD if pair.get(key) not in (None, "")}
                for (a, b), pair in pairs.items()
                if a in place and b in place
            },
        },
    }
