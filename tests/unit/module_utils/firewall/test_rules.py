# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of a cluster's table, and the values that are refused. tests/integration covers that nft accepts it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.firewall import rules
from ansible_collections.gpumesh.cluster.plugins.module_utils.firewall.ssh import Reached


def text(**given: Any) -> str:
    given.setdefault("members", ["10.0.0.2", "10.0.0.1"])
    return rules.render(rules.make_desired("lab", given))


def test_only_the_table_of_the_cluster_is_replaced() -> None:
    lines = text().splitlines()
    assert lines[:4] == [
        rules.MARK,
        "table inet gpumesh_lab",
        "delete table inet gpumesh_lab",
        "table inet gpumesh_lab {",
    ]
    assert "flush ruleset" not in text()


def test_members_are_let_in_before_anything_is_dropped() -> None:
    rendered = text(tcp_ports=["2049"])
    assert "elements = { 10.0.0.1, 10.0.0.2 }" in rendered
    assert rendered.index("ip saddr @member4 accept") < rendered.index("tcp dport { 2049 } tcp flags")
    assert "policy accept" in rendered


def test_addresses_of_the_mesh_count_only_on_its_interface() -> None:
    rendered = text(members=[], mesh_members=["10.99.0.1"], mesh_interface="gpumesh0")
    assert 'iifname "gpumesh0" ip saddr @mesh4 accept' in rendered
    assert "\t\tip saddr @mesh4" not in rendered


def test_the_tunnel_stays_open_within_the_ephemeral_range() -> None:
    rendered = text(udp_ports=["32768-60999"], open_udp_ports=["51820"])
    assert rendered.index("udp dport { 51820 } accept") < rendered.index("udp dport { 32768-60999 } counter drop")


def test_ssh_is_closed_only_when_somebody_is_let_in() -> None:
    assert "dport { 22 }" not in text()
    rendered = text(ssh_from=["192.0.2.0/24"])
    assert rendered.index("tcp dport { 22 } ip saddr @ssh4 accept") < rendered.index("tcp dport { 22 } tcp flags")


def test_a_range_does_not_close_ssh() -> None:
    given = {"members": ["10.0.0.1"], "tcp_ports": ["111", "15000-28999"], "ssh_port": 22222}
    desired = rules.make_desired("lab", given, Reached((111, 15000, 22223), ("192.0.2.7",)))
    assert desired.tcp_ports == ("15001-22221", "22224-28999")
    assert rules.make_desired("lab", {**given, "ssh_port": 28999}).tcp_ports == ("111", "15000-28998")


@pytest.mark.parametrize("peer", ["192.0.2.7", "2001:db8::7"])
def test_the_connection_of_the_module_is_not_closed(peer: str) -> None:
    given = {"members": ["10.0.0.1"], "ssh_from": ["198.51.100.0/24"]}
    with pytest.raises(InputError) as refused:
        rules.make_desired("lab", given, Reached((22,), (peer,)))
    assert refused.value.as_result()["address"] == peer
    for accepted in ({"ssh_from": []}, {"trusted": [peer]}, {"members": [peer]}, {"ssh_from": [peer]}):
        assert rules.make_desired("lab", {**given, **accepted}, Reached((22,), (peer, "127.0.0.1", "::1")))


def test_both_families_have_their_sets() -> None:
    rendered = text(members=["10.0.0.1", "2001:db8::1"])
    assert "type ipv6_addr" in rendered
    assert "ip6 saddr @member6 accept" in rendered


def test_overlapping_ports_are_merged() -> None:
    desired = rules.make_desired("lab", {"members": ["10.0.0.1"], "tcp_ports": ["6818", "2049", "6817-6819", "6820"]})
    assert desired.tcp_ports == ("2049", "6817-6820")


def test_each_cluster_has_a_table_of_its_own() -> None:
    assert [rules.table_of(name) for name in ("my-lab", "my_lab")] == ["gpumesh_my-lab", "gpumesh_my_lab"]


def test_the_ephemeral_range_of_the_kernel() -> None:
    assert rules.ephemeral_range("32768\t60999\n") == "32768-60999"
    with pytest.raises(InputError):
        rules.ephemeral_range("")


@pytest.mark.parametrize(
    "given",
    [
        {"members": []},
        {"members": ["10.0.0.0/8"]},
        {"members": ["gpu1"]},
        {"mesh_members": ["10.99.0.1"]},
        {"mesh_members": ["10.99.0.1"], "mesh_interface": 'x" accept'},
        {"trusted": ["10.0.0.1/8"]},
        {"tcp_ports": ["0"]},
        {"tcp_ports": ["9-1"]},
        {"tcp_ports": ["1-70000"]},
        {"udp_ports": ["ssh"]},
    ],
)
def test_bad_input_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        text(**given)
