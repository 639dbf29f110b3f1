"""Data-parallel training that reads nothing but its environment: the same file on a laptop and on the cluster.

    srun -N3 python3 train.py                  # one process a node, gloo
    srun -N2 --ntasks-per-node=8 --gpus-per-task=1 python3 train.py      # one process a GPU, nccl
    torchrun --nproc-per-node=2 train.py       # without Slurm

A small network learns a known linear rule from data that is made here, so the loss must fall, and all ranks must end
with the same weights; the last line of rank 0 says both.
"""

from __future__ import annotations

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

FEATURES = 16


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description="Train a small network over all processes of the job.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of one process per step")
    parser.add_argument("--checkpoint", help="file that rank 0 writes at the end, on storage that all nodes share")
    return parser.parse_args()


def choose_device() -> torch.device:
    """The GPU of this process, or the CPU. A job with --gpus-per-task=1 sees its own GPU as the first and only one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def make_data(samples: int) -> TensorDataset:
    """Inputs (samples, FEATURES) and targets (samples, 1) of a linear rule; the same in every process."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, FEATURES, generator=generator)
    rule = torch.randn(FEATURES, 1, generator=generator)
    return TensorDataset(inputs, inputs @ rule)


def train(arguments: argparse.Namespace, device: torch.device) -> tuple[float, float, nn.Module]:
    """Train; the mean loss of the first and of the last epoch over all processes, and the network."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(network)
    data = make_data(arguments.samples)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=arguments.batch_size, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            total += loss.detach()
        mean = total / len(loader)
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}/{arguments.epochs}: loss {losses[-1]:.5f}", flush=True)
    return losses[0], losses[-1], network


def same_everywhere(network: nn.Module) -> bool:
    """Whether all processes have the same weights to the bit."""
    mine = torch.cat([weights.detach().flatten() for weights in network.parameters()])
    lowest, highest = mine.clone(), mine.clone()
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return bool(torch.equal(lowest, highest))


def main() -> None:
    """Train on all processes of the job, and say on rank 0 how it went."""
    arguments = parse_arguments()
    device = choose_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        first, last, network = train(arguments, device)
        same = same_everywhere(network)
        if dist.get_rank() == 0:
            if arguments.checkpoint:
                torch.save(network.state_dict(), arguments.checkpoint)
            print(
                f"{dist.get_world_size()} processes on {device.type}: loss {first:.5f} -> {last:.5f}, "
                f"weights {'equal' if same else 'DIFFERENT'} on all ranks",
                flush=True,
            )
        if not same or last >= first:
            raise SystemExit(1)
    finally:
        # The wrapped network refers to itself, and to the process group. Left to the end of the interpreter, that ends the
        # threads of gloo under it now and then: "terminate called without an active exception", after all was well.
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
