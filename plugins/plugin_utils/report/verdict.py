# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict document: one JSON value from which the HTML, JUnit, Prometheus and terminal reports are created.

Its structure is defined in ``verdict.schema.json`` beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import all_printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report import crowd
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.statuses import STATUSES

SCHEMA_VERSION = 1

#: The number of earlier runs in a verdict; with one per day, this is a month.
HISTORY_LENGTH = 30

Check = dict[str, Any]
Pair = dict[str, Any]
Verdict = dict[str, Any]


class Layer(NamedTuple):
    """A part of the cluster, covered by the checks whose ID starts with ``id``."""

    id: str
    title: str


#: In the order in which they build on each other: the first failing one should be examined first.
LAYERS = (
    Layer("members", "Members"),
    Layer("reachability", "Network"),
    Layer("mesh", "Mesh"),
    Layer("clock", "Clocks"),
    Layer("ssh", "SSH"),
    Layer("storage", "Storage"),
    Layer("tracking", "Experiments"),
    Layer("slurm", "Slurm"),
    Layer("health", "Node health"),
    Layer("collective", "Collectives"),
)


def worst(statuses: Sequence[str]) -> str:
    """The worst of some statuses; ``skipped`` if nothing was judged.

    A pass beside a skipped check remains a pass: the skipped one is listed separately.
    """
    if "fail" in statuses:
        return "fail"
    if "error" in statuses:
        return "error"
    return "pass" if "pass" in statuses else "skipped"


def count(checks: Sequence[Check]) -> dict[str, int]:
    """The number of checks with each status."""
    return {status: sum(1 for check in checks if check["status"] == status) for status in STATUSES}


def overall(checks: Sequence[Check]) -> str:
    """``pass`` only if something passed, and nothing failed or could not be checked."""
    judged = worst([check["status"] for check in checks])
    return "error" if judged == "skipped" else judged


def summarise(verdict: Verdict) -> dict[str, Any]:
    """What a later run needs of this one: its result, its failing checks and its slowest pair."""
    summary = verdict["reachability"].get("summary")
    if summary:
        rtts = [summary["slowest"]["rtt_ms"]] if summary["slowest"] else []
    else:
        rtts = [pair["rtt_ms"] for pair in verdict["reachability"]["pairs"] if pair.get("rtt_ms") is not None]
    return {
        "generated_at": verdict["generated_at"],
        "level": verdict["level"],
        "status": verdict["status"],
        "generation": verdict["cluster"]["generation"],
        "members": len(verdict["cluster"]["members"]),
        "counts": verdict["counts"],
        "slowest_rtt_ms": max(rtts) if rtts else None,
        "best_busbw_gbps": max((c["busbw_gbps"] for c in verdict["collectives"] if c.get("busbw_gbps")), default=None),
        "failing": sorted(
            {
                f"{check['id']}@{check['host'] or ''}"
                for check in verdict["checks"]
                if check["status"] in ("fail", "error")
            }
        ),
    }


def _history(previous: Mapping[str, Any] | None, cluster_id: str) -> list[dict[str, Any]]:
    """Earlier runs, oldest first: those in the previous verdict, and the previous verdict itself.

    A verdict of another cluster (deleted and created again with the same name) or of another schema starts a new
    history.
    """
    if not previous or previous.get("schema_version") != SCHEMA_VERSION:
        return []
    if previous.get("cluster", {}).get("id") != cluster_id:
        return []
    return [*previous.get("history", []), summarise(dict(previous))][-HISTORY_LENGTH:]


def _layers(record: Mapping[str, Any], checks: Sequence[Check]) -> list[dict[str, Any]]:
    mesh = record.get("mesh") or {}
    backend = mesh.get("backend", "none")
    volumes = (record.get("storage") or {}).get("volumes") or []
    details = {
        "reachability": f"{record.get('subnet')}",
        "mesh": "none: the members communicate over their subnet"
        if backend == "none"
        else f"{backend}, {mesh.get('subnet')}, MTU {mesh.get('mtu')}",
        "storage": ", ".join(f"{v['name']} on {v['server']}" if "server" in v else v["name"] for v in volumes)
        or "no volume",
        "tracking": f"MLflow on {(record.get('tracking') or {}).get('server')}",
        "slurm": f"controller on {record.get('manager')}",
    }
    layers = []
    for layer in LAYERS:
        if layer.id == "tracking" and not record.get("tracking"):
            continue
        statuses = [check["status"] for check in checks if check["id"].split(".")[0] == layer.id]
        layers.append(
            {
                "id": layer.id,
                "title": layer.title,
                "detail": details.get(layer.id, ""),
                "status": worst(statuses),
                "checks": len(statuses),
            }
        )
    return layers


