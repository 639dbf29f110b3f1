# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The structure of all checks of a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import Check, Pair

#: One reason for all such checks, which the terminal then shows as one line. The health checks have the same.
ONLY_AT_FULL_LEVELS = "Only performed at levels full and burn."


def make_check(
    check_id: str,
    purpose: str,
    host: str | None,
    status: str,
    actual: Any = None,
    required: Any = None,
    unit: str = "",
    reason: str = "",
    remedy: str = "",
) -> Check:
    """Create a check. A passed one has neither a reason nor a remedy, whatever is given."""
    has_passed = status == "pass"
    return {
        "id": check_id,
        "purpose": purpose,
        "host": host,
        "actual": actual,
        "required": required,
        "unit": unit,
        "status": status,
        "reason": "" if has_passed else reason,
        "remedy": "" if has_passed else remedy,
    }


def make_unjudged_check(judged_check: Check, reason: str, actual: Any = None, unit: str = "") -> Check:
    """Create a skipped check for what another check does not judge, since the result of that one does not cover it."""
    check_id = f"{judged_check['id']}_unjudged"
    return make_check(
        check_id, judged_check["purpose"], judged_check["host"], "skipped", actual, unit=unit, reason=reason
    )


def group_by_sender(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Group the pairs by their first machine in one pass, since a thousand members have a million pairs."""
    pairs_by_sender: dict[str, list[Pair]] = {}
    for pair in pairs:
        pairs_by_sender.setdefault(pair["from"], []).append(pair)
    return pairs_by_sender
