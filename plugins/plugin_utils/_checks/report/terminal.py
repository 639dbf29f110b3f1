# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict in a few lines for a terminal: the sentence, then every finding with its remedy, then what was skipped.

Skipped checks are counted by reason. The page and verdict.json have each of them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names, printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_matrix import describe_verdict
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import format_headline
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.view import collect_findings, count_pairs
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.volumes import (
    RATE_METRICS,
    format_table,
    has_speeds,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import TEXT_WIDTH

#: The maximum number of pairs, and of findings of one kind, that are shown individually.
_MAX_NAMED_PAIRS = 100
#: The number of reasons for skipped checks that are shown: hosts without GPUs or RDMA have a dozen.
_MAX_SKIP_REASONS = 12


def _wrap_paragraph(text: str, width: int, indent: str, hanging_indent: str | None = None) -> list[str]:
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging_indent is None else hanging_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def render(verdict: Mapping[str, Any], width: int = TEXT_WIDTH) -> str:
    """Render the text, wrapped to ``width`` columns, without a final newline."""
    lines = _wrap_paragraph(format_headline(dict(verdict)), width, "")
    broken_pairs = [pair for pair in verdict["reachability"]["pairs"] if pair["status"] == "fail"]
    if broken_pairs:
        lines += ["", "Pairs that cannot reach each other:"]
        lines += [
            f"  {pair['from']} → {pair['to']}: {printable(describe_verdict(pair['verdict']))}"
            for pair in broken_pairs[:_MAX_NAMED_PAIRS]
        ]
        unlisted_count = count_pairs(verdict)["fail"] - len(broken_pairs[:_MAX_NAMED_PAIRS])
        lines += [f"  and {unlisted_count} more, which are in the report"] if unlisted_count else []
    if verdict.get("volumes"):
        # The server is in the record, and the speeds need its columns.
        hidden_columns = ("server",) if _has_speeds(verdict) else ()
        lines += ["", format_table(verdict["volumes"], len(verdict["cluster"]["members"]), width, hidden_columns)]
    for status, status_sign in (("fail", "✕"), ("error", "!")):
        matching_findings = collect_findings(
            verdict["checks"], (status,), merge_by_remedy="summary" in verdict["reachability"]
        )
        for finding in matching_findings[:_MAX_NAMED_PAIRS]:
            title = f"{status_sign} {join_names(finding['hosts'], '')}: {finding['purpose']} ({finding['id']})"
            lines += ["", *_wrap_paragraph(title, width, "", "    ")]
            lines += _wrap_paragraph(finding["reason"], width, "    ")
            if finding["actual"] != "–" or finding["required"] != "–":
                lines += _wrap_paragraph(f"found {finding['actual']}, required {finding['required']}", width, "    ")
            lines += _wrap_paragraph(f"→ {finding['remedy']}", width, "    ") if finding["remedy"] else []
        unlisted_count = len(matching_findings[_MAX_NAMED_PAIRS:])
        lines += ["", f"{status_sign} {unlisted_count} more of this kind are in the report."] if unlisted_count else []
    skipped_findings = collect_findings(verdict["checks"], ("skipped",))
    lines += _list_measured(verdict, [finding for finding in skipped_findings if finding["measured"]], width)
    lines += _list_skipped(verdict, [finding for finding in skipped_findings if not finding["measured"]], width)
    return "\n".join(lines)


def _list_measured(verdict: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """List the values that no check judges, except the speeds of volumes, which are in the table of the volumes."""
    shown_in_table = tuple(check_id for check_id, *_metric in RATE_METRICS) if _has_speeds(verdict) else ()
    values_by_reason: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        if not finding["id"].startswith(shown_in_table):
            group_key = (_name_hosts(verdict, finding["hosts"]), finding["reason"])
            values_by_reason.setdefault(group_key, []).append(f"{finding['id']}: {finding['measured']}")
    if not values_by_reason:
        return []
    lines = ["", "Measured:"]
    for (hosts, reason), values in values_by_reason.items():
        lines += _wrap_paragraph(f"{', '.join(values)} ({hosts}). {reason}", width, "  ", "    ")
    return lines


def _list_skipped(verdict: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """List the reasons with the number of skipped checks. Checks of health come last: most do not apply to a host."""
    findings_by_reason: dict[str, list[Mapping[str, Any]]] = {}
    for finding in sorted(findings, key=lambda finding: finding["id"].startswith("health.")):
        findings_by_reason.setdefault(finding["reason"], []).append(finding)
    if not findings_by_reason:
        return []
    lines = ["", "Skipped:"]
    for reason, same_findings in list(findings_by_reason.items())[:_MAX_SKIP_REASONS]:
        hosts = list(dict.fromkeys(host for finding in same_findings for host in finding["hosts"]))
        check_ids = {finding["id"] for finding in same_findings}
        check_count = sum(len(finding["hosts"]) for finding in same_findings)
        subject = next(iter(check_ids)) if len(check_ids) == 1 else f"{check_count} checks"
        lines += _wrap_paragraph(f"{subject} ({_name_hosts(verdict, hosts)}): {reason}", width, "  ", "    ")
    other_count = sum(
        len(finding["hosts"])
        for same_findings in list(findings_by_reason.values())[_MAX_SKIP_REASONS:]
        for finding in same_findings
    )
    lines += [f"  and {other_count} for other reasons, which are in the report"] if other_count else []
    return lines


def _has_speeds(verdict: Mapping[str, Any]) -> bool:
    return any(has_speeds(volume) for volume in verdict.get("volumes", []))


def _name_hosts(verdict: Mapping[str, Any], hosts: Sequence[str]) -> str:
    machines = {member["machine"] for member in verdict["cluster"]["members"]}
    return "all members" if len(machines) > 1 and machines <= set(hosts) else join_names(hosts, "")
