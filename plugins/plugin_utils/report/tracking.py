# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether experiments are tracked: a run is written and read back, and every member reaches the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record, Tracking
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
        if serves and tracking["tls"]:
            made.append(_certificate_check(tracking, result))
    return made


def _certificate_check(tracking: Tracking, result: Mapping[str, Any]) -> Check:
    """Whether the certificate that the server uses is valid for some time.

    One that the server has made is replaced by the next run once it expires, if the members trust the next one already.
    """
    title = ("tracking.certificate", "The certificate of the tracking server is valid for a month", tracking["server"])
    left = result.get("days_left")
    if left is None:
        return check(*title, "skipped", reason="The server did not show its certificate.")
    own = tracking["certificates"]
    least = 1 if own[1:] else expiry.NOTICE
    status = "pass" if left >= least else "fail"
    remedy = "" if own else "Set tracking_certificate_file and tracking_key_file to a new pair. "
    remedy += "Run the playbook tracking" + (", which renews it." if own else ".")
    reason = f"The certificate of the tracking server expires at {result.get('expires')}; then no metrics arrive."
    return check(*title, status, left, f"≥ {least}", "days", reason, remedy)
