# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that sets a job's environment, on environments recorded from tasks of Slurm 24.11."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

HERE = Path(__file__).parent
FILES = HERE.parents[3] / "roles" / "job_environment" / "files"
PROGRAM = FILES / "task_prolog.py"
MEMBERS = {"n1": "10.99.0.1", "n2": "10.99.0.2", "n3": "10.99.0.3"}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("task_prolog", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prolog = load()


def load_recording(name: str) -> dict[str, str]:
    loaded: dict[str, str] = json.loads((HERE / "fixtures" / f"{name}.json").read_text())
    return loaded


def format_nodes(*names: str) -> str:
    """The output of ``scontrol -o show nodes``, abridged."""
    return "".join(f"NodeName={name} Arch=x86_64 CoresPerSocket=2 \n" for name in names)


def show_mixed_job(*what: str) -> str:
    if what == ("nodes",):
        return format_nodes("n1", "n2", "n3")
    assert what[0] == "job" and what[1].isdigit()
    return (HERE / "fixtures" / "show_mixed_job.txt").read_text()


def refuse_query(*what: str) -> str:
    raise AssertionError(f"the controller was asked for {what}")


def settings(**changed: Any) -> Any:
    document = {
        "members": MEMBERS,
        "interface": "gpumesh0",
        "port_range": [15000, 24999],
        "reserved_ports": [],
        "dialects": [],
        "rdma": {"devices": [], "peers": []},
        "variables": {},
        **changed,
    }
    return prolog.Settings(json.dumps(document))


def variables(name: str, batch: bool = False, ask: Any = refuse_query, **changed: Any) -> dict[str, str]:
    env = load_recording(name)
    world = prolog.read_world(env, MEMBERS, batch, ask)
    result: dict[str, str] = prolog.all_variables(world, settings(**changed), "/run/h", prolog.users_own(env))
    return result


def pick_values(values: dict[str, str], *names: str) -> list[str | None]:
    return [values.get(name) for name in names]


# --- Slurm's notations


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1-2,5],head", ["n1", "n2", "n5", "head"]),
        ("gpu[08-11]-ib", ["gpu08-ib", "gpu09-ib", "gpu10-ib", "gpu11-ib"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a-b-1,a-b-[2-3]", ["a-b-1", "a-b-2", "a-b-3"]),
    ],
)
def test_host_lists_are_expanded(text: str, names: list[str]) -> None:
    assert prolog.expand_hostlist(text) == names


@pytest.mark.parametrize("text", ["", "n[1-3", "n1,,n2", "n[a-b]", "n]1[", "n[]", "n[1-99999999]", "n[3-1]"])
def test_invalid_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host list|invalid literal"):
        prolog.expand_hostlist(text)


@given(st.text(alphabet="n0123-[],x", max_size=12))
def test_arbitrary_text_raises_only_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert all(prolog.expand_hostlist(text))


def test_task_counts_are_expanded() -> None:
    assert prolog.expand_counts("2(x3),1") == [2, 2, 2, 1]


@pytest.mark.parametrize(
    ("gres", "count"),
    [("gpu:fake:2(IDX:0-1)", 2), ("gpu:h100:2(IDX:0,3),gpu:a100:1(IDX:4)", 3), ("", 0), ("shard:4", 0), ("gpu:1", 1)],
)
def test_gpus_are_counted_in_a_gres(gres: str, count: int) -> None:
    assert prolog.gpus_in_gres(gres) == count


# --- Worlds


def test_task_of_a_step_knows_its_ranks() -> None:
    values = variables("step_of_3_nodes_rank_3")
    assert pick_values(values, "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE") == ["3", "1", "6", "2"]
    assert pick_values(values, "NODE_RANK", "NNODES", "GPUS_PER_NODE") == ["1", "3", "2"]
    assert pick_values(values, "MASTER_ADDR", "MASTER_PORT") == ["10.99.0.1", "15005"]
    assert pick_values(values, "GPUMESH_NODE_ADDR", "GPUMESH_HOSTFILE") == ["10.99.0.2", "/run/h"]
    assert values["GPUMESH_NODE_IPS"] == "10.99.0.1,10.99.0.2,10.99.0.3"


def test_step_on_some_nodes_has_its_own_master_and_port() -> None:
    values = variables("step_on_the_last_node_alone")
    assert pick_values(values, "RANK", "WORLD_SIZE", "NODE_RANK", "NNODES") == ["0", "1", "0", "1"]
    assert values["MASTER_ADDR"] == "10.99.0.3"
    assert values["MASTER_PORT"] != variables("step_of_3_nodes_rank_3")["MASTER_PORT"]


