# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The placement of a collective on the members of a cluster: the nodes, and the number of ranks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError


def place_ranks(record: Record, userspace_only: Collection[str], binaries: bool) -> dict[str, Any]:
    """Return the parameters of the module collective_test that follow from the record.

    With ``binaries`` of nccl-tests, each rank has a GPU, and each node has the same number of ranks. PyTorch has one
    rank per node, and uses the GPUs only if all nodes have one, since NCCL and Gloo cannot be mixed. Raises InputError.
    """
    gpus_by_machine = _gpus_by_machine(record, userspace_only)
    if not gpus_by_machine:
        raise InputError(f"No member of cluster '{record['name']}' is a node that others can connect to.")
    gpu_machines = {machine: gpu_count for machine, gpu_count in gpus_by_machine.items() if gpu_count}
    participants = gpu_machines if binaries and gpu_machines else gpus_by_machine
    ranks_per_node = min(participants.values()) if binaries and gpu_machines else 1
    return {
        "nodes": len(participants),
        "nodelist": list(participants),
        "ranks": len(participants) * ranks_per_node,
        "gpus": bool(gpu_machines) and all(participants.values()),
    }


def describe_unused(
    record: Record, userspace_only: Collection[str], rank_placement: Mapping[str, Any], binaries: bool
) -> str | None:
    """Describe the nodes and GPUs of the cluster that do not take part; None if all of them do."""
    gpus_by_machine = _gpus_by_machine(record, userspace_only)
    absent_machines = [machine for machine in gpus_by_machine if machine not in rank_placement["nodelist"]]
    sentences = []
    if absent_machines:
        sentences.append(
            f"{', '.join(absent_machines)} {'have no GPUs and do' if absent_machines[1:] else 'has no GPU and does'} not take part."
        )
    ranks_per_node = rank_placement["ranks"] // rank_placement["nodes"]
    larger_machines = (
        [machine for machine in rank_placement["nodelist"] if gpus_by_machine.get(machine, 0) > ranks_per_node]
        if binaries
        else []
    )
    if larger_machines:
        sentences.append(
            f"Only {ranks_per_node} GPU{'s' if ranks_per_node > 1 else ''} of {', '.join(larger_machines)} took part, as of the others."
        )
    return " ".join(sentences) or None


def _gpus_by_machine(record: Record, userspace_only: Collection[str]) -> dict[str, int]:
    """The number of GPUs of each node."""
    node_machines = [machine for machine in membership.slurm_nodes(record) if machine not in userspace_only]
    return {member["machine"]: member["gpus"] for member in record["members"] if member["machine"] in node_machines}
