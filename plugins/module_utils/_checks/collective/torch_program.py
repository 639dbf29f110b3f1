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


#: The size of the report of a rank: its numbers, its host, and the name of its device.
DOCUMENT_BYTES = 1024


class StartedProgram(_Popen):
    """A program started by this one."""


def bus_bandwidth_factor(collective: str, ranks: int) -> float:
    """Return the factor from algorithm bandwidth to bus bandwidth, the rate of the slowest link."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "alltoall"):
        return (ranks - 1) / ranks
    return 1.0


class PreparedCollective(NamedTuple):
    """One collective of one size: the bytes that it moves, its buffer, and functions to fill, run and check it."""

    moved_bytes: int
    buffer: Any
    fill_buffer: Callable[[], Any]
    run_collective: Callable[[], Any]
    count_wrong: Callable[[], int]


def prepare_collective(
    torch: Any, distributed: Any, collective_name: str, size: int, rank: int, world_size: int, device: Any
) -> PreparedCollective:
    """Prepare a collective of about ``size`` bytes."""
    element_count = max(size // 4, world_size)
    if collective_name == "all_gather":
        part = element_count // world_size
        own_tensor = torch.empty(part, device=device)
        parts = [torch.empty(part, device=device) for _rank in range(world_size)]
        return PreparedCollective(
            part * world_size * 4,
            own_tensor,
            lambda: own_tensor.fill_(float(rank + 1)),
            lambda: distributed.all_gather(parts, own_tensor),
            lambda: sum(
                int((gathered_part != float(index + 1)).sum().item()) for index, gathered_part in enumerate(parts)
            ),
        )
    data_tensor = torch.empty(element_count, device=device)
    if collective_name == "all_reduce":
        total = world_size * (world_size + 1) / 2
        return PreparedCollective(
            element_count * 4,
            data_tensor,
            lambda: data_tensor.fill_(float(rank + 1)),
            lambda: distributed.all_reduce(data_tensor),
            lambda: int((data_tensor != total).sum().item()),
        )
    return PreparedCollective(
        element_count * 4,
        data_tensor,
        lambda: data_tensor.fill_(7.0 if rank == 0 else 0.0),
        lambda: distributed.broadcast(data_tensor, 0),
        lambda: int((data_tensor != 7.0).sum().item()),
    )


def encode_document(document: Dict[str, Any]) -> List[int]:
    """Encode a short document as numbers, always of the same length."""
    json_text = json.dumps(document)
    if len(json_text) > DOCUMENT_BYTES:
        json_text = json.dumps({**document, "name": ""})
    return list(json_text.encode().ljust(DOCUMENT_BYTES)[:DOCUMENT_BYTES])


def decode_document(numbers: List[int]) -> Any:
    """Decode the message of another rank. Raises ValueError for anything else."""
    return json.loads(bytes(numbers))


def gather_reports(torch: Any, distributed: Any, own_report: Dict[str, Any], ranks: int, device: Any) -> List[Any]:
    """The reports of all ranks."""
    own_tensor = torch.tensor(encode_document(own_report), dtype=torch.uint8, device=device)
    gathered_tensors = [torch.empty_like(own_tensor) for _rank in range(ranks)]
    distributed.all_gather(gathered_tensors, own_tensor)
    return [decode_document(report_tensor.tolist()) for report_tensor in gathered_tensors]


def print_record(mark: str, document: Dict[str, Any]) -> None:
    """Print one line for the program that reads our output, flushed at once, since this process may be killed."""
    sys.stdout.write(f"{mark} {json.dumps(document)}\n")
    sys.stdout.flush()


def run_rank(arguments: argparse.Namespace, rank: int, world_size: int, local_rank: int) -> None:
    """Join the others, measure each size, and let rank 0 print the result."""
    # The report comes before anything that can take long or fail, so that a missing rank differs from a slow one.
    own_report: Dict[str, Any] = {"rank": rank, "host": socket.gethostname(), "device": local_rank}
    print_record("GPUMESH-RANK", own_report)
    # PyTorch uses libuv by default from 2.4 on, and fails in Debian's build, which has none.
    os.environ.setdefault("USE_LIBUV", "0")
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")

    backend = arguments.backend
    if backend == "auto":
        backend = "nccl" if torch.cuda.is_available() and distributed.is_nccl_available() else "gloo"
    device = torch.device("cuda", local_rank) if backend == "nccl" else torch.device("cpu")
    name = torch.cuda.get_device_name(device) if backend == "nccl" else f"CPU, {platform.machine()}"
    own_report = {**own_report, "name": name}
    distributed.init_process_group(
        backend, rank=rank, world_size=world_size, timeout=timedelta(seconds=arguments.timeout)
    )

    def synchronize() -> None:
        if backend == "nccl":
            torch.cuda.synchronize(device)

    result_entries: List[Dict[str, Any]] = []
    wrong_total = 0
    requested_bytes = arguments.min_bytes
    while requested_bytes <= arguments.max_bytes:
        prepared_collective = prepare_collective(
            torch, distributed, arguments.collective, requested_bytes, rank, world_size, device
        )
        prepared_collective.fill_buffer()
        prepared_collective.run_collective()
        synchronize()
        wrong_tensor = torch.tensor([float(prepared_collective.count_wrong())], device=device)
        distributed.all_reduce(wrong_tensor)
        # Zeroed, since repeated sums would overflow; only the collective is timed.
        prepared_collective.buffer.zero_()
        synchronize()
        distributed.barrier()
        began = time.perf_counter()
        for _again in range(arguments.iterations):
            prepared_collective.run_collective()
        synchronize()
        # The time of the slowest rank is that of the collective.
        took = torch.tensor([(time.perf_counter() - began) / arguments.iterations], dtype=torch.float64, device=device)
        distributed.all_reduce(took, op=distributed.ReduceOp.MAX)
        iteration_seconds = took.item()
        algorithm_bandwidth = prepared_collective.moved_bytes / iteration_seconds / 1e9
        wrong_total += int(wrong_tensor.item())
        result_entries.append(
            {
                "size": prepared_collective.moved_bytes,
                "count": prepared_collective.moved_bytes // 4,
                "type": "float",
                "redop": "sum" if arguments.collective == "all_reduce" else "none",
                "in_place": {
                    "time": round(iteration_seconds * 1e6, 2),
                    "alg_bw": round(algorithm_bandwidth, 4),
                    "bus_bw": round(algorithm_bandwidth * bus_bandwidth_factor(arguments.collective, world_size), 4),
                    "nwrong": int(wrong_tensor.item()),
                },
            }
        )
        requested_bytes *= 2
    rank_reports = gather_reports(torch, distributed, own_report, world_size, device)
    distributed.barrier()
    if rank == 0:
        bus_bandwidths = [result_entry["in_place"]["bus_bw"] for result_entry in result_entries]
        result_document = {
            "collective": arguments.collective,
            "torch": torch.__version__,
            "backend": backend,
            "devices": rank_reports,
            "results": result_entries,
            "out_of_bounds": {"count": wrong_total},
            "average_bus_bandwidth": {
                "bandwidth": sum(bus_bandwidths) / len(bus_bandwidths) if bus_bandwidths else 0.0
            },
        }
        print_record("GPUMESH-RESULT", result_document)
    # The ranks no longer need each other. Destroying the group in order can hang if one rank is faster than the others.
    distributed.barrier()
    os._exit(0)


def run_local_ranks(world_size: int) -> int:
    """Start all ranks on this machine, and wait for them. Returns the worst exit status."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        master_port = probe.getsockname()[1]
    # The command line of this process, including the program text.
    with open("/proc/self/cmdline", encoding="utf-8") as stream:
        own_command = stream.read().split("\0")[:-1]
    inherited_environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "OMPI_"))}
    child_processes = []
    for rank in range(world_size):
        rank_environment = {
            **inherited_environment,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master_port),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        child_processes.append(StartedProgram([*own_command, "--local=0"], env=rank_environment))
    return max(abs(child.wait()) for child in child_processes)


def read_rank_position() -> Tuple[int, int, int]:
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
        with StartedProgram(
            ["scontrol", "show", "hostnames", nodes], stdout=subprocess.PIPE, encoding="utf-8"
        ) as scontrol_process:
            host_names = scontrol_process.communicate()[0]
        os.environ["MASTER_ADDR"] = host_names.split()[0]


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
        return run_local_ranks(arguments.local)
    rank, ranks, local_rank = read_rank_position()
    set_master()
    run_rank(arguments, rank, ranks, local_rank)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
