# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connections of every kind of pair."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError, RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.topology import (
    check_connectivity,
    list_relayed_pairs,
    plan_tunnel,
    read_mesh,
    replace_public_keys,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.wireguard import make_desired
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._layers.mesh.hosts import key, member, record

HEAD = member("head", 1, "a", "203.0.113.1:51820")
DIALLED = member("dialled", 2, "b", "203.0.113.2:51820")
NAT_C = member("nat-c", 3, "c")
NAT_D = member("nat-d", 4, "d")
LAN_1 = member("lan-1", 5, "e", address="192.168.1.1")
LAN_2 = member("lan-2", 6, "e", address="192.168.1.2")


def peers_of(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {peer["machine"]: peer for peer in plan["peers"]}


def test_plan_contains_everything_the_module_needs() -> None:
    plan = plan_tunnel(read_mesh(record(HEAD, DIALLED)), "head")
    assert plan == {
        "public_key": key("head"),
        "interface": "gpumesh0",
        "address": "10.99.0.1/16",
        "listen_port": 51820,
        "mtu": 1420,
        "peers": [
            {
                "machine": "dialled",
                "public_key": key("dialled"),
                "endpoint": "203.0.113.2:51820",
                "allowed_ips": ["10.99.0.2/32"],
                "persistent_keepalive": 0,
            }
        ],
        "relayed": [],
        "relay": False,
        "pending": [],
    }


def test_mtu_of_the_record_overrides_the_default() -> None:
    assert plan_tunnel(read_mesh(record(HEAD, mtu=1380)), "head")["mtu"] == 1380


def test_members_of_one_site_connect_to_lan_addresses() -> None:
    plan = peers_of(plan_tunnel(read_mesh(record(LAN_1, LAN_2)), "lan-1"))
    assert plan["lan-2"]["endpoint"] == "192.168.1.2:51820"
    assert plan["lan-2"]["persistent_keepalive"] == 0


def test_members_with_lan_addresses_connect_at_their_site() -> None:
    near = {**member("near", 7, "e"), "lan_address": "192.168.1.7"}
    local_plan = {**member("here", 8, "e", "203.0.113.8:51820"), "lan_address": "192.168.1.8"}
    mesh = read_mesh(record(HEAD, near, local_plan))
    # The packets do not use the endpoint: they stay on the site's own network, and no NAT mapping has to be kept.
    assert peers_of(plan_tunnel(mesh, "near"))["here"]["endpoint"] == "192.168.1.8:51820"
    assert peers_of(plan_tunnel(mesh, "here"))["near"]["endpoint"] == "192.168.1.7:51820"
    assert {peer["persistent_keepalive"] for peer in plan_tunnel(mesh, "here")["peers"]} == {0}
    assert peers_of(plan_tunnel(mesh, "head"))["here"]["endpoint"] == "203.0.113.8:51820"
    # A member that is not on that network is reached as from elsewhere.
    apart = {**local_plan, "lan_address": None}
    mesh = read_mesh(record(HEAD, near, apart))
    assert peers_of(plan_tunnel(mesh, "near"))["here"]["endpoint"] == "203.0.113.8:51820"
    assert peers_of(plan_tunnel(mesh, "here"))["near"]["endpoint"] is None
    # Two members of a site without endpoints need a relay if one is not on its network.
    hidden = {**apart, "endpoint": None}
    assert list_relayed_pairs(read_mesh(record(HEAD, near, hidden))) == [{"a": "near", "b": "here", "relay": "head"}]
    assert plan_tunnel(read_mesh(record(HEAD, near, hidden)), "head")["relay"]


def test_mesh_address_is_not_a_lan_address() -> None:
    """Connecting to it would send the tunnel through itself."""
    twin = member("twin", 9, "a")
    plan = peers_of(plan_tunnel(read_mesh(record(HEAD, twin)), "twin"))
    assert plan["head"]["endpoint"] == "203.0.113.1:51820"


def test_only_the_side_without_an_endpoint_sends_keepalives() -> None:
    mesh = read_mesh(record(HEAD, NAT_C))
    assert peers_of(plan_tunnel(mesh, "nat-c"))["head"]["persistent_keepalive"] == 25
    seen_from_head = peers_of(plan_tunnel(mesh, "head"))["nat-c"]
    assert (seen_from_head["endpoint"], seen_from_head["persistent_keepalive"]) == (None, 0)


def test_members_without_endpoints_are_relayed_by_the_manager() -> None:
    mesh = read_mesh(record(HEAD, DIALLED, NAT_C, NAT_D))
    plan = plan_tunnel(mesh, "nat-c")
    assert plan["relayed"] == [{"machine": "nat-d", "relay": "head"}]
    assert peers_of(plan)["head"]["allowed_ips"] == ["10.99.0.1/32", "10.99.0.4/32"]
    assert set(peers_of(plan)) == {"head", "dialled"}
    assert plan_tunnel(mesh, "head")["relay"]
    assert not plan_tunnel(mesh, "dialled")["relay"]
    assert list_relayed_pairs(mesh) == [{"a": "nat-c", "b": "nat-d", "relay": "head"}]


def test_mesh_relays_come_before_the_manager_and_in_order() -> None:
    mesh = read_mesh(record(NAT_C, NAT_D, DIALLED, HEAD), requested_relays=["dialled", "head"])
    assert list_relayed_pairs(mesh) == [{"a": "nat-c", "b": "nat-d", "relay": "dialled"}]
    assert plan_tunnel(mesh, "dialled")["relay"]


def test_missing_relay_is_refused_with_the_pair_and_the_remedy() -> None:
    for refuse in (lambda mesh: plan_tunnel(mesh, "nat-c"), list_relayed_pairs, check_connectivity):
        with pytest.raises(InputError, match=r"nat-c \(site c\) and nat-d \(site d\).*mesh_relays") as refused:
            refuse(read_mesh(record(NAT_C, NAT_D)))
        assert refused.value.details["pair"] == ["nat-c", "nat-d"]


def test_members_without_endpoints_at_one_site_need_no_relay() -> None:
    assert list_relayed_pairs(read_mesh(record(LAN_1, LAN_2))) == []
    assert not plan_tunnel(read_mesh(record(LAN_1, LAN_2)), "lan-1")["relay"]


def test_unknown_relay_is_refused_with_the_candidates() -> None:
    with pytest.raises(InputError, match="head, dialled") as refused:
        read_mesh(record(HEAD, DIALLED), requested_relays=["gone"])
    assert refused.value.details == {"relays": ["gone"]}


def test_members_without_a_key_or_behind_such_a_relay_are_pending() -> None:
    keyless = {**HEAD, "mesh": {"address": "10.99.0.1", "public_key": None}}
    plan = plan_tunnel(read_mesh(record(keyless, NAT_C, NAT_D)), "nat-c")
    assert plan["pending"] == ["head", "nat-d"]
    assert plan["peers"] == []


def test_unknown_machines_and_members_without_address_are_refused() -> None:
    with pytest.raises(InputError, match="stranger is not among the members"):
        plan_tunnel(read_mesh(record(HEAD)), "stranger")
    with pytest.raises(InputError, match="mesh_backend"):
        plan_tunnel(read_mesh(record({**HEAD, "mesh": None})), "head")
    with pytest.raises(RecordError, match="no usable mesh"):
        read_mesh({**record(HEAD), "mesh": {"backend": "none"}})


def test_replacing_public_keys_does_not_change_the_record() -> None:
    given_record = record(HEAD, {**DIALLED, "mesh": None})
    changed = replace_public_keys(given_record, {"head": key("new"), "dialled": key("other")})
    assert changed["members"][0]["mesh"] == {"address": "10.99.0.1", "public_key": key("new")}
    assert changed["members"][1]["mesh"] is None
    assert given_record["members"][0]["mesh"]["public_key"] == key("head")


_MEMBERS = st.lists(
    st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from(["", "address", "lan_address"])),
    min_size=1,
    max_size=12,
).map(
    lambda rows: [
        {
            **member(f"m{number}", number, site, f"203.0.113.{number}:51820" if endpoint else None),
            **({lan: f"192.168.{ord(site)}.{number}"} if lan else {}),
        }
        for number, (site, endpoint, lan) in enumerate(rows, start=1)
    ]
)


