# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict in a few lines for a terminal: the sentence, then every finding with its remedy, then what was skipped."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names, printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import format_headline
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.view import collect_findings, count_pairs
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.volumes import format_table

#: The maximum number of pairs, and of findings of one kind, that are shown individually.
_MAX_NAMED_PAIRS = 100


def _wrap_paragraph(text: str, width: int, indent: str, hanging_indent: str | None = None) -> list[str]:
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging_indent is None else hanging_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def render(verdict: Mapping[str, Any], width: int = 100) -> str:
    """Render the text, wrapped to ``width`` columns, without a final newline."""
    lines = [format_headline(dict(verdict))]
    broken_pairs = [pair for pair in verdict["reachability"]["pairs"] if pair["status"] == "fail"]
    if broken_pairs:
        lines += ["", "Pairs that cannot reach each other:"]
        lines += [
            f"  {pair['from']} → {pair['to']}: {printable(pair['verdict'])}" for pair in broken_pairs[:_MAX_NAMED_PAIRS]
        ]
        unlisted_count = count_pairs(verdict)["fail"] - len(broken_pairs[:_MAX_NAMED_PAIRS])
        lines += [f"  and {unlisted_count} more, which are in the report"] if unlisted_count else []
    if verdict.get("volumes"):
        lines += ["", format_table(verdict["volumes"], len(verdict["cluster"]["members"]), width)]
    for status, status_sign in (("fail", "✕"), ("error", "!")):
        matching_findings = collect_findings(
            verdict["checks"], (status,), merge_by_remedy="summary" in verdict["reachability"]
        )
        for finding in matching_findings[:_MAX_NAMED_PAIRS]:
            lines += [
                "",
                f"{status_sign} {join_names(finding['hosts'], '')}: {finding['purpose']} ({finding['id']})",
            ]
            lines += _wrap_paragraph(finding["reason"], width, "    ")
            if finding["actual"] != "–" or finding["required"] != "–":
                lines.append(f"    found {printable(finding['actual'])}, required {finding['required']}")
            lines += _wrap_paragraph(f"→ {finding['remedy']}", width, "    ") if finding["remedy"] else []
        unlisted_count = len(matching_findings[_MAX_NAMED_PAIRS:])
        lines += ["", f"{status_sign} {unlisted_count} more of this kind are in the report."] if unlisted_count else []
    skipped_findings = collect_findings(verdict["checks"], ("skipped",))
    if skipped_findings:
        # One line per reason: a host without GPUs skips half a dozen checks for the same one.
        checks_by_reason: dict[tuple[str, str], list[str]] = {}
        for finding in skipped_findings:
            check_name = f"{finding['id']}: {finding['measured']}" if finding["measured"] else finding["id"]
            checks_by_reason.setdefault((join_names(finding["hosts"], ""), finding["reason"]), []).append(check_name)
        lines += ["", "Skipped:"]
        for (hosts, reason), check_names in checks_by_reason.items():
            lines += _wrap_paragraph(f"{hosts}: {reason} ({', '.join(check_names)})", width, "  ", "    ")
    return "\n".join(lines)
