# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cases that cannot be built from namespaces: clouds, switches that answer for others, and all kinds of odd results.

tests/integration/reach proves that real faults give these results.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_evidence import (
    build_peers,
    expected_members,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_matrix import (
    VERDICT_SYMBOLS,
    draw_matrix,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_verdicts import (
    VERDICTS,
    judge_reachability,
)

PORTS = [
    {"port": 22, "role": "named", "protocol": "tcp", "state": "service"},
    {"port": 40001, "role": "ephemeral", "protocol": "tcp", "state": "listening"},
    {"port": 40001, "role": "ephemeral", "protocol": "udp", "state": "listening"},
]


def build_members(number: int) -> list[dict[str, str]]:
    return [{"machine": f"n{i}", "address": f"10.0.0.{i}", "interface": "eth0"} for i in range(1, number + 1)]


def mac_of(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


def peer_result(one: int, other: int) -> dict[str, Any]:
    whole = {"outcome": "ok", "size": 1048576, "passed": 1048576, "detail": ""}
    return {
        "machine": f"n{other}",
        "address": f"10.0.0.{other}",
        "route": {"dev": "eth0", "prefsrc": f"10.0.0.{one}", "gateway": None, "error": None},
        "macs": [mac_of(other)],
        "ports": [
            {**{key: port[key] for key in ("port", "role", "protocol")}, "outcome": outcome, "detail": ""}
            for port, outcome in zip(PORTS, ("connected", "ok", "ok"))
        ],
        "source": f"10.0.0.{one}",
        "seen": f"10.0.0.{one}",
        "clock": {"offset_s": 0.001, "rtt_ms": 0.2},
        "path_mtu": {"interface": 1500, "peer_interface": 1500, "to_peer": 1500, "from_peer": 1500, "signalled": 1500},
        "sent": dict(whole),
        "received": dict(whole),
        "finished": True,
    }


def healthy_results(number: int) -> dict[str, Any]:
    """The results of a healthy network."""
    names = range(1, number + 1)
    return {
        "listen": {f"n{i}": {"changed": False, "ports": deepcopy(PORTS)} for i in names},
        "probe": {
            f"n{i}": {
                "changed": False,
                "probe": {
                    "machine": f"n{i}",
                    "address": f"10.0.0.{i}",
                    "interface": {"name": "eth0", "mtu": 1500, "mac": mac_of(i)},
                    "own_macs": [mac_of(i)],
                    "duplicate": {"checked": True, "reason": "", "macs": []},
                    "hostname": {
                        "name": f"n{i}",
                        "addresses": [f"10.0.0.{i}"],
                        "hosts_file": [],
                        "loopback": False,
                        "problem": None,
                        "remedy": None,
                    },
                    "seconds": 1.0,
                    "peers": [peer_result(i, j) for j in names if j != i],
                },
            }
            for i in names
        },
    }


def result_of_pair(results: dict[str, Any], one: str, other: str) -> dict[str, Any]:
    return next(peer for peer in results["probe"][one]["probe"]["peers"] if peer["machine"] == other)


def find_pair(found: dict[str, Any], one: str, other: str) -> dict[str, Any]:
    return next(item for item in found["pairs"] if (item["from"], item["to"]) == (one, other))


def test_healthy_members_pass() -> None:
    found = judge_reachability(healthy_results(3), build_members(3))
    assert found["status"] == "pass"
    assert found["counts"] == {"ok": 6}
    assert found["lingering"] == []
    assert find_pair(found, "n1", "n2") == {
        "from": "n1",
        "to": "n2",
        "status": "pass",
        "verdict": "ok",
        "message": "n1 reaches n2: 3 ports, 1048576 bytes in each direction, path MTU 1500.",
        "remedy": "",
        "rtt_ms": 0.2,
        "path_mtu": 1500,
        "offset_s": 0.001,
        "bandwidth_gbps": None,
        "rdma_gbps": None,
        "rdma_latency_us": None,
        "rdma_error": "",
    }


def test_no_members() -> None:
    assert judge_reachability({}, [])["status"] == "skipped"
    found = judge_reachability({}, build_members(2))
    assert found["status"] == "skipped"
    assert find_pair(found, "n1", "n2")["message"] == "Not checked: n1 is not among the hosts of this run."


def test_targets_of_a_record_have_cluster_addresses() -> None:
    member = {"site": "a", "endpoint": None, "gpus": 0, "machine": "n1", "address": "10.0.0.1", "interface": "eth0"}
    record = {
        "manager": "n1",
        "members": [{**member, "mesh": {"address": "10.99.0.1", "public_key": None}}],
        "mesh": {"backend": "wireguard", "interface": "gpumesh0"},
    }
    assert [tuple(target)[:3] for target in expected_members(record)] == [("n1", "10.99.0.1", "gpumesh0")]


@pytest.mark.parametrize("given_members", ["n1", 7, ["n1"], [{"machine": "n1"}], {"no": "record"}])
def test_invalid_members_are_refused(given_members: Any) -> None:
    with pytest.raises(InputError):
        expected_members(given_members)


def test_members_without_a_listener_are_peers() -> None:
    listening = {"n1": {"ports": PORTS, "rdma": {"device": "mlx5_0"}}, "n2": {"unreachable": True, "msg": "no"}}
    assert build_peers(listening, build_members(3)) == [
        {"machine": "n1", "address": "10.0.0.1", "ports": PORTS, "rdma": True},
        {"machine": "n2", "address": "10.0.0.2", "ports": [], "rdma": False},
        {"machine": "n3", "address": "10.0.0.3", "ports": [], "rdma": False},
    ]


def test_members_outside_the_run_are_only_probed() -> None:
    results = healthy_results(3)
    for phase in results.values():
        del phase["n3"]
    for one in ("n1", "n2"):
        result_of_pair(results, one, "n3")["ports"] = [
            {"port": 22, "role": "named", "protocol": "tcp", "outcome": "connected", "detail": ""}
        ]
    found = judge_reachability(results, build_members(3))
    assert found["status"] == "pass"
    assert find_pair(found, "n1", "n3")["status"] == "skipped"
    assert "accepts a connection to TCP 22" in find_pair(found, "n1", "n3")["message"]
    assert find_pair(found, "n3", "n1")["status"] == "skipped"
    assert found["hosts"] == []


def test_listeners_linger_for_a_member_that_dropped_out() -> None:
    results = healthy_results(3)
    # It is in the play, but has no results: the others' listeners expect a visitor that never comes.
    for phase in results.values():
        phase["n3"] = {}
    found = judge_reachability(results, build_members(3))
    assert find_pair(found, "n3", "n1")["status"] == "error"
    assert "had failed earlier in this run" in find_pair(found, "n3", "n1")["message"]
    assert found["lingering"] == ["n1", "n2"]


def test_proxy_arp_is_not_a_duplicate() -> None:
    results = healthy_results(3)
    for one in ("n1", "n2", "n3"):
        probe = results["probe"][one]["probe"]
        probe["duplicate"]["macs"] = ["12:34:56:78:9a:bc"]
        for peer in probe["peers"]:
            peer["macs"] = ["12:34:56:78:9a:bc"]
    assert judge_reachability(results, build_members(3))["status"] == "pass"


def test_translated_mac_addresses_are_not_duplicates() -> None:
    results = healthy_results(3)
    result_of_pair(results, "n1", "n2")["macs"] = ["12:34:56:78:9a:02"]
    assert judge_reachability(results, build_members(3))["status"] == "pass"


def test_two_interfaces_on_one_network_are_not_duplicates() -> None:
    results = healthy_results(3)
    results["probe"]["n2"]["probe"]["own_macs"].append("02:00:00:00:00:22")
    results["probe"]["n2"]["probe"]["duplicate"]["macs"] = ["02:00:00:00:00:22"]
    result_of_pair(results, "n1", "n2")["macs"].append("02:00:00:00:00:22")
    assert judge_reachability(results, build_members(3))["status"] == "pass"


def test_two_mac_addresses_of_an_unreachable_member_are_a_duplicate() -> None:
    results = healthy_results(3)
    del results["probe"]["n3"]
    results["listen"]["n3"] = {"unreachable": True, "msg": "timed out"}
    result_of_pair(results, "n1", "n3")["macs"].append("02:00:00:00:00:99")
    found = judge_reachability(results, build_members(3))
    assert find_pair(found, "n1", "n3")["verdict"] == "duplicate_address"
    assert "two interfaces of one" in find_pair(found, "n1", "n3")["message"]
    assert "02:00:00:00:00:99 (locally administered" in find_pair(found, "n1", "n3")["message"]


def test_address_of_the_sender_itself_is_a_duplicate() -> None:
    results = healthy_results(2)
    result_of_pair(results, "n1", "n2")["route"]["dev"] = "lo"
    assert find_pair(judge_reachability(results, build_members(2)), "n1", "n2")["verdict"] == "duplicate_address"


@pytest.mark.parametrize(
    ("outcomes", "verdict", "words"),
    [
        (("filtered", "filtered"), "filtered", "times out"),
        (("refused", "refused"), "refused", "although it listens"),
        (("mute", "mute"), "filtered", "but no data passes"),
        (("connected", "stranger"), "wrong_host", "does not know the token"),
        (("closed", "closed"), "filtered", "closed before any data passes"),
        (("closed", "ok"), "filtered", "closes the connections of n1 on TCP 22"),
        (("no_route", "no_route"), "filtered", "rejected by a firewall"),
        (("connected", "filtered"), "filtered", "TCP 22 and UDP 40001 pass"),
        (("filtered", "ok"), "filtered", "on TCP 22"),
        (("refused", "ok"), "refused", "refuses n1 on TCP 22"),
    ],
)
def test_verdicts_of_ports(outcomes: tuple[str, str], verdict: str, words: str) -> None:
    results = healthy_results(2)
    for one, other in (("n1", "n2"), ("n2", "n1")):
        # Without a session, UDP is not tested.
        udp = "ok" if "ok" in outcomes or outcomes == ("connected", "filtered") else "not_checked"
        for port, outcome in zip(result_of_pair(results, one, other)["ports"], (*outcomes, udp)):
            port["outcome"] = outcome
    found = find_pair(judge_reachability(results, build_members(2)), "n1", "n2")
    assert (found["verdict"], found["status"]) == (verdict, "fail")
    assert words in found["message"], found["message"]
    assert found["remedy"]


def rich_rule(network: str) -> str:
    """The command that accepts a network in the zone of the interface of n2."""
    return (
        '`firewall-cmd --zone="$(firewall-cmd --get-zone-of-interface=eth0 || firewall-cmd --get-default-zone)" '
        f"""--add-rich-rule='rule family="ipv4" source address="{network}" accept'`, also with --permanent"""
    )


@pytest.mark.parametrize(
    ("firewall", "command"),
    [
        (
            "ufw",
            "run there, for n1 and the same for the other members: `ufw allow in on eth0 from 10.0.0.1`; and run site again. If",
        ),
        ("firewalld", f"other members: {rich_rule('10.0.0.1')}; and run site again. If"),
        ("rm -rf /", ""),
        (None, ""),
    ],
)
@pytest.mark.parametrize("outcomes", [("filtered", "filtered"), ("filtered", "ok"), ("refused", "refused")])
def test_the_remedy_of_a_filtered_pair_names_the_firewall_of_the_receiver(
    firewall: str | None, command: str, outcomes: tuple[str, str]
) -> None:
    results = healthy_results(2)
    results["listen"]["n2"]["host_firewalls"] = [firewall] if firewall else None
    for port, outcome in zip(result_of_pair(results, "n1", "n2")["ports"], outcomes):
        port["outcome"] = outcome
    remedy = find_pair(judge_reachability(results, build_members(2)), "n1", "n2")["remedy"]
    assert command in remedy and "rm -rf" not in remedy
    assert ("is active on n2" in remedy) == bool(command)
    assert "in the firewall" in remedy or "in both firewalls" in remedy


def test_the_command_for_a_firewall_names_the_network_of_all_members_and_each_firewall() -> None:
    results = healthy_results(2)
    results["listen"]["n2"]["host_firewalls"] = ["ufw", "firewalld"]
    for port in result_of_pair(results, "n1", "n2")["ports"]:
        port["outcome"] = "filtered"
    members = [{**member, "network": "10.0.0.0/24"} for member in build_members(2)]
    remedy = find_pair(judge_reachability(results, members), "n1", "n2")["remedy"]
    assert remedy.startswith(
        "ufw and firewalld are active on n2. Set firewall_host=auto, or run there: `ufw allow in on eth0 from "
        f"10.0.0.0/24` and {rich_rule('10.0.0.0/24')}; and run site again. If that does not suffice: "
    )
    automatic = judge_reachability(results, members, automatic_machines=["n2"])
    remedy = find_pair(automatic, "n1", "n2")["remedy"]
    assert remedy.startswith("ufw and firewalld are active on n2, with firewall_host=auto. Run site again, which adds")
    assert "Set firewall_host" not in remedy and "ufw allow" not in remedy
    others = judge_reachability(results, members, automatic_machines=["n1"])
    assert "Set firewall_host=auto" in find_pair(others, "n1", "n2")["remedy"]


@pytest.mark.parametrize(
    ("macs", "words"), [([], "no host answers the arp requests of n1"), (None, "the network reports 'no route'")]
)
def test_unreachable_although_both_run(macs: list[str] | None, words: str) -> None:
    results = healthy_results(2)
    for one, other in (("n1", "n2"), ("n2", "n1")):
        result_of_pair(results, one, other)["macs"] = macs
        for port in result_of_pair(results, one, other)["ports"]:
            outcome = "no_route" if port["protocol"] == "tcp" else "not_checked"
            port.update({"outcome": outcome, "detail": "no route"})
    found = find_pair(judge_reachability(results, build_members(2)), "n1", "n2")
    assert found["verdict"] == "no_route"
    assert words in found["message"].lower()


def test_only_udp_is_filtered() -> None:
    results = healthy_results(2)
    result_of_pair(results, "n1", "n2")["ports"][2]["outcome"] = "filtered"
    found = find_pair(judge_reachability(results, build_members(2)), "n1", "n2")
    assert found["verdict"] == "filtered"
    assert "UDP 40001" in found["message"]


@pytest.mark.parametrize("outcomes", [("not_checked", "ok", "ok"), ("not_checked", "not_checked", "not_checked")])
def test_unopened_connections_are_not_checked(outcomes: tuple[str, ...]) -> None:
    results = healthy_results(2)
    for port, outcome in zip(result_of_pair(results, "n1", "n2")["ports"], outcomes):
        port.update({"outcome": outcome, "detail": "n1 could not open another connection: Too many open files"})
    found = find_pair(judge_reachability(results, build_members(2)), "n1", "n2")
    assert (found["status"], found["verdict"]) == ("error", "not_checked")
    assert "n1 could not open another connection" in found["message"]
    assert "n1" in found["remedy"]


@pytest.mark.parametrize(("state", "verdict"), [("busy", "ok"), ("service", "refused")])
def test_port_of_an_ended_run_is_not_refused(state: str, verdict: str) -> None:
    results = healthy_results(2)
    results["listen"]["n2"]["ports"][0]["state"] = state
    result_of_pair(results, "n1", "n2")["ports"][0]["outcome"] = "refused"
    assert find_pair(judge_reachability(results, build_members(2)), "n1", "n2")["verdict"] == verdict


def test_other_own_source_address_is_not_nat() -> None:
    results = healthy_results(2)
    result_of_pair(results, "n1", "n2").update({"source": "10.0.0.77", "seen": "10.0.0.77"})
    found = find_pair(judge_reachability(results, build_members(2)), "n1", "n2")
    assert found["verdict"] == "wrong_interface"
    result_of_pair(results, "n1", "n2").update({"source": "10.0.0.1", "seen": "203.0.113.9"})
    found = find_pair(judge_reachability(results, build_members(2)), "n1", "n2")
    assert found["verdict"] == "nat"
    assert "203.0.113.9" in found["message"]


def test_unequal_mtus_are_a_black_hole() -> None:
    results = healthy_results(2)
    result_of_pair(results, "n1", "n2")["path_mtu"] = {
        "interface": 9000,
        "peer_interface": 1500,
        "to_peer": 1500,
        "from_peer": 1500,
        "signalled": 9000,
    }
    found = find_pair(judge_reachability(results, build_members(2)), "n1", "n2")
    assert found["verdict"] == "mtu_black_hole"
    assert "same MTU on all members" in found["remedy"]


def test_stalled_transfer_without_a_path_mtu() -> None:
    results = healthy_results(2)
    result_of_pair(results, "n1", "n2")["path_mtu"] = None
    result_of_pair(results, "n1", "n2")["sent"]["outcome"] = "stalled"
    result_of_pair(results, "n1", "n2")["finished"] = False
    found = judge_reachability(results, build_members(2))
    assert find_pair(found, "n1", "n2")["verdict"] == "mtu_black_hole"
    assert found["lingering"] == ["n2"]


@pytest.mark.parametrize(
    ("outcome", "detail"), [("stalled", "the transfer stalled"), ("broken", "the connection broke")]
)
def test_transfer_that_fails_once_is_not_checked(outcome: str, detail: str) -> None:
    results = healthy_results(2)
    result_of_pair(results, "n1", "n2")["finished"] = False
    result_of_pair(results, "n1", "n2")["received"].update({"outcome": outcome, "detail": detail})
    found = judge_reachability(results, build_members(2))
    assert (find_pair(found, "n1", "n2")["status"], find_pair(found, "n1", "n2")["verdict"]) == ("error", "not_checked")
    assert detail in find_pair(found, "n1", "n2")["message"]
    assert find_pair(found, "n2", "n1")["status"] == "pass"
    # If it fails in the other probe too, that pair has the verdict.
    result_of_pair(results, "n2", "n1")["finished"] = False
    result_of_pair(results, "n2", "n1")["sent"].update({"outcome": outcome, "detail": detail})
    found = judge_reachability(results, build_members(2))
    assert find_pair(found, "n1", "n2")["status"] == "pass"
    assert find_pair(found, "n2", "n1")["status"] == ("fail" if outcome == "stalled" else "error")


def test_unmeasured_path_mtu_is_not_checked() -> None:
    results = healthy_results(2)
    result_of_pair(results, "n1", "n2")["path_mtu"]["to_peer"] = None
    found = judge_reachability(results, build_members(2))
    assert (find_pair(found, "n1", "n2")["status"], find_pair(found, "n1", "n2")["verdict"]) == ("error", "not_checked")
    assert find_pair(found, "n2", "n1")["status"] == "pass"


def test_corrupted_payload() -> None:
    results = healthy_results(2)
    result_of_pair(results, "n1", "n2")["sent"]["outcome"] = "corrupted"
    assert find_pair(judge_reachability(results, build_members(2)), "n1", "n2")["verdict"] == "corrupted"


def test_broken_connection_is_not_checked() -> None:
    results = healthy_results(2)
    result_of_pair(results, "n1", "n2").update({"finished": False, "clock": None, "path_mtu": None, "sent": None})
    found = find_pair(judge_reachability(results, build_members(2)), "n1", "n2")
    assert (found["status"], found["verdict"]) == ("error", "not_checked")


def test_two_different_clocks_blame_no_host() -> None:
    results = healthy_results(2)
    result_of_pair(results, "n1", "n2")["clock"]["offset_s"] = 600.0
    result_of_pair(results, "n2", "n1")["clock"]["offset_s"] = -600.0
    found = judge_reachability(results, build_members(2))
    assert found["counts"] == {"clock_skew": 2}
    assert "behind" in find_pair(found, "n2", "n1")["message"]
    assert found["hosts"] == []
    assert judge_reachability(results, build_members(2), max_clock_offset=601)["status"] == "pass"


def test_failed_module_is_explained() -> None:
    results = healthy_results(2)
    results["listen"]["n2"] = {"changed": False, "failed": False, "msg": "n2: Cannot listen on 10.0.0.2."}
    results["probe"]["n2"] = {"changed": False, "skipped": True}
    result_of_pair(results, "n1", "n2")["ports"] = [
        {"port": 22, "role": "named", "protocol": "tcp", "outcome": "refused", "detail": ""}
    ]
    found = judge_reachability(results, build_members(2))
    assert find_pair(found, "n1", "n2")["message"] == (
        "Not checked: n2 could not listen: Cannot listen on 10.0.0.2. 10.0.0.2 is alive: it refuses a connection "
        "to TCP 22."
    )
    assert [host["message"] for host in found["hosts"]] == ["N2 could not listen: Cannot listen on 10.0.0.2."]


def test_throughput_is_reported_with_its_pair() -> None:
    results = healthy_results(2)
    results["throughput"] = {"n1": {"throughput": [{"machine": "n2", "gbps": 9.4, "method": "iperf3", "error": ""}]}}
    found = judge_reachability(results, build_members(2))
    assert find_pair(found, "n1", "n2")["bandwidth_gbps"] == 9.4
    assert find_pair(found, "n2", "n1")["bandwidth_gbps"] is None


def test_rdma_is_reported_by_pair_and_port_by_member() -> None:
    results = healthy_results(2)
    rdma = {"gbps": 391.0, "latency_us": 1.9, "error": ""}
    measured = {"machine": "n2", "gbps": 9.4, "method": "iperf3", "error": "", "rdma": rdma}
    results["throughput"] = {"n1": {"throughput": [measured]}}
    results["listen"]["n1"]["rdma"] = {"device": "mlx5_0", "rate_gbps": 400.0, "reason": ""}
    found = judge_reachability(results, build_members(2))
    assert (find_pair(found, "n1", "n2")["rdma_gbps"], find_pair(found, "n1", "n2")["rdma_latency_us"]) == (391.0, 1.9)
    assert find_pair(found, "n2", "n1")["rdma_gbps"] is None
    assert found["rdma"] == {"n1": {"device": "mlx5_0", "rate_gbps": 400.0, "reason": ""}}


def test_checks_have_the_common_fields() -> None:
    results = healthy_results(2)
    results["probe"]["n1"]["probe"]["duplicate"] = {"checked": False, "reason": "eth0 does not support ARP", "macs": []}
    results["probe"]["n2"]["probe"]["hostname"].update({"loopback": True, "addresses": ["127.0.1.1"]})
    checks = {(check["id"], check["host"]): check for check in judge_reachability(results, build_members(2))["checks"]}
    assert all(
        set(check) == {"id", "purpose", "host", "actual", "required", "unit", "status", "reason", "remedy"}
        for check in checks.values()
    )
    assert checks["reachability.unique_address", "n1"]["status"] == "skipped"
    assert checks["reachability.unique_address", "n2"]["status"] == "pass"
    assert checks["reachability.own_name", "n2"]["status"] == "fail"
    assert "127.0.1.1" in checks["reachability.own_name", "n2"]["reason"]


outcome = st.sampled_from(
    ["ok", "connected", "refused", "filtered", "no_route", "closed", "mute", "stranger", "not_checked"]
)


@settings(deadline=None)
@given(st.data())
def test_every_pair_gets_one_verdict(data: st.DataObject) -> None:
    results = healthy_results(3)
    for machine in data.draw(st.sets(st.sampled_from(["n1", "n2", "n3"]))):
        results["probe"][machine] = data.draw(
            st.sampled_from([{}, {"skipped": True}, {"unreachable": True, "msg": "x"}])
        )
    for machine in data.draw(st.sets(st.sampled_from(["n1", "n2", "n3"]))):
        results["listen"][machine] = data.draw(
            st.sampled_from([{}, {"msg": "broken"}, {"unreachable": True, "msg": "x"}])
        )
    for probe in results["probe"].values():
        for peer in probe.get("probe", {}).get("peers", []):
            for port in peer["ports"]:
                port["outcome"] = data.draw(outcome)
            peer["macs"] = data.draw(
                st.none() | st.lists(st.sampled_from([mac_of(1), mac_of(2), mac_of(3), mac_of(9)]), max_size=2)
            )
            peer["finished"] = data.draw(st.booleans())
            if data.draw(st.booleans()):
                peer.update({"source": None, "seen": None, "clock": None, "path_mtu": None, "sent": None})
            if data.draw(st.booleans()):
                peer["route"] = data.draw(
                    st.sampled_from(
                        [
                            {"dev": None, "prefsrc": None, "gateway": None, "error": "no route"},
                            {"dev": "docker0", "prefsrc": None, "gateway": None, "error": None},
                        ]
                    )
                )
    found = judge_reachability(results, build_members(3))
    assert len(found["pairs"]) == 6
    for item in found["pairs"]:
        assert item["verdict"] in VERDICTS
        assert (item["status"] == "pass") == (item["verdict"] == "ok")
        assert item["message"].endswith(".")
        # A message about a fault must include what to do.
        assert bool(item["remedy"]) == (item["status"] in ("fail", "error"))
    assert draw_matrix(found["pairs"])


def faulty_pair(one: str, other: str, verdict: str) -> dict[str, Any]:
    status = "pass" if verdict == "ok" else "fail"
    return {"from": one, "to": other, "status": status, "verdict": verdict, "message": f"{verdict}.", "remedy": "Do."}


def pairs_with_faults(number: int, bad: dict[tuple[str, str], str]) -> list[dict[str, Any]]:
    names = [f"n{i}" for i in range(1, number + 1)]
    return [faulty_pair(a, b, bad.get((a, b), "ok")) for a in names for b in names if a != b]


class TestMatrix:
    def test_matrix_of_three_members(self) -> None:
        assert draw_matrix(pairs_with_faults(3, {("n1", "n2"): "filtered", ("n3", "n2"): "filtered"})) == "\n".join(
            [
                "from \\ to 1 2 3",
                "1 n1        F ·",
                "2 n2      ·   ·",
                "3 n3      · F",
                "",
                "· reaches   F filtered (no answer)",
                "",
                "n1, n3 → n2: filtered (no answer). For example n1 → n2: filtered.",
                "    Do.",
            ]
        )

    def test_a_check_describes_faults_elsewhere(self) -> None:
        pairs = pairs_with_faults(3, {("n1", "n2"): "filtered"})
        assert draw_matrix(pairs, describes_faults=False).splitlines()[-1] == "· reaches   F filtered (no answer)"

    def test_text_below_the_matrix_fits_80_columns(self) -> None:
        kinds = list(VERDICT_SYMBOLS)
        pairs = [
            {**faulty_pair("n1", f"n{number}", kind), "message": "Many words. " * 20, "remedy": "Do many things. " * 20}
            for number, kind in enumerate(kinds, 2)
        ]
        assert max(map(len, draw_matrix(pairs).splitlines())) <= 80

    def test_no_pairs(self) -> None:
        assert draw_matrix([]) == "There are no pairs of members."

    def test_fifty_members_fit_a_terminal_and_a_dead_one_is_described_once(self) -> None:
        names = [f"n{i}" for i in range(1, 51)]
        text = draw_matrix(pairs_with_faults(50, {(name, "n7"): "no_answer" for name in names if name != "n7"}))
        assert max(len(line) for line in text.split("\n")[:53]) <= 80
        assert text.count("→ n7") == 2
        assert "and 44 more → n7" in text

    def test_large_clusters_show_only_faulty_members(self) -> None:
        text = draw_matrix(pairs_with_faults(120, {("n5", "n9"): "nat"}))
        assert "120 members; the 118 with the fewest faults are not drawn." in text
        assert "5 n5        N\n" in text

    def test_control_characters_in_names_are_removed(self) -> None:
        assert "\x1b" not in draw_matrix([faulty_pair("\x1b[2Jn1", "n2", "nat"), faulty_pair("n2", "\x1b[2Jn1", "ok")])

    @settings(deadline=None)
    @given(st.integers(2, 30), st.randoms(use_true_random=False))
    def test_every_fault_is_described(self, number: int, chance: Any) -> None:
        names = [f"n{i}" for i in range(1, number + 1)]
        bad = {
            (one, other): chance.choice(["nat", "refused", "filtered"])
            for one in names
            for other in names
            if one != other and chance.random() < 0.1
        }
        text = draw_matrix(pairs_with_faults(number, bad))
        words = text.rpartition("\n\n")[2] if bad else ""
        assert all(f"{one}" in words and other in words for one, other in bad) or "others" in words


def test_only_tcp_is_checked_with_pods() -> None:
    """Its kernel has the provider's route, and only programs with its library use the mesh."""
    results, cast = healthy_results(2), expected_members(build_members(2))
    for one, other in (("n1", "n2"), ("n2", "n1")):
        found = result_of_pair(results, one, other)
        found["route"]["dev"] = "eth9"
        found["ports"][2]["outcome"] = "filtered"
        found["path_mtu"]["to_peer"] = 576
    assert judge_reachability(results, cast)["counts"] == {"wrong_interface": 2}
    found = judge_reachability(results, [cast[0], cast[1]._replace(is_pod=True)])
    assert found["counts"] == {"ok": 2}
    assert "UDP and the path MTU not checked" in find_pair(found, "n1", "n2")["message"]
    # What does not pass through TCP is still a fault.
    result_of_pair(results, "n1", "n2")["ports"][1]["outcome"] = "refused"
    assert (
        find_pair(judge_reachability(results, [cast[0], cast[1]._replace(is_pod=True)]), "n1", "n2")["status"] == "fail"
    )


def test_pods_are_taken_from_the_record() -> None:
    ends = [{"address": "100.64.0.1", "public_key": None}, {"address": "100.64.0.2", "userspace": True}]
    both = [{**one, "mesh": end, "site": "a", "endpoint": None, "gpus": 0} for one, end in zip(build_members(2), ends)]
    record = {"members": both, "mesh": {"backend": "tailscale", "interface": "tailscale0"}, "manager": "n1"}
    assert [target.is_pod for target in expected_members(record)] == [False, True]
    assert [target.is_pod for target in expected_members(record, "subnet")] == [False, False]
