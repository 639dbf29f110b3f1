# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict document: one JSON value from which the HTML, JUnit, Prometheus and terminal reports are created.

Its structure is defined in ``verdict.schema.json`` beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import all_printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import crowd
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.statuses import STATUSES
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import OPTIONAL

SCHEMA_VERSION = 1

#: The number of earlier runs in a verdict; with one per day, this is a month.
HISTORY_LENGTH = 30

Check = dict[str, Any]
Pair = dict[str, Any]
Verdict = dict[str, Any]


class Section(NamedTuple):
    """The checks whose ID starts with ``id``: those of a layer, or of what all layers need or prove together."""

    id: str
    title: str


#: In the order in which they build on each other: the first failing one should be examined first.
SECTIONS = (
    Section("members", "Members"),
    Section("reachability", "Network"),
    Section("clock", "Clocks"),
    *(Section(layer.name, layer.title) for layer in registry.LAYERS if layer.title),
    Section("health", "Node health"),
    Section("collective", "Collectives"),
)


def worst_status(statuses: Sequence[str]) -> str:
    """Return the worst of some statuses; ``skipped`` if nothing was judged.

    A pass beside a skipped check remains a pass: the skipped one is listed separately.
    """
    if "fail" in statuses:
        return "fail"
    if "error" in statuses:
        return "error"
    return "pass" if "pass" in statuses else "skipped"


def count_statuses(checks: Sequence[Check]) -> dict[str, int]:
    """Count the checks with each status."""
    return {status: sum(1 for check in checks if check["status"] == status) for status in STATUSES}


def overall_status(checks: Sequence[Check]) -> str:
    """Return ``pass`` only if something passed, and nothing failed or could not be checked."""
    status = worst_status([check["status"] for check in checks])
    return "error" if status == "skipped" else status


def summarise_run(verdict: Verdict) -> dict[str, Any]:
    """Return what a later run needs of this one: its result, its failing checks and its slowest pair."""
    summary = verdict["reachability"].get("summary")
    if summary:
        round_trips = [summary["slowest"]["rtt_ms"]] if summary["slowest"] else []
    else:
        round_trips = [pair["rtt_ms"] for pair in verdict["reachability"]["pairs"] if pair.get("rtt_ms") is not None]
    return {
        "generated_at": verdict["generated_at"],
        "level": verdict["level"],
        "status": verdict["status"],
        "generation": verdict["cluster"]["generation"],
        "members": len(verdict["cluster"]["members"]),
        "counts": verdict["counts"],
        "slowest_rtt_ms": max(round_trips) if round_trips else None,
        "best_busbw_gbps": max(
            (collective["busbw_gbps"] for collective in verdict["collectives"] if collective.get("busbw_gbps")),
            default=None,
        ),
        "failing": sorted(
            {
                f"{check['id']}@{check['host'] or ''}"
                for check in verdict["checks"]
                if check["status"] in ("fail", "error")
            }
        ),
    }


def _extend_history(previous_verdict: Mapping[str, Any] | None, cluster_id: str) -> list[dict[str, Any]]:
    """Return the earlier runs, oldest first: those in the previous verdict, and the previous verdict itself.

    A verdict of another cluster (deleted and created again with the same name) or of another schema starts a new
    history.
    """
    if not previous_verdict or previous_verdict.get("schema_version") != SCHEMA_VERSION:
        return []
    if previous_verdict.get("cluster", {}).get("id") != cluster_id:
        return []
    return [*previous_verdict.get("history", []), summarise_run(dict(previous_verdict))][-HISTORY_LENGTH:]


def _summarise_sections(record: Mapping[str, Any], checks: Sequence[Check]) -> list[dict[str, Any]]:
    layers = {layer.name: layer for layer in registry.LAYERS}
    section_summaries = []
    for section in SECTIONS:
        layer = layers.get(section.id)
        if layer is not None and layer.stage == OPTIONAL and not layer.describe(record):
            continue
        statuses = [check["status"] for check in checks if check["id"].split(".")[0] == section.id]
        subnet = str(record.get("subnet")) if section.id == "reachability" else ""
        section_summaries.append(
            {
                "id": section.id,
                "title": section.title,
                "detail": layer.describe(record) if layer is not None else subnet,
                "status": worst_status(statuses),
                "checks": len(statuses),
            }
        )
    return section_summaries


