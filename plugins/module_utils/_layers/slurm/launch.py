# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job with one task on each of some nodes, as a proof that Slurm can start jobs there.

A job runs in one partition. If none has all of the nodes, there is one job for each of several partitions.

A job does not wait for other jobs: nodes that are in use are skipped and reported with their jobs, and so are nodes
that do not accept jobs.

The controller learns late that a node was away, such as after a power cut: from the next ping or registration. A job
that it places there before is lost, since it sends the start of a job to each node once: srun waits until the time
limit of the job, and reports that something is wrong with the boot of the nodes. Seen with Slurm 22.05 and 24.11.
"""

from __future__ import annotations

import re
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import command_prefix
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import show

#: srun --test-only: "srun: Job 7 to start at 2026-11-22T14:08:31 using 3 processors on nodes n[1-3] in partition main".
_START_TIME_PATTERN = re.compile(r"\bto start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\b")
#: A later start means after another job.
_START_TOLERANCE = 5
#: A busy scheduler may take long to answer; the task itself ends immediately.
_SCHEDULER_GRACE = 10
_POLL_INTERVAL = 2.0
#: Lists the nodes, a line per node and partition: name, state, address and reason.
SINFO_COMMAND = ("timeout", "20", "sinfo", "--noheader", "--Node", "--format=%N|%T|%o|%E")
_NOT_LAUNCHED = CommandResult(0, "", "")


class LaunchRequest(NamedTuple):
    """The nodes to launch on, the account to use, the seconds that the scheduler may take, and the partition.

    Without a partition, Slurm uses the default one. ``unreachable_nodes`` are known not to respond, which Slurm may
    learn late.
    """

    nodes: Sequence[str]
    user: str
    timeout_s: int
    partition: str = ""
    unreachable_nodes: Sequence[str] = ()


class LaunchTargets(NamedTuple):
    """The nodes to launch on, with the partition of each, and the reasons why the others are skipped.

    ``blocking_jobs``: the jobs on nodes without room, as messages. ``unavailable_nodes``: the state of nodes that do
    not accept jobs. Both are by node.
    """

    nodes: List[str]
    blocking_jobs: Dict[str, List[str]]
    unavailable_nodes: Dict[str, str]
    partition_by_node: Mapping[str, str]


class LaunchProof(NamedTuple):
    """The result of the job on the nodes in ``targets``, of the second attempt if there were two.

    ``absent_nodes``: the nodes that had been away when the controller placed the first job, which failed.
    """

    targets: LaunchTargets
    result: CommandResult
    absent_nodes: List[str]
    attempt_count: int


def format_job(job: Mapping[str, Any]) -> str:
    """Format a job for messages."""
    return f"{job['id']} of {job['user']} ({job['name']})"


def group_jobs_by_node(jobs: Sequence[Mapping[str, Any]], node_names: Sequence[str]) -> Dict[str, List[str]]:
    """Return the jobs on each of the nodes, as messages; nodes without jobs are omitted."""
    jobs_by_node: Dict[str, List[str]] = {}
    for job in jobs:
        if job["state"] in show.ACTIVE_JOB_STATES:
            for node_name in set(job["nodes"]) & set(node_names):
                jobs_by_node.setdefault(node_name, []).append(format_job(job))
    return jobs_by_node


def read_jobs_by_node(run: Runner, nodes: Sequence[str]) -> Dict[str, List[str]]:
    """Return the controller's current jobs on each of the nodes, as messages."""
    return group_jobs_by_node(show.list_jobs(run, show.client_version(run)), nodes)


def read_nodes(run: Runner) -> Dict[str, show.SlurmNode]:
    """Read the controller's view of each node. Raises CommandError if there is no controller."""
    return {node["name"]: node for node in show.list_nodes(run, show.client_version(run))}


def assign_partitions(nodes: Sequence[show.SlurmNode], partitions: Sequence[show.SlurmPartition]) -> Dict[str, str]:
    """Choose a partition for each of the nodes, except for those in no partition that starts jobs.

    The default partition comes first, since everybody may use it, then those with the most of the other nodes.
    """
    partition_by_node: Dict[str, str] = {}
    remaining_partitions = {partition["name"]: partition for partition in partitions if partition["state"] == "up"}
    while remaining_partitions:
        nodes_by_partition = {
            name: [
                node["name"] for node in nodes if name in node["partitions"] and node["name"] not in partition_by_node
            ]
            for name in remaining_partitions
        }
        best_partition = max(
            remaining_partitions,
            key=lambda name: (remaining_partitions[name]["default"], len(nodes_by_partition[name])),
        )
        partition_by_node.update(dict.fromkeys(nodes_by_partition[best_partition], best_partition))
        del remaining_partitions[best_partition]
    return partition_by_node


