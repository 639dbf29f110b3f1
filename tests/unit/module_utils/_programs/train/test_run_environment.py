# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of a rank, as the frameworks read it."""

from __future__ import annotations

import re

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.run_environment import (
    RankPosition,
    environment,
)

#: Those of the agent, the only task of its node in a step of a job with three nodes.
AGENT = {
    "SLURM_GTIDS": "1",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_NNODES": "3",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_TASKS_PER_NODE": "1(x3)",
    "XDG_RUNTIME_DIR": "/run/user/1000",
}


def rank_environments(nodes: list[str], ranks_per_node: int) -> list[dict[str, str]]:
    """Those of all ranks."""
    places = [RankPosition(nodes, node, local, ranks_per_node) for node in nodes for local in range(ranks_per_node)]
    return [environment(AGENT, place, "nano", "/runs/nano", 1, {}, "/tmp/local") for place in places]


def expand_task_counts(text: str) -> list[int]:
    """Expand Slurm's form of tasks per node, such as 8(x2),4."""
    found = []
    for part in text.split(","):
        number, _bracket, times = re.fullmatch(r"(\d+)(\(x(\d+)\))?", part).groups()  # type: ignore[union-attr]
        found += [int(number)] * int(times or 1)
    return found


@pytest.mark.parametrize(("nodes", "each"), [(["n1"], 1), (["n1"], 8), (["n2", "n1"], 1), (["n2", "n1"], 8)])
def test_slurm_variables_are_consistent(nodes: list[str], each: int) -> None:
    ranks = rank_environments(nodes, each)
    assert [int(rank["SLURM_PROCID"]) for rank in ranks] == list(range(len(ranks)))
    for number, rank in enumerate(ranks):
        for name in ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"):
            assert int(rank[name]) == len(ranks), name
        for name in ("NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"):
            assert int(rank[name]) == len(nodes), name
        # Lightning compares this one with its devices.
        for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"):
            assert int(rank[name]) == each, name
        for name in ("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"):
            assert expand_task_counts(rank[name]) == [each] * len(nodes), name
        # JAX computes the local rank and the node from these.
        assert divmod(number, each) == (int(rank["SLURM_NODEID"]), int(rank["SLURM_LOCALID"]))
        assert number == [int(text) for text in rank["SLURM_GTIDS"].split(",")][int(rank["SLURM_LOCALID"])]
        # The node of rank 0 comes first, although Slurm would sort them.
        for name in ("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"):
            assert rank[name].split(",") == nodes, name


def test_runtime_directory_is_in_directory_of_attempt() -> None:
    assert {rank["XDG_RUNTIME_DIR"] for rank in rank_environments(["n1"], 2)} == {"/tmp/local/runtime"}
