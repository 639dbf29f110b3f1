# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that start while a volume is away: their prologs wait for it, since the jobs would only fail.

Slurm calls such a job running, for the reason Prolog, and its time limit has begun. After a while it is requeued, so
that other jobs get its nodes, and the job its whole time when it starts again.

Source: squeue(1), %A and %T; slurm.conf(5), Prolog, PrologFlags and PrologEpilogTimeout, after which Slurm kills a
prolog and drains the node; scontrol(1), requeue.
"""

from __future__ import annotations

import re
from typing import Iterator

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import jobs
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError

#: Seconds that a job waits: the periodic check has drained a node that alone has lost the volume before they are over.
_MAX_WAIT = 600.0
#: The first and the longest pause, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 30.0
#: Seconds before Slurm's own limit in which the wait ends: a pause and an attempt.
_RESERVED_SECONDS = 90.0
_PROLOG_LIMIT = re.compile(r"^Prolog(?:Epilog)?Timeout\s*=\s*([0-9]+)\b", re.MULTILINE | re.IGNORECASE)
#: The number that Slurm shows for no limit.
_UNLIMITED_SECONDS = 65533.0
#: The states of a job whose prolog still has to finish.
_STARTING_STATES = {"CONFIGURING", "RUNNING"}
#: The message of squeue for a job that ended a while ago.
_UNKNOWN_JOB = "Invalid job id"


def read_wait_limit(runner: Runner) -> float:
    """The seconds that a prolog may wait."""
    try:
        slurm_config = runner(["scontrol", "show", "config"], timeout=jobs.CONTROLLER_TIMEOUT).stdout
    except CommandError:
        slurm_config = ""
    limits = [float(seconds) for seconds in _PROLOG_LIMIT.findall(slurm_config)]
    return min([_MAX_WAIT, *(seconds - _RESERVED_SECONDS for seconds in limits if seconds < _UNLIMITED_SECONDS)])


def iterate_pauses(seconds: float) -> Iterator[float]:
    """The pauses between attempts, which become longer, up to this many seconds in all."""
    pause = _FIRST_PAUSE
    while seconds > 0:
        yield min(pause, seconds)
        seconds -= pause
        pause = min(2 * pause, _LONGEST_PAUSE)


def is_still_starting(runner: Runner, job: str) -> bool:
    """Whether the job is still to start. A controller that does not answer has not cancelled it."""
    try:
        squeue_output = runner(
            ["squeue", "--noheader", f"--jobs={job}", "--format=%A|%T"], timeout=jobs.CONTROLLER_TIMEOUT
        ).stdout
    except CommandError as failure:
        return _UNKNOWN_JOB not in str(failure)
    states = dict(line.split("|", 1) for line in squeue_output.split() if "|" in line)
    return states.get(job, "") in _STARTING_STATES


def requeue_job(runner: Runner, job: str) -> None:
    """Requeue a job that has waited for too long, so that other jobs get its nodes."""
    jobs.change_job(
        runner,
        "requeue",
        job,
        f"job {job} is requeued, since the shared volumes are still unavailable",
        f"job {job} starts without the shared volumes, since it is not requeued",
    )
