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
    NamespaceHost,
    NamespaceNetwork,
    await_no_processes,
    describe_members,
    measure_reachability,
)

Verdict = dict[str, Any]


def judge_network(
    members: Sequence[NamespaceHost], unreachable_members: Sequence[NamespaceHost] = (), **options: Any
) -> Verdict:
    return judge_reachability(measure_reachability(members, unreachable_members, **options), describe_members(members))


def verdict_by_pair(verdict: Verdict) -> dict[tuple[str, str], str]:
    return {(pair["from"], pair["to"]): pair["verdict"] for pair in verdict["pairs"]}


def find_pair(verdict: Verdict, source: str, target: str) -> dict[str, Any]:
    return next(item for item in verdict["pairs"] if (item["from"], item["to"]) == (source, target))


def fault_by_pair(verdict: Verdict) -> dict[tuple[str, str], str]:
    return {pair: pair_verdict for pair, pair_verdict in verdict_by_pair(verdict).items() if pair_verdict != "ok"}


def test_healthy_network_passes_and_nothing_remains(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2, 3)]
    verdict = judge_network(members)
    assert fault_by_pair(verdict) == {}, draw_matrix(verdict["pairs"])
    assert verdict["status"] == "pass"
    assert verdict["hosts"] == []
    assert verdict["summary"] == "All 6 pairs reach each other."
    assert {item["path_mtu"] for item in verdict["pairs"]} == {1500}
    assert all(0 < item["rtt_ms"] < 4000 and abs(item["offset_s"]) < 2.5 for item in verdict["pairs"])
    assert {check["status"] for check in verdict["checks"]} == {"pass"}
    await_no_processes(*members)


def test_jumbo_frames_are_measured_exactly(net: NamespaceNetwork) -> None:
    members = [net.add_member(number, mtu=8951) for number in (1, 2)]
    verdict = judge_network(members)
    assert fault_by_pair(verdict) == {}
    assert {item["path_mtu"] for item in verdict["pairs"]} == {8951}


def test_member_behind_nat_is_reported(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2)]
    router = net.add_host("router")
    net.connect_host(router, address="10.50.0.9/24")
    hidden = net.add_host("n3")
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
    verdict = judge_network([*members, hidden])
    assert fault_by_pair(verdict) == {("n3", "n1"): "nat", ("n3", "n2"): "nat"}, draw_matrix(verdict["pairs"])
    assert "10.50.0.9" in find_pair(verdict, "n3", "n1")["message"]
    assert "wireguard" in find_pair(verdict, "n3", "n1")["remedy"]


def test_dropped_ephemeral_range_is_filtered(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2, 3)]
    members[1].nft(
        """table inet filter { chain input { type filter hook input priority 0;
           ct state established,related accept; tcp dport 32768-60999 drop; udp dport 32768-60999 drop; }; }"""
    )
    verdict = judge_network(members)
    assert fault_by_pair(verdict) == {("n1", "n2"): "filtered", ("n3", "n2"): "filtered"}, draw_matrix(verdict["pairs"])
    failed_pair = find_pair(verdict, "n1", "n2")
    assert "TCP 22, 6817 pass" in failed_pair["message"]
    assert "whole ephemeral range" in failed_pair["remedy"]


def test_ports_that_a_firewall_rejects_are_refused(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2)]
    members[1].nft(
        """table inet filter { chain input { type filter hook input priority 0; ct state established,related accept;
           tcp dport 6817 reject with tcp reset; }; }"""
    )
    verdict = judge_network(members)
    assert fault_by_pair(verdict) == {("n1", "n2"): "refused"}
    assert "TCP 6817" in find_pair(verdict, "n1", "n2")["message"]


def test_prohibiting_firewall_is_not_a_missing_route(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2)]
    for member in members:
        member.nft(
            """table inet filter { chain input { type filter hook input priority 0; ct state established,related accept;
               meta l4proto { tcp, udp } reject with icmpx type admin-prohibited; }; }"""
        )
    verdict = judge_network(members)
    assert set(fault_by_pair(verdict).values()) == {"filtered"}
    assert "rejected by a firewall" in find_pair(verdict, "n1", "n2")["message"]


def test_path_that_drops_large_packets_is_a_black_hole(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2, 3)]
    # The switch does what a tunnel on the way does whose routers may not send ICMP.
    net.switch.nft(
        """table bridge way { chain forward { type filter hook forward priority 0;
           oifname n2eth0 meta length > 1372 drop; }; }"""
    )
    verdict = judge_network(members)
    assert fault_by_pair(verdict) == {("n1", "n2"): "mtu_black_hole", ("n3", "n2"): "mtu_black_hole"}, draw_matrix(
        verdict["pairs"]
    )
    failed_pair = find_pair(verdict, "n1", "n2")
    size = failed_pair["path_mtu"]
    # The bridge counts what is above Ethernet, or the whole frame: both are this network's truth.
    assert size in (1358, 1372)
    assert str(size) in failed_pair["message"] and "1500" in failed_pair["message"]
    assert "stalls" in failed_pair["message"]