@given(_MEMBERS)
def test_both_members_of_every_pair_agree_on_the_path(members: list[dict[str, Any]]) -> None:
    """Each address has one owner, and what a member sends arrives from a peer that is allowed to send it."""
    mesh = read_mesh(record(*members))
    try:
        list_relayed_pairs(mesh)
    except InputError:
        return
    owners = {}
    for machine in mesh.nodes_by_machine:
        plan = plan_tunnel(mesh, machine)
        expected = make_desired(plan["interface"], plan["address"], plan["listen_port"], plan["mtu"], plan["peers"])
        owners[machine] = {network: peer.machine for peer in expected.peers for network in peer.allowed_ips}
        assert len(owners[machine]) == len(members) - 1
    for a in mesh.nodes_by_machine.values():
        for b in mesh.nodes_by_machine.values():
            if a is b:
                continue
            via = owners[a.machine][f"{b.mesh_address}/32"]
            back = owners[b.machine][f"{a.mesh_address}/32"]
            # Directly on both sides, or through the same relay on both.
            assert (via, back) == (b.machine, a.machine) or (via == back and plan_tunnel(mesh, via)["relay"])
            if via == b.machine:
                dialled = peers_of(plan_tunnel(mesh, a.machine))[b.machine]["endpoint"]
                answered = peers_of(plan_tunnel(mesh, b.machine))[a.machine]["endpoint"]
                assert dialled or answered
