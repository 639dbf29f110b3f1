# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's own firewall gets from the record and the options, and what is only said."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.action import firewall_host
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.tests.support.action_runs import ActionRun, play_action

MODULE = "gpumesh.cluster.firewall_host"
MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")


def record(backend: str) -> dict[str, Any]:
    return dict(
        plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": backend}, MEMBERS, STAMP), STAMP)
    )


RECORD = record("none")
LAN = {"interface": "eth0", "source": "10.0.0.0/24"}
NOTHING = {
    "changed": False,
    "commands": [],
    "firewalls": ["ufw"],
    "obstacles": [],
    "ufw": [],
    "zones": [],
    "applies": False,
}
UFW_ARGS = {"rule": "allow", "comment": "gpumesh.cluster lab"}
MISSING = {**NOTHING, "changed": True, "commands": ["ufw allow x"], "ufw": [UFW_ARGS], "diff": {"after": "x"}}
ZONE_ARGS = {"zone": "gpumesh-lab", "state": "present", "permanent": True}
AUTO = {"firewall_host": "auto"}


def play(arguments: dict[str, Any], result: dict[str, Any], check_mode: bool = False, **variables: Any) -> ActionRun:
    results = {
        MODULE: [result, NOTHING],
        "community.general.ufw": [{"changed": True}],
        "ansible.posix.firewalld": [{"changed": True}],
    }
    host_variables = {"inventory_hostname": "n1", **variables}
    return play_action(firewall_host.ActionModule, arguments, results, host_variables, check_mode)


def rules_of(arguments: dict[str, Any], **variables: Any) -> list[dict[str, Any]]:
    ((_name, module_args),) = play(arguments, NOTHING, **variables).module_calls
    assert (module_args["cluster"], module_args["state"]) == ("lab", "present")
    return list(module_args["rules"])


def test_a_lan_needs_its_subnet() -> None:
    assert rules_of({"record": RECORD}) == [LAN]


def test_a_mesh_needs_its_port_and_its_interface() -> None:
    assert rules_of({"record": record("wireguard")}) == [
        LAN,
        {"port": 51820, "protocol": "udp"},
        {"interface": "gpumesh0", "source": "10.99.0.0/16", "mesh": True},
        {"interface": "gpumesh0", "out_interface": "gpumesh0", "forward": True, "mesh": True},
    ]


def test_the_interface_of_tailscale_is_not_the_clusters_alone_and_nothing_is_forwarded_there() -> None:
    assert rules_of({"record": record("tailscale")}) == [
        LAN,
        {"port": 41641, "protocol": "udp"},
        {"interface": "tailscale0", "source": "100.64.0.0/10"},
    ]


def test_machines_that_share_only_the_mesh_open_no_other_network() -> None:
    meshed = plan.create("0" * 32, "lab", "10.99.0.0/16", "n1", {"backend": "wireguard"}, MEMBERS, STAMP)
    rules = rules_of({"record": plan.commit(meshed, STAMP)})
    assert [rule.get("source") for rule in rules] == [None, "10.99.0.0/16", None]


def test_sessions_need_to_be_forwarded_and_their_ports_only_on_the_manager() -> None:
    sessions = {"session_enabled": True, "session_ports": [8888, "9000:80"], "session_subnets": ["10.192.0.0/10"]}
    forwarded = {"interface": "gms+", "source": "10.192.0.0/10", "forward": True}
    published = [{"port": port, "protocol": "tcp"} for port in (8888, 9000)]
    assert rules_of({"record": RECORD}, **sessions) == [LAN, forwarded, *published]
    assert rules_of({"record": RECORD}, **sessions, inventory_hostname="n2") == [LAN, forwarded]
    assert rules_of({"record": RECORD}, **{**sessions, "session_nat": False}) == [LAN, *published]
    assert rules_of({"record": RECORD}, **{**sessions, "session_enabled": False}) == [LAN]


def test_a_head_node_forwards_nothing_for_sessions_but_has_their_ports() -> None:
    sessions = {"session_enabled": True, "session_ports": [8888], "session_subnets": ["10.192.0.0/10"]}
    head = {**RECORD, "members": [{**RECORD["members"][0], "slurm_node": False}, RECORD["members"][1]]}
    assert rules_of({"record": head}, **sessions) == [LAN, {"port": 8888, "protocol": "tcp"}]


