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
from ansible_collections.gpumesh.cluster.tests.support.host_rules import LAN, MESH, RELAY, RULES, SESSIONS

FIXTURES = Path(__file__).parent / "fixtures"
POLICIES = (FIXTURES / "firewalld-2.3-policies.txt").read_text(encoding="utf-8")
ZONE = (FIXTURES / "firewalld-2.3-zone.txt").read_text(encoding="utf-8")
ACCEPT_LAN = '\'--add-rich-rule=rule family="ipv4" source address="10.79.60.0/24" accept\''


def objects(policies: str = POLICIES, zone: str = ZONE) -> dict[Any, Any]:
    return {**firewalld.parse_objects("policy", policies), **firewalld.parse_objects("zone", zone)}


EMPTY: dict[Any, Any] = {}


def test_its_output_is_read() -> None:
    parsed = objects()
    assert {name for kind, name in parsed if kind == "policy"} == {
        "allow-host-ipv6",
        "gpumesh-in-lab",
        "gpumesh-via-lab",
    }
    assert {name for kind, name in parsed if kind == "zone"} == {"gpumesh-lab", "gpumesh-S-lab"}
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


def test_what_sessions_send_is_forwarded_from_a_zone_of_their_own() -> None:
    plan = firewalld.plan_changes("lab", [SESSIONS], EMPTY, EMPTY)
    zone = {"zone": "gpumesh-S-lab", "permanent": True}
    assert [change.zone_arguments() for change in plan.changes][:3] == [
        {**zone, "state": "present"},
        {**zone, "state": "enabled", "interface": "gms+"},
        None,
    ]
    policy = "firewall-cmd --permanent --policy=gpumesh-via-lab"
    assert plan.commands()[3:6] == [
        f"{policy} --set-priority=100",
        f"{policy} --add-ingress-zone=gpumesh-S-lab",
        f"{policy} --add-egress-zone=ANY",
    ]


def test_an_interface_of_others_stays_in_its_zone() -> None:
    commands = firewalld.plan_changes("lab", [HostRule("tailscale0", "100.64.0.0/10")], EMPTY, EMPTY).commands()
    assert not any("interface" in command or "gpumesh-lab" in command for command in commands)
    assert any("100.64.0.0/10" in command and "gpumesh-in-lab" in command for command in commands)


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


def test_zones_that_a_policy_has_too_many_go_before_others_come() -> None:
    surplus = POLICIES.replace("gpumesh-S-lab\n", "gpumesh-S-lab home\n").replace("HOST\n", "home public\n")
    plan = firewalld.plan_changes("lab", RULES, objects(surplus), objects())
    policy = "firewall-cmd --permanent --policy=gpumesh-"
    assert plan.commands() == [
        f"{policy}in-lab --remove-egress-zone=home",
        f"{policy}in-lab --remove-egress-zone=public",
        f"{policy}in-lab --add-egress-zone=HOST",
        f"{policy}via-lab --remove-ingress-zone=home",
    ]


def test_policies_of_others_that_name_a_zone_that_goes_are_found() -> None:
    permanent = objects()
    permanent["policy", "guests"] = {
        "ingress-zones": frozenset(["gpumesh-lab", "home"]),
        "egress-zones": frozenset(["gpumesh-S-lab"]),
    }
    leaving = firewalld.plan_changes("lab", [], permanent, permanent).changes
    assert firewalld.find_references("lab", leaving, permanent) == {
        "guests": ["--remove-ingress-zone=gpumesh-lab", "--remove-egress-zone=gpumesh-S-lab"]
    }
    no_mesh = firewalld.plan_changes("lab", [LAN, SESSIONS], permanent, permanent).changes
    assert firewalld.find_references("lab", no_mesh, permanent) == {"guests": ["--remove-ingress-zone=gpumesh-lab"]}
    assert firewalld.find_references("lab", [], permanent) == {}


@pytest.mark.parametrize(
    ("configuration", "zone"),
    [
        ("", "public"),
        ("# DefaultZone=home\nDefaultZone=\n", "public"),
        ("CleanupOnExit=yes\n DefaultZone = work \nDefaultZone=home\n", "work"),
    ],
)
def test_the_default_zone_is_read_as_firewalld_reads_it(configuration: str, zone: str) -> None:
    assert firewalld.parse_default_zone(configuration) == zone


def test_a_cluster_that_leaves_takes_its_objects_without_a_reload() -> None:
    plan = firewalld.plan_changes("lab", [], objects(), objects())
    assert not plan.reload
    permanent = [command for command in plan.commands() if "--permanent" in command]
    # Not with the module, which would delete the zones first: firewalld does not load a policy whose zone is missing.
    assert permanent == [
        "firewall-cmd --permanent --delete-policy=gpumesh-via-lab",
        "firewall-cmd --permanent --delete-policy=gpumesh-in-lab",
        "firewall-cmd --permanent --delete-zone=gpumesh-S-lab",
        "firewall-cmd --permanent --delete-zone=gpumesh-lab",
    ]
    assert not any(change.zone_arguments() for change in plan.changes if change.permanent)
    running = [command for command in plan.commands() if "--permanent" not in command]
    assert "firewall-cmd --zone=gpumesh-lab --remove-interface=gpumesh0" in running
    assert "firewall-cmd --zone=gpumesh-S-lab --remove-interface=gms+" in running
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
    assert len(set(names.values())) == 4
    assert all(len(name) <= (17 if kind == "zone" else 18) for kind, name in names.values())
    assert names != firewalld.object_names(cluster + "b")


