# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change jobs of users in Slurm's controller, and report it in the log of the health program.

Source: scontrol(1), release and requeue.
"""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import print_line
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError

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
