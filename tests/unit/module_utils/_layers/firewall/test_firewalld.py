# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The zone and the policies of a cluster in firewalld, compared with its own output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import firewalld
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.host_rules import HostRule

FIXTURES = Path(__file__).parent / "fixtures"
POLICIES = (FIXTURES / "firewalld-2.3-policies.txt").read_text(encoding="utf-8")
ZONE = (FIXTURES / "firewalld-2.3-zone.txt").read_text(encoding="utf-8")
LAN = HostRule("eth0", "10.79.60.0/24")
TUNNEL = HostRule(port=51820, protocol="udp")
MESH = HostRule("gpumesh0", "10.99.0.0/16", mesh=True)
RELAY = HostRule("gpumesh0", out_interface="gpumesh0", forward=True, mesh=True)
SESSIONS = HostRule("gms+", "10.192.0.0/10", forward=True)
RULES = [LAN, TUNNEL, MESH, RELAY, SESSIONS]
ACCEPT_LAN = '\'--add-rich-rule=rule family="ipv4" source address="10.79.60.0/24" accept\''


def objects(policies: str = POLICIES, zone: str = ZONE) -> dict[Any, Any]:
    return {**firewalld.parse_objects("policy", policies), **firewalld.parse_objects("zone", zone)}


EMPTY: dict[Any, Any] = {}


def test_its_output_is_read() -> None:
    parsed = objects()
    assert {name for _kind, name in parsed} == {"allow-host-ipv6", "gpumesh-in-lab", "gpumesh-via-lab", "gpumesh-lab"}
    assert len(parsed["policy", "allow-host-ipv6"]["rich rules"]) == 4
    assert parsed["policy", "allow-host-ipv6"]["priority"] == {"-15000"}
    assert parsed["zone", "gpumesh-lab"]["interfaces"] == {"gpumesh0"}


def test_what_is_set_up_is_not_changed() -> None:
    assert firewalld.plan_changes("lab", RULES, objects(), objects()) == ([], False)


def test_a_lan_takes_one_policy_and_a_reload() -> None:
    plan = firewalld.plan_changes("lab", [LAN], EMPTY, EMPTY)
    policy = "firewall-cmd --permanent --policy=gpumesh-in-lab"
    assert plan.commands() == [
        "firewall-cmd --permanent --new-policy=gpumesh-in-lab",
        f"{policy} --set-priority=100",
        f"{policy} --add-ingress-zone=ANY",
        f"{policy} --add-egress-zone=HOST",
        f"{policy} {ACCEPT_LAN}",
        "firewall-cmd --reload",
    ]
    assert not any(change.zone_arguments() for change in plan.changes)


def test_the_zone_of_a_mesh_is_for_the_module() -> None:
    plan = firewalld.plan_changes("lab", [MESH, RELAY], EMPTY, EMPTY)
    zone = {"zone": "gpumesh-lab", "permanent": True}
    assert [change.zone_arguments() for change in plan.changes] == [
        {**zone, "state": "present"},
        {**zone, "state": "enabled", "forward": True},
        {**zone, "state": "enabled", "rich_rule": 'rule family="ipv4" source address="10.99.0.0/16" accept'},
        {**zone, "state": "enabled", "interface": "gpumesh0"},
    ]


def test_another_port_is_opened_without_a_reload_now_and_at_boot() -> None:
    plan = firewalld.plan_changes(
        "lab", [LAN, HostRule(port=51821, protocol="udp"), MESH, SESSIONS], objects(), objects()
    )
    assert not plan.reload
    assert [command.replace("\\", "") for command in plan.commands()] == [
        f'firewall-cmd{place} --policy=gpumesh-in-lab \'--{verb}-rich-rule=rule port port="{port}" protocol="udp" accept\''
        for place in (" --permanent", "")
        for verb, port in (("add", 51821), ("remove", 51820))
    ]


def test_what_is_only_permanent_or_only_running_is_completed() -> None:
    later = firewalld.plan_changes("lab", RULES, objects(), EMPTY)
    assert later.commands() == ["firewall-cmd --reload"]
    saved = firewalld.plan_changes("lab", [LAN], EMPTY, objects(POLICIES, ""))
    assert not saved.reload
    assert next(change.argv()[1:3] for change in saved.changes if change.permanent) == [
        "--permanent",
        "--new-policy=gpumesh-in-lab",
    ]


def test_a_cluster_that_leaves_takes_its_objects_without_a_reload() -> None:
    plan = firewalld.plan_changes("lab", [], objects(), objects())
    assert not plan.reload
    permanent = [command for command in plan.commands() if "--permanent" in command]
    assert permanent == [
        "firewall-cmd --permanent --delete-zone=gpumesh-lab",
        "firewall-cmd --permanent --delete-policy=gpumesh-in-lab",
        "firewall-cmd --permanent --delete-policy=gpumesh-via-lab",
    ]
    running = [command for command in plan.commands() if "--permanent" not in command]
    assert "firewall-cmd --zone=gpumesh-lab --remove-interface=gpumesh0" in running
    assert sum("--remove-rich-rule" in command for command in running) == 4
    emptied = objects(POLICIES.replace("\trule", "  # "), "")
    for settings in emptied.values():
        settings["rich rules"] = frozenset()
    assert firewalld.plan_changes("lab", [], EMPTY, emptied) == ([], False)


def test_other_clusters_and_the_administrator_keep_theirs() -> None:
    plan = firewalld.plan_changes("other", [], objects(), objects())
    assert plan == ([], False)
    assert not any(
        "allow-host" in command for command in firewalld.plan_changes("lab", [], objects(), objects()).commands()
    )


@pytest.mark.parametrize("cluster", ["a", "abcdef", "abcdefg", "a" * 40])
def test_names_are_short_enough_for_firewalld(cluster: str) -> None:
    names = firewalld.object_names(cluster)
    assert len(set(names.values())) == 3
    assert all(len(name) <= (17 if kind == "zone" else 18) for kind, name in names.values())
    assert names != firewalld.object_names(cluster + "b")


def test_settings_that_a_reload_would_lose_are_found() -> None:
    running = objects()
    assert firewalld.find_unsaved(objects(), running) == []
    running["policy", "allow-host-ipv6"]["rich rules"] |= {"rule service name=ssh accept"}
    running["zone", "gpumesh-lab"]["interfaces"] = frozenset(["eth0"])
    assert firewalld.find_unsaved(objects(), running) == ["allow-host-ipv6"]
    assert "gpumesh-lab" in firewalld.find_unsaved(objects(POLICIES, ""), running)


def test_networks_of_ipv6() -> None:
    plan = firewalld.plan_changes("lab", [HostRule("eth0", "fd00:1::/64")], EMPTY, EMPTY)
    assert plan.changes[-1].value == 'rule family="ipv6" source address="fd00:1::/64" accept'
