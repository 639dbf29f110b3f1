# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The requests of a run to Slurm."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
from typing import Dict, List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.inherited import unset_job
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import request as requests
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.contract import OWN
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Request, Submission
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.store import Folder

#: Node states in which an attempt continues, but no new one starts.
_LEAVING = ("drain", "fail")
#: Words of sbatch for what may pass: a limit on jobs of the user, of an account or a QOS, a controller that is just
#: starting, does not know the accounts yet, or has a full disk, and a partition, nodes or a reservation that are not in
#: service now. What else it refuses, it would refuse again.
_PASSING = re.compile(
    r"limit|temporarily|contact slurm|timed out|zero bytes|connection|endpoint|communication|invalid account"
    r"|writing script|required (?:partition|node) not available|usable now|try again",
    re.IGNORECASE,
)
#: Why a job is pending that waits for nodes.
_FOR_NODES = ("Resources", "Priority")
#: Job states after a time limit.
_OUT_OF_TIME = ("TIMEOUT", "DEADLINE")
#: Why Slurm ends a job whose batch script has failed; by version.
_FAILED = ("RaisedSignal", "NonZeroExitCode", "OutOfMemory")
#: Seconds for slurmd to accept a connection.
_CONNECT = 5.0
#: Seconds for the nodes of a job that ends to be free. At the very moment when the last one becomes free, Slurm takes the
#: dependency of the next job for fulfilled, and starts it, if it may have fewer nodes, without that node.
_FREED = 10
#: Node states in which nothing runs.
_GONE = ("down", "unknown", "error", "future", "inval", "power", "reboot", "block", "maint", "perfctrs")


def submit(
    run: Runner,
    folder: Folder,
    program: str,
    excluded: Sequence[str] = (),
    fewer: bool = False,
    hold: int = 0,
    least: int = 0,
    after: int = 0,
    of_job: Optional[Request] = None,
) -> Submission:
    """Submit another job for the run. From then on, it is in charge, and all other jobs end when they notice.

    If the run is cancelled or submitted again meanwhile, this job is cancelled.

    ``hold``: seconds for which its start is delayed. ``least``: the number of nodes that it must have, if that is more
    than the run requires. ``after``: the job whose nodes must be free before it starts. ``of_job``: the request of the
    job that this one follows. Raises GpumeshError, OSError.
    """
    request = of_job or folder.request()
    request = request._replace(min_nodes=max(least, request.min_nodes))
    token = secrets.token_hex(8)
    folder.write_submission(Submission(token))
    options = requests.submission(request, excluded, fewer)
    hold = max(hold, _FREED if after else 0)
    options += [f"--begin=now+{hold}"] if hold else []
    options += [f"--dependency=afterany:{after}"] if after else []
    text = requests.batch_script(request, program, token)
    printed = _sbatch(run, options, text)
    submission = Submission(token, int(printed.strip().partition(";")[0]))
    try:
        if folder.submission().token == token:
            folder.write_submission(submission)
        else:
            # Otherwise, it would wait for its nodes, and end as soon as it starts.
            with contextlib.suppress(CommandError):
                cancel(run, submission.job)
    except (OSError, HostStateError):
        # Whoever has started a run could not find a job again whose ID is not recorded. One that follows another is in charge,
        # and records itself when it starts.
        if of_job is None:
            cancel(run, submission.job)
            raise
    return submission


def _clean(program: str) -> List[str]:
    """The command without the variables of an outer job or run: only the user's own environment is passed to the job."""
    language = {name: os.environ.get(name) for name in ("LC_ALL", "LANGUAGE")}
    gone = [*(name for name, value in language.items() if value is None), *(name for name in OWN if name in os.environ)]
    unset = unset_job() + [word for name in gone for word in ("-u", name)]
    return ["env", *unset, *(f"{name}={value}" for name, value in language.items() if value is not None), program]


def refuse_impossible(
    run: Runner, request: Request, program: str, excluded: Sequence[str] = (), fewer: bool = False
) -> None:
    """Query whether Slurm could ever run the job. Raises HostStateError with its answer."""
    text = requests.batch_script(request, program, "")
    _sbatch(run, ["--test-only", *requests.submission(request, excluded, fewer)], text)


