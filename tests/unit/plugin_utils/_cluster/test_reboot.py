# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which members are rebooted, in which order, and what is refused before anything happens."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.machines import runs_ansible
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.reboot import (
    MachineState,
    describe_plan,
    plan_reboots,
    read_state,
)

STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "alice@desk")
MACHINES = ("n1", "n2", "n3")
ENTRIES = [{"machine": name, "address": f"10.77.0.{n}", "interface": "eth0"} for n, name in enumerate(MACHINES, 1)]
VOLUMES = [
    {"name": "data", "server": "n3", "path": "/srv/data", "mount_point": "/data"},
    {"name": "runs", "server": "n3", "path": "/srv/runs", "mount_point": "/runs", "recovery": "hard"},
]
BARE = plan.commit(plan.create("0" * 32, "lab", "10.77.0.0/24", "n1", {}, ENTRIES, STAMP), STAMP)
RECORD = plan.commit(plan.set_storage(BARE, VOLUMES), STAMP)
ABLE = MachineState("", False, False)
ALL_ABLE = dict.fromkeys(MACHINES, ABLE)
HOST_RESULTS: dict[str, dict[str, Any]] = {
    "container": {"stdout": "none", "rc": 1},
    "systemd": {"stat": {"exists": True}},
    "boot_id": {"stdout": "a-b"},
    "owner": {"foreign_claims": []},
}


def test_the_manager_is_last_and_others_have_the_order_of_the_record() -> None:
    assert plan_reboots(RECORD, ["n3", "n1", "n2", "n9"], ALL_ABLE, False).machines == ["n2", "n3", "n1"]


def test_a_part_of_the_members_is_rebooted() -> None:
    assert plan_reboots(RECORD, ["n3", "n2"], ALL_ABLE, False).machines == ["n2", "n3"]


def test_containers_are_left_out_and_named() -> None:
    container = ABLE._replace(obstacle="a container (docker), which has no kernel of its own")
    planned = plan_reboots(RECORD, MACHINES, {**ALL_ABLE, "n2": container}, False)
    assert planned.machines == ["n3", "n1"]
    assert "Not rebooted: n2 is a container (docker)" in describe_plan(RECORD, planned)


@pytest.mark.parametrize(
    ("states", "is_manager_unreachable", "said"),
    [
        ({"n1": ABLE, "n3": ABLE}, False, "n2: unreachable or failed"),
        (ALL_ABLE, True, "The manager n1 does not answer, so no node can be drained"),
        ({**ALL_ABLE, "n3": ABLE._replace(runs_ansible=True)}, False, "n3 is the machine that runs Ansible"),
        (
            {**ALL_ABLE, "n3": ABLE._replace(foreign_slurm=True)},
            False,
            "The Slurm of n3 does not belong to cluster 'lab'",
        ),
        (dict.fromkeys(MACHINES, ABLE._replace(obstacle="x")), False, "No machine can be rebooted. n2 is x. n3 is x."),
    ],
)
def test_a_run_that_could_not_be_completed_is_refused(
    states: dict[str, MachineState], is_manager_unreachable: bool, said: str
) -> None:
    with pytest.raises(GpumeshError) as refusal:
        plan_reboots(RECORD, MACHINES, states, is_manager_unreachable)
    assert said in refusal.value.message
    assert refusal.value.remedy


def test_a_run_without_members_is_refused() -> None:
    with pytest.raises(GpumeshError, match="None of the hosts of this run is a member of cluster 'lab'"):
        plan_reboots(RECORD, ["n9"], {"n9": ABLE}, False)


def test_a_container_of_the_controller_is_a_container() -> None:
    """It shares the kernel of the machine that runs Ansible, but nothing is refused for it."""
    container = ABLE._replace(obstacle="x", runs_ansible=True)
    assert plan_reboots(RECORD, MACHINES, {**ALL_ABLE, "n2": container}, False).machines == ["n3", "n1"]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ({}, ABLE),
        # Without systemd, there may be no such command.
        ({"container": {"rc": 2, "msg": "No such file"}}, ABLE),
        ({"container": {"stdout": "podman\n", "rc": 0}}, ABLE._replace(obstacle="a container (podman), which has no")),
        (
            {"systemd": {"stat": {"exists": False}}},
            ABLE._replace(obstacle="not booted with systemd, as in a container"),
        ),
        ({"systemd": {}}, ABLE._replace(obstacle="not booted with systemd, as in a container")),
        ({"boot_id": {"stdout": "c-d"}}, ABLE._replace(runs_ansible=True)),
        ({"owner": {"foreign_claims": ["munge", "slurm"]}}, ABLE._replace(foreign_slurm=True)),
        ({"owner": {"foreign_claims": ["munge"]}}, ABLE),
    ],
)
def test_what_was_found_out_about_a_machine(results: dict[str, Any], expected: MachineState) -> None:
    state = read_state({**HOST_RESULTS, **results}, False, "c-d")
    assert state.obstacle.startswith(expected.obstacle) and bool(state.obstacle) == bool(expected.obstacle)
    assert state[1:] == expected[1:]


def test_a_controller_without_a_boot_id_is_known_by_the_inventory() -> None:
    results = {**HOST_RESULTS, "boot_id": {"stdout": ""}}
    assert not read_state(results, False, "").runs_ansible
    assert read_state(results, True, "").runs_ansible


@pytest.mark.parametrize(
    ("machine", "variables", "expected"),
    [
        ("n1", {}, False),
        ("n1", {"ansible_host": "10.77.0.1"}, False),
        ("n1", {"ansible_connection": "local"}, True),
        ("n1", {"ansible_host": "127.0.0.1"}, True),
        ("localhost", {}, True),
    ],
)
def test_the_machine_that_runs_ansible_by_its_variables(
    machine: str, variables: dict[str, str], expected: bool
) -> None:
    assert runs_ansible(machine, variables) is expected


def test_the_plan_says_what_is_unavailable() -> None:
    text = describe_plan(RECORD, plan_reboots(RECORD, MACHINES, ALL_ABLE, False))
    assert text.startswith("Rebooted one at a time, in this order: n2, n3, n1.")
    assert "While n3 reboots, its volumes are unavailable: data (soft), runs (hard)." in text
    assert "While n2" not in text
    assert "The queue is on the disk of the manager n1" in text
    limited = describe_plan(RECORD, plan_reboots(RECORD, ["n2"], ALL_ABLE, False))
    assert limited == "Rebooted one at a time, in this order: n2."
