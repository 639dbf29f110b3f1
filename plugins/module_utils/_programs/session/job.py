# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Slurm job of a session: how it is submitted, found and described."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shlex
import time
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.hostlist import expand_hostlist
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.inherited import (
    environment_without_job,
    unset_job_arguments,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import spec as specs
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    ENDED_STATES,
    PROGRAM_NAME,
    Container,
    Role,
    SessionSettings,
    SessionSpec,
    SessionToken,
)

#: The comment of each job of a session starts with this prefix, followed by the token and the stage.
COMMENT_PREFIX = PROGRAM_NAME
#: The variables with the token, which the Slurm plugin passes to the nodes, and with the container of a step.
SESSION_VARIABLE, CONTAINER_VARIABLE = "GPUMESH_SESSION", "GPUMESH_SESSION_PLACE"
#: The target of a step that belongs to no container.
HOST_STEP = "host"
#: The time, in minutes, that a job has beyond the time of its session to fetch images.
FETCH_MINUTES = 30
_MAX_SPEC_LENGTH = 96 << 10
_QUEUE_FORMAT = "%A|%u|%T|%N|%B|%r|%k"
#: The message of Slurm about a job that it no longer knows.
_UNKNOWN_JOB = "Invalid job id"
#: The timeout, in seconds, for Slurm's controller to respond, and the interval between two queries.
_CONTROLLER_TIMEOUT = 60.0
_QUERY_INTERVAL = 2.0
_MAX_ATTEMPTS = 64
_UNAVAILABLE_STATES = ("down", "drain", "fail", "unknown", "inval")
_MAX_REASON_LENGTH = 600
WAITING, FETCHING, STARTING, RUNNING, FAILED = "waiting", "fetching", "starting", "running", "failed"
#: The last message in the log of a session that has not failed.
END_MESSAGE = "ended"


class QueuedSession(NamedTuple):
    """A session in the queue. ``node_names``: empty while it waits.

    ``job_state``: Slurm's state of the job, in lower case. ``waiting_reason``: why it waits. ``stage``: waiting,
    fetching, starting, running or failed. ``failure_reason``: why it has failed, if that was published.
    ``log_node``: the node with its log, once it has nodes.
    """

    job_id: int
    user: str
    job_state: str
    waiting_reason: str
    stage: str
    token: SessionToken
    node_names: List[str]
    failure_reason: str = ""
    log_node: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether its job has ended."""
        return self.job_state.startswith(ENDED_STATES)


class SessionFit(NamedTuple):
    """How a session fits on the existing nodes. ``node_size``: the size of each of its nodes."""

    layout: Tuple[plan.NodeRow, ...]
    node_size: plan.NodeSize


def encode_spec(spec: SessionSpec) -> str:
    """Encode a session as a single word. Raises InputError if it is too long."""
    encoded_spec = base64.urlsafe_b64encode(json.dumps(specs.serialize_spec(spec)).encode("utf-8")).decode("ascii")
    if len(encoded_spec) > _MAX_SPEC_LENGTH:
        raise InputError("The session's description is too long.", "Put long commands and values into the image.")
    return encoded_spec


def decode_spec(encoded_spec: str) -> SessionSpec:
    """Decode a session that encode_spec() has encoded. Raises InputError."""
    try:
        spec_document = json.loads(base64.urlsafe_b64decode(encoded_spec.encode("ascii")))
    except ValueError as failure:
        raise InputError("The session's description cannot be read.", "Start it with gpumesh-session.") from failure
    return specs.parse_spec(spec_document)


def sbatch_options(spec: SessionSpec, token: SessionToken, node_size: plan.NodeSize) -> List[str]:
    """Return the arguments of sbatch, which reads the script from its standard input."""
    arguments = [
        "--parsable",
        f"--job-name={spec.name}",
        f"--comment={COMMENT_PREFIX} {plan.format_token(token)} {WAITING}",
    ]
    arguments += [
        f"--nodes={len(token.node_rows)}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={node_size.cpu_count}",
        "--chdir=/",
    ]
    # The script opens the log itself: Slurm would create a file that all can read, and follow links made by others.
    arguments += [f"--output={os.devnull}", "--requeue" if spec.retry else "--no-requeue"]
    arguments += [f"--partition={spec.partition}"] if spec.partition else []
    arguments += [f"--time={spec.time + FETCH_MINUTES}"] if spec.time else []
    arguments += [f"--mem={node_size.memory_mib}M"] if node_size.memory_mib else []
    arguments += [f"--gres=gpu:{node_size.gpu_count}"] if node_size.gpu_count else []
    return arguments


def format_script(program_path: str, spec: SessionSpec, log_directory: str) -> str:
    """Return the batch script. The environment of the session may contain secrets, and all users can list arguments.

    ``log_directory``: the directory for its log.
    """
    return f"#!/bin/sh\nexec {shlex.quote(program_path)} supervise {shlex.quote(log_directory)} <<'END'\n{encode_spec(spec)}\nEND\n"


def log_path(log_directory: str, session_name: str, job_id: int) -> str:
    """Return the path of the log, which contains the output of the containers."""
    return f"{log_directory}/gpumesh-session-{session_name}-{job_id}.log"


def parse_log_directory(script_text: str) -> str:
    """Return the directory of the log from a batch script; empty for another script."""
    for line in script_text.splitlines():
        arguments = shlex.split(line) if line.startswith("exec ") else []
        if arguments[2:3] == ["supervise"] and len(arguments) > 3:
            return arguments[3]
    return ""


def parse_script_spec(script_text: str) -> Optional[SessionSpec]:
    """Return the session in a batch script; None for another script."""
    encoded_spec = script_text.partition("<<'END'\n")[2].partition("\n")[0]
    try:
        return decode_spec(encoded_spec) if encoded_spec else None
    except InputError:
        return None


def _read_script(run: Runner, session: QueuedSession) -> str:
    """Return the batch script of a session from Slurm; empty if Slurm has none."""
    scontrol_result = run(["scontrol", "write", "batch_script", str(session.job_id), "-"], check=False)
    return "" if scontrol_result.rc else str(scontrol_result.stdout)


def find_log(run: Runner, session: QueuedSession) -> str:
    """Return the path of a session's log according to its batch script; empty if Slurm does not have the script."""
    log_directory = parse_log_directory(_read_script(run, session))
    return log_path(log_directory, session.token.name, session.job_id) if log_directory else ""


