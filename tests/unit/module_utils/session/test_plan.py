# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All nodes derive the same places, no two sessions have the same subnet, and the job says which are taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import job, plan, spec
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Component, Token

POOLS = ["10.192.0.0/10", "192.168.8.0/22"]
MEMBERS = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"}
ALIKE = [{"name": "main", "image": "x"}, {"name": "sub", "replicas": 3, "image": "y"}]
APART = [ALIKE[0], {**ALIKE[1], "gpus": 1}]


def components(roles: list[dict[str, object]], nodes: int) -> tuple[Component, ...]:
    return plan.components(spec.parse({"name": "demo", "roles": roles}), nodes)


def test_roles_of_one_size_are_one_component() -> None:
    assert components(ALIKE, 4) == (Component(1, (("main", 1), ("sub", 3))),)
    assert components(ALIKE, 3) == (Component(2, (("main", 1), ("sub", 3))),)
    # No node is in two components, so that one of three is main's.
    assert components(APART, 3) == (Component(1, (("main", 1),)), Component(3, (("sub", 3),)))
    assert components([{**ALIKE[0], "replicas": 1}, {**APART[1], "per_node": 1}], 2)[1].nodes == 3


def test_places() -> None:
    token = Token(5, "demo", components(APART, 9))
    found = plan.places(token, [["n1"], ["n1", "n2", "n3"]], MEMBERS, POOLS)
    assert [(one.name, one.node, one.address, one.vni) for one in found] == [
        ("main1", "n1", "10.192.5.1", 0x501),
        ("sub1", "n1", "10.192.5.2", 0x502),
        ("sub2", "n2", "10.192.5.3", 0x503),
        ("sub3", "n3", "10.192.5.4", 0x504),
    ]
    assert found[1].mac == "02:67:6d:00:05:02"
    with pytest.raises(InputError, match="needs 3 nodes"):
        plan.places(token, [["n1"], ["n2"]], MEMBERS, POOLS)


def test_without_a_network_of_its_own_a_container_has_its_nodes_address() -> None:
    host = spec.parse({"name": "demo", "roles": ALIKE, "network": "host"})
    (first, *_rest) = plan.places(plan.token_of(host, 4, 7), [["n3", "n1", "n2", "n4"]], MEMBERS, POOLS)
    assert (first.address, first.vni) == ("10.0.0.3", 0)


@given(st.integers(0, 16387), st.integers(0, 16387))
def test_no_two_slots_share_an_address_or_an_identifier(one: int, other: int) -> None:
    subnets = plan.subnet(POOLS, one), plan.subnet(POOLS, other)
    assert (one == other) == subnets[0].overlaps(subnets[1])


def test_a_pool_that_is_used_up_is_told() -> None:
    assert plan.slots(["10.0.0.0/22"]) == 4
    assert plan.free_slot(["10.0.0.0/22"], [3, 0], 3) == 1
    with pytest.raises(InputError, match="All 4 subnets"):
        plan.free_slot(["10.0.0.0/22"], range(4), 2)


@pytest.mark.parametrize("pools", [[], ["10.0.0.0/25"], ["10.0.0.1/8"], ["10.0.0.0/8", "10.1.0.0/16"], ["fd00::/64"]])
def test_pools_that_cannot_be_used(pools: list[str]) -> None:
    with pytest.raises(InputError, match="session_subnets"):
        plan.parse_pools(pools)


def test_a_token_is_read_as_it_was_written_and_nothing_else_is() -> None:
    for slot in (-1, 0, 65535):
        token = Token(slot, "demo", components(APART, 3))
        assert plan.parse_token(plan.token_text(token)) == token
    for wrong in (
        "",
        "1;demo",
        "1;demo;0/main:1",
        "1;demo;1/main:0",
        "1;demo;1/main:251",
        "1;a b;1/main:1",
        "x;d;1/m:1",
    ):
        with pytest.raises(InputError):
            plan.parse_token(wrong)


def test_the_queue() -> None:
    text = (
        "7|7|alice|RUNNING|n[1-2]|None|gpumesh-session 5;demo;1/main:1,sub:1 running\n"
        "8|8+0|bob|PENDING||Resources|gpumesh-session 9;web;1/main:1+1/sub:1 waiting\n"
        "9|8+1|bob|PENDING||Resources|gpumesh-session 9;web;1/main:1+1/sub:1 waiting\n"
        "10|10|eve|RUNNING|n3|None|gpumesh-session nonsense\n11|11|eve|RUNNING|n3|None|mine\n"
    )
    demo, web = job.parse_queue(text)
    assert (demo.job, demo.stage, demo.nodes, demo.token.slot) == (7, "running", [["n1", "n2"]], 5)
    assert (web.job, web.stage, web.nodes, web.reason) == (8, "waiting", [[], []], "Resources")
