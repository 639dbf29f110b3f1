# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The requirements for a node, from the record, and how the action node_health uses them."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.action.node_health import ActionModule
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.node_health import desired_parameters
from ansible_collections.gpumesh.cluster.tests.support.action_runs import play_action
from ansible_collections.gpumesh.cluster.tests.unit.action.test_storage import RECORD

VOLUMES = [
    {"name": "data", "server": "n1", "path": "/srv/data", "mount_point": "/mnt/data"},
    {"name": "models", "mount_point": "/mnt/models", "read_only": True},
]
LAB: Any = {**RECORD, "storage": {"volumes": VOLUMES}}
MESHED: Any = {
    **LAB,
    "mesh": {**RECORD["mesh"], "backend": "wireguard"},
    "members": [
        {
            **member,
            "endpoint": f"{member['address']}:51820",
            "mesh": {"address": f"10.99.0.{place}", "public_key": f"{place}" * 43 + "="},
        }
        for place, member in enumerate(RECORD["members"], 1)
    ],
}


def test_server_of_a_volume_does_not_mount_it() -> None:
    wanted = {machine: desired_parameters(LAB, machine, (), ()) for machine in ("n1", "n2")}
    assert [wanted[machine]["mounts"] for machine in ("n1", "n2")] == [[], ["/mnt/data"]]
    assert {tuple(one["external_mounts"]) for one in wanted.values()} == {("/mnt/models",)}
    assert {tuple(one["read_only_mounts"]) for one in wanted.values()} == {("/mnt/models",)}


def test_expected_tunnels_are_those_of_the_mesh() -> None:
    assert "mesh_interface" not in desired_parameters(LAB, "n1", (), ())
    wanted = desired_parameters(MESHED, "n1", (), ())
    assert (wanted["mesh_interface"], wanted["mesh_peers"]) == ("gpumesh0", {"n2": "2" * 43 + "="})
    assert wanted["cluster_address"] == "10.99.0.1"


def test_expected_fabric_is_that_of_the_record() -> None:
    members = [{**member, "rdma": fabric} for member, fabric in zip(LAB["members"], ("roce", None), strict=True)]
    wanted = [desired_parameters({**LAB, "members": members}, machine, (), ()) for machine in ("n1", "n2")]
    assert [one.get("rdma") for one in wanted] == ["roce", None]


def test_pod_has_the_library_and_no_volumes() -> None:
    last = {**MESHED["members"][1], "mesh": {"address": "100.64.0.2", "public_key": None, "userspace": True}}
    tailnet: Any = {**MESHED, "mesh": {**MESHED["mesh"], "backend": "tailscale"}}
    tailnet["members"] = [MESHED["members"][0], last]
    wanted = desired_parameters(tailnet, "n2", (), ())
    assert (wanted["pod"], wanted["mounts"], wanted["external_mounts"]) == (True, [], [])
    assert "pod" not in desired_parameters(tailnet, "n1", (), ())
    assert wanted["tailnet"] and "tailnet" not in desired_parameters(MESHED, "n1", (), ())


def test_the_limits_of_jobs_are_checked_where_they_run() -> None:
    members = [{**LAB["members"][0], "slurm_node": False}, LAB["members"][1]]
    wanted = [desired_parameters({**LAB, "members": members}, machine, (), ()) for machine in ("n1", "n2")]
    assert [one.get("slurm_node") for one in wanted] == [False, None]


def test_unresponsive_members_are_no_peers() -> None:
    wanted = desired_parameters(MESHED, "n1", {"n2"}, ())
    assert (wanted["ssh_peers"], wanted["mesh_peers"]) == ({}, {})


def test_action_derives_parameters_from_the_record() -> None:
    answer = {"changed": False, "status": "pass", "checks": []}
    variables = {
        "inventory_hostname": "n2",
        "ansible_play_hosts_all": ["n1", "n2"],
        "ansible_play_hosts": ["n1", "n2"],
    }
    done = play_action(
        ActionModule,
        {"record": LAB, "ssh_user": "alice"},
        {"gpumesh.cluster.node_health": [answer]},
        variables,
    )
    ((_name, arguments),) = done.module_calls
    assert (arguments["machine"], arguments["ssh_user"], arguments["ssh_peers"]) == ("n2", "alice", {"n1": "n1"})
    assert "record" not in arguments
    done = play_action(ActionModule, {"gpus": 8}, {"gpumesh.cluster.node_health": [answer]}, variables)
    assert done.module_calls == [("gpumesh.cluster.node_health", {"gpus": 8})]


@pytest.mark.parametrize(
    ("users", "user", "peers"),
    [(None, "root", {"n1": "n1"}), (["alice", "root"], "alice", {"n1": "n1"}), ([], "root", {})],
)
def test_logins_are_tested_for_a_permitted_user(users: list[str] | None, user: str, peers: dict[str, str]) -> None:
    variables = {"inventory_hostname": "n2", "ansible_play_hosts_all": ["n1", "n2"], "ansible_play_hosts": ["n1", "n2"]}
    variables.update({} if users is None else {"ssh_trust_users": users})
    answer = {"changed": False, "status": "pass", "checks": []}
    done = play_action(
        ActionModule, {"record": LAB, "ssh_user": ""}, {"gpumesh.cluster.node_health": [answer]}, variables
    )
    ((_name, arguments),) = done.module_calls
    assert (arguments["ssh_user"], arguments["ssh_peers"]) == (user, peers)