def _summarise_cluster(record: Mapping[str, Any], answering_machines: Sequence[str]) -> dict[str, Any]:
    """Return the part of the record that is useful to a reader: no keys, no history."""
    mesh = dict(record.get("mesh") or {"backend": "none"})
    member_summaries = []
    for member in record["members"]:
        member_mesh = member.get("mesh") or {}
        member_summaries.append(
            {
                "machine": member["machine"],
                "address": member.get("address"),
                "mesh_address": member_mesh.get("address"),
                "interface": member.get("interface"),
                "site": member.get("site") or "default",
                "endpoint": member.get("endpoint"),
                "gpus": member.get("gpus") or 0,
                "answered": member["machine"] in answering_machines,
            }
        )
    return {
        "id": record["id"],
        "name": record["name"],
        "generation": record["generation"],
        "subnet": record.get("subnet"),
        "manager": record.get("manager"),
        "mesh": {key: mesh.get(key) for key in ("backend", "subnet", "interface", "port", "mtu")},
        "members": member_summaries,
    }


def assemble_verdict(
    record: Mapping[str, Any],
    checks: Sequence[Check],
    generated_at: str,
    level: str = "quick",
    answering_machines: Sequence[str] = (),
    pairs: Sequence[Pair] = (),
    collectives: Sequence[Mapping[str, Any]] = (),
    jobs: Sequence[Mapping[str, Any]] = (),
    volumes: Sequence[Mapping[str, Any]] = (),
    previous_verdict: Mapping[str, Any] | None = None,
    partial: bool = False,
) -> Verdict:
    """Create a verdict document. ``answering_machines``: those that the run could reach over SSH.

    ``partial``: tags or a limit have excluded something.

    For a large cluster, the pairs are summarized, and only those with a fault are listed.
    """
    reachability: dict[str, Any] = {"pairs": pairs}
    if crowd.is_large(record):
        reachability = {
            "summary": crowd.summarize_pairs(record["members"], pairs),
            "pairs": crowd.list_faulty_pairs(pairs),
        }
    verdict = {
        "schema_version": SCHEMA_VERSION,
        "generated_at": generated_at,
        "level": level,
        "partial": partial,
        "status": overall_status(checks),
        "counts": count_statuses(checks),
        "cluster": _summarise_cluster(record, answering_machines),
        "layers": _summarise_sections(record, checks),
        "checks": checks,
        "reachability": reachability,
        "collectives": collectives,
        "jobs": jobs,
        "volumes": volumes,
        "history": _extend_history(previous_verdict, record["id"]),
    }
    # The verdict contains text from hosts and their users, and is shown in terminals, browsers and job logs.
    printable_verdict: Verdict = all_printable(verdict)
    return printable_verdict


def format_headline(verdict: Verdict) -> str:
    """Format the verdict in one sentence."""
    status_counts = verdict["counts"]
    if verdict["status"] == "pass":
        passed_count = status_counts["pass"]
        claim = "Partial check" if verdict.get("partial") else "Ready to train"
        passed_text = f"{'' if passed_count == 1 else 'all '}{_format_check_count(passed_count)} passed"
        skipped_text = f", {status_counts['skipped']} skipped" if status_counts["skipped"] else ""
        return f"{claim}: {passed_text}{skipped_text}."
    if verdict["status"] == "fail":
        return f"Not ready: {_format_check_count(status_counts['fail'])} failed."
    if status_counts["error"]:
        return f"Not proven: {_format_check_count(status_counts['error'])} could not be performed."
    return "Not proven: no check was performed."


def _format_check_count(check_count: int) -> str:
    return "1 check" if check_count == 1 else f"{check_count} checks"


def find_changes(verdict: Verdict) -> dict[str, list[str]] | None:
    """Return what fails now and did not in the previous run, what passes again, and what was not checked again.

    None if there was no previous run.
    """
    if not verdict["history"]:
        return None
    failed_before = set(verdict["history"][-1]["failing"])
    failing_now = set(summarise_run(verdict)["failing"])
    passing_checks = {
        f"{check['id']}@{check['host'] or ''}" for check in verdict["checks"] if check["status"] == "pass"
    }
    fixed_checks = (failed_before - failing_now) & passing_checks
    # Checks that belong to no host have nothing after the @.
    return {
        key: [check_name.rstrip("@") for check_name in sorted(check_names)]
        for key, check_names in (
            ("new", failing_now - failed_before),
            ("fixed", fixed_checks),
            ("unchecked", failed_before - failing_now - fixed_checks),
        )
    }