def test_router_that_reports_the_mtu_is_no_black_hole(net: NamespaceNetwork) -> None:
    member = net.add_member(1)
    router = net.add_host("router")
    net.connect_host(router, address="10.50.0.9/24")
    far = net.add_host("n2")
    far.address, far.hosts_file = "10.60.0.2", "10.60.0.2 n2\n"
    router.ip("link", "add", "far", "type", "veth", "peer", "name", "eth0", "netns", far.namespace)
    router.ip("link", "set", "far", "mtu", "1400")
    router.ip("addr", "add", "10.60.0.1/24", "dev", "far")
    router.ip("link", "set", "far", "up")
    far.ip("link", "set", "eth0", "mtu", "1400")
    far.ip("addr", "add", "10.60.0.2/24", "dev", "eth0")
    far.ip("link", "set", "eth0", "up")
    far.ip("route", "add", "default", "via", "10.60.0.1")
    member.ip("route", "add", "10.60.0.0/24", "via", "10.50.0.9")
    router.sysctl("net.ipv4.ip_forward", "1")
    verdict = judge_network([member, far])
    assert fault_by_pair(verdict) == {}, draw_matrix(verdict["pairs"])
    assert find_pair(verdict, "n1", "n2")["path_mtu"] == 1400


def test_two_nics_on_one_subnet_answer_from_the_wrong_interface(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2, 3)]
    net.connect_host(members[1], "eth1", "10.50.0.22/24")
    members[1].ip("route", "replace", "10.50.0.0/24", "dev", "eth0", "src", "10.50.0.2", "metric", "100")
    members[1].ip("route", "del", "10.50.0.0/24", "dev", "eth0", "proto", "kernel")
    verdict = judge_network(members)
    assert fault_by_pair(verdict) == {("n2", "n1"): "wrong_interface", ("n2", "n3"): "wrong_interface"}, draw_matrix(
        verdict["pairs"]
    )
    message = find_pair(verdict, "n2", "n1")["message"]
    assert "eth1 instead of eth0" in message and "10.50.0.22" in message


def test_one_way_firewall_is_asymmetric(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2, 3)]
    members[1].nft(
        """table inet filter { chain input { type filter hook input priority 0; ct state established,related accept;
           ip saddr 10.50.0.1 drop; }; }"""
    )
    verdict = judge_network(members)
    assert fault_by_pair(verdict) == {("n1", "n2"): "asymmetric"}, draw_matrix(verdict["pairs"])
    assert "n2 reaches n1" in find_pair(verdict, "n1", "n2")["message"]


def test_dead_member_is_named_within_bounded_time(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2, 3)]
    members[2].ip("link", "set", "eth0", "down")
    started_at = time.monotonic()
    verdict = judge_network(members, unreachable_members=[members[2]])
    assert time.monotonic() - started_at < 110
    assert fault_by_pair(verdict) == {
        ("n1", "n3"): "no_answer",
        ("n2", "n3"): "no_answer",
        ("n3", "n1"): "not_checked",
        ("n3", "n2"): "not_checked",
    }, draw_matrix(verdict["pairs"])
    assert find_pair(verdict, "n1", "n3")["status"] == "fail"
    assert "ARP" in find_pair(verdict, "n1", "n3")["message"]
    assert find_pair(verdict, "n3", "n1")["status"] == "error"
    assert "SSH" in find_pair(verdict, "n3", "n1")["message"]
    assert [finding["host"] for finding in verdict["hosts"]] == ["n3"]


def test_live_member_without_ssh_is_not_reported_dead(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2)]
    verdict = judge_network(members, unreachable_members=[members[1]])
    unchecked_pair = find_pair(verdict, "n1", "n2")
    assert (unchecked_pair["status"], unchecked_pair["verdict"]) == ("error", "not_checked")
    assert "is alive" in unchecked_pair["message"]


def test_docker_subnet_overlapping_the_lan_is_the_wrong_interface(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2, 3)]
    members[1].ip("link", "add", "docker0", "type", "bridge")
    members[1].ip("addr", "add", "10.50.0.126/25", "dev", "docker0")
    members[1].ip("link", "set", "docker0", "up")
    verdict = judge_network(members)
    assert verdict_by_pair(verdict)["n2", "n1"] == verdict_by_pair(verdict)["n2", "n3"] == "wrong_interface", (
        draw_matrix(verdict["pairs"])
    )
    failed_pair = find_pair(verdict, "n2", "n1")
    assert "docker0" in failed_pair["message"] and "daemon.json" in failed_pair["remedy"]
    # Packets to the member arrive, but its responses go into the bridge.
    assert find_pair(verdict, "n1", "n2")["status"] == "fail"
    assert verdict_by_pair(verdict)["n1", "n3"] == "ok"


