# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether experiments are tracked: a run is written and read back, and every member reaches the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.checks import check
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.verdict import Check

_REMEDY = "Run the playbook tracking, and see journalctl -u gpumesh-tracking on {server}."


def tracking_checks(
    record: Record,
    answered: Sequence[str],
    results: Mapping[str, Mapping[str, Any]] | None,
    userspace_only: Sequence[str] = (),
) -> list[Check]:
    """Empty if no experiments are tracked. ``results``: those of the module tracking_test; None: not checked."""
    tracking = record.get("tracking")
    if tracking is None:
        return []
    server = tracking["server"]
    made = []
    for member in record["members"]:
        machine = member["machine"]
        serves = machine == server
        name = "tracking.run" if serves else "tracking.answer"
        purpose = "A run is written and read back" if serves else "The tracking server answers the member"
        required = "read back" if serves else "answers"
        if machine in userspace_only or machine not in answered or results is None:
            reason = "Not part of this run." if results is None else f"{machine} was not asked."
            made.append(check(name, purpose, machine, "skipped", reason=reason))
            continue
        result = results.get(machine) or {}
        problem = str(result.get("problem", result.get("msg", "There is no result.")))
        if serves and not problem and not result.get("wrote"):
            problem = f"{machine} does not have the account of the check."
        status, actual = ("fail", "no") if problem else ("pass", required)
        made.append(check(name, purpose, machine, status, actual, required, "", problem, _REMEDY.format(server=server)))
    return made
