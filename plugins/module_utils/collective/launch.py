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

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import NOBODY, command_prefix
from ansible_collections.gpumesh.cluster.plugins.module_utils.collective import (
    torch_program,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.collective.bisect import (
    Culprit,
    find,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.collective.judge import (
    Expected,
    Problem,
    judge,
    largest,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.collective.parse import (
    Output,
    parse_text,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.collective.thresholds import (
    LARGE_BYTES,
    Own,
    Ran,
    Threshold,
    look_up,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import show
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.launch import common_partition, read_holders

#: The exit statuses of coreutils' timeout when the time is over, also after SIGKILL.
_TIMED_OUT = (124, 137)
#: Seconds between SIGTERM and SIGKILL, in which srun cancels its step.
_GRACE = 10
#: The ports for the rendezvous of our own program, below the ephemeral ports. A different one each time, which cannot
#: be predicted and taken before; one that is in use is skipped.
_MEETING_PORTS = (20000, 32767)
_MEETINGS = 3
_TAKEN = re.compile(r"EADDRINUSE|Address already in use", re.IGNORECASE)
#: Between two nodes, Tree can show up to twice the rate of the wire; Ring shows the wire.
_RING = {"NCCL_ALGO": "Ring"}


_LOOK_AT_IT = "Check the cable, the rate of the NIC, its PCIe width, and the interface that NCCL or Gloo chose."


class Request(NamedTuple):
    """What to run. ``nodelist`` may be empty for srun, which then uses any ``nodes`` nodes.

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
    thresholds: Sequence[Own] = ()
    ring: bool = False
    user: str = NOBODY
    partition: str = ""


class Measurement(NamedTuple):
    """One run: its output, its problem and the threshold that it was judged by.

    ``ring_gbps``: the rate of Ring, where that was judged. ``unjudged``: the threshold that applies to larger messages
    only.
    """

    output: Output
    problem: Optional[Problem]
    threshold: Optional[Threshold]
    ring_gbps: Optional[float] = None
    unjudged: Optional[Threshold] = None


def check(request: Request) -> None:
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


def program(request: Request) -> List[str]:
    """The command of each rank: a binary of nccl-tests, or the built-in program, passed as text."""
    sizes = [str(request.min_bytes), str(request.max_bytes)]
    if request.path:
        binary = os.path.join(request.path, f"{request.collective}_perf")
        # With one process for all local GPUs, -g gives their number; with a launcher, each process has one GPU.
        gpus = request.ranks if request.launcher == "local" else 1
        return [binary, "-b", sizes[0], "-e", sizes[1], "-f", "2", "-g", str(gpus), "-n", str(request.iterations)]
    # Isolated: modules are imported neither from the working directory nor from the user's site-packages.
    return [
        request.python,
        "-I",
        "-c",
        inspect.getsource(torch_program),
        f"--collective={request.collective}",
        f"--min-bytes={sizes[0]}",
        f"--max-bytes={sizes[1]}",
        f"--iterations={request.iterations}",
        f"--timeout={request.timeout_s:g}",
        # Otherwise, each rank would choose by what its own node has, and NCCL would wait for ranks that use Gloo.
        *([] if request.gpus else ["--backend=gloo"]),
        *([f"--local={request.ranks}"] if request.launcher == "local" else []),
    ]


def command(request: Request) -> List[str]:
    """The whole command, with an outer time limit, since a hang is the most common failure."""
    limit = ["timeout", f"--kill-after={_GRACE}", f"{request.timeout_s:g}"]
    run = program(request)
    if request.launcher == "local":
        return [*limit, *command_prefix(request.user), *run]
    if request.launcher == "srun":
        names = [f"--nodelist={','.join(request.nodelist)}"] if request.nodelist else []
        names += [f"--partition={request.partition}"] if request.partition else []
        gpus = [f"--gpus-per-node={request.ranks // request.nodes}"] if request.path and request.gpus else []
        mpi = [f"--mpi={request.mpi}"] if request.path and request.mpi else []
        return [
            *limit,
            *command_prefix(request.user),
            "srun",
            "--job-name=gpumesh-collective",
            "--chdir=/",
            f"--nodes={request.nodes}",
            f"--ntasks={request.ranks}",
            f"--ntasks-per-node={request.ranks // request.nodes}",
            *names,
            *gpus,
            *mpi,
            # Otherwise, the others would wait for a rank that has died until their own limit.
            "--kill-on-bad-exit=1",
            f"--immediate={max(int(request.timeout_s // 2), 1)}",
            *run,
        ]
    slots = request.ranks // request.nodes
    hosts = ",".join(f"{node}:{slots}" for node in request.nodelist)
    passed = ["-x", "NCCL_ALGO"] if request.ring else []
    passed += [] if request.path else ["-x", "MASTER_PORT"]
    return [
        *limit,
        "mpirun",
        "--allow-run-as-root",
        "--tag-output",
        "-np",
        str(request.ranks),
        "--host",
        hosts,
        *passed,
        *run,
    ]


def measure(request: Request, run: Runner) -> Measurement:
    """Run and judge. If the network limits the rate, judge by a second run with Ring on the largest message."""
    made = _measure(request, run)
    concluded = made.problem is None or made.problem.kind == "slow"
    if request.ring or not concluded or made.threshold is None or not made.threshold.wire:
        return made
    ring = _measure(_only_largest(request, made)._replace(ring=True), run)
    top = largest(ring.output["rows"])
    return made._replace(problem=ring.problem, ring_gbps=top["busbw_gbps"] if top else None)


def _only_largest(request: Request, made: Measurement) -> Request:
    """The same with only the largest message that ``made`` reached.

    nccl-tests reduces the maximum to what the memory of the GPUs holds, and then refuses a minimum that is larger.
    """
    size = max((row["size_bytes"] for row in made.output["rows"]), default=request.max_bytes)
    return request._replace(min_bytes=size, max_bytes=size)


def _measure(request: Request, run: Runner) -> Measurement:
    for _meeting in range(1 if request.path else _MEETINGS):
        done = run(
            command(request),
            timeout=request.timeout_s + 2 * _GRACE + 5,
            check=False,
            environment=_environment(request) or None,
        )
        output = parse_text(done.stdout)
        # Launchers and failures write to stderr; a table is never written there.
        output["failures"] += parse_text(done.stderr)["failures"]
        output["warnings"] += parse_text(done.stderr)["warnings"]
        if not any(map(_TAKEN.search, output["failures"])):
            break
    reached = max([row["size_bytes"] for row in output["rows"]], default=0)
    threshold = _threshold(request, output, reached)
    expected = Expected(request.ranks, request.nodes, request.timeout_s, threshold)
    problem = judge(output, expected, done.rc, done.rc in _TIMED_OUT)
    unjudged = None if threshold or problem else _threshold(request, output, LARGE_BYTES)
    return Measurement(output, problem, threshold, unjudged=unjudged)


def _environment(request: Request) -> Dict[str, str]:
    """The environment that the launcher passes to the ranks."""
    ring = _RING if request.ring else {}
    port = {} if request.path else {"MASTER_PORT": str(random.SystemRandom().randint(*_MEETING_PORTS))}
    return {**ring, **port}


def _threshold(request: Request, output: Output, reached: int) -> Optional[Threshold]:
    if request.min_busbw_gbps:
        return Threshold(request.min_busbw_gbps, "given", request.ring)
    names = [device["name"] for device in output["devices"]]
    ran = Ran(request.collective, names, request.nodes, reached)
    if output["versions"].get("backend") != "gloo":
        return look_up(ran, request.nic_gbps, request.nics, request.fabric, request.thresholds)
    # Gloo uses TCP, whatever the cards support, and does not have NCCL's algorithms.
    found = look_up(ran, request.nic_gbps, request.nics, "tcp", request.thresholds)
    return found._replace(wire=False) if found else None


def busy(request: Request, run: Runner) -> Optional[Problem]:
    """The problem if a job holds one of the nodes: measuring would give wrong results, and disturb the job. Else None."""
    if request.launcher != "srun" or not request.nodelist:
        return None
    try:
        held = read_holders(run, request.nodelist)
    except CommandError:
        # If Slurm cannot be queried, srun reports the reason.
        return None
    if not held:
        return None
    jobs = sorted({job for on in held.values() for job in on})
    return Problem(
        "busy",
        f"Not run: {', '.join(held)} {'is' if len(held) == 1 else 'are'} held by {'; '.join(f'job {job}' for job in jobs)}.",
        "Run it again when the nodes are free.",
    )


def place(request: Request, run: Runner) -> Tuple[Request, Optional[Problem]]:
    """The request with the partition that has all of its nodes, or the problem if there is none: a job has only one."""
    if request.launcher != "srun" or not request.nodelist:
        return request, None
    try:
        nodes = [node for node in show.nodes(run, show.version(run)) if node["name"] in request.nodelist]
        partitions = show.partitions(run)
    except CommandError:
        # If Slurm cannot be queried, srun reports the reason.
        return request, None
    chosen = common_partition(nodes, partitions) if nodes else ""
    if chosen or not nodes:
        return request._replace(partition=chosen), None
    words = [f"{node['name']} in {', '.join(node['partitions']) or 'none'}" for node in nodes]
    return request, Problem(
        "no_partition",
        f"Not run: no partition has all of the nodes ({'; '.join(words)}).",
        "Add a partition with all nodes to slurm_partitions.",
    )


def find_culprit(request: Request, made: Measurement, run: Runner) -> Optional[Culprit]:
    """Run it on subsets of the nodes until the one is found that made it slow; None if there are no subsets."""
    if len(request.nodelist) < 3 or request.launcher == "local":
        return None
    per_node = request.ranks // request.nodes
    # Only large messages reveal a slow link.
    large, threshold = _only_largest(request, made), made.threshold

    def good(nodes: Sequence[str]) -> bool:
        part = large._replace(
            nodelist=nodes,
            nodes=len(nodes),
            ranks=per_node * len(nodes),
            min_busbw_gbps=threshold.gbps if threshold else None,
            ring=threshold is not None and threshold.wire,
        )
        return measure(part, run).problem is None

    return find(list(request.nodelist), good)


def _status(problem: Optional[Problem]) -> str:
    if problem is None:
        return "pass"
    # A test whose program is missing, or whose nodes are not free, or not in one partition, has neither failed nor
    # passed: it was not performed.
    return "skipped" if problem.kind in ("not_installed", "busy", "no_partition") else "fail"


def _unjudged(made: Measurement) -> Optional[str]:
    if made.unjudged is None:
        return None
    return (
        f"{made.unjudged.gbps:g} GB/s are required for messages of {LARGE_BYTES >> 30} GiB and more "
        f"({made.unjudged.source}), but the largest was smaller. Set max_bytes={LARGE_BYTES}."
    )


def as_result(request: Request, made: Measurement, culprit: Optional[Culprit]) -> Dict[str, Any]:
    """The module's return values. They contain neither the environment nor the raw output."""
    output, top = made.output, largest(made.output["rows"])
    error: Optional[Dict[str, Any]] = None
    if made.problem is not None:
        error = {**made.problem._asdict(), "details": output["failures"], "warnings": output["warnings"]}
        if culprit is not None:
            error["culprit"] = {"kind": culprit.kind, "names": list(culprit.names), "words": culprit.words}
            error["message"] = f"{error['message']} {culprit.words}"
            if culprit.kind in ("node", "link"):
                error["remedy"] = _LOOK_AT_IT
    return {
        "collective": output["collective"] or request.collective,
        "ranks": len({device["rank"] for device in output["devices"]}),
        "nodes": len({device["host"] for device in output["devices"]}),
        "devices": output["devices"],
        "rows": output["rows"],
        "out_of_bounds": output["out_of_bounds"],
        "avg_busbw_gbps": output["avg_busbw_gbps"],
        "busbw_gbps": top["busbw_gbps"] if top else None,
        "ring_busbw_gbps": made.ring_gbps,
        "versions": output["versions"],
        "status": _status(made.problem),
        "min_busbw_gbps": made.threshold.gbps if made.threshold else None,
        "threshold_source": made.threshold.source if made.threshold else None,
        "not_judged": _unjudged(made),
        # Only the action of the module knows the record.
        "left_out": None,
        "error": error,
    }
