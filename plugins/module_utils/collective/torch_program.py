# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A collective with PyTorch, for nodes without nccl-tests. Started once per rank; reads its rank from the environment.

It is sent to the nodes as text, so it imports nothing of this collection. Each rank prints a line when it starts; at
the end, rank 0 prints the result.

Ranks exchange only tensors of numbers. PyTorch's collectives of objects unpickle what they receive, so any rank could
run code in the others.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import socket
import subprocess
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Tuple

if TYPE_CHECKING:
    _Popen = subprocess.Popen[str]
else:
    _Popen = subprocess.Popen


#: What a rank reports: its numbers, its host, and the name of its device.
DOCUMENT_BYTES = 1024


class Program(_Popen):
    """A program started by this one."""


def factor(collective: str, ranks: int) -> float:
    """The factor from algorithm bandwidth to bus bandwidth, the rate of the slowest link whatever the number of ranks."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "alltoall"):
        return (ranks - 1) / ranks
    return 1.0


class Prepared(NamedTuple):
    """One collective of one size: the bytes that it moves, its buffer, and functions to fill, run and check it."""

    moved: int
    buffer: Any
    fill: Callable[[], Any]
    run: Callable[[], Any]
    wrong: Callable[[], int]


def prepare(torch: Any, dist: Any, collective: str, size: int, rank: int, ranks: int, device: Any) -> Prepared:
    """Prepare a collective of about ``size`` bytes."""
    count = max(size // 4, ranks)
    if collective == "all_gather":
        part = count // ranks
        own = torch.empty(part, device=device)
        parts = [torch.empty(part, device=device) for _rank in range(ranks)]
        return Prepared(
            part * ranks * 4,
            own,
            lambda: own.fill_(float(rank + 1)),
            lambda: dist.all_gather(parts, own),
            lambda: sum(int((one != float(index + 1)).sum().item()) for index, one in enumerate(parts)),
        )
    data = torch.empty(count, device=device)
    if collective == "all_reduce":
        total = ranks * (ranks + 1) / 2
        return Prepared(
            count * 4,
            data,
            lambda: data.fill_(float(rank + 1)),
            lambda: dist.all_reduce(data),
            lambda: int((data != total).sum().item()),
        )
    return Prepared(
        count * 4,
        data,
        lambda: data.fill_(7.0 if rank == 0 else 0.0),
        lambda: dist.broadcast(data, 0),
        lambda: int((data != 7.0).sum().item()),
    )


def packed(document: Dict[str, Any]) -> List[int]:
    """Encode a short document as numbers, always of the same length."""
    text = json.dumps(document)
    if len(text) > DOCUMENT_BYTES:
        text = json.dumps({**document, "name": ""})
    return list(text.encode().ljust(DOCUMENT_BYTES)[:DOCUMENT_BYTES])


def unpacked(numbers: List[int]) -> Any:
    """Decode the message of another rank. Raises ValueError for anything else."""
    return json.loads(bytes(numbers))


def gather(torch: Any, dist: Any, own: Dict[str, Any], ranks: int, device: Any) -> List[Any]:
    """The reports of all ranks."""
    mine = torch.tensor(packed(own), dtype=torch.uint8, device=device)
    others = [torch.empty_like(mine) for _rank in range(ranks)]
    dist.all_gather(others, mine)
    return [unpacked(one.tolist()) for one in others]


def say(mark: str, document: Dict[str, Any]) -> None:
    """Print one line for the program that reads our output, flushed at once, since this process may be killed."""
    sys.stdout.write(f"{mark} {json.dumps(document)}\n")
    sys.stdout.flush()


def work(arguments: argparse.Namespace, rank: int, ranks: int, local_rank: int) -> None:
    """Join the others, measure each size, and let rank 0 print the result."""
    # Before anything that can take long or fail, so that a missing rank can be told from a slow one.
    own: Dict[str, Any] = {"rank": rank, "host": socket.gethostname(), "device": local_rank}
    say("GPUMESH-RANK", own)
    # From 2.4 on, PyTorch uses libuv by default, and fails in Debian's build, which has none.
    os.environ.setdefault("USE_LIBUV", "0")
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")

    backend = arguments.backend
    if backend == "auto":
        backend = "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    device = torch.device("cuda", local_rank) if backend == "nccl" else torch.device("cpu")
    name = torch.cuda.get_device_name(device) if backend == "nccl" else f"CPU, {platform.machine()}"
    own = {**own, "name": name}
    dist.init_process_group(backend, rank=rank, world_size=ranks, timeout=timedelta(seconds=arguments.timeout))

    def wait() -> None:
        if backend == "nccl":
            torch.cuda.synchronize(device)

    results: List[Dict[str, Any]] = []
    wrong_total = 0
    size = arguments.min_bytes
    while size <= arguments.max_bytes:
        made = prepare(torch, dist, arguments.collective, size, rank, ranks, device)
        made.fill()
        made.run()
        wait()
        wrong = torch.tensor([float(made.wrong())], device=device)
        dist.all_reduce(wrong)
        # Zeroed, since repeated sums would overflow; only the collective is timed.
        made.buffer.zero_()
        wait()
        dist.barrier()
        began = time.perf_counter()
        for _again in range(arguments.iterations):
            made.run()
        wait()
        # The time of the slowest rank is that of the collective.
        took = torch.tensor([(time.perf_counter() - began) / arguments.iterations], dtype=torch.float64, device=device)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        seconds = took.item()
        algbw = made.moved / seconds / 1e9
        wrong_total += int(wrong.item())
        results.append(
            {
                "size": made.moved,
                "count": made.moved // 4,
                "type": "float",
                "redop": "sum" if arguments.collective == "all_reduce" else "none",
                "in_place": {
                    "time": round(seconds * 1e6, 2),
                    "alg_bw": round(algbw, 4),
                    "bus_bw": round(algbw * factor(arguments.collective, ranks), 4),
                    "nwrong": int(wrong.item()),
                },
            }
        )
        size *= 2
    everybody = gather(torch, dist, own, ranks, device)
    dist.barrier()
    if rank == 0:
        rates = [one["in_place"]["bus_bw"] for one in results]
        document = {
            "collective": arguments.collective,
            "torch": torch.__version__,
            "backend": backend,
            "devices": everybody,
            "results": results,
            "out_of_bounds": {"count": wrong_total},
            "average_bus_bandwidth": {"bandwidth": sum(rates) / len(rates) if rates else 0.0},
        }
        say("GPUMESH-RESULT", document)
    # The ranks no longer need each other. Destroying the group in order can hang if one rank is faster than the others.
    dist.barrier()
    os._exit(0)


def local(ranks: int) -> int:
    """Start all ranks on this machine, and wait for them. Returns the worst exit status."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # The command line of this process, including the program text.
    with open("/proc/self/cmdline", encoding="utf-8") as stream:
        command = stream.read().split("\0")[:-1]
    own = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "OMPI_"))}
    children = []
    for rank in range(ranks):
        variables = {
            **own,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        children.append(Program([*command, "--local=0"], env=variables))
    return max(abs(child.wait()) for child in children)


def place() -> Tuple[int, int, int]:
    """(rank, ranks, rank on this node), from the launcher's environment. Raises KeyError if it is not set."""
    for names in (
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ):
        if all(name in os.environ for name in names):
            rank, ranks, local_rank = (int(os.environ[name]) for name in names)
            return rank, ranks, local_rank
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", "0"))


def set_master() -> None:
    """Use the first node of the job step as master, unless the job's environment names one.

    The port is set by whoever starts the ranks.
    """
    nodes = os.environ.get("SLURM_STEP_NODELIST")
    if "MASTER_ADDR" not in os.environ and nodes:
        with Program(["scontrol", "show", "hostnames", nodes], stdout=subprocess.PIPE, encoding="utf-8") as asked:
            shown = asked.communicate()[0]
        os.environ["MASTER_ADDR"] = shown.split()[0]


def main() -> int:
    """Read the options and the environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--collective", choices=["all_reduce", "all_gather", "broadcast"], default="all_reduce")
    parser.add_argument("--backend", choices=["auto", "nccl", "gloo"], default="auto")
    parser.add_argument("--min-bytes", type=int, default=8)
    parser.add_argument("--max-bytes", type=int, default=1 << 26)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--local", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.local:
        return local(arguments.local)
    rank, ranks, local_rank = place()
    set_master()
    work(arguments, rank, ranks, local_rank)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
