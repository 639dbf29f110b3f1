# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of a cluster's table, and the values that are refused. tests/integration covers that nft accepts it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import rules
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.ssh import SshAccess, SshConnection


def render(**parameters: Any) -> str:
    parameters.setdefault("members", ["10.0.0.2", "10.0.0.1"])
    return rules.render_cluster_rules(rules.parse_desired_firewall("lab", parameters))


def accept_rules(rendered: str) -> list[str]:
    """The rules of the chain that comes first."""
    lines = rendered.partition("\tchain accepted {\n")[2].partition("\t}\n")[0].splitlines()
    assert all(line.endswith(" accept") for line in lines)
    return [line.strip() for line in lines]


def drop_rules(rendered: str) -> list[str]:
    lines = rendered.partition("\tchain closed {\n")[2].partition("\t}\n")[0].splitlines()
    assert all(line.endswith(" counter drop") for line in lines)
    return [line.strip() for line in lines]


def test_only_our_table_is_replaced() -> None:
    table = f"table inet {rules.TABLE_NAME}"
    assert rules.TABLE_FRAME.splitlines()[:4] == [rules.MANAGED_HEADER, table, f"delete {table}", f"{table} {{"]
    assert "flush ruleset" not in rules.TABLE_FRAME


def test_members_are_accepted_before_drops() -> None:
    assert rules.TABLE_FRAME.index("jump accepted") < rules.TABLE_FRAME.index("jump closed")
    assert "policy accept" in rules.TABLE_FRAME
    rendered = render(tcp_ports=["2049"])
    assert "elements = { 10.0.0.1, 10.0.0.2 }" in rendered
    assert accept_rules(rendered) == ["ip saddr @member_lab_4 accept"]
    (rule,) = drop_rules(rendered)
    assert rule.startswith("tcp dport { 2049 } tcp flags")


def test_mesh_addresses_are_accepted_only_on_the_mesh_interface() -> None:
    rendered = render(members=[], mesh_members=["10.99.0.1"], mesh_interface="gpumesh0")
    assert accept_rules(rendered) == ['iifname "gpumesh0" ip saddr @mesh_lab_4 accept']


def test_tunnel_port_stays_open_within_the_ephemeral_range() -> None:
    rendered = render(udp_ports=["32768-60999"], open_udp_ports=["51820"])
    assert "udp dport { 51820 } accept" in accept_rules(rendered)
    assert drop_rules(rendered) == ["udp dport { 32768-60999 } counter drop"]


def test_ssh_is_restricted_only_with_ssh_from() -> None:
    assert "dport 22" not in render()
    rendered = render(ssh_from=["192.0.2.0/24"])
    assert "tcp dport 22 ip saddr @ssh_lab_4 accept" in accept_rules(rendered)
    assert drop_rules(rendered)[0].startswith("tcp dport 22 tcp flags")


def test_ipv4_and_ipv6_have_separate_sets() -> None:
    rendered = render(members=["10.0.0.1", "2001:db8::1"])
    assert "type ipv6_addr" in rendered
    assert "ip6 saddr @member_lab_6 accept" in accept_rules(rendered)


def test_port_range_does_not_close_ssh() -> None:
    given = {"members": ["10.0.0.1"], "tcp_ports": ["111", "15000-28999"], "ssh_port": 22222}
    desired = rules.parse_desired_firewall(
        "lab", given, SshAccess((111, 15000, 22223), (SshConnection(15000, "192.0.2.7"),))
    )
    assert desired.tcp_ports == ("15001-22221", "22224-28999")
    assert rules.parse_desired_firewall("lab", {**given, "ssh_port": 28999}).tcp_ports == ("111", "15000-28998")


@pytest.mark.parametrize("peer", ["192.0.2.7", "2001:db8::7"])
def test_lockout_of_the_module_is_refused(peer: str) -> None:
    given = {"members": ["10.0.0.1"], "ssh_from": ["198.51.100.0/24"]}
    with pytest.raises(InputError) as refused:
        rules.parse_desired_firewall("lab", given, SshAccess((22,), (SshConnection(22, peer),)))
    assert refused.value.to_result()["address"] == peer
    for accepted in ({"ssh_from": []}, {"trusted": [peer]}, {"members": [peer]}, {"ssh_from": [peer]}):
        own = [SshConnection(22, one) for one in (peer, "127.0.0.1", "::1")]
        assert rules.parse_desired_firewall("lab", {**given, **accepted}, SshAccess((22,), tuple(own)))
    # SSH is not restricted on another port.
    assert rules.parse_desired_firewall("lab", given, SshAccess((22, 2222), (SshConnection(2222, peer),)))


def test_admission_extends_an_earlier_one() -> None:
    lines = rules.render_admission(["10.0.0.2", "2001:db8::1"], 900).splitlines()
    assert [line.split()[0] for line in lines] == ["add", "delete", "add"] * 2
    assert "timeout 900s" in lines[2] and "timeout 900s" in lines[5]
    assert rules.render_admission([], 900) == ""
    with pytest.raises(InputError):
        rules.render_admission(["10.0.0.0/8"], 900)


def test_overlapping_ports_are_merged() -> None:
    desired = rules.parse_desired_firewall(
        "lab", {"members": ["10.0.0.1"], "tcp_ports": ["6818", "2049", "6817-6819", "6820"]}
    )
    assert desired.tcp_ports == ("2049", "6817-6820")


def test_ephemeral_range_is_parsed() -> None:
    assert rules.parse_ephemeral_range("32768\t60999\n") == "32768-60999"
    with pytest.raises(InputError):
        rules.parse_ephemeral_range("")


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
        render(**given)
