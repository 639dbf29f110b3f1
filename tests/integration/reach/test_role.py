# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role over SSH, as people run it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from namespaces import run_checked

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import (
    NamespaceHost,
    NamespaceNetwork,
    SshTestbed,
    await_no_processes,
)

ROLE_TASK = {"ansible.builtin.import_role": {"name": "gpumesh.cluster.reachability"}}


@pytest.fixture
def farm(net: NamespaceNetwork, tmp_path: Path) -> SshTestbed:
    return SshTestbed(net, 3, tmp_path)


def run_role(farm: SshTestbed, *earlier_tasks: dict[str, Any], **variables: Any) -> tuple[int, str, dict[str, Any]]:
    """Run the role. Returns the exit status, the output, and the fact that the role sets."""
    result_path = farm.directory / "result.json"
    result_path.unlink(missing_ok=True)
    save_task = {
        "ansible.builtin.copy": {"content": "{{ reachability_result | to_json }}", "dest": str(result_path)},
        "delegate_to": "localhost",
        "vars": {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"},
        "run_once": True,
    }
    completed = farm.run_play(
        [*earlier_tasks, ROLE_TASK, save_task], reachability_members=farm.members_variable(), **variables
    )
    reachability = json.loads(result_path.read_text()) if result_path.exists() else {}
    return completed.returncode, completed.stdout + completed.stderr, reachability


def find_listeners(farm: SshTestbed) -> list[str]:
    process_ids = [process_id for member in farm.members for process_id in member.find_processes()]
    names = [Path(f"/proc/{process_id}/comm").read_text().strip() for process_id in process_ids]
    return [name for name in names if name == "gpumesh-reach"]


def test_three_hosts_over_ssh(farm: SshTestbed) -> None:
    exit_status, output, reachability = run_role(farm, reachability_show=True)
    assert exit_status == 0, output
    assert reachability["summary"] == "All 6 pairs reach each other.", output
    assert reachability["layer"] == "mesh"
    assert "1 n1        · ·" in output
    assert "changed=0" in output
    assert find_listeners(farm) == []


def test_host_unreachable_for_ansible_is_a_target(farm: SshTestbed) -> None:
    unreachable_host = farm.members[2]
    unreachable_host.ip("link", "set", "eth0", "down")
    status, output, reachability = run_role(farm, reachability_timeout=4)
    assert status == 0, output
    verdicts = {(pair["from"], pair["to"]): pair["verdict"] for pair in reachability["pairs"]}
    assert verdicts["n1", "n2"] == verdicts["n2", "n1"] == "ok"
    assert verdicts["n1", "n3"] == verdicts["n2", "n3"] == "no_answer"
    assert verdicts["n3", "n1"] == "not_checked"
    assert find_listeners(farm) == []


def test_host_lost_before_the_role_is_a_target(farm: SshTestbed) -> None:
    farm.members[2].ip("link", "set", "eth0", "down")
    _status, output, reachability = run_role(farm, {"ansible.builtin.ping": {}}, reachability_timeout=4)
    verdicts = {(pair["from"], pair["to"]): pair["verdict"] for pair in reachability["pairs"]}
    assert verdicts["n1", "n2"] == verdicts["n2", "n1"] == "ok", output
    assert verdicts["n1", "n3"] == verdicts["n2", "n3"] == "no_answer"
    assert reachability["lingering"] == ["n1", "n2"]
    assert find_listeners(farm) == [], output


def test_assertion_lists_all_failing_pairs(farm: SshTestbed) -> None:
    farm.members[1].nft(
        """table inet filter { chain input { type filter hook input priority 0; ct state established,related accept;
           tcp dport 6817 drop; }; }"""
    )
    status, output, reachability = run_role(farm, reachability_assert=True, reachability_timeout=4)
    assert status != 0
    assert "4 of 6 pairs reach each other, 2 fail." in output
    assert "n1, n3 → n2" in output
    # The fact is there all the same, but the play has ended before it could be kept.
    assert reachability == {}
    assert find_listeners(farm) == []


def test_throughput_identifies_the_slow_host(farm: SshTestbed) -> None:
    slow = farm.members[1]
    slow.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "80mbit", "burst", "64kb", "latency", "100ms")
    started_at = time.monotonic()
    status, output, reachability = run_role(
        farm, reachability_throughput=True, reachability_throughput_seconds=2, reachability_payload_bytes=65536
    )
    assert status == 0, output
    assert time.monotonic() - started_at < 300
    rates = {(pair["from"], pair["to"]): pair["bandwidth_gbps"] for pair in reachability["pairs"]}
    assert None not in rates.values(), rates
    # How much less than the limit allows depends on the machine.
    assert 0 < rates["n2", "n1"] < 0.09 and 0 < rates["n2", "n3"] < 0.09, rates
    assert rates["n1", "n3"] > 0.1 and rates["n3", "n1"] > 0.1, rates
    assert find_listeners(farm) == []


