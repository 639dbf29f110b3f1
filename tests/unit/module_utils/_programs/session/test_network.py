# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What sessions can reach of the cluster."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import network, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings

MEMBERS = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
HOST_SETTINGS = SessionSettings("n1", "n1", "eth0", MEMBERS, ["10.192.0.0/10"], [], True, [], [], [], "/var/tmp/{user}")


def test_allowed_endpoints_are_parsed() -> None:
    assert network.parse_allowed_endpoints(["10.0.0.5:5000", "10.1.0.0/16:443"]) == [
        ("10.0.0.5", 5000),
        ("10.1.0.0/16", 443),
    ]


@pytest.mark.parametrize(
    "text", ["10.0.0.5", "10.0.0.256:80", "10.0.0.0/33:80", "10.0.0.5:0", "10.0.0.5:65536", "n1:80"]
)
def test_endpoints_invalid_for_nftables_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="session_allow"):
        network.parse_allowed_endpoints([text])


def container_macs(job: int) -> set[str]:
    """Return the MAC addresses that the network of a session of this job uses among its containers."""
    session = plan.place_containers(
        plan.parse_token("+;demo;main,sub;1,0+0,2"), 5, list(MEMBERS), MEMBERS, HOST_SETTINGS.pools
    )
    wanted = network.network_commands(job, session[0], session, HOST_SETTINGS, 1500)
    lines = [line for line in wanted.namespace_lines if " dev out0 " not in line] + wanted.bridge_lines
    return {word for line in lines for word in line.split() if word.count(":") == 5}


def test_jobs_with_the_same_slot_have_different_macs() -> None:
    assert container_macs(7) == {"02:00:00:00:07:00", "02:00:00:00:07:01", "02:00:00:00:07:02"}
    assert not container_macs(7) & container_macs(8)


def test_largest_job_id_and_rank_have_a_mac() -> None:
    token = plan.parse_token(f"+;demo;main,sub;{plan.MAX_CONTAINERS - 1},1")
    last = plan.place_containers(token, 65535, ["n1"], MEMBERS, ["10.0.0.0/8"])[-1]
    assert network.container_mac((1 << 32) - 1, last) == "02:ff:ff:ff:ff:f9"
