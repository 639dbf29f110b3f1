"""Experiment tracking from rank 0 alone: MLflow, with its store in a folder that all nodes share.

    srun -N3 python3 track.py --store /mnt/shared/mlflow
    mlflow ui --backend-store-uri sqlite:////mnt/shared/mlflow/mlflow.db        # then look at it

No server is needed while the job runs. Only rank 0 writes, since every rank has the same averaged numbers. SQLite takes
one writer at a time: where many jobs run at once, start `mlflow server` on one machine and set MLFLOW_TRACKING_URI in the
jobs, which is used instead of the folder.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import mlflow
import torch
import torch.distributed as dist

EXPERIMENT = "gpumesh"
STEPS = 20


def start(store: Path) -> None:
    """Begin a run of the experiment; in ``store``, unless the environment names a server."""
    if "MLFLOW_TRACKING_URI" not in os.environ:
        store.mkdir(parents=True, exist_ok=True)
        mlflow.set_tracking_uri(f"sqlite:///{store.resolve()}/mlflow.db")
        # Else models and files would go to the folder of whoever starts the first job.
        if mlflow.get_experiment_by_name(EXPERIMENT) is None:
            mlflow.create_experiment(EXPERIMENT, artifact_location=(store.resolve() / "artifacts").as_uri())
    mlflow.set_experiment(EXPERIMENT)
    mlflow.start_run(run_name=f"job-{os.environ.get('SLURM_JOB_ID', 'local')}")
    mlflow.log_params({"world_size": dist.get_world_size(), "nodes": os.environ.get("NNODES", "1")})


def main() -> None:
    """Average a falling number over all ranks, and log it."""
    parser = argparse.ArgumentParser(description="Log an averaged metric of all ranks with MLflow.")
    parser.add_argument("--store", type=Path, default=Path("mlflow"))
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        first = dist.get_rank() == 0
        if first:
            start(arguments.store)
        for step in range(STEPS):
            value = torch.tensor(1.0 / (step + 1 + dist.get_rank()), device="cuda" if cuda else "cpu")
            dist.all_reduce(value)
            if first:
                mlflow.log_metric("loss", value.item() / dist.get_world_size(), step=step)
        if first:
            mlflow.end_run()
            print(f"logged {STEPS} steps to {mlflow.get_tracking_uri()}", flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