def find_common_partition(nodes: Sequence[show.SlurmNode], partitions: Sequence[show.SlurmPartition]) -> str:
    """Return the partition with all of the nodes, preferably one that starts jobs and the default; empty for none."""
    able = [partition for partition in partitions if all(partition["name"] in node["partitions"] for node in nodes)]
    best = max(able, key=lambda partition: (partition["state"] == "up", partition["default"]), default=None)
    return best["name"] if best else ""


def find_launch_targets(
    run: Runner, request: LaunchRequest, node_by_name: Mapping[str, show.SlurmNode]
) -> LaunchTargets:
    """Find the nodes that have room now."""
    unavailable_nodes = {
        name: " ".join([node_by_name[name]["state"], *node_by_name[name]["flags"]])
        if name in node_by_name
        else "unknown to Slurm"
        for name in request.nodes
        if name not in node_by_name or not node_by_name[name]["ready"]
    }
    unavailable_nodes.update({name: "unreachable" for name in request.nodes if name in request.unreachable_nodes})
    ready_nodes = [node_by_name[name] for name in request.nodes if name not in unavailable_nodes]
    partition_by_node = assign_partitions(ready_nodes, show.list_partitions(run))
    unavailable_nodes.update(
        {
            node["name"]: _explain_missing_partition(node["partitions"])
            for node in ready_nodes
            if node["name"] not in partition_by_node
        }
    )
    launch_nodes = [name for name in request.nodes if name not in unavailable_nodes]
    if not any(node_by_name[name]["cpus_allocated"] for name in launch_nodes):
        return LaunchTargets(launch_nodes, {}, unavailable_nodes, partition_by_node)
    jobs_by_node = read_jobs_by_node(run, launch_nodes)
    full_nodes = [
        name
        for name in launch_nodes
        if name in jobs_by_node and node_by_name[name]["cpus_allocated"] >= node_by_name[name]["cpus"]
    ]
    launch_nodes = [name for name in launch_nodes if name not in full_nodes]
    for job in split_by_partition(request, launch_nodes, partition_by_node):
        if set(job.nodes) & set(jobs_by_node) and not _starts_now(run, job):
            # The memory is used up, or a job uses its nodes exclusively.
            full_nodes += [name for name in job.nodes if name in jobs_by_node]
    launch_nodes = [name for name in launch_nodes if name not in full_nodes]
    return LaunchTargets(
        launch_nodes,
        {name: jobs_by_node[name] for name in request.nodes if name in full_nodes},
        unavailable_nodes,
        partition_by_node,
    )


def _explain_missing_partition(names: Sequence[str]) -> str:
    return f"only in partitions that start no jobs ({', '.join(names)})" if names else "in no partition"


def split_by_partition(
    request: LaunchRequest, node_names: Sequence[str], partition_by_node: Mapping[str, str]
) -> List[LaunchRequest]:
    """Return one job for each partition, in the order of the nodes, which together have a task on each node."""
    nodes_by_partition: Dict[str, List[str]] = {}
    for node in node_names:
        nodes_by_partition.setdefault(partition_by_node[node], []).append(node)
    return [request._replace(nodes=members, partition=name) for name, members in nodes_by_partition.items()]


def _starts_now(run: Runner, request: LaunchRequest) -> bool:
    """Whether the scheduler would start the job immediately, or does not say when."""
    test_result = run(_srun_command(request, "--test-only"), timeout=request.timeout_s + _SCHEDULER_GRACE, check=False)
    at = parse_start_time(test_result.stdout + test_result.stderr)
    return at is None or at <= time.time() + _START_TOLERANCE


def parse_start_time(text: str) -> Optional[float]:
    """Parse the start time of the job from srun --test-only. Slurm prints local time, and runs on this host."""
    match = _START_TIME_PATTERN.search(text)
    return time.mktime(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S")) if match else None


def srun_arguments(request: LaunchRequest, *extra_options: str) -> List[str]:
    """Return the command line of the job, as a user would type it."""
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
        *extra_options,
        "printenv",
        "SLURMD_NODENAME",
    ]


