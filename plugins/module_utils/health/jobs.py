# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change jobs of others in Slurm's controller, and tell the log of the health program.

Source: scontrol(1), release and requeue.
"""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.program import say

#: Seconds for an answer of the controller.
TIMEOUT = 15.0


def change(runner: Runner, verb: str, job: str, done: str, refused: str) -> None:
    """Have scontrol release or requeue a job. ``done``, ``refused``: what is said then; the reason follows the second."""
    try:
        runner(["scontrol", verb, job], timeout=TIMEOUT)
    except CommandError as failure:
        # Such as a job that was submitted with --no-requeue.
        say(f"{refused}: {failure.message}")
    else:
        say(done)
