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
import time
from typing import Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.inherited import unset_job_arguments
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import request as requests
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest, Submission
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.run_environment import RANK_VARIABLES
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory

#: Node states in which an attempt continues, but no new one starts.
_DRAINING_STATES = ("drain", "fail")
#: Messages of sbatch for temporary refusals: a limit on jobs of the user, of an account or a QOS, a controller that is
#: just starting, does not know the accounts yet, or has a full disk, and a partition, nodes or a reservation that are
#: not in service now. Any other refusal is permanent.
_TEMPORARY_REFUSAL = re.compile(
    r"limit|temporarily|contact slurm|timed out|zero bytes|connection|endpoint|communication|invalid account"
    r"|writing script|required (?:partition|node) not available|usable now|try again",
    re.IGNORECASE,
)
#: The answer of ``sbatch --test-only``, and the seconds until the start of a job that starts now.
_OFFER_PATTERN = re.compile(
    r"to start at (?P<start>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) using \d+ processors on nodes (?P<nodes>\S+)"
)
_PROMPT_START = 30.0
#: Users may set another format of times.
_TIME_FORMAT = {"SLURM_TIME_FORMAT": "standard"}
#: The reasons of pending jobs that wait for nodes.
_NODE_REASONS = ("Resources", "Priority")
#: Job states after a time limit.
_TIMEOUT_STATES = ("TIMEOUT", "DEADLINE")
#: The reasons of jobs that Slurm ends because the batch script has failed; they differ by version.
_SCRIPT_FAILURES = ("RaisedSignal", "NonZeroExitCode", "OutOfMemory")
#: Seconds for slurmd to accept a connection.
_CONNECT_TIMEOUT = 5.0
#: Seconds for the nodes of a job that ends to be free. At the very moment when the last one becomes free, Slurm takes
#: the dependency of the next job for fulfilled, and starts it, if it may have fewer nodes, without that node.
_NODE_RELEASE_DELAY = 10
#: Node states in which nothing runs.
_UNUSABLE_STATES = ("down", "unknown", "error", "future", "inval", "power", "reboot", "block", "maint", "perfctrs")


def submit(
    run_command: Runner,
    run_directory: RunDirectory,
    program_path: str,
    excluded: Sequence[str] = (),
    fewer: bool = False,
    hold: int = 0,
    least: int = 0,
    after: int = 0,
    of_job: Optional[RunRequest] = None,
) -> Submission:
    """Submit another job for the run. From then on, it is in charge, and all other jobs end when they notice.

    If the run is cancelled or submitted again meanwhile, this job is cancelled.

    ``hold``: seconds for which its start is delayed. ``least``: the number of nodes that it must have, if that is more
    than the run requires. ``after``: the job whose nodes must be free before it starts. ``of_job``: the request of the
    job that this one follows. Raises GpumeshError, OSError.
    """
    request = of_job or run_directory.read_request()
    token = secrets.token_hex(8)
    run_directory.write_submission(Submission(token))
    submission = _submit_with_token(run_command, request, program_path, token, excluded, fewer, hold, least, after)
    try:
        if run_directory.read_submission().token == token:
            run_directory.write_submission(submission)
        else:
            # The job would wait for its nodes, only to end as soon as it starts.
            with contextlib.suppress(CommandError):
                cancel_job(run_command, submission.job)
    except (OSError, HostStateError):
        # A user who starts a run could not find a job whose ID is not recorded. A job that follows another one is in
        # charge, and records itself when it starts.
        if of_job is None:
            cancel_job(run_command, submission.job)
            raise
    return submission


def submit_successor(
    run_command: Runner,
    request: RunRequest,
    program_path: str,
    excluded: Sequence[str],
    least: int,
    after: int,
) -> Submission:
    """Submit a job that follows this one, without putting it in charge: until then, it would end as soon as it starts.

    A refusal does no harm, since this job still exists, and no job that is submitted later comes before this one.
    Parameters as of ``submit``. Raises HostStateError.
    """
    token = secrets.token_hex(8)
    return _submit_with_token(run_command, request, program_path, token, excluded, True, 0, least, after)