def test_batch_script_of_several_tasks_has_no_rank() -> None:
    values = variables("batch_of_3_nodes", batch=True, ask=show_mixed_job)
    assert pick_values(values, "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK") == [
        "10.99.0.1",
        "15005",
        "6",
        "0",
    ]
    assert not {"RANK", "LOCAL_RANK", "TF_CONFIG"} & set(values)


def test_a_batch_script_and_its_first_step_agree_on_the_port() -> None:
    script = variables("batch_of_3_nodes", batch=True, ask=show_mixed_job)
    assert script["MASTER_PORT"] == variables("step_of_3_nodes_rank_3")["MASTER_PORT"]


def test_batch_script_orders_nodes_as_slurm_does() -> None:
    values = variables("batch_of_3_nodes", batch=True, ask=lambda *_what: format_nodes("n3", "n0", "n1", "n2"))
    assert pick_values(values, "MASTER_ADDR", "NODE_RANK") == ["10.99.0.3", "1"]
    assert values["GPUMESH_NODE_IPS"] == "10.99.0.3,10.99.0.1,10.99.0.2"


def test_unknown_node_order_raises_an_error() -> None:
    with pytest.raises(ValueError, match="does not show the nodes n2, n3"):
        variables("batch_of_3_nodes", batch=True, ask=lambda *_what: format_nodes("n1"))


@pytest.mark.parametrize("told", [True, False])
def test_inherited_step_variables_are_ignored(told: bool) -> None:
    # A job of two nodes, submitted from a task of a step of three.
    values = variables("batch_submitted_from_a_step", batch=told, ask=show_mixed_job)
    assert pick_values(values, "NNODES", "WORLD_SIZE", "RANK") == ["2", "2", None]


def test_nodes_of_a_heterogeneous_job_are_in_component_order() -> None:
    values = variables("mixed_step_rank_0_on_the_last_name", ask=show_mixed_job)
    assert values["GPUMESH_NODE_IPS"] == "10.99.0.3,10.99.0.1,10.99.0.2"
    assert pick_values(values, "RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE") == ["0", "0", "5", "1"]
    assert values["MASTER_ADDR"] == "10.99.0.3"


def test_gpus_of_other_components_come_from_the_controller() -> None:
    env = load_recording("mixed_step_rank_0_on_the_last_name")
    world = prolog.read_world(env, MEMBERS, False, show_mixed_job)
    assert prolog.hostfile_text(world.nodes) == "10.99.0.3 slots=2\n10.99.0.1 slots=1\n10.99.0.2 slots=1\n"


UNEVEN = "JobId=5 NodeList=n[1-3] Nodes=n1 GRES=gpu:fake:3(IDX:0-2) Nodes=n2 GRES=gpu:fake:2(IDX:0-1) Nodes=n3 GRES=\n"


def uneven(*what: str) -> str:
    return format_nodes("n1", "n2", "n3") if what == ("nodes",) else UNEVEN


@pytest.mark.parametrize(
    "changed",
    [
        {"SLURM_GPUS": "5"},
        {"SLURM_GPUS": "h100:4,a100:1"},
        {"SLURM_STEP_TASKS_PER_NODE": "3,2,1"},
        {"SLURM_GPUS": "5", "SLURMD_NODENAME": "n1", "SLURM_GPUS_ON_NODE": "3"},
        {"SLURM_GPUS": "5", "SLURMD_NODENAME": "n3", "SLURM_GPUS_ON_NODE": ""},
    ],
)
def test_unevenly_spread_gpus_are_counted_on_each_node(changed: dict[str, str]) -> None:
    env = {**load_recording("step_of_3_nodes_rank_3"), **changed}
    world = prolog.read_world(env, MEMBERS, False, uneven)
    assert [node.gpus for node in world.nodes] == [3, 2, 0]


def test_batch_script_counts_unevenly_spread_gpus() -> None:
    env = {**load_recording("batch_of_3_nodes"), "SLURM_GPUS": "5", "SLURM_GPUS_ON_NODE": "3"}
    assert [node.gpus for node in prolog.read_world(env, MEMBERS, True, uneven).nodes] == [3, 2, 0]


@pytest.mark.parametrize(
    "changed",
    [
        {"SLURM_GPUS": "6"},
        {"SLURM_GPUS_PER_NODE": "2", "SLURM_STEP_TASKS_PER_NODE": "3,2,1"},
        {"SLURM_GPUS_ON_NODE": "", "SLURM_STEP_TASKS_PER_NODE": "3,2,1"},
        # A step on two of the three nodes.
        {
            "SLURM_GPUS": "6",
            "SLURM_STEP_NODELIST": "n[1-2]",
            "SLURM_STEP_TASKS_PER_NODE": "3(x2)",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_NNODES": "2",
        },
    ],
)
def test_controller_is_not_asked_if_gpus_are_even(changed: dict[str, str]) -> None:
    env = {**load_recording("step_of_3_nodes_rank_3"), **changed}
    assert len({node.gpus for node in prolog.read_world(env, MEMBERS, False, refuse_query).nodes}) == 1


