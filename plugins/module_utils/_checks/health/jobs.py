# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs of users: their GPUs on this node, and how they are changed in Slurm's controller.

Source: scontrol(1), release and requeue; slurm.conf(5), Prolog, and Slurm's prolog and epilog guide (SLURM_JOB_GPUS).
"""

from __future__ import annotations

from typing import List

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import print_line
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number

#: Seconds for an answer of the controller.
CONTROLLER_TIMEOUT = 15.0


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