PUBLIC = ("zone", "public")


def effects(permanent: dict[Any, Any], running: dict[Any, Any], rebound: tuple[str, ...] = ()) -> Any:
    found = firewalld.find_reload_effects("lab", permanent, running, frozenset(rebound))
    return found.lost, found.activated


def settings_of(**values: str) -> dict[str, frozenset[str]]:
    return {name.replace("_", " "): frozenset(value.split()) for name, value in values.items()}


def test_settings_that_a_reload_would_lose_or_activate_are_found() -> None:
    running = objects()
    assert effects(objects(), running) == ([], [])
    running["policy", "allow-host-ipv6"]["rich rules"] |= {"rule service name=ssh accept"}
    assert effects(objects(), running) == (["policy allow-host-ipv6"], [])
    assert effects(running, objects()) == ([], ["policy allow-host-ipv6"])
    assert effects({}, {PUBLIC: settings_of(ports="")}) == (["zone public"], [])
    assert effects({PUBLIC: settings_of(ports="")}, {}) == ([], ["zone public"])


def test_a_switch_counts_where_it_is_on() -> None:
    on, off = {PUBLIC: settings_of(masquerade="yes")}, {PUBLIC: settings_of(masquerade="no")}
    assert effects(off, on) == (["zone public"], [])
    assert effects(on, off) == ([], ["zone public"])


def test_a_target_can_only_have_been_changed_permanently() -> None:
    default, accept = {PUBLIC: settings_of(target="default")}, {PUBLIC: settings_of(target="ACCEPT")}
    assert effects(accept, default) == ([], ["zone public"])


def test_the_zone_of_an_interface_would_be_lost_unless_it_is_bound_again() -> None:
    """FlushAllOnReload=yes is the default of firewalld."""
    permanent, running = {PUBLIC: settings_of(interfaces="")}, {PUBLIC: settings_of(interfaces="eth0 eth1")}
    assert effects(permanent, running)[0] == ["interface eth0 of zone public", "interface eth1 of zone public"]
    assert effects(permanent, running, ("eth1",)) == (["interface eth0 of zone public"], [])
    assert effects(running, permanent)[1] == ["interface eth0 of zone public", "interface eth1 of zone public"]
    docker = ("zone", "docker")
    assert effects({docker: settings_of(interfaces="")}, {docker: settings_of(interfaces="docker0")}) == ([], [])


def test_what_a_cluster_that_has_left_leaves_until_a_reload_may_be_lost() -> None:
    emptied = {("policy", "gpumesh-in-old"): settings_of(priority="100", rich_rules="")}
    assert effects({}, emptied) == ([], [])
    filled = {("policy", "gpumesh-in-old"): settings_of(priority="100", rich_rules="rule")}
    assert effects({}, filled) == (["policy gpumesh-in-old"], [])
    assert effects({}, {PUBLIC: settings_of(target="default")})[0] == ["zone public"]
    # What an interrupted run of another cluster has left must not stop both.
    assert effects(filled, {}) == ([], [])


def test_networks_of_ipv6() -> None:
    plan = firewalld.plan_changes("lab", [HostRule("eth0", "fd00:1::/64")], EMPTY, EMPTY)
    assert plan.changes[-1].value == 'rule family="ipv6" source address="fd00:1::/64" accept'


RICH = 'rule family="ipv4" source address="{}" accept'


def zones(**changed: dict[str, Any]) -> dict[Any, Any]:
    """The default zone public, home with eth0, and the zone of a source."""
    empty: dict[str, frozenset[str]] = dict.fromkeys(("target", "sources", "interfaces", "rich rules"), frozenset())
    found = {"public": {}, "home": {"interfaces": {"eth0"}}, "office": {}, **changed}
    return {("zone", name): {**empty, **settings} for name, settings in found.items()}


@pytest.mark.parametrize(
    ("changed", "accepted"),
    [
        ({}, False),
        ({"home": {"interfaces": {"eth0"}, "target": {"ACCEPT"}}}, True),
        ({"home": {}, "public": {"target": {"ACCEPT"}}}, True),
        ({"public": {"target": {"ACCEPT"}}}, False),
        ({"home": {"interfaces": {"eth0"}, "rich rules": {RICH.format("10.79.0.0/16")}}}, True),
        ({"home": {"interfaces": {"eth0"}, "rich rules": {RICH.format("10.79.60.0/25")}}}, False),
        ({"home": {"interfaces": {"eth0"}, "rich rules": {RICH.format("10.0.0.0/8") + " # "}}}, False),
        ({"office": {"sources": {"10.0.0.0/8", "ipset:x"}, "target": {"ACCEPT"}}}, True),
        ({"office": {"sources": {"10.79.60.0/25"}, "target": {"ACCEPT"}}}, False),
        (
            {
                "office": {"sources": {"10.79.60.0/25"}, "target": {"default"}},
                "home": {"interfaces": {"eth0"}, "target": {"ACCEPT"}},
            },
            False,
        ),
    ],
)
def test_what_a_zone_of_the_administrator_accepts_needs_no_rule(changed: dict[str, Any], accepted: bool) -> None:
    assert firewalld.is_accepted(LAN, zones(**changed), "public") is accepted
    assert not any(firewalld.is_accepted(rule, zones(**changed), "public") for rule in RULES[1:])
