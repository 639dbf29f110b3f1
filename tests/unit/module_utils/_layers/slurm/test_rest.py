# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of the proxy in front of slurmrestd, and how clients reach it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import rest

ROLE_TASKS = Path(__file__).resolve().parents[5] / "roles" / "slurm" / "tasks"


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("10.0.0.1", ["10.0.0.1"]),
        ("127.0.0.1", ["127.0.0.1"]),
        ("0.0.0.0", ["10.99.0.1", "127.0.0.1"]),
        ("::", ["10.99.0.1", "::1"]),
        # A client writes an IPv6 address like this.
        ("FD00:0:0::1", ["fd00::1"]),
    ],
)
def test_client_addresses(address: str, reached: list[str]) -> None:
    assert rest.client_addresses(address, "10.99.0.1") == reached


def test_proxy_terminates_tls_and_drops_privileges() -> None:
    lines = rest.render_proxy_config("10.0.0.1", 6820).splitlines()
    service = lines[lines.index("[rest]") :]
    assert {"accept = 10.0.0.1:6820", "connect = /run/gpumesh-rest/socket", "sslVersionMin = TLSv1.2"} < set(service)
    # A service of a client would connect with TLS, and listen without.
    assert not any(line.startswith("client") for line in lines)
    assert {"setuid = gpumesh_rest_tls", "setgid = gpumesh_rest_tls", "foreground = yes"} < set(lines)


@pytest.mark.parametrize("file", ["leave.yml", "hand_over.yml"])
def test_former_server_stops_the_proxy_first(file: str) -> None:
    assert f"loop: [{rest.PROXY_SERVICE}, {rest.REST_DAEMON}, slurmctld, slurmdbd]" in (ROLE_TASKS / file).read_text()
