# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of the proxy in front of slurmrestd, and how clients reach it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import rest

ROLE = Path(__file__).resolve().parents[4] / "roles" / "slurm" / "tasks"


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("10.0.0.1", ["10.0.0.1"]),
        ("127.0.0.1", ["127.0.0.1"]),
        ("0.0.0.0", ["10.99.0.1", "127.0.0.1"]),
        ("::", ["10.99.0.1", "::1"]),
        # As a client writes it.
        ("FD00:0:0::1", ["fd00::1"]),
    ],
)
def test_the_certificate_is_for_every_address_at_which_clients_reach_it(address: str, reached: list[str]) -> None:
    assert rest.reached_at(address, "10.99.0.1") == reached


def test_the_proxy_ends_tls_and_drops_its_rights() -> None:
    lines = rest.proxy_config("10.0.0.1", 6820).splitlines()
    service = lines[lines.index("[rest]") :]
    assert {"accept = 10.0.0.1:6820", "connect = /run/gpumesh-rest/socket", "sslVersionMin = TLSv1.2"} < set(service)
    # A service of a client would connect with TLS, and listen without.
    assert not any(line.startswith("client") for line in lines)
    assert {"setuid = gpumesh_rest_tls", "setgid = gpumesh_rest_tls", "foreground = yes"} < set(lines)


@pytest.mark.parametrize("file", ["leave.yml", "hand_over.yml"])
def test_who_no_longer_serves_stops_the_proxy_first(file: str) -> None:
    assert f"loop: [{rest.PROXY}, {rest.DAEMON}, slurmctld, slurmdbd]" in (ROLE / file).read_text()