def test_token_is_not_in_the_process_list(farm: SshTestbed) -> None:
    """The data that Ansible passes must not be visible to other users of a host."""
    token = "T0kenThatNobodyMaySee"
    run_options = {"run": "visible", "token": token, "ports": [], "lifetime": 30}
    farm.members[0].run_listener(**run_options)
    process_list = run_checked("ps", "-eo", "args")
    assert token not in process_list
    assert find_listeners(farm) == ["gpumesh-reach"]
    assert farm.members[0].run_listener(state="stopped", run="visible")["stopped"] is True


def test_built_in_sender_measures_without_iperf3(net: NamespaceNetwork) -> None:
    members = [net.add_member(number) for number in (1, 2, 3)]
    # An iperf3 that fails, or none at all: either way the own sender must do it.
    script = 'mount --bind /bin/false "$(command -v iperf3)" 2>/dev/null; exec "$@"'
    run_options = {"run": "rates", "token": "T0ken", "ports": [], "sample_count": 1, "lifetime": 300}
    peers = []
    for member in members:
        member.wrapper = ["unshare", "--mount", "sh", "-c", script, "sh"]
        listening = member.run_listener(**run_options)
        peers.append({"machine": member.machine, "address": member.address, "ports": listening["ports"]})
    members[1].run(
        "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "80mbit", "burst", "64kb", "latency", "9ms"
    )
    probe_options = {"run": "rates", "token": "T0ken", "ports": [], "payload_bytes": 0}
    probe_results = [member.run_probe(peers=peers, throughput_seconds=1, **probe_options) for member in members]
    assert all(result["longest"] > 0 for result in probe_results), probe_results

    def collect(member: NamespaceHost) -> list[dict[str, Any]]:
        measured: list[dict[str, Any]] = member.run_listener(state="stopped", run="rates", timeout=120)["throughput"]
        return measured

    # Every member stops as soon as it has finished, and all of them finish at the same time.
    with ThreadPoolExecutor() as pool:
        throughput_by_machine = dict(zip([member.machine for member in members], pool.map(collect, members)))
    assert {result["method"] for measured in throughput_by_machine.values() for result in measured} == {"gpumesh"}, (
        throughput_by_machine
    )
    rates = {
        (machine, result["machine"]): result["gbps"]
        for machine, measured in throughput_by_machine.items()
        for result in measured
    }
    assert len(rates) == 6
    assert all(0 < rate < 0.09 for (result, _target), rate in rates.items() if result == "n2"), rates
    assert all(rate > 0.1 for (result, _target), rate in rates.items() if result != "n2"), rates
    await_no_processes(*members)


def test_missing_measurement_is_an_error_with_a_message(net: NamespaceNetwork) -> None:
    result = net.add_member(1).run_listener(state="stopped", run="nothing", timeout=1)
    assert result["failed"] is True
    assert "no measurement of run nothing" in result["msg"]
