# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""On which members of a cluster a collective runs, and with how many ranks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record


def placement(record: Record, userspace_only: Collection[str], binaries: bool) -> dict[str, Any]:
    """The parameters of the module collective_test that follow from the record.

    With ``binaries`` of nccl-tests, each rank has a GPU, and each node has the same number of ranks. PyTorch has one
    rank per node, and uses the GPUs only if all nodes have one, since NCCL and Gloo cannot be mixed. Raises InputError.
    """
    gpus = _gpus(record, userspace_only)
    if not gpus:
        raise InputError(f"No member of cluster '{record['name']}' is a node that others can connect to.")
    equipped = {machine: number for machine, number in gpus.items() if number}
    chosen = equipped if binaries and equipped else gpus
    per_node = min(chosen.values()) if binaries and equipped else 1
    return {
        "nodes": len(chosen),
        "nodelist": list(chosen),
        "ranks": len(chosen) * per_node,
        "gpus": bool(equipped) and all(chosen.values()),
    }


def left_out(record: Record, userspace_only: Collection[str], chosen: Mapping[str, Any], binaries: bool) -> str | None:
    """The nodes and GPUs of the cluster that do not take part, in words; None if all of them do."""
    gpus = _gpus(record, userspace_only)
    absent = [machine for machine in gpus if machine not in chosen["nodelist"]]
    words = []
    if absent:
        words.append(
            f"{', '.join(absent)} {'have no GPUs and do' if absent[1:] else 'has no GPU and does'} not take part."
        )
    per_node = chosen["ranks"] // chosen["nodes"]
    more = [machine for machine in chosen["nodelist"] if gpus.get(machine, 0) > per_node] if binaries else []
    if more:
        words.append(
            f"Only {per_node} GPU{'s' if per_node > 1 else ''} of {', '.join(more)} took part, as of the others."
        )
    return " ".join(words) or None


def _gpus(record: Record, userspace_only: Collection[str]) -> dict[str, int]:
    """The number of GPUs of each node."""
    return {one["machine"]: one["gpus"] for one in record["members"] if one["machine"] not in userspace_only}
