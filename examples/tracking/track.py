"""A training to look at: its metrics and a file in MLflow, its steps in a profile. See docs/guides/profile.md.

    gpumesh-train --name tracked --nodes 3 -- python3 track.py
    gpumesh-train --name slow --nodes 3 --profile torch -- python3 track.py --slow 1

The ranks train a network together. Only rank 0 tracks, since every rank has the same averaged loss. With --slow, a rank
pauses in each step, like one that waits for its data.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import time

import gpumesh_run
import gpumesh_track
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, RATE = 256, 128, 1e-2
PAUSE = 1.0


def train(steps: int, slow: int | None, device: torch.device) -> list[float]:
    """The mean loss of all ranks in each step."""
    torch.manual_seed(0)
    layers = (nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for step in range(1, steps + 1):
        inputs = torch.randn(BATCH, WIDTH, generator=generator).to(device)
        if dist.get_rank() == slow:
            time.sleep(PAUSE)
        optimizer.zero_grad()
        error = nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
        error.backward()
        optimizer.step()
        mean = error.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
        gpumesh_track.log(step, loss=losses[-1])
        gpumesh_run.progress(step, steps, loss=losses[-1])
    return losses


def main() -> None:
    """Train on all ranks, and keep the losses as a file, too."""
    parser = argparse.ArgumentParser(
        description="Train a small network over all ranks, tracked and ready for a profile."
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--slow", type=int, metavar="RANK", help="the rank that pauses in each step")
    given = parser.parse_args()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    gpumesh_track.params(ranks=dist.get_world_size(), steps=given.steps, width=WIDTH, rate=RATE)
    losses = train(given.steps, given.slow, device)
    if dist.get_rank() == 0:
        path = os.path.join(os.environ.get("GPUMESH_RUN_DIR", "."), "losses.csv")
        with open(path, "w", encoding="ascii", newline="") as stream:
            csv.writer(stream).writerows([("step", "loss"), *enumerate(losses, start=1)])
        gpumesh_track.artifact(path)
        print(f"{dist.get_world_size()} ranks on {device.type}: loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    # What DDP has wrapped refers to itself and to the process group, and must not outlive that. By then, gloo must have let
    # go of the last tensor.
    dist.barrier()
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
