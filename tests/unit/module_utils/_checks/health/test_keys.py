# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A key or a certificate that expires is a finding a month before."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import keys, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.catalogue import DRAINING_CHECKS
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import CheckResult, ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import rest
from ansible_collections.gpumesh.cluster.tests.support import certificates

END = "2027-05-01T08:00:00Z"
AT = expiry.parse_time(END) or 0.0
DAY = 24 * 3600.0


@pytest.mark.parametrize(
    ("before", "status", "days_left", "reason"),
    [
        (180 * DAY, "pass", 180, ""),
        (30 * DAY, "pass", 30, ""),
        (30 * DAY - 1, "fail", 29, f"expires at {END}"),
        (1, "fail", 0, f"expires at {END}"),
        (0, "fail", 0, f"expired at {END}"),
        (-10 * DAY, "fail", -10, f"expired at {END}"),
    ],
)
def test_expiry_is_reported_a_month_ahead(before: float, status: str, days_left: int, reason: str) -> None:
    judged = keys.judge_key_expiry("Running" if before > 0 else "NeedsLogin", END, AT - before)
    assert (judged.status, judged.actual, judged.required) == (status, days_left, "≥ 30")
    assert reason in judged.reason and bool(judged.remedy) == (status == "fail")


@pytest.mark.parametrize("never", ["", "0001-01-01T00:00:00Z"])
def test_a_key_that_does_not_expire_passes(never: str) -> None:
    assert keys.judge_key_expiry("Running", never, AT)[:2] == ("pass", "does not expire")


@pytest.mark.parametrize("state", ["Stopped", "NoState", "Starting"])
def test_a_host_outside_of_its_tailnet_has_no_key_to_judge(state: str) -> None:
    assert keys.judge_key_expiry(state, END, AT).status == "skipped"
    assert keys.judge_key_expiry("NeedsLogin", "", AT).status == "skipped"


@pytest.mark.parametrize("text", ["soon", "2027-05-01", "2027-05-01T08:00:00+02:00", "2027-13-01T08:00:00Z"])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="time"):
        expiry.parse_time(text)


def test_fraction_of_a_second_is_dropped() -> None:
    assert expiry.parse_time("2027-05-01T08:00:00.123456789Z") == AT
    assert expiry.format_time(AT) == END


def check_key_expiry(folder: Path, tailnet: bool, end: str | None) -> CheckResult:
    """The check with the status that the daemon reports; None: there is no daemon's program."""
    self_entry = {} if not end else {"KeyExpiry": end}
    status = {"Version": "1.80", "TUN": True, "BackendState": "Running", "Self": self_entry}

    def fake(argv: object, **_options: object) -> CommandResult:
        assert argv == ["tailscale", "status", "--json"]
        return CommandResult(0, json.dumps(status), "")

    check_context = run.CheckContext(
        ExpectedState(tailnet=tailnet), Tree(str(folder)), fake, lambda name: None if end is None else f"/bin/{name}"
    )
    (result,) = run.run_selected_checks(check_context, "n1", ["mesh.key_expiry"])
    return result


def test_daemon_is_queried_if_the_cluster_has_a_tailnet(tmp_path: Path) -> None:
    assert check_key_expiry(tmp_path, True, expiry.format_time(time.time() + 100.5 * DAY))["actual"] == 100
    assert check_key_expiry(tmp_path, True, expiry.format_time(time.time() + 10.5 * DAY))["status"] == "fail"
    assert check_key_expiry(tmp_path, True, "")["status"] == "pass"
    assert check_key_expiry(tmp_path, True, "whenever")["status"] == "error"
    assert check_key_expiry(tmp_path, True, None)["status"] == "error"
    assert check_key_expiry(tmp_path, False, None)["status"] == "skipped"


def check_rest_certificate(folder: Path, *days: int) -> CheckResult:
    """The check of what a host trusts of Slurm's REST API: certificates that are valid for so many days."""
    certificate = [
        certificates.create_self_signed(folder, f"s{number}", "-days", str(count))[0]
        for number, count in enumerate(days)
    ]
    if certificate:
        trust = folder / rest.TRUST_PATH.lstrip("/")
        trust.parent.mkdir(parents=True, exist_ok=True)
        trust.write_text("".join(lifetime_days.read_text() for lifetime_days in certificate))
    check_context = run.CheckContext(
        ExpectedState(), Tree(str(folder)), lambda argv, **_options: CommandResult(1, "", "")
    )
    (result,) = run.run_selected_checks(check_context, "n1", ["slurm.rest_certificate"])
    return result


@pytest.mark.skipif(certificates.OPENSSL_MISSING, reason="not checked: there is no openssl")
@pytest.mark.parametrize(
    ("days", "status", "days_left"),
    [
        ((), "skipped", None),
        ((100,), "pass", 99),
        ((10,), "fail", 9),
        ((10, 730), "pass", 729),
        ((730, 10), "pass", 729),
    ],
)
def test_the_last_certificate_of_the_rest_api_counts(
    tmp_path: Path, days: tuple[int, ...], status: str, days_left: int | None
) -> None:
    result = check_rest_certificate(tmp_path, *days)
    assert (result["status"], result["actual"]) == (status, days_left)
    assert ("Run site" in result["remedy"]) == (status == "fail")


def test_key_expiry_drains_no_node() -> None:
    assert not {"mesh.key_expiry", "slurm.rest_certificate"} & set(DRAINING_CHECKS)
