# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks that are broken in the ways in which real ones are, and the verdict that must name each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_matrix import draw_matrix
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_verdicts import judge_reachability
from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import (
    Host,
    Network,
    await_none,
    measure,
    record_of,
)

Judged = dict[str, Any]


def judged(members: Sequence[Host], silent: Sequence[Host] = (), **options: Any) -> Judged:
    return judge_reachability(measure(members, silent, **options), record_of(members))


def verdicts(found: Judged) -> dict[tuple[str, str], str]:
    return {(pair["from"], pair["to"]): pair["verdict"] for pair in found["pairs"]}


def pair(found: Judged, one: str, other: str) -> dict[str, Any]:
    return next(item for item in found["pairs"] if (item["from"], item["to"]) == (one, other))


def faults(found: Judged) -> dict[tuple[str, str], str]:
    return {ends: verdict for ends, verdict in verdicts(found).items() if verdict != "ok"}


def test_a_sound_network_passes_and_nothing_stays_behind(net: Network) -> None:
    members = [net.member(number) for number in (1, 2, 3)]
    found = judged(members)
    assert faults(found) == {}, draw_matrix(found["pairs"])
    assert found["status"] == "pass"
    assert found["hosts"] == []
    assert found["summary"] == "All 6 pairs reach each other."
    assert {item["path_mtu"] for item in found["pairs"]} == {1500}
    assert all(0 < item["rtt_ms"] < 4000 and abs(item["offset_s"]) < 2.5 for item in found["pairs"])
    assert {check["status"] for check in found["checks"]} == {"pass"}
    await_none(*members)


def test_jumbo_frames_are_measured_to_the_byte(net: Network) -> None:
    members = [net.member(number, mtu=8951) for number in (1, 2)]
    found = judged(members)
    assert faults(found) == {}
    assert {item["path_mtu"] for item in found["pairs"]} == {8951}


def test_a_member_behind_nat_is_seen_as_another_address(net: Network) -> None:
    members = [net.member(number) for number in (1, 2)]
    router = net.add("router")
    net.plug(router, address="10.50.0.9/24")
    hidden = net.add("n3")
    hidden.address, hidden.hosts_file = "10.60.0.3", "10.60.0.3 n3\n"
    router.ip("link", "add", "inside", "type", "veth", "peer", "name", "eth0", "netns", hidden.namespace)
    router.ip("addr", "add", "10.60.0.1/24", "dev", "inside")
    router.ip("link", "set", "inside", "up")
    hidden.ip("addr", "add", "10.60.0.3/24", "dev", "eth0")
    hidden.ip("link", "set", "eth0", "up")
    hidden.ip("route", "add", "default", "via", "10.60.0.1")
    router.sysctl("net.ipv4.ip_forward", "1")
    router.nft(
        "table ip nat { chain out { type nat hook postrouting priority 100; oifname eth0 masquerade; }; }",
    )
    for member in members:
        member.ip("route", "add", "10.60.0.0/24", "via", "10.50.0.9")
    found = judged([*members, hidden])
    assert faults(found) == {("n3", "n1"): "nat", ("n3", "n2"): "nat"}, draw_matrix(found["pairs"])
    assert "10.50.0.9" in pair(found, "n3", "n1")["message"]
    assert "wireguard" in pair(found, "n3", "n1")["remedy"]


def test_a_dropped_ephemeral_range_is_filtered(net: Network) -> None:
    members = [net.member(number) for number in (1, 2, 3)]
    members[1].nft(
        """table inet filter { chain input { type filter hook input priority 0;
           ct state established,related accept; tcp dport 32768-60999 drop; udp dport 32768-60999 drop; }; }"""
    )
    found = judged(members)
    assert faults(found) == {("n1", "n2"): "filtered", ("n3", "n2"): "filtered"}, draw_matrix(found["pairs"])
    broken = pair(found, "n1", "n2")
    assert "TCP 22, 6817 pass" in broken["message"]
    assert "whole ephemeral range" in broken["remedy"]


def test_ports_that_a_firewall_rejects_are_refused(net: Network) -> None:
    members = [net.member(number) for number in (1, 2)]
    members[1].nft(
        """table inet filter { chain input { type filter hook input priority 0; ct state established,related accept;
           tcp dport 6817 reject with tcp reset; }; }"""
    )
    found = judged(members)
    assert faults(found) == {("n1", "n2"): "refused"}
    assert "TCP 6817" in pair(found, "n1", "n2")["message"]


def test_a_prohibiting_firewall_is_no_missing_route(net: Network) -> None:
    members = [net.member(number) for number in (1, 2)]
    for member in members:
        member.nft(
            """table inet filter { chain input { type filter hook input priority 0; ct state established,related accept;
               meta l4proto { tcp, udp } reject with icmpx type admin-prohibited; }; }"""
        )
    found = judged(members)
    assert set(faults(found).values()) == {"filtered"}
    assert "rejected by a firewall" in pair(found, "n1", "n2")["message"]


