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
35.2, "first": 1151}. All keys are optional. It is written under another name and renamed. `checkpoint` is the step of
the last complete checkpoint, `waited` the total seconds that the rank has waited for the others, and `first` the first
step that it has made. With {"busy": "validation", "limit": 1800}, the program says that it does something else for up
to that many seconds. Each time that the file is written is a sign of life, whatever it contains. The output of a
program that never writes one is such a sign as well.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import profile as profiles
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Progress

#: The variables of one rank of one run. A run that is started by a rank, or from a shell with these variables, must not
#: inherit them.
RANK_VARIABLES = (
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
#: Larger files are not accepted as progress, nor are larger numbers.
_MAX_REPORT_BYTES = 64 * 1024
_MAX_INTEGER = 1 << 53
#: The maximum number of characters of ``busy`` that are shown.
_MAX_TEXT_LENGTH = 80


def parse_progress(raw_report: bytes) -> Optional[Progress]:
    """Parse the progress that a rank wrote; None if it is invalid. Never raises, since a program may write anything."""
    if len(raw_report) > _MAX_REPORT_BYTES:
        return None
    try:
        report = parse_json(raw_report.decode("utf-8"))
    except ValueError:
        return None
    if not isinstance(report, dict):
        return None
    return Progress(
        _parse_count(report.get("step")),
        _parse_count(report.get("steps")),
        _parse_real(report.get("loss")),
        _parse_count(report.get("checkpoint")),
        _parse_real(report.get("waited")),
        _parse_count(report.get("first")),
        _parse_text(report.get("busy")),
        _parse_real(report.get("limit")),
        _is_non_finite(report.get("loss")) or None,
    )


def _parse_count(value: Any) -> Optional[int]:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return value if is_integer and 0 <= value <= _MAX_INTEGER else None


def _parse_real(value: Any) -> Optional[float]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or (isinstance(value, int) and abs(value) > _MAX_INTEGER):
        return None
    return float(value) if math.isfinite(value) else None


def _parse_text(value: Any) -> Optional[str]:
    return value[:_MAX_TEXT_LENGTH] if isinstance(value, str) and value else None


def _is_non_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _mlflow_variables(
    mlflow_context: str, run_name: str, attempt: int, nodes: Sequence[str], commit: str
) -> Dict[str, str]:
    """Return the variable with the run's tags in MLflow, if the job environment shows that experiments are tracked."""
    try:
        mlflow_tags = json.loads(mlflow_context)
    except ValueError:
        return {}
    if not isinstance(mlflow_tags, dict):
        return {}
    mlflow_tags.update({"mlflow.runName": run_name, "gpumesh.attempt": str(attempt), "gpumesh.nodes": ",".join(nodes)})
    if commit:
        # MLflow itself uses the first tag, and its pages show the second.
        mlflow_tags.update({"mlflow.source.git.commit": commit, "gpumesh.commit": commit})
    return {"MLFLOW_RUN_CONTEXT": json.dumps(mlflow_tags)}


class RankPosition(NamedTuple):
    """The position of a rank: its node among those of the attempt, and its number on that node."""

    nodes: Sequence[str]
    node: str
    local_rank: int
    ranks_per_node: int

    @property
    def node_rank(self) -> int:
        """The number of the node in the attempt."""
        return list(self.nodes).index(self.node)

    @property
    def rank(self) -> int:
        """The number of the rank among all ranks."""
        return self.node_rank * self.ranks_per_node + self.local_rank

    @property
    def world_size(self) -> int:
        """The number of all ranks."""
        return len(self.nodes) * self.ranks_per_node


def _slurm_variables(position: RankPosition) -> Dict[str, str]:
    """Return srun's variables, as if srun had started the rank as one of the tasks of a step.

    Variables for the same number must agree: Lightning refuses to start otherwise. The nodes are in the order of their
    ranks, since JAX and Lightning take the first one for that of rank 0. Slurm sorts them, and the job may have others.
    """
    node_count, ranks_per_node = len(position.nodes), position.ranks_per_node
    node_list = ",".join(position.nodes)
    first_rank = position.node_rank * ranks_per_node
    tasks_per_node = f"{ranks_per_node}(x{node_count})" if node_count > 1 else str(ranks_per_node)
    return {
        "SLURM_PROCID": str(position.rank),
        "SLURM_LOCALID": str(position.local_rank),
        "SLURM_NODEID": str(position.node_rank),
        "SLURM_GTIDS": ",".join(str(rank) for rank in range(first_rank, first_rank + ranks_per_node)),
        "SLURM_NODELIST": node_list,
        "SLURM_JOB_NODELIST": node_list,
        "SLURM_STEP_NODELIST": node_list,
        "SLURM_NNODES": str(node_count),
        "SLURM_JOB_NUM_NODES": str(node_count),
        "SLURM_STEP_NUM_NODES": str(node_count),
        "SLURM_NTASKS": str(position.world_size),
        "SLURM_NPROCS": str(position.world_size),
        "SLURM_STEP_NUM_TASKS": str(position.world_size),
        "SLURM_NTASKS_PER_NODE": str(ranks_per_node),
        "SLURM_TASKS_PER_NODE": tasks_per_node,
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
    }


def runtime_directory(local_directory: str) -> str:
    """Return the directory for sockets and the like of the ranks of one attempt on a node.

    ``local_directory``: the attempt's directory there. In the user's own runtime directory, what an attempt leaves
    would keep the next one from starting: podman records the process that holds its namespaces.
    """
    return f"{local_directory}/runtime"


def environment(
    inherited_variables: Mapping[str, str],
    position: RankPosition,
    run_name: str,
    run_directory: str,
    attempt: int,
    master_variables: Mapping[str, str],
    local_directory: str,
    staged_path: str = "",
    profile_spec: str = "",
    code_commit: str = "",
) -> Dict[str, str]:
    """Return the environment of one rank.

    ``master_variables``: MASTER_ADDR and MASTER_PORT; ``local_directory``: a directory on the node's own disk;
    ``staged_path``: the node's copy of the data; ``profile_spec``: what is recorded of this attempt; ``code_commit``:
    the commit of the code.

    Slurm and the job environment describe the agent, the only task of its node. Variables that differ for a rank are
    replaced, since Lightning, JAX and others use them too.
    """
    world_variables = {
        "RANK": str(position.rank),
        "WORLD_SIZE": str(position.world_size),
        "LOCAL_RANK": str(position.local_rank),
        "LOCAL_WORLD_SIZE": str(position.ranks_per_node),
        "NODE_RANK": str(position.node_rank),
        "NNODES": str(len(position.nodes)),
        **_slurm_variables(position),
    }
    rank_variables = {
        "GPUMESH_RUN": run_name,
        "GPUMESH_RUN_DIR": run_directory,
        "GPUMESH_CHECKPOINT_DIR": f"{run_directory}/checkpoints",
        "GPUMESH_ATTEMPT": str(attempt),
        "GPUMESH_PROGRESS_FILE": f"{local_directory}/progress-{position.rank}.json",
        "GPUMESH_STOP_FILE": f"{local_directory}/stop",
        "XDG_RUNTIME_DIR": runtime_directory(local_directory),
        # The last output must not be lost in a buffer when a rank is killed.
        "PYTHONUNBUFFERED": inherited_variables.get("PYTHONUNBUFFERED", "1"),
        "PYTHONPATH": ":".join(
            search_path for search_path in (inherited_variables.get("PYTHONPATH", ""), local_directory) if search_path
        ),
    }
    if staged_path:
        rank_variables["GPUMESH_STAGE_DIR"] = staged_path
    rank_variables.update(
        profiles.rank_variables(profile_spec, profiles.profile_directory(run_directory, attempt), position.nodes)
    )
    rank_variables.update(
        _mlflow_variables(
            inherited_variables.get("MLFLOW_RUN_CONTEXT", ""), run_name, attempt, position.nodes, code_commit
        )
    )
    dropped_names = ["GPUMESH_PROFILE"] + (["TF_CONFIG"] if position.ranks_per_node > 1 else [])
    remaining_variables = {name: value for name, value in inherited_variables.items() if name not in dropped_names}
    return {**remaining_variables, **master_variables, **world_variables, **rank_variables}