def published_ports(run: Runner, session: QueuedSession) -> Tuple[str, ...]:
    """Return the ports that a session publishes. Only its user and root can read them."""
    spec = parse_script_spec(_read_script(run, session))
    return spec.ports if spec else ()


def _srun_step(job_id: int, node_count: int) -> List[str]:
    """Return an srun command with one task on each of this many nodes of the job."""
    arguments = [
        "srun",
        f"--jobid={job_id}",
        f"--nodes={node_count}",
        f"--ntasks={node_count}",
        "--ntasks-per-node=1",
        "--chdir=/",
    ]
    return [*arguments, "--kill-on-bad-exit=1", "--cpu-bind=none"]


def step_on_all_nodes(job_id: int, node_count: int) -> List[str]:
    """Return srun for one task on each node, besides anything else that runs there. Nodes may differ in speed."""
    return [*_srun_step(job_id, node_count), "--overlap", "--mem=0", "--gres=none", "--wait=0"]


def container_step(job_id: int, role: Role, containers: Sequence[Container]) -> List[str]:
    """Return srun for containers of a role, each on its own node, with exactly the resources that the role requests."""
    node_names = [container.node for container in containers]
    arguments = [*_srun_step(job_id, len(node_names)), f"--nodelist={','.join(node_names)}", "--exact", "--wait=2"]
    arguments += [f"--cpus-per-task={role.cpus}", *([f"--mem={role.memory}M"] if role.memory else [])]
    # A step gets all GPUs of its job unless it requests a number.
    return [*arguments, f"--gres=gpu:{role.gpus}" if role.gpus else "--gres=none"]


