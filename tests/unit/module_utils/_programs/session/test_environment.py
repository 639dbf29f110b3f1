# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of a container matches the documented tables, value by value."""

from __future__ import annotations

import json
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import environment, plan

MODEL = Path(__file__).resolve().parents[5] / "roles" / "job_environment" / "files" / "task_prolog.py"
MEMBERS = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
SETTINGS = {
    "members": MEMBERS,
    "interface": "bond0",
    "port_range": [15000, 24999],
    "reserved_ports": [],
    "dialects": ["torchrun"],
    "rdma": {"devices": ["mlx5_0"], "peers": ["n1", "n2"]},
    "variables": {"SITE": "lab"},
}


def test_container_environment_and_files() -> None:
    token = plan.parse_token("+;demo;main,sub;1,0+0,3")
    places = plan.place_containers(token, 5, ["n1", "n2"], MEMBERS, ["10.192.0.0/10"])
    found = environment.build_variables(
        environment.load_model(str(MODEL)), 7, places, places[2], {"sub": 1}, json.dumps(SETTINGS), "/hosts"
    )
    wanted = {
        "BACKENDAI_CLUSTER_SIZE": "4",
        "BACKENDAI_CLUSTER_HOSTS": "main1,sub1,sub2,sub3",
        "BACKENDAI_CLUSTER_REPLICAS": "main:1,sub:3",
        "BACKENDAI_CLUSTER_HOST": "sub2",
        "BACKENDAI_CLUSTER_IDX": "2",
        "BACKENDAI_CLUSTER_ROLE": "sub",
        "BACKENDAI_CLUSTER_LOCAL_RANK": "2",
        "WORLD_SIZE": "4",
        "WORLD_RANK": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "main1",
        "MASTER_PORT": "12345",
        "DSTACK_NODES_IPS": "10.192.5.1\n10.192.5.2\n10.192.5.3\n10.192.5.4",
        "DSTACK_MASTER_NODE_IP": "10.192.5.1",
        "DSTACK_NODE_RANK": "2",
        "SKYPILOT_NODE_RANK": "2",
        "NODE_ADDR": "10.192.5.3",
        # The network is the session's own: the node's interface and its RDMA are not available.
        "NCCL_SOCKET_IFNAME": "=eth0",
        "SITE": "lab",
    }
    assert {name: found.get(name) for name in wanted} == wanted
    assert "NCCL_IB_HCA" not in found
    assert json.loads(found["TF_CONFIG"]) == {
        "cluster": {"worker": ["main1:12345", "sub1:12345", "sub2:12345", "sub3:12345"]},
        "task": {"type": "worker", "index": 2},
    }
    assert environment.format_hosts(places).splitlines()[1:3] == ["10.192.5.1 main1", "10.192.5.2 sub1"]
    assert environment.filter_resolvers("nameserver 127.0.0.53\nnameserver 9.9.9.9\n") == "nameserver 9.9.9.9\n"
