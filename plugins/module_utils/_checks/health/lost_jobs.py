# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that have ended with the power of this node, although Slurm still calls them running.

After a power cut of all machines, slurmctld waits about half an hour before it asks the nodes for their jobs. Nothing
runs meanwhile. A node with the batch script of such a job has it requeued as soon as slurmd, or Slurm's timer, runs the
health program, which asks for such jobs for a while after the start of slurmd. Nothing that a user chooses is read from
the controller.

A controller that has lost its power may have forgotten that it had started a job, and starts it again. The node refuses
that, since it still runs there; Slurm ends it, drains the node, and holds the job.

Source: squeue(1), %A, %B, %R, %S and SLURM_TIME_FORMAT; scontrol(1), requeue; proc_pid_stat(5).
"""

from __future__ import annotations

import re
import time
from typing import List

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import jobs
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import SLURMD_NAMES
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import print_line
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import (
    find_process_times,
    read_stat_fields,
    runs_as_root,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

#: Seconds after its boot, and after the start of slurmd, in which a node looks for such jobs. Later, Slurm has found
#: them itself. Each query costs the controller time, and all nodes query it.
_MAX_UPTIME = 7200.0
_MAX_SLURMD_UPTIME = 1800.0
#: Seconds by which a job must be older than the boot.
_MIN_AGE_DIFFERENCE = 5.0
_JOB_LINE = re.compile(r"([0-9]+)\|(\S+)\|([0-9]+)")
#: Slurm's reason for holding a job that a node has refused to start.
_REFUSED_JOB = re.compile(r"([0-9]+)\|\(?launch failed requeued held\)?")
#: The title of the process of Slurm that runs a batch script.
_STEP_DAEMON_TITLE = re.compile(r"slurmstepd: \[([0-9]+)\.batch\]")


def read_uptime(host_tree: Tree) -> float:
    """The seconds since this host has booted, or this container has started; infinite if that is unknown."""
    return _process_age(host_tree, "1")


def read_slurmd_uptime(host_tree: Tree) -> float:
    """The seconds since slurmd was started; infinite if none runs.

    Only its process is always there: its files depend on who has started it, and on where its configuration comes from.
    """
    slurmd_pids = (
        pid
        for pid in host_tree.list_names("proc")
        if pid.isdigit() and runs_as_root(host_tree.path("proc"), int(pid), SLURMD_NAMES)
    )
    return min((_process_age(host_tree, pid) for pid in slurmd_pids), default=float("inf"))


def _process_age(host_tree: Tree, pid: str) -> float:
    """The seconds since a process has begun; infinite if that is unknown."""
    proc = host_tree.path("proc")
    times = find_process_times(proc, read_stat_fields(proc, pid))
    if times is None:
        return float("inf")
    # The start time is not comparable in containers that have a clock of their own.
    return times.now - times.started if times.started < times.now else times.now


def _list_running_batch_jobs(host_tree: Tree) -> List[str]:
    """The jobs whose batch scripts run here."""
    lines = (host_tree.read("proc", pid, "cmdline") or "" for pid in host_tree.list_names("proc") if pid.isdigit())
    return [title_match.group(1) for title_match in map(_STEP_DAEMON_TITLE.match, lines) if title_match]


def find_lost_jobs(squeue_output: str, name: str, booted: float, living: List[str]) -> List[str]:
    """Return the jobs whose batch scripts ran on this node before it booted, from lines of ID, host and start."""
    job_matches = map(_JOB_LINE.fullmatch, squeue_output.split())
    running = [match.groups() for match in job_matches if match]
    return [
        job
        for job, host, start_time in running
        if host == name and float(start_time) + _MIN_AGE_DIFFERENCE < booted and job not in living
    ]


def requeue_lost_jobs(run_command: Runner, node_name: str, host_tree: Tree) -> None:
    """Requeue the jobs that this node has lost."""
    uptime_seconds = read_uptime(host_tree)
    if uptime_seconds > _MAX_UPTIME or read_slurmd_uptime(host_tree) > _MAX_SLURMD_UPTIME:
        return
    squeue_arguments = ["squeue", "--noheader", "--states=running", f"--nodelist={node_name}", "--format=%A|%B|%S"]
    try:
        squeue_output = run_command(
            ["env", "SLURM_TIME_FORMAT=%s", *squeue_arguments], timeout=jobs.CONTROLLER_TIMEOUT
        ).stdout
    except CommandError as failure:
        print_line(f"{node_name}: its jobs could not be listed: {failure.message}")
        return
    for job in find_lost_jobs(
        squeue_output, node_name, time.time() - uptime_seconds, _list_running_batch_jobs(host_tree)
    ):
        ended = f"{node_name}: job {job} ended when this node lost power"
        jobs.change_job(run_command, "requeue", job, f"{ended}, and is requeued", f"{ended}, but is not requeued")


def release_refused_jobs(run_command: Runner, node_name: str) -> None:
    """Release the jobs that Slurm holds since a node refused to start them. This node is in service again."""
    squeue_arguments = ["squeue", "--noheader", "--states=pending", "--format=%A|%R"]
    try:
        squeue_output = run_command(squeue_arguments, timeout=jobs.CONTROLLER_TIMEOUT).stdout
    except CommandError as failure:
        print_line(f"{node_name}: held jobs could not be listed: {failure.message}")
        return
    for job in (
        refused_match.group(1)
        for refused_match in map(_REFUSED_JOB.fullmatch, squeue_output.splitlines())
        if refused_match
    ):
        refused = f"{node_name}: job {job} was refused by a node"
        jobs.change_job(run_command, "release", job, f"{refused}, and is released", f"{refused}, and is not released")
