# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of experiment tracking: a run is written and read back, and every member reaches the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record, TrackingSettings
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import expiry
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.checks import make_check
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import Check

_RERUN_REMEDY = "Run the playbook tracking, and see journalctl -u gpumesh-tracking on {server}."


def tracking_checks(
    record: Record,
    answering_machines: Sequence[str],
    results_by_machine: Mapping[str, Mapping[str, Any]] | None,
    userspace_only: Sequence[str] = (),
) -> list[Check]:
    """Return the checks; none if no experiments are tracked.

    ``results_by_machine``: those of the module tracking_test; None: not checked.
    """
    tracking = record.get("tracking")
    if tracking is None:
        return []
    server = tracking["server"]
    checks = []
    for member in record["members"]:
        machine = member["machine"]
        is_server = machine == server
        check_id = "tracking.run" if is_server else "tracking.answer"
        purpose = "A run is written and read back" if is_server else "The tracking server answers the member"
        required = "read back" if is_server else "answers"
        if machine in userspace_only or machine not in answering_machines or results_by_machine is None:
            reason = "Not part of this run." if results_by_machine is None else f"{machine} was not queried."
            checks.append(make_check(check_id, purpose, machine, "skipped", reason=reason))
            continue
        result = results_by_machine.get(machine) or {}
        problem = str(result.get("problem", result.get("msg", "There is no result.")))
        if is_server and not problem and not result.get("wrote"):
            problem = f"{machine} does not have the account of the check."
        status, actual = ("fail", "no") if problem else ("pass", required)
        checks.append(
            make_check(
                check_id, purpose, machine, status, actual, required, "", problem, _RERUN_REMEDY.format(server=server)
            )
        )
        if is_server and tracking["tls"]:
            checks.append(_certificate_check(tracking, result))
    return checks


def _certificate_check(tracking: TrackingSettings, result: Mapping[str, Any]) -> Check:
    """Check whether the certificate that the server uses remains valid for some time.

    A certificate of the server's own is replaced by the next run before it expires, if the members already trust its
    successor.
    """
    check_title = (
        "tracking.certificate",
        "The certificate of the tracking server is valid for a month",
        tracking["server"],
    )
    days_left = result.get("days_left")
    if days_left is None:
        return make_check(*check_title, "skipped", reason="The server did not show its certificate.")
    own_certificates = tracking["certificates"]
    min_days = 1 if own_certificates[1:] else expiry.NOTICE_DAYS
    status = "pass" if days_left >= min_days else "fail"
    remedy = "" if own_certificates else "Set tracking_certificate_file and tracking_key_file to a new pair. "
    remedy += "Run the playbook tracking" + (", which renews it." if own_certificates else ".")
    reason = f"The certificate of the tracking server expires at {result.get('expires')}; then no metrics arrive."
    return make_check(*check_title, status, days_left, f"≥ {min_days}", "days", reason, remedy)