def possible(run: Runner, request: Request, program: str, excluded: Sequence[str]) -> bool:
    """Whether Slurm could ever run the job without these nodes. What it refuses for now is possible.

    Raises CommandError if it does not answer.
    """
    try:
        refuse_impossible(run, request, program, excluded, fewer=True)
    except HostStateError as refusal:
        return may_pass(refusal.message)
    return True


def may_pass(refusal: str) -> bool:
    """Whether Slurm may accept later what it has refused with these words."""
    return _PASSING.search(refusal) is not None


def _sbatch(run: Runner, options: Sequence[str], script: str) -> str:
    """The output of sbatch. Raises HostStateError with its message if it refuses."""
    done = run([*_clean("sbatch"), *options], stdin=script, timeout=60.0, check=False)
    if done.rc:
        lines = [line.partition("error: ")[2] or line.partition(": ")[2] for line in done.stderr.splitlines()]
        words = ", ".join(line.rstrip(".") for line in lines if line) or f"sbatch exited {done.rc}"
        raise HostStateError(f"Slurm refuses the job: {words}.", "Request resources that the cluster has: see 'sinfo'.")
    return done.stdout


def parse_states(text: str) -> Dict[str, str]:
    """Parse ``sinfo --Node --format=%N|%T``. A node in several partitions has a line for each."""
    pairs = (line.partition("|") for line in text.splitlines() if "|" in line)
    return {name.strip(): state.strip().lower() for name, _bar, state in pairs}


def node_states(run: Runner, partition: str = "") -> Dict[str, str]:
    """The state of each node. Raises CommandError if the controller does not answer."""
    only = [f"--partition={partition}"] if partition else []
    return parse_states(run(["sinfo", "--noheader", "--Node", "--format=%N|%T", *only], timeout=20.0).stdout)


def why_out(run: Runner, node: str) -> str:
    """The recorded reason why a node is drained or down; empty if there is none. Raises CommandError."""
    printed = run(["sinfo", "--noheader", f"--nodes={node}", "--format=%E"], timeout=20.0).stdout
    reason = (printed.strip().splitlines() or [""])[0].strip()
    return "" if reason in ("none", "N/A") else reason


def note(run: Runner, job: int, text: str) -> None:
    """Set the comment of the user's own job, which administrators see in squeue and, with accounting, in sacct."""
    with contextlib.suppress(CommandError):
        run(["scontrol", "update", f"job={job}", f"comment={text}"], timeout=20.0)


def answers(run: Runner) -> bool:
    """Whether the controller answers."""
    try:
        node_states(run)
    except CommandError:
        return False
    return True


def leaves(state: str) -> bool:
    """Whether the node is drained, or being drained."""
    return state.startswith(_LEAVING)


def fit(state: str) -> bool:
    """Whether an attempt may start on a node in this state. A node that does not respond has an asterisk."""
    return not state.startswith(_LEAVING + _GONE) and not state.endswith("*")


def node_count(run: Runner, job: int) -> int:
    """The number of nodes that a job has now: Slurm takes out of it those that are down. Raises CommandError."""
    return int(run(["squeue", "--noheader", f"--jobs={job}", "--format=%D"], timeout=20.0).stdout.strip() or 0)


def listens(run: Runner, node: str) -> bool:
    """Whether slurmd of a node accepts a connection, which needs no step of a job. Raises CommandError."""
    shown = run(["scontrol", "--oneliner", "show", "node", node], timeout=20.0).stdout
    words = dict(word.partition("=")[::2] for word in shown.split())
    port = words.get("Port") or parse_port(run(["scontrol", "show", "config"], timeout=20.0).stdout)
    try:
        with socket.create_connection((words.get("NodeAddr") or node, int(port)), _CONNECT):
            return True
    except (OSError, ValueError):
        return False


def parse_port(config: str) -> str:
    """The port of slurmd from ``scontrol show config``."""
    found = re.search(r"^SlurmdPort\s*=\s*(\d+)", config, re.MULTILINE)
    return found.group(1) if found else "6818"


def time_left(run: Runner, job: int) -> Optional[float]:
    """The seconds until the time limit of a job; None if it has none. Raises CommandError."""
    shown = run(["squeue", "--noheader", f"--jobs={job}", "--format=%L"], timeout=20.0).stdout
    return requests.seconds(shown.strip())


