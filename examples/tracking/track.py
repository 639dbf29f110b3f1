"""Experiment tracking from rank 0 alone: MLflow, with its store in a folder that all nodes share.

    srun -N3 python3 track.py --store /mnt/shared/mlruns
    mlflow ui --backend-store-uri /mnt/shared/mlruns        # then look at it

No server is needed while the job runs. Only rank 0 writes, since every rank has the same averaged numbers.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import mlflow
import torch
import torch.distributed as dist

STEPS = 20


def main() -> None:
    """Average a falling number over all ranks, and log it."""
    parser = argparse.ArgumentParser(description="Log an averaged metric of all ranks with MLflow.")
    parser.add_argument("--store", type=Path, default=Path("mlruns"))
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        first = dist.get_rank() == 0
        if first:
            mlflow.set_tracking_uri(arguments.store.resolve().as_uri())
            mlflow.set_experiment("gpumesh")
            mlflow.start_run(run_name=f"job-{os.environ.get('SLURM_JOB_ID', 'local')}")
            mlflow.log_params({"world_size": dist.get_world_size(), "nodes": os.environ.get("NNODES", "1")})
        for step in range(STEPS):
            value = torch.tensor(1.0 / (step + 1 + dist.get_rank()), device="cuda" if cuda else "cpu")
            dist.all_reduce(value)
            if first:
                mlflow.log_metric("loss", value.item() / dist.get_world_size(), step=step)
        if first:
            mlflow.end_run()
            print(f"logged {STEPS} steps to {arguments.store.resolve()}", flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
