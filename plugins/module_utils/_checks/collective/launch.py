# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start a collective, and start it again on fewer nodes to find what is slow."""

from __future__ import annotations

import inspect
import os
import random
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective import torch_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective.bisect import Culprit, find_culprit
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective.judge import (
    CollectiveProblem,
    ExpectedRun,
    find_largest_row,
    judge_output,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective.parse import ParsedOutput, parse_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective.thresholds import (
    LARGE_BYTES,
    CustomThreshold,
    RunDescription,
    Threshold,
    find_threshold,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import NOBODY, command_prefix
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import show
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.launch import (
    find_common_partition,
    read_jobs_by_node,
)

#: The exit statuses of coreutils' timeout when the time is over, also after SIGKILL.
_TIMEOUT_STATUSES = (124, 137)
#: Seconds between SIGTERM and SIGKILL, in which srun cancels its step.
_KILL_DELAY = 10
#: The ports for the rendezvous of our own program, below the ephemeral ports. A different one each time, which cannot
#: be predicted and taken before; one that is in use is skipped.
_RENDEZVOUS_PORTS = (20000, 32767)
_RENDEZVOUS_ATTEMPTS = 3
_PORT_IN_USE = re.compile(r"EADDRINUSE|Address already in use", re.IGNORECASE)
#: The algorithm that shows the rate of the wire. Between two nodes, Tree can show up to twice that rate.
_RING_ENVIRONMENT = {"NCCL_ALGO": "Ring"}


_SLOW_NODE_REMEDY = "Check the cable, the rate of the NIC, its PCIe width, and the interface that NCCL or Gloo chose."


class CollectiveRequest(NamedTuple):
    """A collective to run. ``nodelist`` may be empty for srun, which then uses any ``nodes`` nodes.

    ``nic_gbps`` and ``nics`` describe the nodes' network (the rate of a card in Gbit/s, and the number of cards), and
    ``fabric`` (rdma or tcp) how it is used. ``ring`` restricts NCCL to that algorithm. ``user``: the account that runs
    it if we are root. ``partition``: that of the nodes, for srun; empty for the default one.
    """

    collective: str
    path: str
    launcher: str
    ranks: int
    nodes: int
    nodelist: Sequence[str]
    min_bytes: int
    max_bytes: int
    iterations: int
    timeout_s: float
    min_busbw_gbps: Optional[float]
    nic_gbps: Optional[float]
    nics: int
    python: str
    fabric: str = "rdma"
    mpi: str = ""
    gpus: bool = True
    thresholds: Sequence[CustomThreshold] = ()
    ring: bool = False
    user: str = NOBODY
    partition: str = ""


class Measurement(NamedTuple):
    """One run: its output, its problem and the threshold that it was judged by.

    ``ring_gbps``: the rate of Ring, where that was judged. ``unused_threshold``: the threshold that applies to larger
    messages only.
    """

    output: ParsedOutput
    problem: Optional[CollectiveProblem]
    threshold: Optional[Threshold]
    ring_gbps: Optional[float] = None
    unused_threshold: Optional[Threshold] = None


def check_request(request: CollectiveRequest) -> None:
    """Refuse a request that cannot be run. Raises InputError."""
    if request.ranks < request.nodes or request.ranks % request.nodes:
        raise InputError(
            f"{request.ranks} ranks cannot be distributed evenly over {request.nodes} nodes.",
            "Set ranks to a multiple of nodes.",
        )
    if request.launcher == "local" and request.nodes != 1:
        raise InputError("The launcher local supports only one node.", "Use srun or mpirun for several nodes.")
    if request.launcher == "mpirun" and len(request.nodelist) != request.nodes:
        raise InputError(
            f"mpirun needs the names of {request.nodes} nodes, but got {len(request.nodelist)}.",
            "Set nodelist.",
        )
    if request.min_bytes > request.max_bytes:
        raise InputError(f"min_bytes {request.min_bytes} is more than max_bytes {request.max_bytes}.", "Swap them.")
    if not request.path and request.collective not in ("all_reduce", "all_gather", "broadcast"):
        raise InputError(
            f"{request.collective} needs nccl-tests or rccl-tests: the built-in program supports only all_reduce, "
            "all_gather and broadcast.",
            "Give path.",
        )


def build_program(request: CollectiveRequest) -> List[str]:
    """The command of each rank: a binary of nccl-tests, or the built-in program, passed as text."""
    size_limits = [str(request.min_bytes), str(request.max_bytes)]
    if request.path:
        binary = os.path.join(request.path, f"{request.collective}_perf")
        # The option -g gives the number of GPUs of a single local process; with a launcher, each process has one GPU.
        gpus = request.ranks if request.launcher == "local" else 1
        return [
            binary,
            "-b",
            size_limits[0],
            "-e",
            size_limits[1],
            "-f",
            "2",
            "-g",
            str(gpus),
            "-n",
            str(request.iterations),
        ]
    # Isolated: modules are imported neither from the working directory nor from the user's site-packages.
    return [
        request.python,
        "-I",
        "-c",
        inspect.getsource(torch_program),
        f"--collective={request.collective}",
        f"--min-bytes={size_limits[0]}",
        f"--max-bytes={size_limits[1]}",
        f"--iterations={request.iterations}",
        f"--timeout={request.timeout_s:g}",
        # Each rank would otherwise choose by what its own node has, and NCCL would wait for ranks that use Gloo.
        *([] if request.gpus else ["--backend=gloo"]),
        *([f"--local={request.ranks}"] if request.launcher == "local" else []),
    ]


def build_command(request: CollectiveRequest) -> List[str]:
    """The whole command, with an outer time limit, since a hang is the most common failure."""
    timeout_command = ["timeout", f"--kill-after={_KILL_DELAY}", f"{request.timeout_s:g}"]
    rank_command = build_program(request)
    if request.launcher == "local":
        return [*timeout_command, *command_prefix(request.user), *rank_command]
    if request.launcher == "srun":
        node_options = [f"--nodelist={','.join(request.nodelist)}"] if request.nodelist else []
        node_options += [f"--partition={request.partition}"] if request.partition else []
        gpu_options = [f"--gpus-per-node={request.ranks // request.nodes}"] if request.path and request.gpus else []
        mpi_options = [f"--mpi={request.mpi}"] if request.path and request.mpi else []
        return [
            *timeout_command,
            *command_prefix(request.user),
            "srun",
            "--job-name=gpumesh-collective",
            "--chdir=/",
            f"--nodes={request.nodes}",
            f"--ntasks={request.ranks}",
            f"--ntasks-per-node={request.ranks // request.nodes}",
            *node_options,
            *gpu_options,
            *mpi_options,
            # Other ranks would otherwise wait for a rank that has died until their own limit.
            "--kill-on-bad-exit=1",
            f"--immediate={max(int(request.timeout_s // 2), 1)}",
            *rank_command,
        ]
    slots = request.ranks // request.nodes
    host_slots = ",".join(f"{node}:{slots}" for node in request.nodelist)
    environment_options = ["-x", "NCCL_ALGO"] if request.ring else []
    environment_options += [] if request.path else ["-x", "MASTER_PORT"]
    return [
        *timeout_command,
        "mpirun",
        "--allow-run-as-root",
        "--tag-output",
        "-np",
        str(request.ranks),
        "--host",
        host_slots,
        *environment_options,
        *rank_command,
    ]


def run_and_judge(request: CollectiveRequest, run: Runner) -> Measurement:
    """Run and judge. If the network limits the rate, judge by a second run with Ring on the largest message."""
    first_measurement = _run_once(request, run)
    concluded = first_measurement.problem is None or first_measurement.problem.kind == "slow"
    if (
        request.ring
        or not concluded
        or first_measurement.threshold is None
        or not first_measurement.threshold.is_wire_rate
    ):
        return first_measurement
    ring = _run_once(_restrict_to_largest(request, first_measurement)._replace(ring=True), run)
    top = find_largest_row(ring.output["rows"])
    return first_measurement._replace(problem=ring.problem, ring_gbps=top["busbw_gbps"] if top else None)


def _restrict_to_largest(request: CollectiveRequest, full_measurement: Measurement) -> CollectiveRequest:
    """Return the request with only the largest message that ``full_measurement`` reached.

    nccl-tests reduces the maximum to what the memory of the GPUs holds, and then refuses a minimum that is larger.
    """
    size = max((row["size_bytes"] for row in full_measurement.output["rows"]), default=request.max_bytes)
    return request._replace(min_bytes=size, max_bytes=size)


def _run_once(request: CollectiveRequest, run: Runner) -> Measurement:
    for _meeting in range(1 if request.path else _RENDEZVOUS_ATTEMPTS):
        launch_result = run(
            build_command(request),
            timeout=request.timeout_s + 2 * _KILL_DELAY + 5,
            check=False,
            environment=_build_environment(request) or None,
        )
        parsed_output = parse_text(launch_result.stdout)
        # Launchers and failures write to stderr; a table is never written there.
        parsed_output["failures"] += parse_text(launch_result.stderr)["failures"]
        parsed_output["warnings"] += parse_text(launch_result.stderr)["warnings"]
        if not any(map(_PORT_IN_USE.search, parsed_output["failures"])):
            break
    largest_bytes = max([row["size_bytes"] for row in parsed_output["rows"]], default=0)
    threshold = _find_threshold(request, parsed_output, largest_bytes)
    program = build_program(request)[0]
    expected = ExpectedRun(request.ranks, request.nodes, request.timeout_s, threshold, program)
    problem = judge_output(parsed_output, expected, launch_result.rc, launch_result.rc in _TIMEOUT_STATUSES)
    unjudged = None if threshold or problem else _find_threshold(request, parsed_output, LARGE_BYTES)
    return Measurement(parsed_output, problem, threshold, unused_threshold=unjudged)


def _build_environment(request: CollectiveRequest) -> Dict[str, str]:
    """The environment that the launcher passes to the ranks."""
    ring = _RING_ENVIRONMENT if request.ring else {}
    port = {} if request.path else {"MASTER_PORT": str(random.SystemRandom().randint(*_RENDEZVOUS_PORTS))}
    return {**ring, **port}


def _find_threshold(request: CollectiveRequest, output: ParsedOutput, largest_bytes: int) -> Optional[Threshold]:
    if request.min_busbw_gbps:
        return Threshold(request.min_busbw_gbps, "given", request.ring)
    names = [device["name"] for device in output["devices"]]
    run_description = RunDescription(request.collective, names, request.nodes, largest_bytes)
    if output["versions"].get("backend") != "gloo":
        return find_threshold(run_description, request.nic_gbps, request.nics, request.fabric, request.thresholds)
    # Gloo uses TCP, whatever the cards support, and does not have NCCL's algorithms.
    tcp_threshold = find_threshold(run_description, request.nic_gbps, request.nics, "tcp", request.thresholds)
    return tcp_threshold._replace(is_wire_rate=False) if tcp_threshold else None


def find_busy_nodes(request: CollectiveRequest, run: Runner) -> Optional[CollectiveProblem]:
    """Return the problem if a job uses one of the nodes, else None: measuring would be wrong, and disturb the job."""
    if request.launcher != "srun" or not request.nodelist:
        return None
    try:
        jobs_by_node = read_jobs_by_node(run, request.nodelist)
    except CommandError:
        # A failing query is not reported here: srun reports the reason.
        return None
    if not jobs_by_node:
        return None
    jobs = sorted({job for node_jobs in jobs_by_node.values() for job in node_jobs})
    return CollectiveProblem(
        "busy",
        f"Not run: {', '.join(jobs_by_node)} {'is' if len(jobs_by_node) == 1 else 'are'} held by {'; '.join(f'job {job}' for job in jobs)}.",
        "Run it again when the nodes are free.",
    )


def choose_partition(request: CollectiveRequest, run: Runner) -> Tuple[CollectiveRequest, Optional[CollectiveProblem]]:
    """The request with the partition that has all of its nodes, or the problem if there is none: a job has only one."""
    if request.launcher != "srun" or not request.nodelist:
        return request, None
    try:
        requested_nodes = [
            node for node in show.list_nodes(run, show.client_version(run)) if node["name"] in request.nodelist
        ]
        partitions = show.list_partitions(run)
    except CommandError:
        # A failing query is not reported here: srun reports the reason.
        return request, None
    chosen_partition = find_common_partition(requested_nodes, partitions) if requested_nodes else ""
    if chosen_partition or not requested_nodes:
        return request._replace(partition=chosen_partition), None
    node_texts = [f"{node['name']} in {', '.join(node['partitions']) or 'none'}" for node in requested_nodes]
    return request, CollectiveProblem(
        "no_partition",
        f"Not run: no partition has all of the nodes ({'; '.join(node_texts)}).",
        "Add a partition with all nodes to slurm_partitions.",
    )


def bisect_nodes(request: CollectiveRequest, slow_measurement: Measurement, run_command: Runner) -> Optional[Culprit]:
    """Run it on subsets of the nodes until the one is found that made it slow; None if there are no subsets."""
    if len(request.nodelist) < 3 or request.launcher == "local":
        return None
    ranks_per_node = request.ranks // request.nodes
    # A slow link shows only with large messages.
    large, judged_threshold = _restrict_to_largest(request, slow_measurement), slow_measurement.threshold

    def is_fast_enough(nodes: Sequence[str]) -> bool:
        part = large._replace(
            nodelist=nodes,
            nodes=len(nodes),
            ranks=ranks_per_node * len(nodes),
            min_busbw_gbps=judged_threshold.required_gbps if judged_threshold else None,
            ring=judged_threshold is not None and judged_threshold.is_wire_rate,
        )
        return run_and_judge(part, run_command).problem is None

    return find_culprit(list(request.nodelist), is_fast_enough)


def _result_status(problem: Optional[CollectiveProblem]) -> str:
    if problem is None:
        return "pass"
    # A test whose program is missing, or whose nodes are not free, or not in one partition, has neither failed nor
    # passed: it was not performed.
    return "skipped" if problem.kind in ("not_installed", "busy", "no_partition") else "fail"


def _describe_unused_threshold(measurement: Measurement) -> Optional[str]:
    if measurement.unused_threshold is None:
        return None
    return (
        f"{measurement.unused_threshold.required_gbps:g} GB/s are required for messages of {LARGE_BYTES >> 30} GiB and more "
        f"({measurement.unused_threshold.source}), but the largest was smaller. Set max_bytes={LARGE_BYTES}."
    )


def build_result(request: CollectiveRequest, measurement: Measurement, culprit: Optional[Culprit]) -> Dict[str, Any]:
    """The module's return values. They contain neither the environment nor the raw output."""
    parsed_output, largest_row = measurement.output, find_largest_row(measurement.output["rows"])
    error_document: Optional[Dict[str, Any]] = None
    if measurement.problem is not None:
        error_document = {
            **measurement.problem._asdict(),
            "details": parsed_output["failures"],
            "warnings": parsed_output["warnings"],
        }
        if culprit is not None:
            error_document["culprit"] = {
                "kind": culprit.kind,
                "names": list(culprit.node_names),
                "words": culprit.description,
            }
            error_document["message"] = f"{error_document['message']} {culprit.description}"
            if culprit.kind in ("node", "link"):
                error_document["remedy"] = _SLOW_NODE_REMEDY
    return {
        "collective": parsed_output["collective"] or request.collective,
        "ranks": len({device["rank"] for device in parsed_output["devices"]}),
        "nodes": len({device["host"] for device in parsed_output["devices"]}),
        "devices": parsed_output["devices"],
        "rows": parsed_output["rows"],
        "out_of_bounds": parsed_output["out_of_bounds"],
        "avg_busbw_gbps": parsed_output["avg_busbw_gbps"],
        "busbw_gbps": largest_row["busbw_gbps"] if largest_row else None,
        "ring_busbw_gbps": measurement.ring_gbps,
        "versions": parsed_output["versions"],
        "status": _result_status(measurement.problem),
        "min_busbw_gbps": measurement.threshold.required_gbps if measurement.threshold else None,
        "threshold_source": measurement.threshold.source if measurement.threshold else None,
        "not_judged": _describe_unused_threshold(measurement),
        # The action of the module sets it, since only the action knows the record.
        "left_out": None,
        "error": error_document,
    }