def test_a_path_that_swallows_large_packets_is_a_black_hole(net: Network) -> None:
    members = [net.member(number) for number in (1, 2, 3)]
    # The switch does what a tunnel on the way does whose routers may not send ICMP.
    net.switch.nft(
        """table bridge way { chain forward { type filter hook forward priority 0;
           oifname n2eth0 meta length > 1372 drop; }; }"""
    )
    found = judged(members)
    assert faults(found) == {("n1", "n2"): "mtu_black_hole", ("n3", "n2"): "mtu_black_hole"}, draw_matrix(
        found["pairs"]
    )
    broken = pair(found, "n1", "n2")
    size = broken["path_mtu"]
    # The bridge counts what is above Ethernet, or the whole frame: both are this network's truth.
    assert size in (1358, 1372)
    assert str(size) in broken["message"] and "1500" in broken["message"]
    assert "stalls" in broken["message"]


def test_a_router_that_says_what_fits_is_no_black_hole(net: Network) -> None:
    one = net.member(1)
    router = net.add("router")
    net.plug(router, address="10.50.0.9/24")
    far = net.add("n2")
    far.address, far.hosts_file = "10.60.0.2", "10.60.0.2 n2\n"
    router.ip("link", "add", "far", "type", "veth", "peer", "name", "eth0", "netns", far.namespace)
    router.ip("link", "set", "far", "mtu", "1400")
    router.ip("addr", "add", "10.60.0.1/24", "dev", "far")
    router.ip("link", "set", "far", "up")
    far.ip("link", "set", "eth0", "mtu", "1400")
    far.ip("addr", "add", "10.60.0.2/24", "dev", "eth0")
    far.ip("link", "set", "eth0", "up")
    far.ip("route", "add", "default", "via", "10.60.0.1")
    one.ip("route", "add", "10.60.0.0/24", "via", "10.50.0.9")
    router.sysctl("net.ipv4.ip_forward", "1")
    found = judged([one, far])
    assert faults(found) == {}, draw_matrix(found["pairs"])
    assert pair(found, "n1", "n2")["path_mtu"] == 1400


def test_two_nics_on_one_subnet_answer_from_the_wrong_one(net: Network) -> None:
    members = [net.member(number) for number in (1, 2, 3)]
    net.plug(members[1], "eth1", "10.50.0.22/24")
    members[1].ip("route", "replace", "10.50.0.0/24", "dev", "eth0", "src", "10.50.0.2", "metric", "100")
    members[1].ip("route", "del", "10.50.0.0/24", "dev", "eth0", "proto", "kernel")
    found = judged(members)
    assert faults(found) == {("n2", "n1"): "wrong_interface", ("n2", "n3"): "wrong_interface"}, draw_matrix(
        found["pairs"]
    )
    message = pair(found, "n2", "n1")["message"]
    assert "eth1 instead of eth0" in message and "10.50.0.22" in message


def test_a_firewall_of_one_way_is_asymmetric(net: Network) -> None:
    members = [net.member(number) for number in (1, 2, 3)]
    members[1].nft(
        """table inet filter { chain input { type filter hook input priority 0; ct state established,related accept;
           ip saddr 10.50.0.1 drop; }; }"""
    )
    found = judged(members)
    assert faults(found) == {("n1", "n2"): "asymmetric"}, draw_matrix(found["pairs"])
    assert "n2 reaches n1" in pair(found, "n1", "n2")["message"]


def test_a_dead_member_costs_bounded_time_and_is_named(net: Network) -> None:
    members = [net.member(number) for number in (1, 2, 3)]
    members[2].ip("link", "set", "eth0", "down")
    begin = time.monotonic()
    found = judged(members, silent=[members[2]])
    assert time.monotonic() - begin < 110
    assert faults(found) == {
        ("n1", "n3"): "no_answer",
        ("n2", "n3"): "no_answer",
        ("n3", "n1"): "not_checked",
        ("n3", "n2"): "not_checked",
    }, draw_matrix(found["pairs"])
    assert pair(found, "n1", "n3")["status"] == "fail"
    assert "ARP" in pair(found, "n1", "n3")["message"]
    assert pair(found, "n3", "n1")["status"] == "error"
    assert "SSH" in pair(found, "n3", "n1")["message"]
    assert [finding["host"] for finding in found["hosts"]] == ["n3"]


def test_a_member_without_ssh_that_lives_is_not_called_dead(net: Network) -> None:
    members = [net.member(number) for number in (1, 2)]
    found = judged(members, silent=[members[1]])
    alive = pair(found, "n1", "n2")
    assert (alive["status"], alive["verdict"]) == ("error", "not_checked")
    assert "is alive" in alive["message"]