def test_step_with_fewer_gpus_does_not_use_the_count_of_the_job() -> None:
    env = {**load_recording("step_of_3_nodes_rank_3"), "SLURM_GPUS": "5", "SLURM_GPUS_ON_NODE": "1"}
    assert [node.gpus for node in prolog.read_world(env, MEMBERS, False, uneven).nodes] == [1, 1, 1]


def test_unreachable_controller_does_not_prevent_the_environment() -> None:
    def unreachable(*_what: str) -> str:
        raise ValueError("scontrol cannot show job 5")

    env = {**load_recording("step_of_3_nodes_rank_3"), "SLURM_GPUS": "5"}
    assert [node.gpus for node in prolog.read_world(env, MEMBERS, False, unreachable).nodes] == [2, 2, 2]


def test_batch_script_of_a_heterogeneous_job_sees_all_components() -> None:
    values = variables("batch_of_a_mixed_job", batch=True, ask=show_mixed_job)
    assert pick_values(values, "NNODES", "WORLD_SIZE", "GPUS_PER_NODE") == ["3", "5", "2"]


def test_inherited_components_of_another_job_are_ignored() -> None:
    env = {**load_recording("mixed_step_rank_4"), "SLURM_JOB_ID": "99"}
    assert prolog.read_world(env, MEMBERS, False, lambda *_what: "").mixed is False


def test_unknown_node_is_addressed_by_its_name() -> None:
    world = prolog.read_world(load_recording("step_of_3_nodes_rank_3"), {"n1": "10.99.0.1"}, False, refuse_query)
    assert [node.address for node in world.nodes] == ["10.99.0.1", "n2", "n3"]


def test_arbitrary_distribution_has_no_master() -> None:
    env = {**load_recording("step_of_3_nodes_rank_3"), "SLURM_DISTRIBUTION": "arbitrary"}
    world = prolog.read_world(env, MEMBERS, False, refuse_query)
    assert "MASTER_ADDR" not in prolog.core_variables(world, 1, "")


def test_a_login_into_a_job_sees_the_job() -> None:
    world = prolog.world_of_login("25", "n1", MEMBERS, show_mixed_job)
    assert [(node.name, node.gpus, node.tasks, node.group) for node in world.nodes] == [
        ("n3", 2, 1, 0),
        ("n1", 1, 2, 1),
        ("n2", 1, 2, 1),
    ]
    assert (world.node_rank, world.rank, world.mixed) == (1, None, True)


def test_login_orders_nodes_as_slurm_does() -> None:
    def show(*what: str) -> str:
        return format_nodes("n2", "n3", "n1") if what == ("nodes",) else show_mixed_job(*what)

    world = prolog.world_of_login("25", "n1", MEMBERS, show)
    assert [node.name for node in world.nodes] == ["n3", "n2", "n1"]


# --- Variables


def test_the_port_is_in_the_range_and_never_a_reserved_one() -> None:
    for job in range(0, 30000, 7):
        for step in (0, 1, 2):
            assert 15000 <= prolog.master_port(job, step, 15000, 15010, [15003]) <= 15010
            assert prolog.master_port(job, step, 15000, 15010, [15003]) != 15003


def test_concurrent_steps_and_neighbouring_jobs_have_different_ports() -> None:
    ports = {prolog.master_port(job, step, 15000, 24999) for job in range(500, 600) for step in range(10)}
    assert len(ports) == 1000


def test_a_range_without_a_free_port_is_an_error() -> None:
    with pytest.raises(ValueError, match="reserved"):
        prolog.master_port(1, 0, 5, 5, [5])


def test_tensorflow_gets_one_worker_a_task() -> None:
    config = json.loads(variables("step_of_3_nodes_rank_3")["TF_CONFIG"])
    assert config == {
        "cluster": {
            "worker": [f"10.99.0.{node}:{port}" for node in (1, 2, 3) for port in (15005, 15006)],
        },
        "task": {"type": "worker", "index": 3},
    }


def test_libraries_use_the_cluster_interface() -> None:
    values = variables("step_of_3_nodes_rank_3")
    assert values["NCCL_SOCKET_IFNAME"] == "=gpumesh0"
    plain = ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES"]
    plain += ["OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"]
    assert pick_values(values, *plain) == ["gpumesh0"] * 5
    assert not {"NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX"} & set(values)