def test_a_machine_that_joins_needs_the_same_as_a_member() -> None:
    decision = {"subnet": "10.0.0.0/24", "manager": "n1", "enrol_settings": RECORD["mesh"], "members": MEMBERS}
    arguments = {"registration": "decided"}
    assert rules_of(arguments, decided=decision, cluster_name="lab", **AUTO) == [LAN]
    # Its commands are said once it has joined, and by the verdict on the probes if it cannot.
    assert play(arguments, NOTHING, decided=decision, cluster_name="lab").module_calls == []


def test_a_machine_outside_the_cluster_gets_no_rules_but_loses_them() -> None:
    assert play({"record": RECORD}, NOTHING, inventory_hostname="n9").module_calls == []
    ((_name, module_args),) = play({"record": RECORD, "state": "absent"}, NOTHING, inventory_hostname="n9").module_calls
    assert module_args == {"cluster": "lab", "state": "absent"}


def test_the_commands_are_only_said_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(firewall_host.ActionModule, "print_text", lambda _self, text: texts.append(text))
    for check_mode in (False, True):
        played = play({"record": RECORD}, {**MISSING, "obstacles": ["x is y"]}, check_mode)
        assert [name for name, _arguments in played.module_calls] == [MODULE]
        assert not played.result["changed"] and not played.result["diff"]
    assert texts[0].splitlines()[1:] == ["  ufw allow x", "  But: x is y."]
    assert texts[0].startswith("n1: ufw is active, but the rules of cluster 'lab' there are not up to date.")


def test_missing_rules_are_added_with_the_modules_for_them() -> None:
    both = {**MISSING, "zones": [ZONE_ARGS], "applies": True}
    played = play({"record": RECORD}, both, **AUTO)
    assert played.result["changed"]
    assert played.module_calls[1:3] == [("community.general.ufw", UFW_ARGS), ("ansible.posix.firewalld", ZONE_ARGS)]
    assert played.module_calls[3] == (MODULE, {**played.module_calls[0][1], "apply": True})
    assert len(play({"record": RECORD}, MISSING, **AUTO).module_calls) == 2


def test_nothing_is_changed_in_check_mode_or_if_nothing_is_missing() -> None:
    checked = play({"record": RECORD}, MISSING, check_mode=True, **AUTO)
    assert (len(checked.module_calls), checked.result["changed"]) == (1, True)
    assert len(play({"record": RECORD}, NOTHING, **AUTO).module_calls) == 1


@pytest.mark.parametrize("check_mode", [False, True])
def test_an_obstacle_stops_a_change(check_mode: bool) -> None:
    played = play({"record": RECORD}, {**MISSING, "obstacles": ["x is in the zone home"]}, check_mode, **AUTO)
    assert len(played.module_calls) == 1
    assert "The firewall of n1 was not changed: x is in the zone home." in played.result["msg"]


def test_the_rules_go_with_the_cluster_whatever_the_option_says() -> None:
    played = play({"record": RECORD, "state": "absent"}, MISSING)
    assert [name for name, _arguments in played.module_calls] == [MODULE, "community.general.ufw"]


@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_failing_program_is_only_said_by_default(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    texts: list[str] = []
    monkeypatch.setattr(firewall_host.ActionModule, "print_text", lambda _self, text: texts.append(text))
    arguments = {"record": RECORD, "state": state}
    broken = {"failed": True, "msg": "'ufw show added' exited 1.", "error": {"kind": "command"}}
    played = play(arguments, broken)
    assert (played.result["changed"], played.result.get("failed")) == (False, None)
    assert "n1: the host's own firewall was not compared" in texts[0] and "'ufw show added' exited 1." in texts[0]
    assert play(arguments, broken, **AUTO).result["failed"]
    assert play(arguments, {**broken, "error": {"kind": "input"}}).result["failed"]
    assert play(arguments, {"unreachable": True, "msg": "no route"}).result["unreachable"]
    assert len(texts) == 1