def test_host_name_resolving_to_loopback(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2)]
    members[1].hosts_file = "127.0.0.1 localhost\n127.0.1.1 n2\n"
    verdict = judge_network(members)
    assert fault_by_pair(verdict) == {("n1", "n2"): "name_is_loopback"}, draw_matrix(verdict["pairs"])
    assert "127.0.1.1" in find_pair(verdict, "n1", "n2")["message"]
    assert [(finding["host"], finding["verdict"]) for finding in verdict["hosts"]] == [("n2", "name_is_loopback")]
    assert fault_by_pair(judge_network(members, check_name=False)) == {}


def test_clock_ten_minutes_off(net: NamespaceNetwork, tmp_path: Path) -> None:
    members = [net.add_member(number) for number in (1, 2, 3)]
    # No namespace has a wall clock of its own, so this host's Python is told another time.
    (tmp_path / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 600\n")
    members[1].wrapper = ["env", f"PYTHONPATH={tmp_path}"]
    verdict = judge_network(members)
    skewed_pairs = {ends for ends, pair_verdict in verdict_by_pair(verdict).items() if pair_verdict == "clock_skew"}
    assert skewed_pairs == {("n1", "n2"), ("n2", "n1"), ("n2", "n3"), ("n3", "n2")}, draw_matrix(verdict["pairs"])
    assert abs(find_pair(verdict, "n1", "n2")["offset_s"] - 600) < 10
    assert abs(find_pair(verdict, "n2", "n1")["offset_s"] + 600) < 10
    assert [(finding["host"], finding["verdict"]) for finding in verdict["hosts"]] == [("n2", "clock_skew")]
    assert "ahead of the other members'" in verdict["hosts"][0]["message"]


def test_address_also_used_by_a_stranger(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2, 3)]
    stranger = net.add_host("stranger")
    net.connect_host(stranger, "eth0", "10.50.0.2/24")
    mac = stranger.run("cat", "/sys/class/net/eth0/address").strip()
    verdict = judge_network(members)
    assert {ends for ends, pair_verdict in verdict_by_pair(verdict).items() if pair_verdict == "duplicate_address"} == {
        ("n1", "n2"),
        ("n2", "n1"),
        ("n2", "n3"),
        ("n3", "n2"),
    }, draw_matrix(verdict["pairs"])
    assert mac in find_pair(verdict, "n1", "n2")["message"]
    assert verdict_by_pair(verdict)["n1", "n3"] == "ok"
    assert [(finding["host"], finding["verdict"]) for finding in verdict["hosts"]] == [("n2", "duplicate_address")]


def test_address_also_used_by_another_member_names_it(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2, 3)]
    members[2].ip("addr", "add", "10.50.0.2/24", "dev", "eth0")
    verdict = judge_network(members)
    assert verdict_by_pair(verdict)["n1", "n2"] == "duplicate_address", draw_matrix(verdict["pairs"])
    assert "n3" in find_pair(verdict, "n1", "n2")["message"]
    assert verdict_by_pair(verdict)["n3", "n2"] == "duplicate_address"


def test_address_missing_on_the_host_is_reported(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2)]
    members[1].ip("addr", "flush", "dev", "eth0")
    members[1].ip("addr", "add", "10.50.0.7/24", "dev", "eth0")
    verdict = judge_network(members)
    assert verdict["status"] == "fail"
    assert "Cannot listen on 10.50.0.2" in " ".join(finding["message"] for finding in verdict["hosts"])
    assert find_pair(verdict, "n1", "n2")["verdict"] == "no_answer"


def test_missing_route(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2)]
    members[0].ip("route", "del", "10.50.0.0/24", "dev", "eth0")
    verdict = judge_network(members)
    assert verdict_by_pair(verdict)["n1", "n2"] == "no_route"
    assert "Network is unreachable" in find_pair(verdict, "n1", "n2")["message"]


def test_ipv6(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2)]
    for number, member in enumerate(members, 1):
        member.address = f"fd50::{number}"
        member.hosts_file = f"::1 localhost\nfd50::{number} {member.machine}\n"
        member.ip("addr", "add", f"fd50::{number}/64", "dev", "eth0", "nodad")
    verdict = judge_network(members)
    assert fault_by_pair(verdict) == {}, draw_matrix(verdict["pairs"])
    assert {item["path_mtu"] for item in verdict["pairs"]} == {1500}
    assert {check["status"] for check in verdict["checks"] if check["id"] == "reachability.unique_address"} == {
        "skipped"
    }
