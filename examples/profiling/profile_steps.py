"""Where a training step spends its time: torch.profiler around a few steps, one trace a rank.

    srun -N3 python3 profile_steps.py --output /mnt/shared/traces

Each rank writes rank<N>.json, which chrome://tracing and Perfetto open; rank 0 prints the table of the longest
operations. On NVIDIA machines Nsight Systems sees the kernels and NCCL as well:

    srun -N2 --gpus-per-node=1 nsys profile -t cuda,nvtx,osrt -o /mnt/shared/traces/%q{SLURM_PROCID} python3 profile_steps.py
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 6


def main() -> None:
    """Profile a few steps; write the trace of this rank."""
    parser = argparse.ArgumentParser(description="Profile a few data-parallel training steps.")
    parser.add_argument("--output", type=Path, default=Path("traces"))
    parser.add_argument("--width", type=int, default=512)
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        layers = [nn.Linear(arguments.width, arguments.width) for _layer in range(4)]
        model = DistributedDataParallel(nn.Sequential(*layers).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        # The first steps allocate and connect; they would hide what every later step costs.
        with profile(activities=activities, schedule=schedule(wait=1, warmup=1, active=STEPS - 2)) as profiler:
            for _step in range(STEPS):
                optimizer.zero_grad()
                model(torch.randn(64, arguments.width, device=device)).square().mean().backward()
                optimizer.step()
                profiler.step()
        arguments.output.mkdir(parents=True, exist_ok=True)
        trace = arguments.output / f"rank{dist.get_rank()}.json"
        profiler.export_chrome_trace(str(trace))
        if dist.get_rank() == 0:
            order = "cuda_time_total" if cuda else "cpu_time_total"
            print(profiler.key_averages().table(sort_by=order, row_limit=12))
        print(f"rank {dist.get_rank()}: {trace}", flush=True)
    finally:
        # The wrapped network refers to itself, and to the process group. Left to the end of the interpreter, that ends the
        # threads of gloo under it now and then: "terminate called without an active exception", after all was well.
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