def delay_successor(run_command: Runner, job_id: int) -> None:
    """Have a job that waits for this one start once the nodes of this one are free. Suppresses errors of Slurm."""
    with contextlib.suppress(CommandError):
        run_command(["scontrol", "update", f"job={job_id}", f"starttime=now+{_NODE_RELEASE_DELAY}"], timeout=20.0)


def _submit_with_token(
    run_command: Runner,
    request: RunRequest,
    program_path: str,
    token: str,
    excluded: Sequence[str],
    fewer: bool,
    hold: int,
    least: int,
    after: int,
) -> Submission:
    request = request._replace(min_nodes=max(least, request.min_nodes))
    sbatch_options = requests.sbatch_arguments(request, excluded, fewer)
    hold = max(hold, _NODE_RELEASE_DELAY if after else 0)
    sbatch_options += [f"--begin=now+{hold}"] if hold else []
    sbatch_options += [f"--dependency=afterany:{after}"] if after else []
    script = requests.format_batch_script(request, program_path, token)
    sbatch_output = _run_sbatch(run_command, sbatch_options, script).stdout
    return Submission(token, int(sbatch_output.strip().partition(";")[0]))


def _clean_command(program: str) -> List[str]:
    """Return a command without the variables of an outer job or run: the job gets only the user's own environment."""
    language_variables = {name: os.environ.get(name) for name in ("LC_ALL", "LANGUAGE")}
    removed_names = [
        *(name for name, value in language_variables.items() if value is None),
        *(name for name in RANK_VARIABLES if name in os.environ),
    ]
    unset_arguments = unset_job_arguments() + [argument for name in removed_names for argument in ("-u", name)]
    return [
        "env",
        *unset_arguments,
        *(f"{name}={value}" for name, value in language_variables.items() if value is not None),
        program,
    ]


def refuse_impossible(
    run_command: Runner,
    request: RunRequest,
    program_path: str,
    excluded_nodes: Sequence[str] = (),
    allow_fewer: bool = False,
) -> None:
    """Query whether Slurm could ever run the job. Raises HostStateError with the refusal."""
    script = requests.format_batch_script(request, program_path, "")
    _run_sbatch(run_command, ["--test-only", *requests.sbatch_arguments(request, excluded_nodes, allow_fewer)], script)


def is_possible(run_command: Runner, request: RunRequest, program_path: str, excluded_nodes: Sequence[str]) -> bool:
    """Whether Slurm could ever run the job without these nodes. Temporary refusals count as possible.

    Raises CommandError if it does not answer.
    """
    try:
        refuse_impossible(run_command, request, program_path, excluded_nodes, allow_fewer=True)
    except HostStateError as refusal:
        return is_temporary(refusal.message)
    return True


def offered_nodes(
    run_command: Runner, request: RunRequest, program_path: str, count: int, excluded_nodes: Sequence[str]
) -> List[str]:
    """Return nodes that suit the request and that Slurm would give it now, this many; empty if there are none.

    Raises CommandError if Slurm does not answer.
    """
    script = requests.format_batch_script(request, program_path, "")
    sbatch_options = requests.sbatch_arguments(request._replace(nodes=count, min_nodes=count, spare=0), excluded_nodes)
    try:
        answer = _run_sbatch(run_command, ["--test-only", *sbatch_options], script).stderr
    except HostStateError:
        return []
    offer = _OFFER_PATTERN.search(answer)
    if offer is None or time.mktime(time.strptime(offer["start"], "%Y-%m-%dT%H:%M:%S")) - time.time() > _PROMPT_START:
        return []
    return expand_hostlist(run_command, offer["nodes"])


