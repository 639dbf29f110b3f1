# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict in a few lines for a terminal: the sentence, then every finding with its remedy, then what was skipped."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.verdict import (
    headline,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.view import (
    findings,
    pair_counts,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.volumes import table

_NAMED_HOSTS = 6
#: The maximum number of pairs, and of findings of one kind, that are shown individually.
_NAMED_PAIRS = 100


def _hosts(names: list[str]) -> str:
    if len(names) <= _NAMED_HOSTS:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3} more"


def _paragraph(text: str, width: int, indent: str, hanging: str | None = None) -> list[str]:
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def render(verdict: Mapping[str, Any], width: int = 100) -> str:
    """The text, wrapped to ``width`` columns, without a final newline."""
    lines = [headline(dict(verdict))]
    broken = [pair for pair in verdict["reachability"]["pairs"] if pair["status"] == "fail"]
    if broken:
        lines += ["", "Pairs that cannot reach each other:"]
        lines += [f"  {pair['from']} → {pair['to']}: {printable(pair['verdict'])}" for pair in broken[:_NAMED_PAIRS]]
        rest = pair_counts(verdict)["fail"] - len(broken[:_NAMED_PAIRS])
        lines += [f"  and {rest} more, which are in the report"] if rest else []
    if verdict.get("volumes"):
        lines += ["", table(verdict["volumes"], len(verdict["cluster"]["members"]), width)]
    for status, sign in (("fail", "✕"), ("error", "!")):
        found = findings(verdict["checks"], (status,), by_remedy="summary" in verdict["reachability"])
        for finding in found[:_NAMED_PAIRS]:
            lines += ["", f"{sign} {_hosts(finding['hosts'])}: {finding['purpose']} ({finding['id']})"]
            lines += _paragraph(finding["reason"], width, "    ")
            if finding["actual"] != "–" or finding["required"] != "–":
                lines.append(f"    found {printable(finding['actual'])}, required {finding['required']}")
            lines += _paragraph(f"→ {finding['remedy']}", width, "    ") if finding["remedy"] else []
        rest = len(found[_NAMED_PAIRS:])
        lines += ["", f"{sign} {rest} more of this kind are in the report."] if rest else []
    skipped = findings(verdict["checks"], ("skipped",))
    if skipped:
        # One line per reason: a host without GPUs skips half a dozen checks for the same one.
        reasons: dict[tuple[str, str], list[str]] = {}
        for finding in skipped:
            name = f"{finding['id']}: {finding['measured']}" if finding["measured"] else finding["id"]
            reasons.setdefault((_hosts(finding["hosts"]), finding["reason"]), []).append(name)
        lines += ["", "Skipped:"]
        for (hosts, reason), names in reasons.items():
            lines += _paragraph(f"{hosts}: {reason} ({', '.join(names)})", width, "  ", "    ")
    return "\n".join(lines)
