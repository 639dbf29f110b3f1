# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program and `gpumesh-train` tell each other: environment variables and two files, in any language.

The program finds, in each rank:

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR, MASTER_PORT    as with torchrun
    GPUMESH_RUN              name of the run
    GPUMESH_RUN_DIR          its folder, on the shared volume
    GPUMESH_CHECKPOINT_DIR   where its checkpoints go, below that folder
    GPUMESH_ATTEMPT          1, 2, ...: how often the run has been started
    GPUMESH_PROGRESS_FILE    the rank writes it, on a local disk
    GPUMESH_STOP_FILE        is there as soon as the rank should save a checkpoint and end; SIGUSR1 says the same

A progress file has one JSON object, {"step": 1200, "steps": 20000, "loss": 2.31, "checkpoint": 1150}, all of them
optional, written to another name and renamed. `checkpoint` is the step of the last checkpoint that is complete. A rank
that never writes one is not watched for hangs.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Progress

#: A program that writes more than this is not taken to mean it.
_LONGEST = 64 * 1024
_MOST = 1 << 53


def parse_progress(raw: bytes) -> Optional[Progress]:
    """What a rank has written; None for what is none. A program may write whatever it likes, so nothing raises."""
    if len(raw) > _LONGEST:
        return None
    try:
        told = from_json(raw.decode("utf-8"))
    except ValueError:
        return None
    if not isinstance(told, dict):
        return None
    return Progress(
        _count(told.get("step")), _count(told.get("steps")), _real(told.get("loss")), _count(told.get("checkpoint"))
    )


def _count(value: Any) -> Optional[int]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= _MOST else None


def _real(value: Any) -> Optional[float]:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or (isinstance(value, int) and abs(value) > _MOST):
        return None
    return float(value) if math.isfinite(value) else None


def environment(
    run: str,
    folder: str,
    attempt: int,
    nodes: Sequence[str],
    node: str,
    local_rank: int,
    ranks_per_node: int,
    master: Mapping[str, str],
    local_folder: str,
) -> Dict[str, str]:
    """The variables of one rank. ``master``: MASTER_ADDR and MASTER_PORT; ``local_folder``: on the node's own disk."""
    node_rank = nodes.index(node)
    rank = node_rank * ranks_per_node + local_rank
    return {
        **master,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(nodes) * ranks_per_node),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(ranks_per_node),
        "NODE_RANK": str(node_rank),
        "NNODES": str(len(nodes)),
        "GPUMESH_RUN": run,
        "GPUMESH_RUN_DIR": folder,
        "GPUMESH_CHECKPOINT_DIR": f"{folder}/checkpoints",
        "GPUMESH_ATTEMPT": str(attempt),
        "GPUMESH_PROGRESS_FILE": f"{local_folder}/progress-{rank}.json",
        "GPUMESH_STOP_FILE": f"{local_folder}/stop",
    }
