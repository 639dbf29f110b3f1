"""A small network that goes on where it was, whatever happens to it: what `gpumesh-train` asks of a program, in full.

    gpumesh-train --name toy --nodes 3 -- python3 train.py --steps 2000

The ranks learn a known rule from data that each step makes from its own number, so that a run that was interrupted sees the
same data as one that was not. Rank 0 saves a checkpoint every 100 steps, and when it is asked to.
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    import gpumesh_run  # gpumesh-train puts it there.
except ImportError:
    gpumesh_run = None

FEATURES, BATCH, INTERVAL = 16, 96, 100


def batch(step: int, rank: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's share of the samples of a step: inputs (n, FEATURES) and targets (n, 1)."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, FEATURES, generator=generator)[rank::size].to(device)
    return inputs, inputs.sin().sum(dim=1, keepdim=True)


def save(path: Path, state: dict[str, object]) -> None:
    """Under another name first: a checkpoint is whole, or it is not there."""
    draft = path.with_suffix(".new")
    with draft.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)


def train(steps: int, device: torch.device, path: Path) -> float:
    """Train from the last checkpoint on; the last loss, the same on all ranks."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    step, loss, saved = 0, float("nan"), None
    if path.exists():
        state = torch.load(path, map_location=device, weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        step, loss, saved = state["step"], state["loss"], state["step"]
    rank, size = dist.get_rank(), dist.get_world_size()
    # A volume may show a new checkpoint late. A rank that went on from an older one would give no error.
    loaded = [step] * size
    dist.all_gather_object(loaded, step)
    if len(set(loaded)) > 1:
        raise SystemExit(f"the ranks have checkpoints of different steps: {loaded}")
    model = DistributedDataParallel(network)
    while step < steps:
        inputs, targets = batch(step, rank, size, device)
        optimizer.zero_grad()
        error = nn.functional.mse_loss(model(inputs), targets)
        error.backward()
        optimizer.step()
        step += 1
        # Whether one rank is asked to stop, so that all of them stop at the same step; and the mean of the losses.
        stopping = gpumesh_run is not None and gpumesh_run.stopping()
        told = torch.tensor([error.item(), float(stopping)], device=device)
        dist.all_reduce(told)
        loss, stopping = told[0].item() / size, told[1].item() > 0
        if step % INTERVAL == 0 or step == steps or stopping:
            if rank == 0:
                state = {
                    "network": network.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step,
                    "loss": loss,
                }
                save(path, state)
            saved = step
        if gpumesh_run is not None:
            gpumesh_run.progress(step, steps, loss=loss, checkpoint=saved if rank == 0 else None)
        if stopping:
            break
    return loss


def main() -> None:
    """Train on all ranks."""
    parser = argparse.ArgumentParser(description="Train a small network over all ranks, from the last checkpoint on.")
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    loss = train(steps, device, Path(os.environ.get("GPUMESH_CHECKPOINT_DIR", "."), "toy.pt"))
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks on {device.type}: loss {loss:.6f}")
    # What DDP has wrapped refers to itself and to the process group, and must not outlive that.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
