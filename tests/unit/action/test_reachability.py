# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of reachability: who listens for whom, who is probed, and how the results are combined."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.action import (
    reachability,
    reachability_listener,
    reachability_peers,
    reachability_verdicts,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_evidence import listener_lifetime
from ansible_collections.gpumesh.cluster.tests.support.action_runs import ActionRun, play_action
from ansible_collections.gpumesh.cluster.tests.unit.action.test_storage import RECORD
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._checks.test_reachability_verdicts import (
    build_members,
    healthy_results,
)

MESHED = {
    **RECORD,
    "mesh": {**RECORD["mesh"], "backend": "wireguard"},
    "members": [
        {**member, "mesh": {"address": f"10.99.0.{place}", "public_key": "k="}}
        for place, member in enumerate(RECORD["members"], 1)
    ],
}
LISTENER, PROBE = "gpumesh.cluster.reachability_listener", "gpumesh.cluster.reachability"


def variables(number: int = 3, own: str = "n1", **more: Any) -> dict[str, Any]:
    machines = [f"n{place}" for place in range(1, number + 1)]
    return {"inventory_hostname": own, "ansible_play_hosts_all": machines, **more}


def run_listener(host_variables: dict[str, Any], **options: Any) -> ActionRun:
    arguments = {"run": "r", "token": "t", "members": build_members(3), **options}
    return play_action(reachability_listener.ActionModule, arguments, {LISTENER: [{"changed": False}]}, host_variables)


def module_arguments_of(done: ActionRun) -> dict[str, Any]:
    ((_name, arguments),) = done.module_calls
    return arguments


def test_a_listener_expects_the_other_members_in_the_play() -> None:
    arguments = module_arguments_of(run_listener(variables(), throughput_seconds=0))
    assert (arguments["machine"], arguments["address"], arguments["interface"]) == ("n1", "10.0.0.1", "eth0")
    assert arguments["peers"] == ["n2", "n3"]
    assert "members" not in arguments
    userspace_only = {"cluster_userspace_only": ["n2"]}
    assert module_arguments_of(run_listener(variables(**userspace_only)))["peers"] == ["n3"]
    assert module_arguments_of(run_listener(variables(2)))["peers"] == ["n2"]


def test_a_listener_stays_for_the_throughput() -> None:
    arguments = module_arguments_of(run_listener(variables(), throughput_seconds=3))
    assert arguments["peers"] == []
    assert arguments["lifetime"] == listener_lifetime(300, 3, 3) > listener_lifetime(300, 3, 0) == 300
    assert listener_lifetime(300, 1000, 0) == 8000


def test_a_host_that_is_not_a_member_is_left_alone() -> None:
    assert run_listener(variables(own="elsewhere")).result["skipped"]
    arguments = {"run": "r", "token": "t", "members": RECORD}
    done = play_action(reachability.ActionModule, arguments, {}, variables(own="elsewhere"))
    assert done.result["skipped"]


def test_the_layer_determines_the_addresses_of_the_members() -> None:
    for layer, address, check_name in (("mesh", "10.99.0.1", True), ("subnet", "192.168.1.1", False)):
        arguments = {"run": "r", "token": "t", "members": MESHED, "layer": layer, "peers": []}
        done = play_action(reachability.ActionModule, arguments, {PROBE: [{"changed": False}]}, variables(2))
        assert (module_arguments_of(done)["address"], module_arguments_of(done)["check_name"]) == (address, check_name)


def test_stopping_a_listener_needs_no_members() -> None:
    arguments = {"state": "stopped", "run": "r"}
    done = play_action(reachability_listener.ActionModule, arguments, {LISTENER: [{"stopped": True}]}, variables())
    assert done.module_calls == [(LISTENER, arguments)]


def test_nothing_is_tested_without_members() -> None:
    result = run_listener(variables(), members=[]).result
    assert result["failed"]
    assert "reachability_members" in result["msg"]


def registered_probes(number: int, **changed: Any) -> dict[str, Any]:
    probe_results = {**healthy_results(number), **changed}
    machines = [f"n{place}" for place in range(1, number + 1)]
    hostvars = {
        machine: {phase: result[machine] for phase, result in probe_results.items() if machine in result}
        for machine in machines
    }
    return variables(number, hostvars=hostvars)


def test_each_member_is_a_peer_with_the_ports_of_its_listener() -> None:
    found = healthy_results(3)
    del found["listen"]["n3"]
    arguments = {"members": build_members(3), "registered": "listen"}
    result = play_action(
        reachability_peers.ActionModule, arguments, {}, registered_probes(3, listen=found["listen"])
    ).result
    assert [peer["machine"] for peer in result["peers"]] == ["n1", "n2", "n3"]
    assert result["peers"][0]["ports"] == found["listen"]["n1"]["ports"]
    assert result["peers"][2]["ports"] == []


def test_the_pairs_are_judged() -> None:
    arguments = {"members": build_members(3), "run": "r", "registered": {"listen": "listen", "probe": "probe"}}
    result = play_action(reachability_verdicts.ActionModule, arguments, {}, registered_probes(3)).result
    verdicts = result["verdicts"]
    assert (verdicts["status"], verdicts["layer"], verdicts["run"]) == ("pass", "mesh", "r")
    assert len(verdicts["pairs"]) == 6
    assert result["text"].startswith("from")
    silent = {machine: result for machine, result in healthy_results(3)["probe"].items() if machine != "n3"}
    verdicts = play_action(
        reachability_verdicts.ActionModule, arguments, {}, registered_probes(3, probe=silent)
    ).result["verdicts"]
    assert {pair["status"] for pair in verdicts["pairs"] if pair["from"] == "n3"} != {"pass"}


def test_the_remedy_knows_whose_own_firewall_gets_the_rules() -> None:
    arguments = {"members": build_members(2), "run": "r", "registered": {"listen": "listen", "probe": "probe"}}
    found = healthy_results(2)
    for machine, probed in found["probe"].items():
        found["listen"][machine]["host_firewalls"] = ["ufw"]
        for port in probed["probe"]["peers"][0]["ports"]:
            port["outcome"] = "filtered"
    host_variables = registered_probes(2, **found)
    host_variables["hostvars"]["n2"]["firewall_host"] = "auto"
    verdicts = play_action(reachability_verdicts.ActionModule, arguments, {}, host_variables).result["verdicts"]
    remedies = {pair["to"]: pair["remedy"] for pair in verdicts["pairs"]}
    assert "Set firewall_host=auto" in remedies["n1"] and "Set firewall_host=auto" not in remedies["n2"]
