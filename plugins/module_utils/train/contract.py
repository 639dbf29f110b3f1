# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The contract between a program and `gpumesh-train`: environment variables and two files, in any language.

Each rank has these variables:

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR, MASTER_PORT    as with torchrun
    GPUMESH_RUN              the name of the run
    GPUMESH_RUN_DIR          its directory, on the shared volume
    GPUMESH_CHECKPOINT_DIR   the directory for its checkpoints, below that directory
    GPUMESH_STAGE_DIR        the copy of the data of --stage on the node's own disk
    GPUMESH_ATTEMPT          1, 2, ...: how often the run has been started
    GPUMESH_PROGRESS_FILE    the file to which the rank writes its progress, on a local disk
    GPUMESH_PROFILE          what is recorded of this attempt, such as torch:5,
    GPUMESH_PROFILE_DIR      where the profile goes, and
    GPUMESH_PROFILE_NODES    the nodes of the attempt; gpumesh_run.progress() handles all three
    GPUMESH_STOP_FILE        exists as soon as the rank should save a checkpoint and exit; a program with a handler
                             for SIGUSR1, or the signal of --warn-signal, receives that signal as well

A progress file contains one JSON object, {"step": 1200, "steps": 20000, "loss": 2.31, "checkpoint": 1150, "waited":
35.2, "first": 1151}. All keys are optional. It is written under another name and renamed. `checkpoint` is the step of the
last complete checkpoint, `waited` the total seconds that the rank has waited for the others, and `first` the first step
that it has made. With {"busy": "validation", "limit": 1800}, the program says that it does something else for up to that
many seconds. Each time that the file is written is a sign of life, whatever it contains. The output of a program that
never writes one is such a sign as well.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import profile as profiles
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Progress

#: The variables of one rank of one run. A run that is started by a rank, or from a shell with them, must not inherit
#: them.
OWN = (
    "GPUMESH_ATTEMPT",
    "GPUMESH_CHECKPOINT_DIR",
    "GPUMESH_PROFILE_DIR",
    "GPUMESH_PROFILE_NODES",
    "GPUMESH_PROGRESS_FILE",
    "GPUMESH_RUN",
    "GPUMESH_RUN_DIR",
    "GPUMESH_STAGE_DIR",
    "GPUMESH_STOP_FILE",
)
#: Larger files are not accepted as progress.
_LONGEST = 64 * 1024
_MOST = 1 << 53
#: The longest text that is shown of what a program is busy with.
_LONGEST_TEXT = 80


def parse_progress(raw: bytes) -> Optional[Progress]:
    """The progress that a rank wrote; None if it is invalid. A program may write anything, so this never raises."""
    if len(raw) > _LONGEST:
        return None
    try:
        told = from_json(raw.decode("utf-8"))
    except ValueError:
        return None
    if not isinstance(told, dict):
        return None
    return Progress(
        _count(told.get("step")),
        _count(told.get("steps")),
        _real(told.get("loss")),
        _count(told.get("checkpoint")),
        _real(told.get("waited")),
        _count(told.get("first")),
        _text(told.get("busy")),
        _real(told.get("limit")),
        _not_finite(told.get("loss")) or None,
    )


def _count(value: Any) -> Optional[int]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= _MOST else None


def _real(value: Any) -> Optional[float]:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or (isinstance(value, int) and abs(value) > _MOST):
        return None
    return float(value) if math.isfinite(value) else None


def _text(value: Any) -> Optional[str]:
    return value[:_LONGEST_TEXT] if isinstance(value, str) and value else None


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _tags(context: str, run: str, attempt: int, nodes: Sequence[str], commit: str) -> Dict[str, str]:
    """The tags of the run in MLflow, if the job environment shows that experiments are tracked."""
    try:
        tags = json.loads(context)
    except ValueError:
        return {}
    if not isinstance(tags, dict):
        return {}
    tags.update({"mlflow.runName": run, "gpumesh.attempt": str(attempt), "gpumesh.nodes": ",".join(nodes)})
    if commit:
        # MLflow uses the first, and its pages show the second.
        tags.update({"mlflow.source.git.commit": commit, "gpumesh.commit": commit})
    return {"MLFLOW_RUN_CONTEXT": json.dumps(tags)}


