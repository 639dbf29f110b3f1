# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job with one task on each of some nodes, as a proof that Slurm can start jobs there.

A job runs in one partition. If none has all of the nodes, there is one job for each of several partitions.

It does not wait for other jobs: nodes that are in use are skipped, with the jobs that hold them, and so are nodes that
do not accept jobs.

The controller learns late that a node was away, such as after a power cut: from the next ping or registration. A job
that it places there before is lost, since it sends the start of a job to each node once: srun waits until the time limit
of the job, and says that something is wrong with the boot of the nodes. Seen with Slurm 22.05 and 24.11.
"""

from __future__ import annotations

import re
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import command_prefix
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed, Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import show

#: srun --test-only: "srun: Job 7 to start at 2026-11-22T14:08:31 using 3 processors on nodes n[1-3] in partition main".
_STARTS_AT = re.compile(r"\bto start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\b")
#: A later start means after another job.
_SOON = 5
#: A busy scheduler may take long to answer; the task itself ends immediately.
_GRACE = 10
_PAUSE = 2.0
_NOT_RUN = Completed(0, "", "")


class Request(NamedTuple):
    """The nodes to launch on, the account to use, the seconds that the scheduler may take, and the partition.

    Without a partition, Slurm uses the default one. ``silent``: nodes that are known not to answer, which Slurm may
    learn late.
    """

    nodes: Sequence[str]
    user: str
    timeout_s: int
    partition: str = ""
    silent: Sequence[str] = ()


class Found(NamedTuple):
    """``nodes``: where to launch. ``held``: the jobs on nodes without room, as messages.

    ``barred``: the state of nodes that do not accept jobs. Both are by node. ``partitions``: the partition for each of
    the nodes where to launch.
    """

    nodes: List[str]
    held: Dict[str, List[str]]
    barred: Dict[str, str]
    partitions: Mapping[str, str]


class Proof(NamedTuple):
    """``done``: how the job ended on the nodes in ``found``, the last time if there were two ``attempts``.

    ``away``: the nodes that had been away when the controller placed the first job, which failed.
    """

    found: Found
    done: Completed
    away: List[str]
    attempts: int


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


def read(run: Runner) -> Dict[str, show.Node]:
    """What the controller knows of each node. Raises CommandError if there is none."""
    return {node["name"]: node for node in show.nodes(run, show.version(run))}


def assign(nodes: Sequence[show.Node], partitions: Sequence[show.Partition]) -> Dict[str, str]:
    """A partition for each of the nodes; without those that are only in partitions that start no jobs, or in none.

    The default partition comes first, since everybody may use it, then those with the most of the other nodes.
    """
    found: Dict[str, str] = {}
    left = {partition["name"]: partition for partition in partitions if partition["state"] == "up"}
    while left:
        members = {
            name: [node["name"] for node in nodes if name in node["partitions"] and node["name"] not in found]
            for name in left
        }
        best = max(left, key=lambda name: (left[name]["default"], len(members[name])))
        found.update(dict.fromkeys(members[best], best))
        del left[best]
    return found


def common_partition(nodes: Sequence[show.Node], partitions: Sequence[show.Partition]) -> str:
    """The partition that has all of the nodes, preferably one that starts jobs, and the default one; empty for none."""
    able = [one for one in partitions if all(one["name"] in node["partitions"] for node in nodes)]
    best = max(able, key=lambda one: (one["state"] == "up", one["default"]), default=None)
    return best["name"] if best else ""


def look(run: Runner, request: Request, known: Mapping[str, show.Node]) -> Found:
    """Which of the nodes have room now."""
    barred = {
        name: " ".join([known[name]["state"], *known[name]["flags"]]) if name in known else "unknown to Slurm"
        for name in request.nodes
        if name not in known or not known[name]["ready"]
    }
    barred.update({name: "unreachable" for name in request.nodes if name in request.silent})
    ready = [known[name] for name in request.nodes if name not in barred]
    partitions = assign(ready, show.partitions(run))
    barred.update(
        {node["name"]: _without_partition(node["partitions"]) for node in ready if node["name"] not in partitions}
    )
    nodes = [name for name in request.nodes if name not in barred]
    if not any(known[name]["cpus_allocated"] for name in nodes):
        return Found(nodes, {}, barred, partitions)
    on = read_holders(run, nodes)
    full = [name for name in nodes if name in on and known[name]["cpus_allocated"] >= known[name]["cpus"]]
    nodes = [name for name in nodes if name not in full]
    for job in jobs(request, nodes, partitions):
        if set(job.nodes) & set(on) and not _starts_now(run, job):
            # Memory, or a job that uses its nodes exclusively.
            full += [name for name in job.nodes if name in on]
    nodes = [name for name in nodes if name not in full]
    return Found(nodes, {name: on[name] for name in request.nodes if name in full}, barred, partitions)


def _without_partition(names: Sequence[str]) -> str:
    return f"only in partitions that start no jobs ({', '.join(names)})" if names else "in no partition"


def jobs(request: Request, nodes: Sequence[str], partitions: Mapping[str, str]) -> List[Request]:
    """The jobs that together have a task on each of the nodes: one for each partition, in the order of the nodes."""
    together: Dict[str, List[str]] = {}
    for node in nodes:
        together.setdefault(partitions[node], []).append(node)
    return [request._replace(nodes=members, partition=name) for name, members in together.items()]


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
        *([f"--partition={request.partition}"] if request.partition else []),
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


def prove(run: Runner, request: Request) -> Proof:
    """Run the job on the nodes with room, and a second time if a node had been away when the controller placed it.

    Any other failure, and a second one, is a failure. Raises CommandError if there is no controller.
    """
    # Slurm starts nothing where a job is still ending.
    before = _settle(run, request, _ending)
    found = look(run, request, before)
    if not found.nodes:
        return Proof(found, _NOT_RUN, [], 0)
    request = request._replace(nodes=found.nodes)
    done = launch_all(run, jobs(request, found.nodes, found.partitions))
    away = away_since(before, read(run), found.nodes) if done.rc else []
    if away:
        now = look(run, request, _settle(run, request, _unsettled))
        if now.nodes == found.nodes:
            second = launch_all(run, jobs(request, now.nodes, now.partitions))
            again = found._replace(partitions=now.partitions)
            return Proof(again, second._replace(stderr=done.stderr + second.stderr), away, 2)
    return Proof(found, done, away, 1)


def away_since(before: Mapping[str, show.Node], now: Mapping[str, show.Node], names: Sequence[str]) -> List[str]:
    """The nodes where another slurmd has registered meanwhile, or that turned out not to respond."""
    return [
        name
        for name in names
        if name not in now
        or "not_responding" in now[name]["flags"]
        or now[name]["slurmd_started"] != before[name]["slurmd_started"]
    ]


def _ending(node: show.Node) -> bool:
    return node["ready"] and "completing" in node["flags"]


def _unsettled(node: show.Node) -> bool:
    return not node["ready"] or _ending(node)


def _settle(run: Runner, request: Request, unsettled: Callable[[show.Node], bool]) -> Dict[str, show.Node]:
    """Read the nodes until each that answers has been seen settled, for at most the time that a job may take.

    On a busy cluster, there is always one on which a job is just ending.
    """
    end = time.monotonic() + request.timeout_s
    waiting = set(request.nodes) - set(request.silent)
    while True:
        known = read(run)
        waiting = {name for name in waiting if name in known and unsettled(known[name])}
        if not waiting or time.monotonic() >= end:
            return known
        time.sleep(_PAUSE)


def launch_all(run: Runner, requests: Sequence[Request]) -> Completed:
    """Run all of the jobs, one after the other: their output, and the exit status of the first one that failed."""
    done = [launch(run, request) for request in requests]
    rc = next((one.rc for one in done if one.rc), 0)
    return Completed(rc, "".join(one.stdout for one in done), "".join(one.stderr for one in done))


def words_of_all(requests: Sequence[Request]) -> List[str]:
    """The command lines of the jobs, as a user would type them, one after the other."""
    found: List[str] = []
    for request in requests:
        found += [*(["&&"] if found else []), *words(request)]
    return found
