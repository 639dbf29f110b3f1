# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of a cluster's table, and the values that are refused. tests/integration covers that nft accepts it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.firewall import rules
from ansible_collections.gpumesh.cluster.plugins.module_utils.firewall.ssh import Connection, Reached


def text(**given: Any) -> str:
    given.setdefault("members", ["10.0.0.2", "10.0.0.1"])
    return rules.render_part(rules.make_desired("lab", given))


def accepted(rendered: str) -> list[str]:
    """The rules of the chain that comes first."""
    lines = rendered.partition("\tchain accepted {\n")[2].partition("\t}\n")[0].splitlines()
    assert all(line.endswith(" accept") for line in lines)
    return [line.strip() for line in lines]


def closed(rendered: str) -> list[str]:
    lines = rendered.partition("\tchain closed {\n")[2].partition("\t}\n")[0].splitlines()
    assert all(line.endswith(" counter drop") for line in lines)
    return [line.strip() for line in lines]


def test_only_the_own_table_is_replaced() -> None:
    table = f"table inet {rules.TABLE}"
    assert rules.FRAME.splitlines()[:4] == [rules.MARK, table, f"delete {table}", f"{table} {{"]
    assert "flush ruleset" not in rules.FRAME


def test_members_are_let_in_before_anything_is_dropped() -> None:
    assert rules.FRAME.index("jump accepted") < rules.FRAME.index("jump closed")
    assert "policy accept" in rules.FRAME
    rendered = text(tcp_ports=["2049"])
    assert "elements = { 10.0.0.1, 10.0.0.2 }" in rendered
    assert accepted(rendered) == ["ip saddr @member_lab_4 accept"]
    (rule,) = closed(rendered)
    assert rule.startswith("tcp dport { 2049 } tcp flags")


def test_addresses_of_the_mesh_count_only_on_its_interface() -> None:
    rendered = text(members=[], mesh_members=["10.99.0.1"], mesh_interface="gpumesh0")
    assert accepted(rendered) == ['iifname "gpumesh0" ip saddr @mesh_lab_4 accept']


def test_the_tunnel_stays_open_within_the_ephemeral_range() -> None:
    rendered = text(udp_ports=["32768-60999"], open_udp_ports=["51820"])
    assert "udp dport { 51820 } accept" in accepted(rendered)
    assert closed(rendered) == ["udp dport { 32768-60999 } counter drop"]


def test_ssh_is_closed_only_when_somebody_is_let_in() -> None:
    assert "dport 22" not in text()
    rendered = text(ssh_from=["192.0.2.0/24"])
    assert "tcp dport 22 ip saddr @ssh_lab_4 accept" in accepted(rendered)
    assert closed(rendered)[0].startswith("tcp dport 22 tcp flags")


def test_both_families_have_their_sets() -> None:
    rendered = text(members=["10.0.0.1", "2001:db8::1"])
    assert "type ipv6_addr" in rendered
    assert "ip6 saddr @member_lab_6 accept" in accepted(rendered)


def test_a_range_does_not_close_ssh() -> None:
    given = {"members": ["10.0.0.1"], "tcp_ports": ["111", "15000-28999"], "ssh_port": 22222}
    desired = rules.make_desired("lab", given, Reached((111, 15000, 22223), (Connection(15000, "192.0.2.7"),)))
    assert desired.tcp_ports == ("15001-22221", "22224-28999")
    assert rules.make_desired("lab", {**given, "ssh_port": 28999}).tcp_ports == ("111", "15000-28998")


@pytest.mark.parametrize("peer", ["192.0.2.7", "2001:db8::7"])
def test_the_connection_of_the_module_is_not_closed(peer: str) -> None:
    given = {"members": ["10.0.0.1"], "ssh_from": ["198.51.100.0/24"]}
    with pytest.raises(InputError) as refused:
        rules.make_desired("lab", given, Reached((22,), (Connection(22, peer),)))
    assert refused.value.as_result()["address"] == peer
    for accepted in ({"ssh_from": []}, {"trusted": [peer]}, {"members": [peer]}, {"ssh_from": [peer]}):
        own = [Connection(22, one) for one in (peer, "127.0.0.1", "::1")]
        assert rules.make_desired("lab", {**given, **accepted}, Reached((22,), tuple(own)))
    # It is not restricted on another port.
    assert rules.make_desired("lab", given, Reached((22, 2222), (Connection(2222, peer),)))


def test_an_admission_extends_an_earlier_one() -> None:
    lines = rules.render_admission(["10.0.0.2", "2001:db8::1"], 900).splitlines()
    assert [line.split()[0] for line in lines] == ["add", "delete", "add"] * 2
    assert "timeout 900s" in lines[2] and "timeout 900s" in lines[5]
    assert rules.render_admission([], 900) == ""
    with pytest.raises(InputError):
        rules.render_admission(["10.0.0.0/8"], 900)


def test_overlapping_ports_are_merged() -> None:
    desired = rules.make_desired("lab", {"members": ["10.0.0.1"], "tcp_ports": ["6818", "2049", "6817-6819", "6820"]})
    assert desired.tcp_ports == ("2049", "6817-6820")


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