class Place(NamedTuple):
    """The place of a rank: its node among those of the attempt, and its number on the node."""

    nodes: Sequence[str]
    node: str
    local_rank: int
    ranks_per_node: int

    @property
    def node_rank(self) -> int:
        """The number of the node."""
        return list(self.nodes).index(self.node)

    @property
    def rank(self) -> int:
        """The number among all ranks."""
        return self.node_rank * self.ranks_per_node + self.local_rank

    @property
    def world_size(self) -> int:
        """The number of all ranks."""
        return len(self.nodes) * self.ranks_per_node


def _slurm(place: Place) -> Dict[str, str]:
    """The variables of srun, as if it had started the rank itself as one of the tasks of a step.

    Those that name the same number must agree: Lightning refuses to start otherwise.
    """
    nodes, each = len(place.nodes), place.ranks_per_node
    tasks_per_node = f"{each}(x{nodes})" if nodes > 1 else str(each)
    return {
        "SLURM_PROCID": str(place.rank),
        "SLURM_LOCALID": str(place.local_rank),
        "SLURM_NODEID": str(place.node_rank),
        "SLURM_NNODES": str(nodes),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_NTASKS": str(place.world_size),
        "SLURM_NPROCS": str(place.world_size),
        "SLURM_STEP_NUM_TASKS": str(place.world_size),
        "SLURM_NTASKS_PER_NODE": str(each),
        "SLURM_TASKS_PER_NODE": tasks_per_node,
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
    }


def runtime_directory(local: str) -> str:
    """The directory for sockets and the like of the ranks of one attempt on a node. ``local``: that of the attempt.

    With the user's own one, what an attempt leaves there would keep the next one from starting: podman notes the process
    that holds its namespaces.
    """
    return f"{local}/runtime"


def environment(
    inherited: Mapping[str, str],
    place: Place,
    run: str,
    folder: str,
    attempt: int,
    master: Mapping[str, str],
    local: str,
    staged: str = "",
    profile: str = "",
    commit: str = "",
) -> Dict[str, str]:
    """The variables of one rank.

    ``master``: MASTER_ADDR and MASTER_PORT; ``local``: a folder on the node's own disk; ``staged``: the path of its
    copy of the data; ``profile``: what is recorded of this attempt; ``commit``: that of the code.

    Slurm and the job environment describe the agent, the only task of its node. What differs for a rank is replaced,
    since Lightning, JAX and others use it too.
    """
    world = {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.ranks_per_node),
        "NODE_RANK": str(place.node_rank),
        "NNODES": str(len(place.nodes)),
        **_slurm(place),
    }
    own = {
        "GPUMESH_RUN": run,
        "GPUMESH_RUN_DIR": folder,
        "GPUMESH_CHECKPOINT_DIR": f"{folder}/checkpoints",
        "GPUMESH_ATTEMPT": str(attempt),
        "GPUMESH_PROGRESS_FILE": f"{local}/progress-{place.rank}.json",
        "GPUMESH_STOP_FILE": f"{local}/stop",
        "XDG_RUNTIME_DIR": runtime_directory(local),
        # The last output must not be lost in a buffer when a rank is killed.
        "PYTHONUNBUFFERED": inherited.get("PYTHONUNBUFFERED", "1"),
        "PYTHONPATH": ":".join(part for part in (inherited.get("PYTHONPATH", ""), local) if part),
    }
    if staged:
        own["GPUMESH_STAGE_DIR"] = staged
    own.update(profiles.variables(profile, profiles.directory(folder, attempt), place.nodes))
    own.update(_tags(inherited.get("MLFLOW_RUN_CONTEXT", ""), run, attempt, place.nodes, commit))
    dropped = ["GPUMESH_PROFILE"] + (["TF_CONFIG"] if place.ranks_per_node > 1 else [])
    kept = {name: value for name, value in inherited.items() if name not in dropped}
    return {**kept, **master, **world, **own}
