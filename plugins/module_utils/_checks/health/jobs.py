# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs of users: their GPUs on this node, and how they are changed and notified in Slurm's controller.

Source: scontrol(1), notify, release and requeue; squeue(1), %A; slurm.conf(5), Prolog, and Slurm's prolog and epilog guide
(SLURM_JOB_GPUS).
"""

from __future__ import annotations

import time
from typing import List

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import print_line
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number

#: Seconds for an answer of the controller.
CONTROLLER_TIMEOUT = 15.0
#: The jobs on a node that are notified at most, and the seconds for all of them: slurmd ends the program after a minute.
_MAX_NOTIFIED_JOBS = 50
_NOTIFY_SECONDS = 10.0


def change_job(runner: Runner, verb: str, job: str, success_message: str, failure_message: str) -> None:
    """Have scontrol release or requeue a job, and print one of the messages; the reason follows ``failure_message``."""
    try:
        runner(["scontrol", verb, job], timeout=CONTROLLER_TIMEOUT)
    except CommandError as failure:
        # A job that was submitted with --no-requeue, for example, cannot be requeued.
        print_line(f"{failure_message}: {failure.message}")
    else:
        print_line(success_message)


def parse_job_gpus(gpu_list: str) -> List[int]:
    """The numbers of a job's GPUs, from SLURM_JOB_GPUS; empty if it has another form."""
    numbers = [parse_whole_number(number) for number in gpu_list.split(",")]
    known_numbers = [number for number in numbers if number is not None]
    return known_numbers if len(known_numbers) == len(numbers) else []


def notify_jobs(runner: Runner, node_name: str, text: str) -> None:
    """Write a text to the standard error of the jobs that run on a node. A job that cannot be reached is left out."""
    deadline = time.monotonic() + _NOTIFY_SECONDS
    squeue_arguments = ["squeue", "--noheader", "--states=running", f"--nodelist={node_name}", "--format=%A"]
    try:
        squeue_output = runner(squeue_arguments, timeout=_NOTIFY_SECONDS).stdout
    except CommandError as failure:
        print_line(f"{node_name}: its jobs could not be notified: {failure.message}")
        return
    job_ids = [job for job in dict.fromkeys(squeue_output.split()) if job.isdecimal()]
    for job in job_ids[:_MAX_NOTIFIED_JOBS]:
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0:
            return
        try:
            runner(["scontrol", "notify", job, text], timeout=seconds_left)
        except CommandError as failure:
            print_line(f"{node_name}: job {job} could not be notified: {failure.message}")
