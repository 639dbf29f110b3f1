# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of clusters in ufw, compared with its own output."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import ufw
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.host_rules import HostRule
from ansible_collections.gpumesh.cluster.tests.support.host_rules import LAN, MESH, RELAY, RULES, SESSIONS, TUNNEL

ADDED = (Path(__file__).parent / "fixtures" / "ufw-0.36-added.txt").read_text(encoding="utf-8")


def commands(added: str, rules: list[HostRule], cluster: str = "lab") -> list[str]:
    return [change.command() for change in ufw.plan_changes(added, cluster, rules)]


def test_its_output_is_read() -> None:
    comments = ufw.parse_rules(ADDED)
    assert list(comments)[1:6] == [ufw.format_rule(rule) for rule in RULES]
    assert set(comments.values()) == {"", "gpumesh.cluster lab"}
    assert (comments["allow 22/tcp"], len(comments)) == ("", 7)


def test_missing_rules_are_added_once() -> None:
    assert commands("", RULES) == [
        "ufw allow in on eth0 from 10.79.60.0/24 comment 'gpumesh.cluster lab'",
        "ufw allow 51820/udp comment 'gpumesh.cluster lab'",
        "ufw allow in on gpumesh0 from 10.99.0.0/16 comment 'gpumesh.cluster lab'",
        "ufw route allow in on gpumesh0 out on gpumesh0 comment 'gpumesh.cluster lab'",
        "ufw route allow in on gms+ from 10.192.0.0/10 comment 'gpumesh.cluster lab'",
    ]
    assert commands(ADDED, RULES) == []


def test_a_rule_that_is_no_longer_needed_is_deleted() -> None:
    moved = HostRule(port=51821, protocol="udp")
    assert commands(ADDED, [LAN, moved, MESH, RELAY]) == [
        "ufw allow 51821/udp comment 'gpumesh.cluster lab'",
        "ufw delete allow 51820/udp",
        "ufw route delete allow in on gms+ from 10.192.0.0/10",
    ]


def test_a_cluster_that_leaves_takes_only_its_rules() -> None:
    left = commands(ADDED, [])
    assert len(left) == 5
    assert not any("22/tcp" in command or "8888" in command for command in left)


@pytest.mark.parametrize("comment", ["", " comment 'of the admin'", " comment 'gpumesh.clusters lab'"])
def test_an_equal_rule_of_the_administrator_is_neither_marked_nor_deleted(comment: str) -> None:
    added = f"ufw allow in on eth0 from 10.79.60.0/24{comment}\n"
    assert commands(added, [LAN]) == []
    assert commands(added, []) == []


def test_a_marked_rule_of_another_form_is_left_alone() -> None:
    assert commands("ufw deny 22/tcp comment 'gpumesh.cluster lab'\n", []) == []
    assert commands("ufw allow proto tcp to any port 111 comment 'gpumesh.cluster lab'\n", []) == []


def test_a_rule_that_two_clusters_need_stays_until_both_have_left() -> None:
    both = "ufw allow in on eth0 from 10.79.60.0/24 comment 'gpumesh.cluster lab,other'"
    assert commands(ADDED, [LAN], "other") == [both]
    assert commands(both + "\n", [LAN]) == commands(both + "\n", [LAN], "other") == []
    assert commands(both + "\n", []) == ["ufw allow in on eth0 from 10.79.60.0/24 comment 'gpumesh.cluster other'"]
    assert commands(both + "\n", [], "lab,other") == []


def test_the_arguments_of_the_module() -> None:
    arguments = [change.module_arguments() for change in ufw.plan_changes("", "lab", [TUNNEL, RELAY, SESSIONS])]
    allowed = {"rule": "allow", "comment": "gpumesh.cluster lab"}
    assert arguments == [
        {**allowed, "route": False, "to_port": "51820", "proto": "udp"},
        {**allowed, "route": True, "interface_in": "gpumesh0", "interface_out": "gpumesh0"},
        {**allowed, "route": True, "interface_in": "gms+", "from_ip": "10.192.0.0/10"},
    ]
    (deletion,) = ufw.plan_changes(ADDED, "lab", [TUNNEL, MESH, RELAY, SESSIONS])
    expected = {"rule": "allow", "route": False, "interface_in": "eth0", "from_ip": "10.79.60.0/24", "delete": True}
    assert deletion.module_arguments() == expected


def test_networks_of_ipv6() -> None:
    rule = HostRule("eth0", "fd00:1::/64")
    (command,) = commands("", [rule])
    assert commands(f"{command}\n", [rule]) == []
    assert commands(f"{command}\n", []) == ["ufw delete allow in on eth0 from fd00:1::/64"]


@pytest.mark.parametrize(
    "covering",
    [
        "allow from 10.0.0.0/8",
        "allow in on eth0",
        "allow in on eth0 from 10.79.0.0/16 comment 'lan'",
        "allow from any",
    ],
)
def test_a_wider_rule_of_the_administrator_makes_ours_superfluous(covering: str) -> None:
    assert commands(f"ufw {covering}\n", [LAN]) == []
    (added,) = commands("ufw allow in on eth0 from 10.79.60.0/24 comment 'gpumesh.cluster old'\n", [LAN])
    assert added.endswith("comment 'gpumesh.cluster lab,old'")


@pytest.mark.parametrize(
    "other",
    [
        "deny from 10.0.0.0/8",
        "allow in on eth1 from 10.0.0.0/8",
        "allow from 10.79.60.0/25",
        "allow from fd00::/8",
        "allow 22/tcp",
        "allow 51820/tcp",
        "route allow in on eth0 from 10.0.0.0/8",
        "allow in on eth0 from 10.0.0.0/8 comment 'gpumesh.cluster other'",
    ],
)
def test_another_rule_does_not(other: str) -> None:
    assert len([command for command in commands(f"ufw {other}\n", [LAN, TUNNEL]) if "delete" not in command]) == 2


@pytest.mark.parametrize("covering", ["allow 51820", "allow from any"])
def test_a_port_may_be_open_for_all_protocols(covering: str) -> None:
    assert commands(f"ufw {covering}\n", [TUNNEL]) == []
