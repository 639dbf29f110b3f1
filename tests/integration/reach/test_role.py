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
from namespaces import call

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import Farm, Host, Network, await_none

ROLE = {"ansible.builtin.import_role": {"name": "gpumesh.cluster.reachability"}}


@pytest.fixture
def farm(net: Network, tmp_path: Path) -> Farm:
    return Farm(net, 3, tmp_path)


def run(farm: Farm, *before: dict[str, Any], **variables: Any) -> tuple[int, str, dict[str, Any]]:
    """Run the role. Returns the exit status, the output, and the fact that the role sets."""
    result = farm.folder / "result.json"
    result.unlink(missing_ok=True)
    keep = {
        "ansible.builtin.copy": {"content": "{{ reachability_result | to_json }}", "dest": str(result)},
        "delegate_to": "localhost",
        "vars": {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"},
        "run_once": True,
    }
    done = farm.play([*before, ROLE, keep], reachability_members=farm.members_variable(), **variables)
    found = json.loads(result.read_text()) if result.exists() else {}
    return done.returncode, done.stdout + done.stderr, found


def listeners(farm: Farm) -> list[str]:
    numbers = [number for member in farm.members for number in member.processes()]
    names = [Path(f"/proc/{number}/comm").read_text().strip() for number in numbers]
    return [name for name in names if name == "gpumesh-reach"]


def test_three_hosts_over_ssh(farm: Farm) -> None:
    status, output, found = run(farm, reachability_show=True)
    assert status == 0, output
    assert found["summary"] == "All 6 pairs reach each other.", output
    assert found["layer"] == "mesh"
    assert "1 n1        · ·" in output
    assert "changed=0" in output
    assert listeners(farm) == []


def test_a_host_that_does_not_answer_to_ansible_is_a_target(farm: Farm) -> None:
    gone = farm.members[2]
    gone.ip("link", "set", "eth0", "down")
    status, output, found = run(farm, reachability_timeout=4)
    assert status == 0, output
    verdicts = {(pair["from"], pair["to"]): pair["verdict"] for pair in found["pairs"]}
    assert verdicts["n1", "n2"] == verdicts["n2", "n1"] == "ok"
    assert verdicts["n1", "n3"] == verdicts["n2", "n3"] == "no_answer"
    assert verdicts["n3", "n1"] == "not_checked"
    assert listeners(farm) == []


def test_a_host_that_dropped_out_before_is_a_target_too(farm: Farm) -> None:
    farm.members[2].ip("link", "set", "eth0", "down")
    _status, output, found = run(farm, {"ansible.builtin.ping": {}}, reachability_timeout=4)
    verdicts = {(pair["from"], pair["to"]): pair["verdict"] for pair in found["pairs"]}
    assert verdicts["n1", "n2"] == verdicts["n2", "n1"] == "ok", output
    assert verdicts["n1", "n3"] == verdicts["n2", "n3"] == "no_answer"
    assert found["lingering"] == ["n1", "n2"]
    assert listeners(farm) == [], output


def test_the_assertion_lists_all_failing_pairs(farm: Farm) -> None:
    farm.members[1].nft(
        """table inet filter { chain input { type filter hook input priority 0; ct state established,related accept;
           tcp dport 6817 drop; }; }"""
    )
    status, output, found = run(farm, reachability_assert=True, reachability_timeout=4)
    assert status != 0
    assert "4 of 6 pairs reach each other, 2 fail." in output
    assert "n1, n3 → n2" in output
    # The fact is there all the same, but the play has ended before it could be kept.
    assert found == {}
    assert listeners(farm) == []


def test_throughput_tells_the_slow_host(farm: Farm) -> None:
    slow = farm.members[1]
    slow.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "80mbit", "burst", "64kb", "latency", "100ms")
    begin = time.monotonic()
    status, output, found = run(
        farm, reachability_throughput=True, reachability_throughput_seconds=2, reachability_payload_bytes=65536
    )
    assert status == 0, output
    assert time.monotonic() - begin < 300
    rates = {(pair["from"], pair["to"]): pair["bandwidth_gbps"] for pair in found["pairs"]}
    assert None not in rates.values(), rates
    # How much less than the limit allows depends on the machine.
    assert 0 < rates["n2", "n1"] < 0.09 and 0 < rates["n2", "n3"] < 0.09, rates
    assert rates["n1", "n3"] > 0.1 and rates["n3", "n1"] > 0.1, rates
    assert listeners(farm) == []


def test_the_secret_is_in_no_list_of_processes(farm: Farm) -> None:
    """The data that Ansible passes must not be visible to other users of a host."""
    token = "T0kenThatNobodyMaySee"
    run_one = {"run": "visible", "token": token, "ports": [], "lifetime": 30}
    farm.members[0].listener(**run_one)
    shown = call("ps", "-eo", "args")
    assert token not in shown
    assert listeners(farm) == ["gpumesh-reach"]
    assert farm.members[0].listener(state="stopped", run="visible")["stopped"] is True


def test_the_own_sender_measures_where_iperf3_does_not_work(net: Network) -> None:
    members = [net.member(number) for number in (1, 2, 3)]
    # An iperf3 that fails, or none at all: either way the own sender must do it.
    script = 'mount --bind /bin/false "$(command -v iperf3)" 2>/dev/null; exec "$@"'
    run_one = {"run": "rates", "token": "T0ken", "ports": [], "sample_count": 1, "lifetime": 300}
    peers = []
    for member in members:
        member.wrapper = ["unshare", "--mount", "sh", "-c", script, "sh"]
        listening = member.listener(**run_one)
        peers.append({"machine": member.machine, "address": member.address, "ports": listening["ports"]})
    members[1].run(
        "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "80mbit", "burst", "64kb", "latency", "9ms"
    )
    own = {"run": "rates", "token": "T0ken", "ports": [], "payload_bytes": 0}
    started = [member.probe(peers=peers, throughput_seconds=1, **own) for member in members]
    assert all(one["longest"] > 0 for one in started), started

    def collect(member: Host) -> list[dict[str, Any]]:
        measured: list[dict[str, Any]] = member.listener(state="stopped", run="rates", timeout=120)["throughput"]
        return measured

    # Every member stops as soon as it has finished, and all of them finish at the same time.
    with ThreadPoolExecutor() as pool:
        collected = dict(zip([member.machine for member in members], pool.map(collect, members)))
    assert {one["method"] for measured in collected.values() for one in measured} == {"gpumesh"}, collected
    rates = {(machine, one["machine"]): one["gbps"] for machine, measured in collected.items() for one in measured}
    assert len(rates) == 6
    assert all(0 < rate < 0.09 for (one, _other), rate in rates.items() if one == "n2"), rates
    assert all(rate > 0.1 for (one, _other), rate in rates.items() if one != "n2"), rates
    await_none(*members)


def test_a_measurement_that_was_not_started_is_an_error_in_words(net: Network) -> None:
    result = net.member(1).listener(state="stopped", run="nothing", timeout=1)
    assert result["failed"] is True
    assert "no measurement of run nothing" in result["msg"]