def is_temporary(refusal_message: str) -> bool:
    """Whether Slurm may accept a job later that it has refused with this message."""
    return _TEMPORARY_REFUSAL.search(refusal_message) is not None


def _run_sbatch(run_command: Runner, sbatch_options: Sequence[str], script: str) -> CommandResult:
    """Return the result of sbatch. Raises HostStateError with its message if it refuses the job."""
    completed = run_command(
        [*_clean_command("sbatch"), *sbatch_options], stdin=script, timeout=60.0, check=False, environment=_TIME_FORMAT
    )
    if completed.rc:
        error_lines = [
            line.partition("error: ")[2] or line.partition(": ")[2] for line in completed.stderr.splitlines()
        ]
        message = ", ".join(line.rstrip(".") for line in error_lines if line) or f"sbatch exited {completed.rc}"
        raise HostStateError(
            f"Slurm refuses the job: {message}.", "Request resources that the cluster has: see 'sinfo'."
        )
    return completed


def parse_node_states(sinfo_output: str) -> Dict[str, str]:
    """Parse ``sinfo --Node --format=%N|%T``. A node in several partitions has a line for each."""
    name_states = (line.partition("|") for line in sinfo_output.splitlines() if "|" in line)
    return {node_name.strip(): state.strip().lower() for node_name, _separator, state in name_states}


def node_states(run_command: Runner, partition: str = "") -> Dict[str, str]:
    """The state of each node. Raises CommandError if the controller does not answer."""
    partition_option = [f"--partition={partition}"] if partition else []
    return parse_node_states(
        run_command(["sinfo", "--noheader", "--Node", "--format=%N|%T", *partition_option], timeout=20.0).stdout
    )


def out_of_service_reason(run_command: Runner, node: str) -> str:
    """The recorded reason why a node is drained or down; empty if there is none. Raises CommandError."""
    sinfo_output = run_command(["sinfo", "--noheader", f"--nodes={node}", "--format=%E"], timeout=20.0).stdout
    reason = (sinfo_output.strip().splitlines() or [""])[0].strip()
    return "" if reason in ("none", "N/A") else reason


def drain_reasons(run_command: Runner, nodes: Sequence[str]) -> Dict[str, str]:
    """The recorded reasons why nodes are drained, by node. Raises CommandError."""
    sinfo_command = ["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N|%E"]
    lines = (line.partition("|") for line in run_command(sinfo_command, timeout=20.0).stdout.splitlines())
    reasons = {node.strip(): reason.strip() for node, _separator, reason in lines}
    return {node: reason for node, reason in reasons.items() if reason not in ("", "none", "N/A")}


def set_job_comment(run_command: Runner, job_id: int, comment: str) -> None:
    """Set the comment of the user's own job, which administrators see in squeue and, with accounting, in sacct."""
    with contextlib.suppress(CommandError):
        run_command(["scontrol", "update", f"job={job_id}", f"comment={comment}"], timeout=20.0)


def controller_answers(run_command: Runner) -> bool:
    """Whether the controller answers."""
    try:
        node_states(run_command)
    except CommandError:
        return False
    return True


def is_draining(node_state: str) -> bool:
    """Whether the node is drained, or being drained."""
    return node_state.startswith(_DRAINING_STATES)


def is_usable(node_state: str) -> bool:
    """Whether an attempt may start on a node in this state. A node that does not respond has an asterisk."""
    return not node_state.startswith(_DRAINING_STATES + _UNUSABLE_STATES) and not node_state.endswith("*")


def node_count(run_command: Runner, job_id: int) -> int:
    """The number of nodes that a job has now: Slurm takes out of it those that are down. Raises CommandError."""
    return int(
        run_command(["squeue", "--noheader", f"--jobs={job_id}", "--format=%D"], timeout=20.0).stdout.strip() or 0
    )


