# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the page shows, made from a verdict: words, groups and figures. The template only sets it in type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report import figures
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.verdict import (
    LAYERS,
    changes,
    headline,
    summarise,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.volumes import rows

WORDS = {"pass": "Passed", "fail": "Failed", "error": "Not checked", "skipped": "Skipped"}
_LINK_WORDS = {
    "lan": "direct, over the LAN",
    "tunnel": "encrypted tunnel",
    "relayed": "tunnel relayed by a third member",
    "slow": "carries too little",
    "broken": "does not get through",
    "unmeasured": "not measured",
}
#: Up to here a matrix cell has room for its number.
_NUMBERS_UP_TO = 8
#: What says of a measured value that it is too little.
_SLOW = {"bandwidth_gbps": "slow", "rdma_gbps": "rdma_slow"}
#: Up to here the node health table has room for the values themselves.
_VALUES_UP_TO = 5


def moment(iso: str) -> str:
    """``2026-11-20T20:31:00Z`` as people write it."""
    when = datetime.strptime(iso, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return f"{when.day} {when:%b %Y, %H:%M} UTC"


def number(value: float) -> str:
    """Two or three significant figures without an exponent, down to a thousandth of a thousandth."""
    if 0 < value < 0.01:
        return f"{value:.6f}".rstrip("0") if value < 0.0001 else f"{value:.4f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def quantity(value: Any, unit: str) -> str:
    """A check's value with its unit; a dash where there is none."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".strip()


def findings(checks: Sequence[Mapping[str, Any]], statuses: Sequence[str]) -> list[dict[str, Any]]:
    """Checks of these statuses in the order of the layers; those of several hosts that say the same in one entry."""
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    order = [layer.id for layer in LAYERS]
    for status in statuses:
        chosen = [check for check in checks if check["status"] == status]
        for check in sorted(chosen, key=lambda one: order.index(one["id"].split(".")[0])):
            actual, required = quantity(check["actual"], check["unit"]), quantity(check["required"], check["unit"])
            key = (status, check["id"], actual, required, check["reason"], check["remedy"])
            entry = groups.setdefault(key, {**check, "actual": actual, "required": required, "hosts": []})
            entry["hosts"].append(check["host"] or "cluster")
    return list(groups.values())


def matrix(
    machines: Sequence[str], pairs: Mapping[tuple[str, str], Mapping[str, Any]], key: str, unit: str
) -> dict[str, Any] | None:
    """Rows of cells for one measured value of the pairs; None where no pair has it nor failed."""
    values = [pair[key] for pair in pairs.values() if pair.get(key) is not None and pair["status"] == "pass"]
    bounds = figures.steps(values)
    rows = []
    slow = False
    for source in machines:
        cells = []
        for target in machines:
            pair = pairs.get((source, target))
            cell = {"to": target, "text": "", "kind": "none", "label": f"{source} to {target}: not measured"}
            if source == target:
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
                    label=f"{source} to {target}: {number(pair[key])} {unit}{', too little' if below else ''}",
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


def health(machines: Sequence[str], checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Node health as a table: a row a check, a column a member."""
    own = [check for check in checks if check["id"].startswith("health.")]
    by_place = {(check["id"], check["host"]): check for check in own}
    rows = []
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
        first = next(check for check in own if check["id"] == name)
        rows.append({"id": name.split(".", 1)[1], "purpose": first["purpose"], "cells": cells})
    return {"rows": rows, "values": len(machines) <= _VALUES_UP_TO}


def _probed(verdict: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The pairs that were not left out of the run."""
    return [pair for pair in verdict["reachability"]["pairs"] if pair["status"] != "skipped"]


def _facts(verdict: Mapping[str, Any]) -> list[dict[str, str]]:
    """The few numbers under the headline."""
    members = verdict["cluster"]["members"]
    pairs = _probed(verdict)
    reached = [pair for pair in pairs if pair["status"] == "pass"]
    timed = [pair for pair in reached if pair.get("rtt_ms") is not None]
    gpus = sum(member["gpus"] for member in members)
    facts = [
        {
            "name": "Members that answer",
            "value": f"{sum(1 for m in members if m['answered'])} of {len(members)}",
            "note": f"{gpus} GPU{'' if gpus == 1 else 's'}",
        }
    ]
    if pairs:
        facts.append(
            {
                "name": "Pairs that reach each other",
                "value": f"{len(reached)} of {len(pairs)}",
                "note": "each direction counted",
            }
        )
    if timed:
        slowest = max(timed, key=lambda pair: float(pair["rtt_ms"]))
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


def build(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the template needs. Text stays text here; the template escapes it."""
    document = dict(verdict)
    cluster, checks = verdict["cluster"], verdict["checks"]
    machines = [member["machine"] for member in cluster["members"]]
    pairs = {(pair["from"], pair["to"]): pair for pair in verdict["reachability"]["pairs"]}
    probed = _probed(verdict)
    bandwidth = matrix(machines, pairs, "bandwidth_gbps", "Gbit/s")
    rdma = matrix(machines, pairs, "rdma_gbps", "Gbit/s")
    return {
        "verdict": document,
        "headline": headline(document),
        "moment": moment(verdict["generated_at"]),
        "facts": _facts(verdict),
        "words": WORDS,
        "findings": findings(checks, ("fail", "error")),
        "skipped": findings(checks, ("skipped",)),
        "all_checks": [
            {
                **check,
                "actual": quantity(check["actual"], check["unit"]),
                "required": quantity(check["required"], check["unit"]),
            }
            for check in checks
        ],
        "topology": figures.topology(cluster, verdict["reachability"]["pairs"]),
        "link_words": _LINK_WORDS,
        "latency": matrix(machines, pairs, "rtt_ms", "ms") if probed else None,
        "probed": "Every ordered pair was probed."
        if len(probed) == len(pairs)
        else f"{len(probed)} of {len(pairs)} ordered pairs were probed.",
        "bandwidth": bandwidth if bandwidth and bandwidth["measured"] else None,
        "rdma": rdma if rdma and rdma["measured"] else None,
        "broken": [pair for pair in verdict["reachability"]["pairs"] if pair["status"] == "fail"],
        "curves": figures.curves(verdict["collectives"]),
        "health": health(machines, checks),
        "volumes": rows(verdict.get("volumes", []), len(machines)),
        "bars": figures.history_bars(verdict["history"], summarise(document)),
        "runs": [
            {**run, "moment": moment(run["generated_at"])} for run in [*verdict["history"], summarise(document)][::-1]
        ],
        "changes": changes(document),
        "machines": machines,
        "pair_data": {
            "machines": machines,
            "pairs": {
                f"{machines.index(a)},{machines.index(b)}": {
                    key: pair.get(key)
                    for key in (
                        "status",
                        "verdict",
                        "message",
                        "remedy",
                        "rtt_ms",
                        "path_mtu",
                        "offset_s",
                        "bandwidth_gbps",
                        "rdma_gbps",
                        "rdma_latency_us",
                    )
                    if pair.get(key) not in (None, "")
                }
                for (a, b), pair in pairs.items()
                if a in machines and b in machines
            },
        },
    }
