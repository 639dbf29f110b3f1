# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The structure of all checks of a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.verdict import Check, Pair


def check(
    name: str,
    purpose: str,
    host: str | None,
    status: str,
    actual: Any = None,
    required: Any = None,
    unit: str = "",
    reason: str = "",
    remedy: str = "",
) -> Check:
    """Create a check. One that has passed has neither a reason nor a remedy, whatever is given."""
    passed = status == "pass"
    return {
        "id": name,
        "purpose": purpose,
        "host": host,
        "actual": actual,
        "required": required,
        "unit": unit,
        "status": status,
        "reason": "" if passed else reason,
        "remedy": "" if passed else remedy,
    }


def unjudged(beside: Check, reason: str, actual: Any = None, unit: str = "") -> Check:
    """What a check does not judge, as a skipped check of its own: the result of that check does not cover it."""
    name = f"{beside['id']}_unjudged"
    return check(name, beside["purpose"], beside["host"], "skipped", actual, unit=unit, reason=reason)


def by_sender(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The pairs of each machine with all others, in one pass: a thousand members have a million."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair["from"], []).append(pair)
    return found