def test_docker_that_overlaps_the_lan_is_the_wrong_interface(net: Network) -> None:
    members = [net.member(number) for number in (1, 2, 3)]
    members[1].ip("link", "add", "docker0", "type", "bridge")
    members[1].ip("addr", "add", "10.50.0.126/25", "dev", "docker0")
    members[1].ip("link", "set", "docker0", "up")
    found = judged(members)
    assert verdicts(found)["n2", "n1"] == verdicts(found)["n2", "n3"] == "wrong_interface", draw_matrix(found["pairs"])
    broken = pair(found, "n2", "n1")
    assert "docker0" in broken["message"] and "daemon.json" in broken["remedy"]
    # Packets to the member arrive, but its responses go into the bridge.
    assert pair(found, "n1", "n2")["status"] == "fail"
    assert verdicts(found)["n1", "n3"] == "ok"


def test_a_name_that_is_loopback(net: Network) -> None:
    members = [net.member(number) for number in (1, 2)]
    members[1].hosts_file = "127.0.0.1 localhost\n127.0.1.1 n2\n"
    found = judged(members)
    assert faults(found) == {("n1", "n2"): "name_is_loopback"}, draw_matrix(found["pairs"])
    assert "127.0.1.1" in pair(found, "n1", "n2")["message"]
    assert [(finding["host"], finding["verdict"]) for finding in found["hosts"]] == [("n2", "name_is_loopback")]
    assert faults(judged(members, check_name=False)) == {}


def test_a_clock_that_is_ten_minutes_off(net: Network, tmp_path: Path) -> None:
    members = [net.member(number) for number in (1, 2, 3)]
    # No namespace has a wall clock of its own, so this host's Python is told another time.
    (tmp_path / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 600\n")
    members[1].wrapper = ["env", f"PYTHONPATH={tmp_path}"]
    found = judged(members)
    broken = {ends for ends, verdict in verdicts(found).items() if verdict == "clock_skew"}
    assert broken == {("n1", "n2"), ("n2", "n1"), ("n2", "n3"), ("n3", "n2")}, draw_matrix(found["pairs"])
    assert abs(pair(found, "n1", "n2")["offset_s"] - 600) < 10
    assert abs(pair(found, "n2", "n1")["offset_s"] + 600) < 10
    assert [(finding["host"], finding["verdict"]) for finding in found["hosts"]] == [("n2", "clock_skew")]
    assert "ahead of the other members'" in found["hosts"][0]["message"]


def test_an_address_that_a_stranger_has_too(net: Network) -> None:
    members = [net.member(number) for number in (1, 2, 3)]
    stranger = net.add("stranger")
    net.plug(stranger, "eth0", "10.50.0.2/24")
    mac = stranger.run("cat", "/sys/class/net/eth0/address").strip()
    found = judged(members)
    assert {ends for ends, verdict in verdicts(found).items() if verdict == "duplicate_address"} == {
        ("n1", "n2"),
        ("n2", "n1"),
        ("n2", "n3"),
        ("n3", "n2"),
    }, draw_matrix(found["pairs"])
    assert mac in pair(found, "n1", "n2")["message"]
    assert verdicts(found)["n1", "n3"] == "ok"
    assert [(finding["host"], finding["verdict"]) for finding in found["hosts"]] == [("n2", "duplicate_address")]


def test_an_address_that_another_member_has_too_names_the_member(net: Network) -> None:
    members = [net.member(number) for number in (1, 2, 3)]
    members[2].ip("addr", "add", "10.50.0.2/24", "dev", "eth0")
    found = judged(members)
    assert verdicts(found)["n1", "n2"] == "duplicate_address", draw_matrix(found["pairs"])
    assert "n3" in pair(found, "n1", "n2")["message"]
    assert verdicts(found)["n3", "n2"] == "duplicate_address"


def test_an_address_that_is_not_on_the_host_is_said(net: Network) -> None:
    members = [net.member(number) for number in (1, 2)]
    members[1].ip("addr", "flush", "dev", "eth0")
    members[1].ip("addr", "add", "10.50.0.7/24", "dev", "eth0")
    found = judged(members)
    assert found["status"] == "fail"
    assert "Cannot listen on 10.50.0.2" in " ".join(finding["message"] for finding in found["hosts"])
    assert pair(found, "n1", "n2")["verdict"] == "no_answer"


def test_no_route_at_all(net: Network) -> None:
    members = [net.member(number) for number in (1, 2)]
    members[0].ip("route", "del", "10.50.0.0/24", "dev", "eth0")
    found = judged(members)
    assert verdicts(found)["n1", "n2"] == "no_route"
    assert "Network is unreachable" in pair(found, "n1", "n2")["message"]


def test_ipv6(net: Network) -> None:
    members = [net.member(number) for number in (1, 2)]
    for number, member in enumerate(members, 1):
        member.address = f"fd50::{number}"
        member.hosts_file = f"::1 localhost\nfd50::{number} {member.machine}\n"
        member.ip("addr", "add", f"fd50::{number}/64", "dev", "eth0", "nodad")
    found = judged(members)
    assert faults(found) == {}, draw_matrix(found["pairs"])
    assert {item["path_mtu"] for item in found["pairs"]} == {1500}
    assert {check["status"] for check in found["checks"] if check["id"] == "reachability.unique_address"} == {"skipped"}