def test_rdma_is_used_if_all_nodes_are_on_the_fabric() -> None:
    rdma = {"devices": ["mlx5_0:1", "mlx5_1:1"], "peers": ["n1", "n2", "n3"]}
    values = variables("step_of_3_nodes_rank_3", rdma=rdma)
    assert values["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert values["UCX_NET_DEVICES"] == "mlx5_0:1,mlx5_1:1,gpumesh0"
    # /etc/nccl.conf may disable both.
    assert values["NCCL_IB_DISABLE"] == values["NCCL_IBEXT_DISABLE"] == "0" and "NCCL_NET" not in values


def test_rdma_is_disabled_if_a_node_is_at_another_site() -> None:
    values = variables("step_of_3_nodes_rank_3", rdma={"devices": ["mlx5_0:1"], "peers": ["n1", "n2"]})
    assert values["NCCL_IB_DISABLE"] == "1" and "NCCL_IB_HCA" not in values
    # https://github.com/NVIDIA/nccl/issues/676: network plugins ignore NCCL_IB_DISABLE.
    assert values["NCCL_IBEXT_DISABLE"] == "1" and values["NCCL_NET"] == "Socket"


@pytest.mark.parametrize("fabric", ["efa", "tcpx"])
def test_network_plugin_is_left_alone_between_its_peers_and_not_used_elsewhere(fabric: str) -> None:
    rdma: dict[str, Any] = {"devices": [], "peers": ["n1", "n2", "n3"], "plugin": fabric}
    values = variables("step_of_3_nodes_rank_3", rdma=rdma)
    assert not {"NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_IBEXT_DISABLE", "NCCL_NET"} & set(values)
    values = variables("step_of_3_nodes_rank_3", rdma={**rdma, "devices": ["rdmap85s0:1"]})
    assert values["NCCL_IB_HCA"] == "=rdmap85s0:1" and values["UCX_NET_DEVICES"] == "gpumesh0"
    assert not {"NCCL_IB_DISABLE", "NCCL_NET"} & set(values)
    values = variables("step_of_3_nodes_rank_3", rdma={**rdma, "peers": ["n1", "n2"]})
    assert values["NCCL_NET"] == "Socket" and "NCCL_IB_HCA" not in values


def test_backendai() -> None:
    values = variables("step_of_3_nodes_rank_3", dialects=["backendai"])
    assert {name[18:]: value for name, value in values.items() if name.startswith("BACKENDAI_CLUSTER_")} == {
        "SIZE": "3",
        "HOSTS": "main1,sub1,sub2",
        "REPLICAS": "main:1,sub:2",
        "HOST": "sub1",
        "IDX": "1",
        "ROLE": "sub",
        "LOCAL_RANK": "1",
    }
    assert values["WORLD_RANK"] == "3"


def test_backendai_in_a_job_of_two_roles() -> None:
    values = variables("mixed_step_rank_4", ask=show_mixed_job, dialects=["backendai"])
    names = [f"BACKENDAI_CLUSTER_{name}" for name in ("HOSTS", "REPLICAS", "HOST", "IDX", "ROLE", "LOCAL_RANK")]
    assert pick_values(values, *names) == ["main1,sub1,sub2", "main:1,sub:2", "sub2", "2", "sub", "2"]


def test_dstack() -> None:
    values = variables("step_of_3_nodes_rank_3", dialects=["dstack"])
    assert {name[7:]: value for name, value in values.items() if name.startswith("DSTACK_")} == {
        "NODES_IPS": "10.99.0.1\n10.99.0.2\n10.99.0.3",
        "MASTER_NODE_IP": "10.99.0.1",
        "NODE_RANK": "1",
        "NODES_NUM": "3",
        "GPUS_PER_NODE": "2",
        "GPUS_NUM": "6",
        "MPI_HOSTFILE": "/run/h",
    }


def test_dstack_adds_up_the_gpus_of_unlike_nodes() -> None:
    values = variables("mixed_step_rank_0_on_the_last_name", ask=show_mixed_job, dialects=["dstack"])
    assert pick_values(values, "DSTACK_GPUS_PER_NODE", "DSTACK_GPUS_NUM") == ["2", "4"]


def test_skypilot() -> None:
    values = variables("step_of_3_nodes_rank_3", dialects=["skypilot"])
    assert {name[9:]: value for name, value in values.items() if name.startswith("SKYPILOT_")} == {
        "NODE_IPS": "10.99.0.1\n10.99.0.2\n10.99.0.3",
        "NODE_RANK": "1",
        "NUM_NODES": "3",
        "NUM_GPUS_PER_NODE": "2",
    }


def test_runpod() -> None:
    values = variables("step_of_3_nodes_rank_3", dialects=["runpod"])
    names = ("PRIMARY_ADDR", "PRIMARY_PORT", "NODE_ADDR", "NODE_RANK", "NUM_NODES", "NUM_TRAINERS", "WORLD_SIZE")
    assert pick_values(values, *names) == ["10.99.0.1", "15005", "10.99.0.2", "1", "3", "2", "6"]


def test_torchrun() -> None:
    values = variables("step_of_3_nodes_rank_3", dialects=["torchrun"])
    names = ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_ADDR")
    assert pick_values(values, *[f"PET_{name}" for name in names]) == ["3", "1", "2", "10.99.0.1", "15005", "10.99.0.2"]


def test_dialects_are_off_by_default() -> None:
    values = variables("step_of_3_nodes_rank_3")
    foreign = ("BACKENDAI_", "DSTACK_", "SKYPILOT_", "PRIMARY_", "NUM_", "PET_", "WORLD_RANK", "NODE_ADDR")
    assert not [name for name in values if name.startswith(foreign)]


def test_every_dialect_is_known_to_the_program() -> None:
    assert variables("step_of_3_nodes_rank_3", dialects=list(prolog.DIALECTS))


# --- The user's settings take precedence


def test_variables_of_the_user_are_kept() -> None:
    values, gone = prolog.changes({"MASTER_PORT": "29500"}, {"MASTER_PORT": "15005", "RANK": "0"})
    assert "MASTER_PORT" not in values and values["RANK"] == "0" and gone == []


def test_variables_of_the_batch_script_are_renewed_in_steps() -> None:
    outer, _gone = prolog.changes({}, {"NODE_RANK": "0", "NCCL_IB_DISABLE": "1"})
    values, gone = prolog.changes(outer, {"NODE_RANK": "2"})
    assert values["NODE_RANK"] == "2" and gone == ["NCCL_IB_DISABLE"]


def test_changed_variables_belong_to_the_user() -> None:
    outer, _gone = prolog.changes({}, {"MASTER_PORT": "15005"})
    values, gone = prolog.changes({**outer, "MASTER_PORT": "7"}, {"MASTER_PORT": "15005"})
    assert "MASTER_PORT" not in values and gone == []


def test_reset_variables_belong_to_the_user_in_nested_steps() -> None:
    outer, _gone = prolog.changes({}, {"MASTER_PORT": "15005"})
    middle = {**outer, "MASTER_PORT": "7"}
    middle.update(prolog.changes(middle, {"MASTER_PORT": "15005"})[0])
    assert "MASTER_PORT" not in prolog.changes(middle, {"MASTER_PORT": "15005"})[0]


def test_master_of_the_user_is_used_in_every_dialect() -> None:
    env = {**load_recording("step_of_3_nodes_rank_3"), "MASTER_PORT": "29500", "MASTER_ADDR": "10.99.0.3"}
    world = prolog.read_world(env, MEMBERS, False, refuse_query)
    values = prolog.all_variables(world, settings(dialects=["runpod", "dstack"]), "", prolog.users_own(env))
    assert pick_values(values, "PRIMARY_PORT", "PRIMARY_ADDR", "DSTACK_MASTER_NODE_IP") == [
        "29500",
        "10.99.0.3",
        "10.99.0.3",
    ]


def test_site_variables_override_ours_but_not_the_users() -> None:
    values = variables("step_of_3_nodes_rank_3", variables={"NCCL_DEBUG": "WARN", "UCX_NET_DEVICES": "all"})
    assert pick_values(values, "NCCL_DEBUG", "UCX_NET_DEVICES") == ["WARN", "all"]
    assert "NCCL_DEBUG" not in prolog.changes({"NCCL_DEBUG": "INFO"}, values)[0]


def test_tracking_variables_are_set_only_with_tracking() -> None:
    assert not [name for name in variables("step_of_3_nodes_rank_3") if name.startswith("MLFLOW")]
    told = {"MLFLOW_TRACKING_URI": "http://10.99.0.1:5000", "GPUMESH_GENERATION": "4"}
    values = variables("step_of_3_nodes_rank_3", cluster="lab", tracking=told)
    assert values["MLFLOW_TRACKING_URI"] == "http://10.99.0.1:5000"
    tags = json.loads(values["MLFLOW_RUN_CONTEXT"])
    assert (tags["gpumesh.cluster"], tags["gpumesh.generation"]) == ("lab", "4")
    assert tags["gpumesh.nodes"].count(",") == 2 and tags["gpumesh.job"].isdigit()
    # The user's settings take precedence.
    assert "MLFLOW_TRACKING_URI" not in prolog.changes({"MLFLOW_TRACKING_URI": "http://mine"}, values)[0]


# --- Output to Slurm, bash and the file system


def test_multiline_values_are_not_printed_for_slurm() -> None:
    assert prolog.prolog_lines({}, {"A": "1\n2", "B": "=x"}, ["C"]) == "unset C\nexport B==x\n"


def test_stale_multiline_values_are_unset() -> None:
    assert prolog.prolog_lines({"A": "1\n2"}, {"A": "1\n2"}, []) == ""
    assert prolog.prolog_lines({"A": "8\n9"}, {"A": "1\n2"}, []) == "unset A\n"


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_shell_lines_preserve_every_value(value: str) -> None:
    words = shlex.split(prolog.shell_lines({"A": value}, []))
    assert words == ["export", f"A={value}"]


def test_bash_sets_multiline_values_except_those_of_the_user() -> None:
    env = {
        "BASH_ENV": str(FILES / "job_environment.bash"),
        "GPUMESH_MULTILINE": "DSTACK_NODES_IPS,SKYPILOT_NODE_IPS",
        "GPUMESH_NODE_IPS": "10.99.0.1,10.99.0.2",
        "SKYPILOT_NODE_IPS": "mine",
        "PATH": os.environ["PATH"],
    }
    script = 'printf "%s|%s" "$DSTACK_NODES_IPS" "$SKYPILOT_NODE_IPS"; export -p | grep -c gpumesh_name'
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "10.99.0.1\n10.99.0.2|mine0\n"


def test_hostfile_is_rewritten_only_if_it_differs(tmp_path: Path) -> None:
    path = prolog.write_hostfile(str(tmp_path), "1.hosts", "a slots=1\n")
    before = os.stat(path).st_mtime_ns
    assert prolog.write_hostfile(str(tmp_path), "1.hosts", "a slots=1\n") == path
    assert os.stat(path).st_mtime_ns == before
    # As after a requeue: the same length, but other nodes.
    prolog.write_hostfile(str(tmp_path), "1.hosts", "b slots=1\n")
    assert Path(path).read_text() == "b slots=1\n" and os.listdir(tmp_path) == ["1.hosts"]


def test_hostfile_never_follows_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "1.hosts").symlink_to(victim)
    prolog.write_hostfile(str(tmp_path), "1.hosts", "a slots=1\n")
    assert victim.read_text() == "precious" and not (tmp_path / "1.hosts").is_symlink()


