# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that have ended with the power of this node, although Slurm still calls them running.

After a power cut of all machines, slurmctld waits about half an hour before it asks the nodes for their jobs. Nothing runs
meanwhile. A node with the batch script of such a job has it requeued as soon as slurmd, or Slurm's timer, runs the health
program, which asks for such jobs for a while after the start of slurmd. Nothing that a user chooses is read from the
controller.

A controller that has lost its power may have forgotten that it had started a job, and starts it again. The node refuses
that, since it still runs there; Slurm ends it, drains the node, and holds the job.

Source: squeue(1), %A, %B, %R, %S and SLURM_TIME_FORMAT; scontrol(1), requeue; proc_pid_stat(5).
"""

from __future__ import annotations

import os
import re
import time
from typing import List

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import jobs
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.shapes import SLURMD
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import is_roots
from ansible_collections.gpumesh.cluster.plugins.module_utils.program import say

#: Seconds after its boot, and after the start of slurmd, in which a node looks for such jobs. Later, Slurm has found them
#: itself. Each query costs the controller time, and all nodes ask it.
_BOOTED = 7200.0
_STARTED = 1800.0
#: Seconds by which a job must be older than the boot.
_OLDER = 5.0
_JOB = re.compile(r"([0-9]+)\|(\S+)\|([0-9]+)")
#: Slurm's reason for holding a job that a node has refused to start.
_REFUSED = re.compile(r"([0-9]+)\|\(?launch failed requeued held\)?")
#: The title of the process of Slurm that runs a batch script.
_DAEMON = re.compile(r"slurmstepd: \[([0-9]+)\.batch\]")


def uptime(tree: Tree) -> float:
    """The seconds since this host has booted, or this container has started; infinite if that is unknown."""
    return _age(tree, "1")


def slurmd_uptime(tree: Tree) -> float:
    """The seconds since slurmd was started; infinite if none runs.

    Only its process is always there: its files depend on who has started it, and on where its configuration comes from.
    """
    found = (pid for pid in tree.names("proc") if pid.isdigit() and is_roots(tree.path("proc"), int(pid), SLURMD))
    return min((_age(tree, pid) for pid in found), default=float("inf"))


def _age(tree: Tree, pid: str) -> float:
    """The seconds since a process has begun; infinite if that is unknown."""
    try:
        up = float((tree.read("proc", "uptime") or "").split()[0])
        # The name, in brackets, may contain any character.
        ticks = float((tree.read("proc", pid, "stat") or "").rpartition(")")[2].split()[19])
    except (IndexError, ValueError):
        return float("inf")
    began = ticks / os.sysconf("SC_CLK_TCK")
    # Some containers have a clock of their own.
    return up - began if began < up else up


def _living(tree: Tree) -> List[str]:
    """The jobs whose batch scripts run here."""
    lines = (tree.read("proc", pid, "cmdline") or "" for pid in tree.names("proc") if pid.isdigit())
    return [found.group(1) for found in map(_DAEMON.match, lines) if found]


def lost(shown: str, name: str, booted: float, living: List[str]) -> List[str]:
    """The jobs whose batch scripts have run on this node before it has booted, from lines of ID, host and begin."""
    found = map(_JOB.fullmatch, shown.split())
    running = [match.groups() for match in found if match]
    return [
        job for job, host, begin in running if host == name and float(begin) + _OLDER < booted and job not in living
    ]


def requeue(runner: Runner, name: str, tree: Tree) -> None:
    """Requeue the jobs that this node has lost."""
    up = uptime(tree)
    if up > _BOOTED or slurmd_uptime(tree) > _STARTED:
        return
    asked = ["squeue", "--noheader", "--states=running", f"--nodelist={name}", "--format=%A|%B|%S"]
    try:
        shown = runner(["env", "SLURM_TIME_FORMAT=%s", *asked], timeout=jobs.TIMEOUT).stdout
    except CommandError as failure:
        say(f"{name}: its jobs are not known: {failure.message}")
        return
    for job in lost(shown, name, time.time() - up, _living(tree)):
        ended = f"{name}: job {job} has ended with the power of this node"
        jobs.change(runner, "requeue", job, f"{ended}, and is requeued", f"{ended}, but is not requeued")


def release(runner: Runner, name: str) -> None:
    """Release the jobs that Slurm holds since a node has refused to start them. The node ``name`` is in service again."""
    asked = ["squeue", "--noheader", "--states=pending", "--format=%A|%R"]
    try:
        shown = runner(asked, timeout=jobs.TIMEOUT).stdout
    except CommandError as failure:
        say(f"{name}: whether Slurm holds a job is not known: {failure.message}")
        return
    for job in (found.group(1) for found in map(_REFUSED.fullmatch, shown.splitlines()) if found):
        refused = f"{name}: job {job} was refused by a node"
        jobs.change(runner, "release", job, f"{refused}, and is released", f"{refused}, and is not released")
