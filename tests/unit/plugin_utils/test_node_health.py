# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The requirements for a node, from the record, and how the action node_health uses them."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.action.node_health import ActionModule
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.node_health import desired
from ansible_collections.gpumesh.cluster.tests.support.action_runs import play
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


def test_the_server_of_a_volume_has_no_mount_of_it() -> None:
    wanted = {machine: desired(LAB, machine, (), ()) for machine in ("n1", "n2")}
    assert [wanted[machine]["mounts"] for machine in ("n1", "n2")] == [[], ["/mnt/data"]]
    assert {tuple(one["external_mounts"]) for one in wanted.values()} == {("/mnt/models",)}
    assert {tuple(one["read_only_mounts"]) for one in wanted.values()} == {("/mnt/models",)}


def test_the_tunnels_are_those_of_the_mesh() -> None:
    assert "mesh_interface" not in desired(LAB, "n1", (), ())
    wanted = desired(MESHED, "n1", (), ())
    assert (wanted["mesh_interface"], wanted["mesh_peers"]) == ("gpumesh0", {"n2": "2" * 43 + "="})
    assert wanted["cluster_address"] == "10.99.0.1"


def test_the_fabric_is_that_of_the_record_if_it_is_known() -> None:
    members = [{**member, "rdma": fabric} for member, fabric in zip(LAB["members"], ("roce", None), strict=True)]
    wanted = [desired({**LAB, "members": members}, machine, (), ()) for machine in ("n1", "n2")]
    assert [one.get("rdma") for one in wanted] == ["roce", None]


def test_a_pod_has_a_library_and_no_volumes() -> None:
    last = {**MESHED["members"][1], "mesh": {"address": "100.64.0.2", "public_key": None, "userspace": True}}
    tailnet: Any = {**MESHED, "mesh": {**MESHED["mesh"], "backend": "tailscale"}}
    tailnet["members"] = [MESHED["members"][0], last]
    wanted = desired(tailnet, "n2", (), ())
    assert (wanted["pod"], wanted["mounts"], wanted["external_mounts"]) == (True, [], [])
    assert "pod" not in desired(tailnet, "n1", (), ())
    assert wanted["tailnet"] and "tailnet" not in desired(MESHED, "n1", (), ())


def test_who_has_dropped_out_is_not_asked_for() -> None:
    wanted = desired(MESHED, "n1", {"n2"}, ())
    assert (wanted["ssh_peers"], wanted["mesh_peers"]) == ({}, {})


def test_the_action_adds_what_follows_from_the_record() -> None:
    answer = {"changed": False, "status": "pass", "checks": []}
    variables = {
        "inventory_hostname": "n2",
        "ansible_play_hosts_all": ["n1", "n2"],
        "ansible_play_hosts": ["n1", "n2"],
    }
    done = play(
        ActionModule,
        {"record": LAB, "ssh_user": "alice"},
        {"gpumesh.cluster.node_health": [answer]},
        variables,
    )
    ((_name, arguments),) = done.ran
    assert (arguments["machine"], arguments["ssh_user"], arguments["ssh_peers"]) == ("n2", "alice", {"n1": "n1"})
    assert "record" not in arguments
    done = play(ActionModule, {"gpus": 8}, {"gpumesh.cluster.node_health": [answer]}, variables)
    assert done.ran == [("gpumesh.cluster.node_health", {"gpus": 8})]


@pytest.mark.parametrize(
    ("users", "user", "peers"),
    [(None, "root", {"n1": "n1"}), (["alice", "root"], "alice", {"n1": "n1"}), ([], "root", {})],
)
def test_logins_are_those_of_a_user_who_can_log_in(users: list[str] | None, user: str, peers: dict[str, str]) -> None:
    variables = {"inventory_hostname": "n2", "ansible_play_hosts_all": ["n1", "n2"], "ansible_play_hosts": ["n1", "n2"]}
    variables.update({} if users is None else {"ssh_trust_users": users})
    answer = {"changed": False, "status": "pass", "checks": []}
    done = play(ActionModule, {"record": LAB, "ssh_user": ""}, {"gpumesh.cluster.node_health": [answer]}, variables)
    ((_name, arguments),) = done.ran
    assert (arguments["ssh_user"], arguments["ssh_peers"]) == (user, peers)