def slurmd_listens(run_command: Runner, node: str) -> bool:
    """Whether slurmd of a node accepts a connection, which needs no step of a job. Raises CommandError."""
    node_record = run_command(["scontrol", "--oneliner", "show", "node", node], timeout=20.0).stdout
    node_fields = dict(assignment.partition("=")[::2] for assignment in node_record.split())
    port = node_fields.get("Port") or parse_slurmd_port(
        run_command(["scontrol", "show", "config"], timeout=20.0).stdout
    )
    try:
        with socket.create_connection((node_fields.get("NodeAddr") or node, int(port)), _CONNECT_TIMEOUT):
            return True
    except (OSError, ValueError):
        return False


def parse_slurmd_port(config_text: str) -> str:
    """The port of slurmd from ``scontrol show config``."""
    port_match = re.search(r"^SlurmdPort\s*=\s*(\d+)", config_text, re.MULTILINE)
    return port_match.group(1) if port_match else "6818"


def time_left(run_command: Runner, job_id: int) -> Optional[float]:
    """The seconds until the time limit of a job; None if it has none. Raises CommandError."""
    time_text = run_command(["squeue", "--noheader", f"--jobs={job_id}", "--format=%L"], timeout=20.0).stdout
    return requests.parse_slurm_time(time_text.strip())


def other_jobs_wait(run_command: Runner) -> bool:
    """Whether jobs wait for nodes, of any user, in any partition. Raises CommandError."""
    pending_reasons = run_command(["squeue", "--noheader", "--states=PENDING", "--format=%r"], timeout=20.0).stdout
    return any(reason in _NODE_REASONS for reason in pending_reasons.split())


def job_state(run_command: Runner, job_id: int, job_name: str = "") -> str:
    """The state of a job in Slurm's terms, with the reason why it is pending; empty if it has ended or is unknown.

    ``job_name``: the name of the job, since a controller that has lost its queue starts again with the first ID. Raises
    CommandError if the controller does not answer.
    """
    name_option = [f"--name={job_name}"] if job_name else []
    completed = run_command(
        ["squeue", "--noheader", f"--jobs={job_id}", *name_option, "--format=%T|%r"], timeout=20.0, check=False
    )
    if completed.rc and "Invalid job id" not in completed.stderr:
        raise CommandError(["squeue"], f"exited {completed.rc}", rc=completed.rc, stderr=completed.stderr)
    state, _separator, reason = (completed.stdout.strip().splitlines() or [""])[0].partition("|")
    return f"{state.lower()} ({reason})" if state and reason not in ("", "None") else state.lower()


def final_state(run_command: Runner, job_id: int, job_name: str) -> str:
    """The state of a job that has ended, such as cancelled; empty if nothing knows it any more.

    The controller forgets jobs after some minutes (``MinJobAge``), accounting does not.
    """
    queries = (
        (["scontrol", "--oneliner", "show", "job", str(job_id)], r"JobId=\d+ JobName={} .*\bJobState=(\w+)"),
        (
            ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}", "--format=JobName,State"],
            r"{}\|(\w+)",
        ),
    )
    for argv, pattern in queries:
        with contextlib.suppress(CommandError):
            state_match = re.match(pattern.format(re.escape(job_name)), run_command(argv, timeout=20.0).stdout)
            if state_match:
                return state_match.group(1).lower()
    return ""


def is_cancelled(run_command: Runner, job_id: int) -> bool:
    """Whether somebody has cancelled the job in which this process runs; False if the controller does not answer."""
    ends, fate = job_end(run_command, job_id)
    return ends and not fate