def step_beside(job_id: int, container: Container, with_terminal: bool = False) -> List[str]:
    """Return srun for a command on the node of a container, which takes no resources from the containers.

    The environment, from clean_environment(), determines its namespace.
    """
    arguments = ["srun", f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1"]
    arguments += [
        f"--nodelist={container.node}",
        "--cpus-per-task=1",
        "--cpu-bind=none",
        "--mem=0",
        "--quiet",
        "--chdir=/",
    ]
    return [*arguments, *(["--pty"] if with_terminal else [])]


def clean_environment(step_target: object) -> Dict[str, str]:
    """Return the environment for a step, without the variables of a job, which srun would take for options.

    ``step_target``: the index of a container on its node, or HOST_STEP.
    """
    return {**environment_without_job(), CONTAINER_VARIABLE: str(step_target)}


def parse_queue(squeue_output: str, line_mark: str = "") -> List[QueuedSession]:
    """Parse ``squeue --format=%A|%u|%T|%N|%B|%r|%k`` into sessions. ``line_mark``: precedes the fields of each job."""
    sessions = []
    for line in squeue_output.split("\n"):
        if not line.startswith(line_mark):
            continue
        queue_fields = line[len(line_mark) :].strip().split("|", 6)
        if (
            len(queue_fields) != 7
            or not queue_fields[0].isdecimal()
            or not queue_fields[6].startswith(f"{COMMENT_PREFIX} ")
        ):
            continue
        job_id, user, job_state, hostlist, batch_host, waiting_reason, comment = queue_fields
        comment_words = comment.split()
        try:
            token = plan.parse_token(comment_words[1])
            node_names = expand_hostlist(hostlist) if hostlist else []
        except (InputError, IndexError):
            # This comment looks like that of a session, but somebody else has written it.
            continue
        job_state, noted_stage = job_state.lower(), comment_words[2] if len(comment_words) > 2 else WAITING
        # A requeued session waits, regardless of its previous stage.
        current_stage = (
            noted_stage if job_state == "running" or (noted_stage == FAILED and job_state != "pending") else WAITING
        )
        failure_reason, log_node = " ".join(comment_words[3:]), "" if batch_host == "n/a" else batch_host
        sessions.append(
            QueuedSession(
                int(job_id),
                user,
                job_state,
                waiting_reason,
                current_stage,
                token,
                node_names,
                printable(failure_reason),
                log_node,
            )
        )
    return sorted(sessions)


def list_sessions(run: Runner, *arguments: str) -> List[QueuedSession]:
    """Return the waiting and running sessions. Raises CommandError.

    The line of each job starts with a random mark: the comment of a job may contain newlines, and thus lines that look
    like the jobs of others.
    """
    line_mark = f"{secrets.token_hex(8)}|"
    return parse_queue(
        run(["squeue", "--noheader", f"--format={line_mark}{_QUEUE_FORMAT}", *arguments]).stdout, line_mark
    )


def query_session(run: Runner, job_id: int) -> Optional[QueuedSession]:
    """Return the session of this job, which may have ended a while ago; None if Slurm does not know the job any more.

    Slurm may be restarted in the meantime. Raises CommandError if it does not respond within the timeout.
    """
    deadline = time.monotonic() + _CONTROLLER_TIMEOUT
    while True:
        try:
            sessions = list_sessions(run, "--states=all", f"--jobs={job_id}")
        except CommandError as failure:
            if _UNKNOWN_JOB in failure.message:
                return None
            if time.monotonic() > deadline:
                raise
            time.sleep(_QUERY_INTERVAL)
        else:
            return sessions[0] if sessions else None


def find_own_session(run: Runner, session_name: str) -> Optional[QueuedSession]:
    """Return the user's own session of this name; None if there is none, or it is just ending. Raises CommandError."""
    sessions = [
        session
        for session in list_sessions(run, "--me")
        if session.token.name == session_name and session.job_state != "completing"
    ]
    return sessions[0] if sessions else None


def require_session(run: Runner, session_name: str) -> QueuedSession:
    """Return the user's own session of this name. Raises InputError if there is none."""
    session = find_own_session(run, session_name)
    if session is None:
        raise InputError(f"There is no session '{session_name}'.", "See 'gpumesh-session list'.")
    return session


def list_containers(session: QueuedSession, settings: SessionSettings) -> List[Container]:
    """Return the containers of a session that has its nodes. Raises InputError if it still waits."""
    if not session.node_names:
        raise InputError(
            f"The session '{session.token.name}' has no nodes yet: {session.waiting_reason}.", "Wait for it to start."
        )
    slot = plan.session_slot(session.token, session.job_id, settings.pools)
    return plan.place_containers(session.token, slot, session.node_names, settings.members, settings.pools)


def parse_nodes(sinfo_output: str) -> Tuple[int, int]:
    """Parse ``sinfo --Node --format=%N|%T|%Z`` into the number of available nodes, and the CPUs per core."""
    node_rows = (line.strip().split("|") for line in sinfo_output.splitlines())
    fields_by_node = {node_fields[0]: node_fields[1:] for node_fields in node_rows if len(node_fields) == 3}
    usable_threads = [
        thread_text for state, thread_text in fields_by_node.values() if not state.startswith(_UNAVAILABLE_STATES)
    ]
    return len(usable_threads), max(
        (int(thread_text) for thread_text in usable_threads if thread_text.isdecimal()), default=1
    )


def fit_session(run: Runner, program_path: str, spec: SessionSpec) -> SessionFit:
    """Ask Slurm how the session fits the cluster. Raises HostStateError with the reason if it could never run."""
    partition_option = [f"--partition={spec.partition}"] if spec.partition else []
    sinfo_output = run(["sinfo", "--noheader", "--Node", "--format=%N|%T|%Z", *partition_option]).stdout
    node_count, threads_per_core = parse_nodes(sinfo_output)
    refusals: List[HostStateError] = []
    for layout in plan.rank_layouts(spec, node_count, threads_per_core):
        candidate, token = (
            SessionFit(layout, plan.largest_node(spec, layout, threads_per_core)),
            plan.make_token(spec, layout),
        )
        arguments = ["--test-only", *sbatch_options(spec, token, candidate.node_size)]
        try:
            _sbatch(run, arguments, format_script(program_path, spec, "/"), plan.format_token(token))
        except HostStateError as failure:
            refusals.append(failure)
        else:
            return candidate
    raise refusals[0]


def submit(
    run: Runner,
    program_path: str,
    spec: SessionSpec,
    session_fit: SessionFit,
    settings: SessionSettings,
    log_directory: str,
) -> int:
    """Submit the job of a session. Returns its ID. Raises GpumeshError."""
    script_text, token = format_script(program_path, spec, log_directory), plan.make_token(spec, session_fit.layout)
    if token.has_private_network:
        plan.refuse_full(settings.pools, used_slots(list_sessions(run), settings))
    for _attempt in range(_MAX_ATTEMPTS):
        job_id = _sbatch(run, sbatch_options(spec, token, session_fit.node_size), script_text, plan.format_token(token))
        earlier_sessions = [session for session in list_sessions(run) if session.job_id < job_id]
        if not token.has_private_network or plan.session_slot(token, job_id, settings.pools) not in used_slots(
            earlier_sessions, settings
        ):
            return job_id
        # Another session has the slot of this job ID; the next job has another ID.
        cancel(run, job_id)
    raise HostStateError("Too many sessions are being started at once.", "Start the session again.")


def used_slots(sessions: Sequence[QueuedSession], settings: SessionSettings) -> List[int]:
    """Return the slots of the sessions that have a network of their own."""
    return [
        plan.session_slot(session.token, session.job_id, settings.pools)
        for session in sessions
        if session.token.has_private_network
    ]


def _sbatch(run: Runner, arguments: Sequence[str], script_text: str, token_text: str) -> int:
    result = run(
        ["env", *unset_job_arguments(), "sbatch", *arguments],
        stdin=script_text,
        check=False,
        environment={SESSION_VARIABLE: token_text},
    )
    if result.rc:
        error_messages = [
            line.partition("error: ")[2] or line.partition(": ")[2] for line in result.stderr.splitlines()
        ]
        refusal_reason = ", ".join(line.rstrip(".") for line in error_messages if line) or f"sbatch exited {result.rc}"
        raise HostStateError(
            f"Slurm refuses the session: {refusal_reason}.", "Request resources that the cluster has: see 'sinfo'."
        )
    return int(result.stdout.strip().partition(";")[0] or 0)


def cancel(run: Runner, job_id: int) -> None:
    """Cancel a job. Raises CommandError, except for a job that has ended."""
    result = run(["scancel", str(job_id)], check=False)
    if result.rc and _UNKNOWN_JOB not in result.stderr:
        raise CommandError(["scancel", str(job_id)], f"exited {result.rc}", rc=result.rc, stderr=result.stderr)


def publish_stage(run: Runner, job_id: int, token_text: str, stage_text: str) -> None:
    """Publish the stage of the session where everybody can read it. ``stage_text``: includes the reason of a failure.

    Raises CommandError.
    """
    comment_text = " ".join(stage_text.split())[:_MAX_REASON_LENGTH]
    run(["scontrol", "update", f"job={job_id}", f"comment={COMMENT_PREFIX} {token_text} {comment_text}"])