def _cluster(record: Mapping[str, Any], answered: Sequence[str]) -> dict[str, Any]:
    """The part of the record that is useful to a reader: no keys, no history."""
    mesh = dict(record.get("mesh") or {"backend": "none"})
    members = []
    for member in record["members"]:
        own = member.get("mesh") or {}
        members.append(
            {
                "machine": member["machine"],
                "address": member.get("address"),
                "mesh_address": own.get("address"),
                "interface": member.get("interface"),
                "site": member.get("site") or "default",
                "endpoint": member.get("endpoint"),
                "gpus": member.get("gpus") or 0,
                "answered": member["machine"] in answered,
            }
        )
    return {
        "id": record["id"],
        "name": record["name"],
        "generation": record["generation"],
        "subnet": record.get("subnet"),
        "manager": record.get("manager"),
        "mesh": {key: mesh.get(key) for key in ("backend", "subnet", "interface", "port", "mtu")},
        "members": members,
    }


def assemble(
    record: Mapping[str, Any],
    checks: Sequence[Check],
    generated_at: str,
    level: str = "quick",
    answered: Sequence[str] = (),
    pairs: Sequence[Pair] = (),
    collectives: Sequence[Mapping[str, Any]] = (),
    jobs: Sequence[Mapping[str, Any]] = (),
    volumes: Sequence[Mapping[str, Any]] = (),
    previous: Mapping[str, Any] | None = None,
    partial: bool = False,
) -> Verdict:
    """Create a verdict document. ``answered`` are the machines that the run could reach over SSH.

    ``partial``: tags or a limit have excluded something.

    For a large cluster, the pairs are summarized, and those with a fault listed.
    """
    reachability: dict[str, Any] = {"pairs": pairs}
    if crowd.is_large(record):
        reachability = {"summary": crowd.sum_up(record["members"], pairs), "pairs": crowd.listed(pairs)}
    verdict = {
        "schema_version": SCHEMA_VERSION,
        "generated_at": generated_at,
        "level": level,
        "partial": partial,
        "status": overall(checks),
        "counts": count(checks),
        "cluster": _cluster(record, answered),
        "layers": _layers(record, checks),
        "checks": checks,
        "reachability": reachability,
        "collectives": collectives,
        "jobs": jobs,
        "volumes": volumes,
        "history": _history(previous, record["id"]),
    }
    # It contains text from hosts and their users, and is shown in terminals, browsers and job logs.
    shown: Verdict = all_printable(verdict)
    return shown


def headline(verdict: Verdict) -> str:
    """The verdict in one sentence."""
    counts = verdict["counts"]
    if verdict["status"] == "pass":
        made = counts["pass"]
        claim = "Partial check" if verdict.get("partial") else "Ready to train"
        return f"{claim}: {'the only check performed' if made == 1 else f'all {made} checks performed'} passed."
    if verdict["status"] == "fail":
        return f"Not ready: {_checks(counts['fail'])} failed."
    if counts["error"]:
        return f"Not proven: {_checks(counts['error'])} could not be performed."
    return "Not proven: no check was performed."


def _checks(number: int) -> str:
    return "1 check" if number == 1 else f"{number} checks"


def changes(verdict: Verdict) -> dict[str, list[str]] | None:
    """What fails now and did not in the previous run, what passes again, and what was not checked again.

    None if there was no previous run.
    """
    if not verdict["history"]:
        return None
    before = set(verdict["history"][-1]["failing"])
    now = set(summarise(verdict)["failing"])
    passing = {f"{check['id']}@{check['host'] or ''}" for check in verdict["checks"] if check["status"] == "pass"}
    healed = (before - now) & passing
    # Checks that belong to no host have nothing after the sign.
    return {
        key: [name.rstrip("@") for name in sorted(names)]
        for key, names in (("new", now - before), ("fixed", healed), ("unchecked", before - now - healed))
    }