def parse_fate(job_record: str, restart_count: int) -> str:
    """Parse the fate of a job from ``scontrol --oneliner show job``. ``restart_count``: that of the caller's job.

    ``preempted``: its time will soon be over. ``requeued``: it has been stopped, and will start again. ``timeout``: it
    has been stopped at its time limit. ``killed``: its batch script was killed, which ends it. Empty for none of them.
    """
    job_fields = _parse_job_fields(job_record)
    state = job_fields.get("JobState", "")
    if state.startswith("CANCELLED"):
        return ""
    if int(job_fields.get("Restarts", "0")) > restart_count:
        return "requeued"
    # While a job ends, its state is COMPLETING, whatever has ended it. One that is cancelled has no reason.
    if state.startswith(_TIMEOUT_STATES) or (state == "COMPLETING" and job_fields.get("Reason") == "TimeLimit"):
        return "timeout"
    signal_number = int(job_fields.get("ExitCode", "").partition(":")[2] or "0")
    if job_fields.get("Reason", "").startswith(_SCRIPT_FAILURES) and signal_number not in (0, signal.SIGTERM):
        return "killed"
    return "preempted" if job_fields.get("PreemptTime", "None") not in ("None", "") else ""


def job_fate(run_command: Runner, job_id: int) -> str:
    """Return the fate of the job in which this process runs; empty if the controller does not answer."""
    return job_end(run_command, job_id)[1]


def job_end(run_command: Runner, job_id: int) -> Tuple[bool, str]:
    """Return what ``query_end`` does; a job does not end, as far as is known, if the controller does not answer."""
    try:
        return query_end(run_command, job_id)
    except CommandError:
        return False, ""


def query_end(run_command: Runner, job_id: int) -> Tuple[bool, str]:
    """Return whether the job in which this process runs is being ended, and its fate, which is empty for one that
    somebody has cancelled. Raises CommandError.
    """
    job_record = run_command(["scontrol", "--oneliner", "show", "job", str(job_id)], timeout=20.0).stdout
    ends = _parse_job_fields(job_record).get("JobState", "").startswith(("CANCELLED", "COMPLETING"))
    return ends, parse_fate(job_record, _restart_count())


def _parse_job_fields(job_record: str) -> Dict[str, str]:
    """Fields that a user has chosen, such as a comment, come later than those of Slurm."""
    job_fields: Dict[str, str] = {}
    for assignment in job_record.split():
        field_name, _equals, field = assignment.partition("=")
        job_fields.setdefault(field_name, field)
    return job_fields


def _restart_count() -> int:
    """How often Slurm has started the job of this process again."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def requeue_job(run_command: Runner, job_id: int) -> None:
    """Make Slurm start a job again later. Raises CommandError."""
    run_command(["scontrol", "requeue", str(job_id)], timeout=30.0)


def cancel_job(run_command: Runner, job_id: int) -> None:
    """Cancel a job. Raises CommandError, except for a job that has ended."""
    completed = run_command(["scancel", str(job_id)], timeout=30.0, check=False)
    if completed.rc and "Invalid job id" not in completed.stderr:
        raise CommandError(["scancel", str(job_id)], f"exited {completed.rc}", rc=completed.rc, stderr=completed.stderr)


def find_steps(run_command: Runner, job_id: int, step_name: str) -> List[str]:
    """The IDs of the steps of a job with this name. Raises CommandError."""
    squeue_output = run_command(
        ["squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i|%j"], timeout=20.0
    ).stdout
    step_pairs = (line.strip().partition("|") for line in squeue_output.splitlines())
    return [step_id for step_id, _separator, listed_name in step_pairs if listed_name == step_name]


def step_number(step_id: str) -> int:
    """The number of a step in its job, from an ID such as 41.3; -1 for the batch script and the like."""
    number_text = step_id.partition(".")[2]
    return int(number_text) if number_text.isdigit() else -1


def kill_steps(run_command: Runner, step_ids: Sequence[str]) -> None:
    """Kill all processes of these steps, on all of their nodes. Raises CommandError."""
    run_command(["scancel", "--signal=KILL", *step_ids], timeout=30.0, check=False)


def expand_hostlist(run_command: Runner, hostlist: str) -> List[str]:
    """The names in a host list. Raises CommandError."""
    return run_command(["scontrol", "show", "hostnames", hostlist]).stdout.split()
