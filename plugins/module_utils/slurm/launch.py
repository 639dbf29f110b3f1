# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job with one task on each of some nodes, as a proof that Slurm can start jobs there.

It does not wait for other jobs: nodes that are in use are skipped, with the jobs that hold them, and so are nodes that
do not accept jobs.
"""

from __future__ import annotations

import re
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import command_prefix
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed, Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import show

#: srun --test-only: "srun: Job 7 to start at 2026-11-22T14:08:31 using 3 processors on nodes n[1-3] in partition main".
_STARTS_AT = re.compile(r"\bto start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\b")
#: A later start means after another job.
_SOON = 5
#: A busy scheduler may take long to answer; the task itself ends immediately.
_GRACE = 10


class Request(NamedTuple):
    """The nodes to launch on, the account to use, and the seconds that the scheduler may take."""

    nodes: Sequence[str]
    user: str
    timeout_s: int


class Found(NamedTuple):
    """``nodes``: where to launch. ``held``: the jobs on nodes without room, as messages.

    ``barred``: the state of nodes that do not accept jobs. Both are by node.
    """

    nodes: List[str]
    held: Dict[str, List[str]]
    barred: Dict[str, str]


def job_words(job: Mapping[str, Any]) -> str:
    """A job in a form for messages."""
    return f"{job['id']} of {job['user']} ({job['name']})"


def holders(jobs: Sequence[Mapping[str, Any]], nodes: Sequence[str]) -> Dict[str, List[str]]:
    """The jobs on each of the nodes, as messages; nodes without jobs are omitted."""
    found: Dict[str, List[str]] = {}
    for job in jobs:
        if job["state"] in show.HOLDING:
            for node in set(job["nodes"]) & set(nodes):
                found.setdefault(node, []).append(job_words(job))
    return found


def read_holders(run: Runner, nodes: Sequence[str]) -> Dict[str, List[str]]:
    """``holders`` of the controller's current jobs."""
    return holders(show.jobs(run, show.version(run)), nodes)


def look(run: Runner, request: Request) -> Found:
    """Which of the nodes have room now. Raises CommandError if there is no controller."""
    release = show.version(run)
    known = {node["name"]: node for node in show.nodes(run, release)}
    barred = {
        name: " ".join([known[name]["state"], *known[name]["flags"]]) if name in known else "unknown to Slurm"
        for name in request.nodes
        if name not in known or not known[name]["ready"]
    }
    nodes = [name for name in request.nodes if name not in barred]
    if not any(known[name]["cpus_allocated"] for name in nodes):
        return Found(nodes, {}, barred)
    on = holders(show.jobs(run, release), nodes)
    full = [name for name in nodes if name in on and known[name]["cpus_allocated"] >= known[name]["cpus"]]
    nodes = [name for name in nodes if name not in full]
    if nodes and set(nodes) & set(on) and not _starts_now(run, request._replace(nodes=nodes)):
        # Memory, or a job that uses its nodes exclusively.
        full += [name for name in nodes if name in on]
        nodes = [name for name in nodes if name not in on]
    return Found(nodes, {name: on[name] for name in request.nodes if name in full}, barred)


def _starts_now(run: Runner, request: Request) -> bool:
    """Whether the scheduler would start the job immediately; true as well if it does not say."""
    said = run(_srun(request, "--test-only"), timeout=request.timeout_s + _GRACE, check=False)
    at = start_time(said.stdout + said.stderr)
    return at is None or at <= time.time() + _SOON


def start_time(text: str) -> Optional[float]:
    """The start time of the job according to srun --test-only. Slurm prints local time, and runs on this host."""
    found = _STARTS_AT.search(text)
    return time.mktime(time.strptime(found.group(1), "%Y-%m-%dT%H:%M:%S")) if found else None


def words(request: Request, *more: str) -> List[str]:
    """The command line of the job, as a user would type it."""
    return [
        "srun",
        "--job-name=gpumesh-check",
        f"--nodes={len(request.nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(request.nodes)}",
        "--mem=16M",
        f"--immediate={request.timeout_s}",
        "--time=1",
        "--chdir=/",
        *more,
        "printenv",
        "SLURMD_NODENAME",
    ]


def _srun(request: Request, *more: str) -> List[str]:
    return ["timeout", str(request.timeout_s + _GRACE), *command_prefix(request.user), *words(request, *more)]


def launch(run: Runner, request: Request) -> Completed:
    """Run the job on all nodes of the request. Each node prints its name."""
    return run(_srun(request), timeout=request.timeout_s + 2 * _GRACE, check=False)
