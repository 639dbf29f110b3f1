# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What sessions can reach of the cluster."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import network, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Settings

MEMBERS = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
HERE = Settings("n1", "n1", "eth0", MEMBERS, ["10.192.0.0/10"], [], True, [], [], [], "/var/tmp/{user}")


def test_addresses_with_ports() -> None:
    assert network.parse_allowed(["10.0.0.5:5000", "10.1.0.0/16:443"]) == [("10.0.0.5", 5000), ("10.1.0.0/16", 443)]


@pytest.mark.parametrize(
    "text", ["10.0.0.5", "10.0.0.256:80", "10.0.0.0/33:80", "10.0.0.5:0", "10.0.0.5:65536", "n1:80"]
)
def test_what_nftables_would_not_load_is_refused_before(text: str) -> None:
    with pytest.raises(InputError, match="session_allow"):
        network.parse_allowed([text])


def macs(job: int) -> set[str]:
    """Those that the network of a session of this job uses among its containers."""
    session = plan.places(plan.parse_token("+;demo;main,sub;1,0+0,2"), 5, list(MEMBERS), MEMBERS, HERE.pools)
    wanted = network.commands(job, session[0], session, HERE, 1500)
    lines = [line for line in wanted.inside if " dev out0 " not in line] + wanted.bridge
    return {word for line in lines for word in line.split() if word.count(":") == 5}


def test_jobs_with_the_same_slot_have_no_address_in_common() -> None:
    assert macs(7) == {"02:00:00:00:07:00", "02:00:00:00:07:01", "02:00:00:00:07:02"}
    assert not macs(7) & macs(8)


def test_the_largest_job_and_rank_have_an_address() -> None:
    token = plan.parse_token(f"+;demo;main,sub;{plan.MOST_CONTAINERS - 1},1")
    last = plan.places(token, 65535, ["n1"], MEMBERS, ["10.0.0.0/8"])[-1]
    assert network.mac((1 << 32) - 1, last) == "02:ff:ff:ff:ff:f9"