def _srun_command(request: LaunchRequest, *extra_options: str) -> List[str]:
    return [
        "timeout",
        str(request.timeout_s + _SCHEDULER_GRACE),
        *command_prefix(request.user),
        *srun_arguments(request, *extra_options),
    ]


def launch_job(run: Runner, request: LaunchRequest) -> CommandResult:
    """Run the job on all nodes of the request. Each node prints its name."""
    return run(_srun_command(request), timeout=request.timeout_s + 2 * _SCHEDULER_GRACE, check=False)


def prove_launch(run: Runner, request: LaunchRequest) -> LaunchProof:
    """Run the job on the nodes with room, and a second time if a node had been away when the controller placed it.

    Any other failure, and a second one, is a failure. Raises CommandError if there is no controller.
    """
    # Slurm starts nothing where a job is still ending.
    nodes_before = _wait_until_settled(run, request, _is_ending_job)
    targets = find_launch_targets(run, request, nodes_before)
    if not targets.nodes:
        return LaunchProof(targets, _NOT_LAUNCHED, [], 0)
    request = request._replace(nodes=targets.nodes)
    first_result = launch_jobs(run, split_by_partition(request, targets.nodes, targets.partition_by_node))
    absent_nodes = find_restarted_nodes(nodes_before, read_nodes(run), targets.nodes) if first_result.rc else []
    if absent_nodes:
        retry_targets = find_launch_targets(run, request, _wait_until_settled(run, request, _is_unsettled))
        if retry_targets.nodes == targets.nodes:
            second_result = launch_jobs(
                run, split_by_partition(request, retry_targets.nodes, retry_targets.partition_by_node)
            )
            final_targets = targets._replace(partition_by_node=retry_targets.partition_by_node)
            return LaunchProof(
                final_targets,
                second_result._replace(stderr=first_result.stderr + second_result.stderr),
                absent_nodes,
                2,
            )
    return LaunchProof(targets, first_result, absent_nodes, 1)


def find_restarted_nodes(
    nodes_before: Mapping[str, show.SlurmNode], current_nodes: Mapping[str, show.SlurmNode], node_names: Sequence[str]
) -> List[str]:
    """Return the nodes where another slurmd has registered meanwhile, or that turned out not to respond."""
    return [
        name
        for name in node_names
        if name not in current_nodes
        or "not_responding" in current_nodes[name]["flags"]
        or current_nodes[name]["slurmd_started"] != nodes_before[name]["slurmd_started"]
    ]


def _is_ending_job(node: show.SlurmNode) -> bool:
    return node["ready"] and "completing" in node["flags"]


def _is_unsettled(node: show.SlurmNode) -> bool:
    return not node["ready"] or _is_ending_job(node)


def _wait_until_settled(
    run: Runner, request: LaunchRequest, is_unsettled: Callable[[show.SlurmNode], bool]
) -> Dict[str, show.SlurmNode]:
    """Read the nodes until each reachable one has been settled once, for at most the time that a job may take.

    On a busy cluster, a job is always just ending on some node.
    """
    deadline = time.monotonic() + request.timeout_s
    waiting_names = set(request.nodes) - set(request.unreachable_nodes)
    while True:
        node_by_name = read_nodes(run)
        waiting_names = {name for name in waiting_names if name in node_by_name and is_unsettled(node_by_name[name])}
        if not waiting_names or time.monotonic() >= deadline:
            return node_by_name
        time.sleep(_POLL_INTERVAL)


def launch_jobs(run: Runner, requests: Sequence[LaunchRequest]) -> CommandResult:
    """Run all of the jobs, one after the other. Returns their output, and the status of the first one that failed."""
    results = [launch_job(run, request) for request in requests]
    exit_status = next((result.rc for result in results if result.rc), 0)
    return CommandResult(
        exit_status, "".join(result.stdout for result in results), "".join(result.stderr for result in results)
    )


def chained_arguments(requests: Sequence[LaunchRequest]) -> List[str]:
    """Return the command lines of the jobs, as a user would type them, one after the other."""
    arguments: List[str] = []
    for request in requests:
        arguments += [*(["&&"] if arguments else []), *srun_arguments(request)]
    return arguments