def test_a_file_that_may_be_a_trap_is_not_read(tmp_path: Path) -> None:
    trap, content = tmp_path / "7.hosts", "10.0.0.1 slots=1\n"
    with trap.open("wb") as stream:
        stream.truncate(1 << 40)
    assert prolog.write_hostfile(str(tmp_path), "7.hosts", content) == str(trap)
    assert trap.read_text(encoding="utf-8") == content
    trap.unlink()
    os.mkfifo(trap)
    writer = os.open(trap, os.O_RDWR)
    try:
        assert prolog.write_hostfile(str(tmp_path), "7.hosts", content) == str(trap)
    finally:
        os.close(writer)
    assert trap.read_text(encoding="utf-8") == content


def test_missing_directory_means_no_hostfile() -> None:
    assert prolog.write_hostfile("/nonexistent", "1.hosts", "a\n") == ""


# --- The whole program


def test_a_broken_environment_never_fails_the_job(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-IS", str(PROGRAM)], env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "the job environment is not set" in done.stderr


def test_program_prints_valid_prolog_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in load_recording("step_of_3_nodes_rank_3").items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "settings.json"
    path.write_text(
        json.dumps(
            {
                "members": MEMBERS,
                "interface": "gpumesh0",
                "port_range": [15000, 24999],
                "reserved_ports": [],
                "dialects": list(prolog.DIALECTS),
                "rdma": {"devices": [], "peers": []},
                "variables": {},
            }
        )
    )
    lines = prolog.run(login=False, settings_path=str(path), runtime=str(tmp_path)).splitlines()
    assert all(line.startswith(("export ", "unset ")) for line in lines)
    assert "export RANK=3" in lines and "export NCCL_SOCKET_IFNAME==gpumesh0" in lines
    assert f"export GPUMESH_HOSTFILE={tmp_path}/5.0.hosts" in lines


@pytest.mark.parametrize(
    ("environment", "component", "number"),
    [
        # Slurm's epilog gets the ID of the component that ended.
        ("mixed_step_rank_4", 0, "SLURM_JOB_ID_PACK_GROUP_0"),
        ("mixed_step_rank_4", 1, "SLURM_JOB_ID_PACK_GROUP_1"),
        ("step_of_3_nodes_rank_3", 0, "SLURM_JOB_ID"),
    ],
)
def test_component_has_its_own_job_id(environment: str, component: int, number: str) -> None:
    env = load_recording(environment)
    assert prolog._job_id(env, component) == env[number]


def test_epilog_removes_only_files_of_its_job(tmp_path: Path) -> None:
    text = (FILES / "job_epilog.sh").read_text().replace("/run/gpumesh/jobs", str(tmp_path))
    for name in ("7.hosts", "7.0.hosts", "71.hosts", "6.0.hosts"):
        (tmp_path / name).touch()
    for number in ("7", "", "*", "../7", f"7; touch {tmp_path}/made", f"$(touch {tmp_path}/made)"):
        done = subprocess.run(["sh", "-c", text], env={"SLURM_JOB_ID": number}, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(os.listdir(tmp_path)) == ["6.0.hosts", "71.hosts"]


@pytest.mark.parametrize(
    "text",
    ["$(touch {made})", "'; touch {made}; '", "x NodeList=$(touch${{IFS}}{made})", "x\nJobId='`touch${{IFS}}{made}`"],
)
def test_shells_do_not_execute_text_from_jobs(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's shell runs the epilog and may log in to a node of the job; another user's may log in as well."""
    made = tmp_path / "made"
    hostile = text.format(made=made)
    words = ("JOB_NAME", "JOB_COMMENT", "JOB_USER", "JOB_WORK_DIR", "JOB_STDOUT", "JOB_PARTITION", "JOB_EXTRA")
    user = {f"SLURM_{word}": hostile for word in words}
    epilog = (FILES / "job_epilog.sh").read_text().replace("/run/gpumesh/jobs", str(tmp_path))
    subprocess.run(["sh", "-c", epilog], env={**user, "SLURM_JOB_ID": "7"}, check=True)
    shown = f"JobId=7 JobName={hostile} UserId=mallory(2009) Comment={hostile} NodeList=n1 NumTasks=1 GRES=gpu:2\n"
    members = {"n1": "10.99.0.1", hostile.split("NodeList=")[-1]: "10.99.0.9"}
    monkeypatch.setattr(prolog, "show", lambda *_what: shown)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    # The last of these is also among our own variables.
    for name, value in {**user, "MASTER_ADDR": hostile}.items():
        monkeypatch.setenv(name, value)
    document = {"members": members, "interface": "eth0", "port_range": [15000, 24999], "reserved_ports": []}
    document.update(dialects=list(prolog.DIALECTS), rdma={"devices": [], "peers": []}, variables={})
    (tmp_path / "settings.json").write_text(json.dumps(document))
    with contextlib.suppress(KeyError, ValueError):
        lines = prolog.run(True, str(tmp_path / "settings.json"), str(tmp_path))
        subprocess.run(["sh", "-c", 'eval "$1"', "sh", lines], check=True)
    assert not made.exists()


def test_tasks_of_sessions_are_skipped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(prolog.SESSION, "0")
    assert prolog.main([]) == 0
    assert capsys.readouterr() == ("", "")


# --- All tasks of a step at once, for the plugin


STEP_OF_TASKS = ("SLURM_PROCID", "SLURM_LOCALID", "SLURMD_NODENAME", "SLURM_NODEID", "SLURM_JOB_USER")


@pytest.fixture(name="step_settings")
def _step_settings(tmp_path: Path) -> dict[str, str]:
    document = {
        "members": MEMBERS,
        "interface": "gpumesh0",
        "port_range": [15000, 24999],
        "reserved_ports": [],
        "dialects": ["dstack", "backendai"],
        "rdma": {"devices": [], "peers": []},
        "variables": {},
    }
    (tmp_path / "settings").write_text(json.dumps(document), encoding="utf-8")
    return {"settings_path": str(tmp_path / "settings"), "runtime": str(tmp_path)}


def step_environment(name: str) -> dict[str, str]:
    """What slurmstepd knows before it starts the tasks."""
    return {key: value for key, value in load_recording(name).items() if key not in STEP_OF_TASKS}


def read_records(output: bytes) -> dict[str, dict[str, str | None]]:
    """What each task gets; None for a variable to remove."""
    *records, end, rest = output.decode().split("\0")
    assert (end, rest) == ("@end", "")
    sections: dict[str, dict[str, str | None]] = {}
    for record in records:
        if record.startswith("@"):
            section = sections.setdefault(record[1:], {})
        else:
            name, equals, value = record.partition("=")
            section[name] = value if equals else None
    shared = sections.pop("all")
    return {rank: {**shared, **own} for rank, own in sections.items()}


@pytest.mark.parametrize(
    ("name", "component_ranks", "rank", "ask"),
    [
        ("step_of_3_nodes_rank_3", [2, 3], 3, refuse_query),
        ("step_on_the_last_node_alone", [0], 0, refuse_query),
        # The second component follows the one task of the first.
        ("mixed_step_rank_4", [2, 3], 4, show_mixed_job),
    ],
)
def test_a_step_gives_each_task_what_the_prolog_gives_it(
    name: str,
    component_ranks: list[int],
    rank: int,
    ask: Any,
    step_settings: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = load_recording(name)
    monkeypatch.setenv("SLURMD_NODENAME", recorded["SLURMD_NODENAME"])
    tasks = read_records(prolog.run_step(step_environment(name), 0, component_ranks, show=ask, **step_settings))
    assert len(tasks) == len(component_ranks)
    # The prolog of this task, with the environment that Slurm gives it.
    world = prolog.read_world(recorded, MEMBERS, False, ask)
    hostfile = tasks[str(rank)]["GPUMESH_HOSTFILE"]
    assert hostfile and Path(hostfile).read_text(encoding="utf-8") == prolog.hostfile_text(world.nodes)
    wanted = prolog.all_variables(
        world, prolog.Settings(Path(step_settings["settings_path"]).read_text()), hostfile, prolog.users_own(recorded)
    )
    set_variables, unset_names = prolog.changes(recorded, wanted)
    assert tasks[str(rank)] == {**set_variables, **dict.fromkeys(unset_names)}


def test_a_step_sets_values_of_several_lines_and_keeps_those_of_the_user(
    step_settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    env = {**step_environment("step_of_3_nodes_rank_3"), "MASTER_ADDR": "mine", "RANK": "9"}
    tasks = read_records(prolog.run_step(env, 0, [2, 3], show=refuse_query, **step_settings))
    for task in tasks.values():
        assert task["DSTACK_NODES_IPS"] == "10.99.0.1\n10.99.0.2\n10.99.0.3"
        assert task["DSTACK_MASTER_NODE_IP"] == "mine"
        assert not {"MASTER_ADDR", "RANK", "BASH_ENV"} & set(task)
    # What a TaskProlog has set for bash is not needed any more.
    mark = f"BASH_ENV={prolog._checksum(prolog.BASH_ENV_FILE)}"
    outer = {"BASH_ENV": prolog.BASH_ENV_FILE, prolog.MARKER_VARIABLE: mark}
    inner = read_records(prolog.run_step({**env, **outer}, 0, [2, 3], show=refuse_query, **step_settings))
    assert inner["2"]["BASH_ENV"] is None


def test_a_batch_script_of_several_tasks_gets_no_rank(
    step_settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    env = step_environment("batch_of_3_nodes")
    ((rank, task),) = read_records(
        prolog.run_step(env, prolog.BATCH_STEP, [0], show=show_mixed_job, **step_settings)
    ).items()
    assert (rank, task["WORLD_SIZE"], task["NODE_RANK"]) == ("0", "6", "0")
    assert not {"RANK", "LOCAL_RANK", "TF_CONFIG"} & set(task)


def test_a_user_whom_the_node_does_not_know_gets_the_environment(
    step_settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(user_id: int) -> None:
        raise KeyError(user_id)

    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    monkeypatch.setattr(prolog, "getpwuid", refuse)
    env = step_environment("step_of_3_nodes_rank_3")
    assert read_records(prolog.run_step(env, 0, [2, 3], show=refuse_query, **step_settings))["2"]["RANK"] == "2"


def test_the_controller_is_asked_only_once_for_the_same() -> None:
    asked: list[tuple[str, ...]] = []

    def show(*arguments: str) -> str:
        asked.append(arguments)
        return " ".join(arguments)

    show_once = prolog._ask_once(show)
    assert [show_once("nodes"), show_once("job", "7"), show_once("nodes")] == ["nodes", "job 7", "nodes"]
    assert asked == [("nodes",), ("job", "7")]


def test_a_variable_that_no_program_can_be_started_with_is_left_out(step_settings: dict[str, str]) -> None:
    """It would end each task of a large job, which may not need it."""
    room = prolog.MAX_VARIABLE_SIZE - len("A=\0")
    kept = prolog.step_records({0: ({"A": "x" * room, "B": "y" * (room + 1)}, [])})
    assert read_records(kept) == {"0": {"A": "x" * room}}


def run_step_program(*arguments: str, stdin: bytes) -> bytes:
    command = [sys.executable, "-IS", str(PROGRAM), "--step", *arguments]
    return subprocess.run(command, env={}, input=stdin, capture_output=True, check=True).stdout


def test_the_program_leaves_sessions_alone_and_says_what_is_wrong_with_a_step() -> None:
    assert run_step_program("0", "0", stdin=b"GPUMESH_SESSION_PLACE=1\0") == b"@end\0"
    assert run_step_program("0", "0", stdin=b"A=1\0").startswith(b"!FileNotFoundError: ")
    assert run_step_program("0", stdin=b"").startswith(b"!ValueError: ")
    assert run_step_program("0", "x", stdin=b"\xff=1\0").endswith(b"\0@end\0")