def others_wait(run: Runner) -> bool:
    """Whether jobs wait for nodes, of whatever user and partition. Raises CommandError."""
    shown = run(["squeue", "--noheader", "--states=PENDING", "--format=%r"], timeout=20.0).stdout
    return any(reason in _FOR_NODES for reason in shown.split())


def job_state(run: Runner, job: int, name: str = "") -> str:
    """The state of a job in Slurm's terms, with the reason why it is pending; empty if it has ended or is unknown.

    ``name``: the name of the job, since a controller that has lost its queue starts again with the first ID. Raises
    CommandError if the controller does not answer.
    """
    named = [f"--name={name}"] if name else []
    done = run(["squeue", "--noheader", f"--jobs={job}", *named, "--format=%T|%r"], timeout=20.0, check=False)
    if done.rc and "Invalid job id" not in done.stderr:
        raise CommandError(["squeue"], f"exited {done.rc}", rc=done.rc, stderr=done.stderr)
    state, _bar, reason = (done.stdout.strip().splitlines() or [""])[0].partition("|")
    return f"{state.lower()} ({reason})" if state and reason not in ("", "None") else state.lower()


def parse_fate(text: str, restarts: int) -> str:
    """What Slurm does with a job, from ``scontrol --oneliner show job``. ``restarts``: how often the caller's job has begun
    again.

    ``preempted``: its time will soon be over. ``requeued``: it has been stopped, and will begin again. ``timeout``: it has
    been stopped at its time limit. ``killed``: its batch script was killed, which ends it. Empty for none of them.
    """
    words: Dict[str, str] = {}
    for word in text.split():
        name, _equals, value = word.partition("=")
        # What a user has chosen, such as a comment, comes later.
        words.setdefault(name, value)
    state = words.get("JobState", "")
    if state.startswith("CANCELLED"):
        return ""
    if int(words.get("Restarts", "0")) > restarts:
        return "requeued"
    # While a job ends, its state is COMPLETING, whatever has ended it. One that is cancelled has no reason.
    if state.startswith(_OUT_OF_TIME) or (state == "COMPLETING" and words.get("Reason") == "TimeLimit"):
        return "timeout"
    number = int(words.get("ExitCode", "").partition(":")[2] or "0")
    if words.get("Reason", "").startswith(_FAILED) and number not in (0, signal.SIGTERM):
        return "killed"
    return "preempted" if words.get("PreemptTime", "None") not in ("None", "") else ""


def fate(run: Runner, job: int) -> str:
    """The same of the job in which this process runs; empty if the controller does not answer."""
    try:
        text = run(["scontrol", "--oneliner", "show", "job", str(job)], timeout=20.0).stdout
    except CommandError:
        return ""
    return parse_fate(text, int(os.environ.get("SLURM_RESTART_COUNT", "0")))


def requeue(run: Runner, job: int) -> None:
    """Have a job start again later. Raises CommandError."""
    run(["scontrol", "requeue", str(job)], timeout=30.0)


def cancel(run: Runner, job: int) -> None:
    """Cancel a job. Raises CommandError, except for a job that has ended."""
    done = run(["scancel", str(job)], timeout=30.0, check=False)
    if done.rc and "Invalid job id" not in done.stderr:
        raise CommandError(["scancel", str(job)], f"exited {done.rc}", rc=done.rc, stderr=done.stderr)


def steps(run: Runner, job: int, name: str) -> List[str]:
    """The IDs of the steps of a job with this name. Raises CommandError."""
    shown = run(["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i|%j"], timeout=20.0).stdout
    pairs = (line.strip().partition("|") for line in shown.splitlines())
    return [step for step, _bar, its_name in pairs if its_name == name]


def kill_steps(run: Runner, steps: Sequence[str]) -> None:
    """Kill all processes of these steps, on all of their nodes. Raises CommandError."""
    run(["scancel", "--signal=KILL", *steps], timeout=30.0, check=False)


def hostnames(run: Runner, text: str) -> List[str]:
    """The names in a host list. Raises CommandError."""
    return run(["scontrol", "show", "hostnames", text]).stdout.split()
