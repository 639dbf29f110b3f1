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
from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import Farm, Network, kill_group, record_of

ROLE = {"ansible.builtin.import_role": {"name": "gpumesh.cluster.reachability"}}
PORTS = [6817, 6818]


@pytest.fixture
def farm(net: Network, tmp_path: Path) -> Farm:
    return Farm(net, 2, tmp_path)


def listen_and_wait(farm: Farm, run: str, lifetime: int) -> list[dict[str, Any]]:
    """Return the tasks of a run in which the members still listen."""
    addresses = {member.machine: member.address for member in farm.members}
    options = {
        "run": run,
        "token": "T0ken",
        "machine": "{{ inventory_hostname }}",
        "address": "{{ addresses[inventory_hostname] }}",
        "interface": "eth0",
        "ports": PORTS,
        "lifetime": lifetime,
        "peers": list(addresses),
    }
    return [
        {"gpumesh.cluster.reachability_listener": options, "vars": {"addresses": addresses}},
        {"ansible.builtin.pause": {"seconds": 600}},
    ]


def listening(farm: Farm) -> dict[str, list[int]]:
    """Return the processes of listeners by machine."""
    return {
        member.machine: [number for number in member.processes() if name_of(number) == "gpumesh-reach"]
        for member in farm.members
    }


def name_of(number: int) -> str:
    try:
        return Path(f"/proc/{number}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def await_listeners(farm: Farm) -> dict[str, list[int]]:
    for _try in range(1800):
        found = listening(farm)
        if all(found.values()):
            return found
        time.sleep(0.1)
    raise AssertionError((farm.folder / "playing.log").read_text())


def gone_within(farm: Farm, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(listening(farm).values()):
            return True
        time.sleep(0.1)
    return False


def test_a_new_run_ends_what_a_killed_one_left(farm: Farm) -> None:
    with farm.playing(listen_and_wait(farm, "killed", 600)) as running:
        left = await_listeners(farm)
        kill_group(running)
    assert listening(farm) == left
    kept = farm.folder / "result.json"
    keep = {
        "ansible.builtin.copy": {
            "content": "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars,"
            " '__reachability_listen'))) | to_json }}",
            "dest": str(kept),
        },
        "delegate_to": "localhost",
        "vars": {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"},
        "run_once": True,
    }
    done = farm.play(
        [ROLE, keep],
        reachability_members=farm.members_variable(),
        reachability_ports=PORTS,
        reachability_assert=True,
    )
    assert done.returncode == 0, done.stdout
    states = {port["state"] for host in json.loads(kept.read_text()).values() for port in host["ports"]}
    assert states == {"listening"}
    assert listening(farm) == {"n1": [], "n2": []}


def test_a_listener_ends_with_its_controller(farm: Farm) -> None:
    with farm.playing(listen_and_wait(farm, "alone", 64)) as running:
        left = await_listeners(farm)
        # The time is longer than the part of its lifetime for which a listener stays alone.
        time.sleep(18)
        # Pauses of the controller do not end the listener as long as the controller exists.
        assert listening(farm) == left
        kill_group(running)
        farm.hang_up()
        assert gone_within(farm, 30)


def test_a_connection_for_each_task_is_enough(farm: Farm) -> None:
    farm.environment["ANSIBLE_SSH_ARGS"] = "-o ControlMaster=no"
    done = farm.play([ROLE], reachability_members=farm.members_variable(), reachability_assert=True)
    assert done.returncode == 0, done.stdout
    assert listening(farm) == {"n1": [], "n2": []}


def test_the_run_of_another_controller_is_left_alone(farm: Farm) -> None:
    with farm.playing(listen_and_wait(farm, "another", 600)):
        left = await_listeners(farm)
        # Another directory for its connections makes it another controller, as far as the hosts can see.
        farm.environment["ANSIBLE_SSH_CONTROL_PATH_DIR"] = str(farm.folder / "other")
        done = farm.play([ROLE], reachability_members=farm.members_variable(), reachability_assert=True)
        assert done.returncode == 0, done.stdout
        assert listening(farm) == left


def test_two_playbooks_at_once_on_one_controller_do_not_disturb_each_other(farm: Farm) -> None:
    with farm.playing(listen_and_wait(farm, "first", 600)):
        left = await_listeners(farm)
        # The second one uses the connections that the first one has opened.
        done = farm.play(
            [ROLE],
            reachability_members=farm.members_variable(),
            reachability_ports=PORTS,
            reachability_assert=True,
        )
        assert done.returncode == 0, done.stdout
        assert listening(farm) == left


def test_a_port_of_another_run_that_ends_meanwhile_is_not_refused(net: Network) -> None:
    members = [net.member(1), net.member(2)]
    listening: dict[str, Any] = {}
    for run, spared in (("first", []), ("second", ["first"])):
        for member in members:
            options = {"run": run, "concurrent_runs": spared, "token": "T0ken", "ports": PORTS, "lifetime": 300}
            listening[member.machine] = member.listener(**options)
    states = {port["state"] for port in listening["n2"]["ports"] if port["role"] == "named"}
    assert states == {"busy"}
    for member in members:
        assert member.listener(state="stopped", run="first")["stopped"] is True
    probed = {}
    for one, other in (members, members[::-1]):
        peers = [{"machine": other.machine, "address": other.address, "ports": listening[other.machine]["ports"]}]
        probed[one.machine] = one.probe(run="second", token="T0ken", peers=peers, timeout=4)
    found = judge_reachability({"listen": listening, "probe": probed}, record_of(members))
    assert found["counts"] == {"ok": 2}, found["pairs"]


def test_a_service_gets_its_port(net: Network) -> None:
    member = net.member(1)
    for run in ("one", "two"):
        listened = member.listener(run=run, token="T0ken", ports=[PORTS[run == "two"]], lifetime=300)
        assert "ports" in listened, listened
    code = (
        "import socket\n"
        "from ansible_collections.gpumesh.cluster.plugins.module_utils._core import leased_process\n"
        "leased_process.stop_all_runs()\n"
        f"for port in {PORTS}:\n"
        "    socket.create_server(('0.0.0.0', port))\n"
    )
    member.run(sys.executable, "-c", code)
    assert gone_within_namespace(member.processes, 60)


def gone_within_namespace(processes: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not processes():
            return True
        time.sleep(0.1)
    return False
