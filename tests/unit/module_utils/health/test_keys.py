# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A key or a certificate that expires is a finding a month before."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import keys, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.program import DRAIN_ON
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.shapes import Expected, Result
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import rest
from ansible_collections.gpumesh.cluster.tests.support import certificates

END = "2027-05-01T08:00:00Z"
AT = expiry.moment(END) or 0.0
DAY = 24 * 3600.0


@pytest.mark.parametrize(
    ("before", "status", "left", "said"),
    [
        (180 * DAY, "pass", 180, ""),
        (30 * DAY, "pass", 30, ""),
        (30 * DAY - 1, "fail", 29, f"expires at {END}"),
        (1, "fail", 0, f"expires at {END}"),
        (0, "fail", 0, f"expired at {END}"),
        (-10 * DAY, "fail", -10, f"expired at {END}"),
    ],
)
def test_it_is_reported_a_month_ahead(before: float, status: str, left: int, said: str) -> None:
    judged = keys.judge("Running" if before > 0 else "NeedsLogin", END, AT - before)
    assert (judged.status, judged.actual, judged.required) == (status, left, "≥ 30")
    assert said in judged.reason and bool(judged.remedy) == (status == "fail")


@pytest.mark.parametrize("never", ["", "0001-01-01T00:00:00Z"])
def test_a_key_that_does_not_expire_passes(never: str) -> None:
    assert keys.judge("Running", never, AT)[:2] == ("pass", "does not expire")


@pytest.mark.parametrize("state", ["Stopped", "NoState", "Starting"])
def test_a_host_outside_of_its_tailnet_has_no_key_to_judge(state: str) -> None:
    assert keys.judge(state, END, AT).status == "skipped"
    assert keys.judge("NeedsLogin", "", AT).status == "skipped"


@pytest.mark.parametrize("text", ["soon", "2027-05-01", "2027-05-01T08:00:00+02:00", "2027-13-01T08:00:00Z"])
def test_another_text_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="time"):
        expiry.moment(text)


def test_a_fraction_of_a_second_is_left_out() -> None:
    assert expiry.moment("2027-05-01T08:00:00.123456789Z") == AT
    assert expiry.shown(AT) == END


def checked(folder: Path, tailnet: bool, end: str | None) -> Result:
    """The check with the status that the daemon reports; None: there is no daemon's program."""
    own = {} if not end else {"KeyExpiry": end}
    status = {"Version": "1.80", "TUN": True, "BackendState": "Running", "Self": own}

    def fake(argv: object, **_options: object) -> Completed:
        assert argv == ["tailscale", "status", "--json"]
        return Completed(0, json.dumps(status), "")

    here = run.Context(
        Expected(tailnet=tailnet), Tree(str(folder)), fake, lambda name: None if end is None else f"/bin/{name}"
    )
    (result,) = run.make_checks(here, "n1", ["mesh.key_expiry"])
    return result


def test_the_daemon_is_asked_if_the_cluster_has_a_tailnet(tmp_path: Path) -> None:
    assert checked(tmp_path, True, expiry.shown(time.time() + 100.5 * DAY))["actual"] == 100
    assert checked(tmp_path, True, expiry.shown(time.time() + 10.5 * DAY))["status"] == "fail"
    assert checked(tmp_path, True, "")["status"] == "pass"
    assert checked(tmp_path, True, "whenever")["status"] == "error"
    assert checked(tmp_path, True, None)["status"] == "error"
    assert checked(tmp_path, False, None)["status"] == "skipped"


def trusting(folder: Path, *days: int) -> Result:
    """The check of what a host trusts of Slurm's REST API: certificates that are valid for so many days."""
    made = [certificates.self_signed(folder, f"s{number}", "-days", str(count))[0] for number, count in enumerate(days)]
    if made:
        trust = folder / rest.TRUST.lstrip("/")
        trust.parent.mkdir(parents=True, exist_ok=True)
        trust.write_text("".join(one.read_text() for one in made))
    here = run.Context(Expected(), Tree(str(folder)), lambda argv, **_options: Completed(1, "", ""))
    (result,) = run.make_checks(here, "n1", ["slurm.rest_certificate"])
    return result


@pytest.mark.skipif(certificates.MISSING, reason="not checked: there is no openssl")
@pytest.mark.parametrize(
    ("days", "status", "left"),
    [
        ((), "skipped", None),
        ((100,), "pass", 99),
        ((10,), "fail", 9),
        ((10, 730), "pass", 729),
        ((730, 10), "pass", 729),
    ],
)
def test_the_last_certificate_of_the_rest_api_counts(
    tmp_path: Path, days: tuple[int, ...], status: str, left: int | None
) -> None:
    result = trusting(tmp_path, *days)
    assert (result["status"], result["actual"]) == (status, left)
    assert ("Run site" in result["remedy"]) == (status == "fail")


def test_no_node_is_drained_for_it() -> None:
    assert not {"mesh.key_expiry", "slurm.rest_certificate"} & set(DRAIN_ON)
