# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs that are killed: what they leave ends with them, or with the next run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_verdicts import judge_reachability
from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import (
    NamespaceNetwork,
    SshTestbed,
    describe_members,
    kill_group,
)

ROLE_TASK = {"ansible.builtin.import_role": {"name": "gpumesh.cluster.reachability"}}
TEST_PORTS = [6817, 6818]


@pytest.fixture
def farm(net: NamespaceNetwork, tmp_path: Path) -> SshTestbed:
    return SshTestbed(net, 2, tmp_path)


def listen_and_wait_tasks(farm: SshTestbed, run: str, lifetime: int) -> list[dict[str, Any]]:
    """Return the tasks of a run in which the members still listen."""
    addresses = {member.machine: member.address for member in farm.members}
    options = {
        "run": run,
        "token": "T0ken",
        "machine": "{{ inventory_hostname }}",
        "address": "{{ addresses[inventory_hostname] }}",
        "interface": "eth0",
        "ports": TEST_PORTS,
        "lifetime": lifetime,
        "peers": list(addresses),
    }
    return [
        {"gpumesh.cluster.reachability_listener": options, "vars": {"addresses": addresses}},
        {"ansible.builtin.pause": {"seconds": 600}},
    ]


def find_listeners(farm: SshTestbed) -> dict[str, list[int]]:
    """Return the processes of listeners by machine."""
    return {
        member.machine: [
            process_id for process_id in member.find_processes() if process_name(process_id) == "gpumesh-reach"
        ]
        for member in farm.members
    }


def process_name(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def await_listeners(farm: SshTestbed) -> dict[str, list[int]]:
    for _attempt in range(1800):
        listeners = find_listeners(farm)
        if all(listeners.values()):
            return listeners
        time.sleep(0.1)
    raise AssertionError((farm.directory / "playing.log").read_text())


def listeners_end_within(farm: SshTestbed, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(find_listeners(farm).values()):
            return True
        time.sleep(0.1)
    return False


def test_new_run_stops_the_listeners_of_a_killed_one(farm: SshTestbed) -> None:
    with farm.start_play(listen_and_wait_tasks(farm, "killed", 600)) as process:
        listeners = await_listeners(farm)
        kill_group(process)
    assert find_listeners(farm) == listeners
    result_path = farm.directory / "result.json"
    save_task = {
        "ansible.builtin.copy": {
            "content": "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars,"
            " '__reachability_listen'))) | to_json }}",
            "dest": str(result_path),
        },
        "delegate_to": "localhost",
        "vars": {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"},
        "run_once": True,
    }
    completed = farm.run_play(
        [ROLE_TASK, save_task],
        reachability_members=farm.members_variable(),
        reachability_ports=TEST_PORTS,
        reachability_assert=True,
    )
    assert completed.returncode == 0, completed.stdout
    states = {port["state"] for host in json.loads(result_path.read_text()).values() for port in host["ports"]}
    assert states == {"listening"}
    assert find_listeners(farm) == {"n1": [], "n2": []}


def test_listener_ends_with_its_controller(farm: SshTestbed) -> None:
    with farm.start_play(listen_and_wait_tasks(farm, "alone", 64)) as process:
        listeners = await_listeners(farm)
        # The time is longer than the part of its lifetime for which a listener stays alone.
        time.sleep(18)
        # Pauses of the controller do not end the listener as long as the controller exists.
        assert find_listeners(farm) == listeners
        kill_group(process)
        farm.kill_controller_processes()
        assert listeners_end_within(farm, 30)


def test_one_connection_per_task_is_enough(farm: SshTestbed) -> None:
    farm.environment["ANSIBLE_SSH_ARGS"] = "-o ControlMaster=no"
    completed = farm.run_play([ROLE_TASK], reachability_members=farm.members_variable(), reachability_assert=True)
    assert completed.returncode == 0, completed.stdout
    assert find_listeners(farm) == {"n1": [], "n2": []}


def test_run_of_another_controller_is_not_stopped(farm: SshTestbed) -> None:
    with farm.start_play(listen_and_wait_tasks(farm, "another", 600)):
        listeners = await_listeners(farm)
        # Another directory for its connections makes it another controller, as far as the hosts can see.
        farm.environment["ANSIBLE_SSH_CONTROL_PATH_DIR"] = str(farm.directory / "other")
        completed = farm.run_play([ROLE_TASK], reachability_members=farm.members_variable(), reachability_assert=True)
        assert completed.returncode == 0, completed.stdout
        assert find_listeners(farm) == listeners


def test_concurrent_playbooks_on_one_controller_do_not_interfere(farm: SshTestbed) -> None:
    with farm.start_play(listen_and_wait_tasks(farm, "first", 600)):
        listeners = await_listeners(farm)
        # The second one uses the connections that the first one has opened.
        completed = farm.run_play(
            [ROLE_TASK],
            reachability_members=farm.members_variable(),
            reachability_ports=TEST_PORTS,
            reachability_assert=True,
        )
        assert completed.returncode == 0, completed.stdout
        assert find_listeners(farm) == listeners


def test_port_of_a_run_that_ends_meanwhile_is_not_refused(net: NamespaceNetwork) -> None:
    members = [net.add_member(1), net.add_member(2)]
    listen_results: dict[str, Any] = {}
    for run, spared in (("first", []), ("second", ["first"])):
        for member in members:
            options = {"run": run, "concurrent_runs": spared, "token": "T0ken", "ports": TEST_PORTS, "lifetime": 300}
            listen_results[member.machine] = member.run_listener(**options)
    states = {port["state"] for port in listen_results["n2"]["ports"] if port["role"] == "named"}
    assert states == {"busy"}
    for member in members:
        assert member.run_listener(state="stopped", run="first")["stopped"] is True
    probe_results = {}
    for source, target in (members, members[::-1]):
        peers = [
            {"machine": target.machine, "address": target.address, "ports": listen_results[target.machine]["ports"]}
        ]
        probe_results[source.machine] = source.run_probe(run="second", token="T0ken", peers=peers, timeout=4)
    verdict = judge_reachability({"listen": listen_results, "probe": probe_results}, describe_members(members))
    assert verdict["counts"] == {"ok": 2}, verdict["pairs"]


def test_service_can_bind_its_port_after_listeners_stop(net: NamespaceNetwork) -> None:
    member = net.add_member(1)
    for run in ("one", "two"):
        listener_result = member.run_listener(run=run, token="T0ken", ports=[TEST_PORTS[run == "two"]], lifetime=300)
        assert "ports" in listener_result, listener_result
    code = (
        "import socket\n"
        "from ansible_collections.gpumesh.cluster.plugins.module_utils._core import leased_process\n"
        "leased_process.stop_all_runs()\n"
        f"for port in {TEST_PORTS}:\n"
        "    socket.create_server(('0.0.0.0', port))\n"
    )
    member.run(sys.executable, "-c", code)
    assert processes_end_within(member.find_processes, 60)


def processes_end_within(processes: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not processes():
            return True
        time.sleep(0.1)
    return False
