# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that start while a volume is away: their prologs wait for it, since the jobs would only fail.

Slurm calls such a job running, for the reason Prolog, and its time limit has begun. After a while it is requeued: that gives
its other nodes to others, and the job its whole time when it starts again.

Source: squeue(1), %A and %T; slurm.conf(5), Prolog, PrologFlags and PrologEpilogTimeout, after which Slurm kills a prolog and
drains the node; scontrol(1), requeue.
"""

from __future__ import annotations

import re
from typing import Iterator

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import jobs

#: Seconds that a job waits: by then, the periodic check has drained a node that alone has lost the volume.
_LIMIT = 600.0
#: The first and the longest pause, in seconds.
_FIRST, _LONGEST = 2.0, 30.0
#: Seconds before Slurm's own limit in which the wait ends: a pause and an attempt.
_RESERVE = 90.0
_PROLOG_LIMIT = re.compile(r"^Prolog(?:Epilog)?Timeout\s*=\s*([0-9]+)\b", re.MULTILINE)
#: What Slurm shows for no limit.
_UNLIMITED = 65533.0
#: The states of a job whose prolog is still wanted.
_STARTING = {"CONFIGURING", "RUNNING"}
#: What squeue says of a job that has ended a while ago.
_UNKNOWN = "Invalid job id"


def limit(runner: Runner) -> float:
    """The seconds that a prolog may wait."""
    try:
        shown = runner(["scontrol", "show", "config"], timeout=jobs.TIMEOUT).stdout
    except CommandError:
        shown = ""
    limits = [float(seconds) for seconds in _PROLOG_LIMIT.findall(shown)]
    return min([_LIMIT, *(seconds - _RESERVE for seconds in limits if seconds < _UNLIMITED)])


def pauses(seconds: float) -> Iterator[float]:
    """The pauses between attempts, which become longer, up to this many seconds in all."""
    pause = _FIRST
    while seconds > 0:
        yield min(pause, seconds)
        seconds -= pause
        pause = min(2 * pause, _LONGEST)


def is_wanted(runner: Runner, job: str) -> bool:
    """Whether the job is still to start. A controller that does not answer has not cancelled it."""
    try:
        shown = runner(["squeue", "--noheader", f"--jobs={job}", "--format=%A|%T"], timeout=jobs.TIMEOUT).stdout
    except CommandError as failure:
        return _UNKNOWN not in str(failure)
    states = dict(line.split("|", 1) for line in shown.split() if "|" in line)
    return states.get(job, "") in _STARTING


def requeue(runner: Runner, job: str) -> None:
    """Give the nodes of a job that has waited for too long to others."""
    jobs.change(
        runner,
        "requeue",
        job,
        f"job {job} is requeued, since the shared volumes are still away",
        f"job {job} starts without the shared volumes, since it is not requeued",
    )
