# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job of a session: how it is submitted, found again and described."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shlex
import time
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import spec as specs
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import (
    ENDED,
    NAME,
    Container,
    Role,
    Settings,
    Spec,
    Token,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.hostlist import expand
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.inherited import unset_job, without_job
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable

#: The comment of each job of a session starts with it, followed by the token and the stage.
MARK = NAME
#: What the Slurm plugin passes to the nodes, and what tells it to which container a step belongs.
VARIABLE, PLACE = "GPUMESH_SESSION", "GPUMESH_SESSION_PLACE"
#: The place of a step that belongs to no container.
HOST = "host"
#: Minutes of the job beyond those of the session, in which images are fetched.
ALLOWANCE = 30
_LONGEST = 96 << 10
_FIELDS = "%A|%u|%T|%N|%B|%r|%k"
#: Slurm's messages about a job that it no longer knows.
_FORGOTTEN = "Invalid job id"
#: Seconds for Slurm's controller to answer, and between two questions.
_PATIENCE = 60.0
_SPACING = 2.0
_ATTEMPTS = 64
_UNFIT = ("down", "drain", "fail", "unknown", "inval")
_LONGEST_REASON = 600
WAITING, FETCHING, STARTING, RUNNING, FAILED = "waiting", "fetching", "starting", "running", "failed"
#: What the log says at the end of a session that has not failed.
END = "ended"


class Session(NamedTuple):
    """A session in the queue. ``nodes``: empty while it waits.

    ``state``: Slurm's, in lower case. ``reason``: why it waits. ``stage``: waiting, fetching, starting, running or
    failed. ``said``: why it has failed, if it could say so. ``host``: the node with its log, where it has nodes.
    """

    job: int
    user: str
    state: str
    reason: str
    stage: str
    token: Token
    nodes: List[str]
    said: str = ""
    host: str = ""

    @property
    def over(self) -> bool:
        """Whether its job has ended."""
        return self.state.startswith(ENDED)


class Fit(NamedTuple):
    """How a session is placed on the existing nodes. ``size``: of each of its nodes."""

    layout: Tuple[plan.Row, ...]
    size: plan.Size


def encode(spec: Spec) -> str:
    """A session as one word. Raises InputError for one that is too long."""
    word = base64.urlsafe_b64encode(json.dumps(specs.as_values(spec)).encode("utf-8")).decode("ascii")
    if len(word) > _LONGEST:
        raise InputError("The session's description is too long.", "Put long commands and values into the image.")
    return word


def decode(word: str) -> Spec:
    """The session from such a word. Raises InputError."""
    try:
        document = json.loads(base64.urlsafe_b64decode(word.encode("ascii")))
    except ValueError as failure:
        raise InputError("The session's description cannot be read.", "Start it with gpumesh-session.") from failure
    return specs.parse(document)


def options(spec: Spec, token: Token, size: plan.Size) -> List[str]:
    """The arguments of sbatch, which reads the script from its standard input."""
    words = ["--parsable", f"--job-name={spec.name}", f"--comment={MARK} {plan.token_text(token)} {WAITING}"]
    words += [f"--nodes={len(token.nodes)}", "--ntasks-per-node=1", f"--cpus-per-task={size.cpus}", "--chdir=/"]
    # The script opens the log itself: Slurm would create one that all can read, and follow links that others have made.
    words += [f"--output={os.devnull}", "--requeue" if spec.retry else "--no-requeue"]
    words += [f"--partition={spec.partition}"] if spec.partition else []
    words += [f"--time={spec.time + ALLOWANCE}"] if spec.time else []
    words += [f"--mem={size.memory}M"] if size.memory else []
    words += [f"--gres=gpu:{size.gpus}"] if size.gpus else []
    return words


def script(program: str, spec: Spec, logs: str) -> str:
    """The batch script. The environment of the session may contain secrets, and everybody can list program arguments.
    ``logs``: the folder for its log."""
    return f"#!/bin/sh\nexec {shlex.quote(program)} supervise {shlex.quote(logs)} <<'END'\n{encode(spec)}\nEND\n"


def log_of(logs: str, name: str, number: int) -> str:
    """The file with the output of the containers."""
    return f"{logs}/gpumesh-session-{name}-{number}.log"


def logs_in(text: str) -> str:
    """The folder for the log, from a batch script; empty for another script."""
    for line in text.splitlines():
        words = shlex.split(line) if line.startswith("exec ") else []
        if words[2:3] == ["supervise"] and len(words) > 3:
            return words[3]
    return ""


def spec_in(text: str) -> Optional[Spec]:
    """The session in a batch script; None for another script."""
    words = text.partition("<<'END'\n")[2].partition("\n")[0]
    try:
        return decode(words) if words else None
    except InputError:
        return None


def _script_of(run: Runner, session: Session) -> str:
    """The batch script of a session as Slurm has it; empty if Slurm has none."""
    done = run(["scontrol", "write", "batch_script", str(session.job), "-"], check=False)
    return "" if done.rc else str(done.stdout)


def log(run: Runner, session: Session) -> str:
    """The file with the output of a session's containers, as Slurm has its script; empty if Slurm has none."""
    logs = logs_in(_script_of(run, session))
    return log_of(logs, session.token.name, session.job) if logs else ""


def ports(run: Runner, session: Session) -> Tuple[str, ...]:
    """The ports that a session publishes. Only its user and root can read them."""
    spec = spec_in(_script_of(run, session))
    return spec.ports if spec else ()


def _step(number: int, nodes: int) -> List[str]:
    """srun with a task on each of so many nodes of the job."""
    words = ["srun", f"--jobid={number}", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--chdir=/"]
    return [*words, "--kill-on-bad-exit=1", "--cpu-bind=none"]


def everywhere(number: int, nodes: int) -> List[str]:
    """srun for one task on each node, besides anything else that runs there. Some nodes may take longer than others."""
    return [*_step(number, nodes), "--overlap", "--mem=0", "--gres=none", "--wait=0"]


def step(number: int, role: Role, containers: Sequence[Container]) -> List[str]:
    """srun for containers of a role, each on a node of its own, with what the role asks for and nothing more."""
    nodes = [one.node for one in containers]
    words = [*_step(number, len(nodes)), f"--nodelist={','.join(nodes)}", "--exact", "--wait=2"]
    words += [f"--cpus-per-task={role.cpus}", *([f"--mem={role.memory}M"] if role.memory else [])]
    # A step gets all GPUs of its job unless it requests a number.
    return [*words, f"--gres=gpu:{role.gpus}" if role.gpus else "--gres=none"]


def beside(number: int, one: Container, terminal: bool = False) -> List[str]:
    """srun for a command on the node of a container, which takes nothing from the containers. Its namespace is that of
    clean_environment()."""
    words = ["srun", f"--jobid={number}", "--overlap", "--nodes=1", "--ntasks=1"]
    words += [f"--nodelist={one.node}", "--cpus-per-task=1", "--cpu-bind=none", "--mem=0", "--quiet", "--chdir=/"]
    return [*words, *(["--pty"] if terminal else [])]


def clean_environment(place: object) -> Dict[str, str]:
    """The environment without what a job has set, which srun would take for wishes, for a step in this place: the number
    of a container, or HOST."""
    return {**without_job(), PLACE: str(place)}


def parse_queue(text: str, mark: str = "") -> List[Session]:
    """From ``squeue --format=%A|%u|%T|%N|%B|%r|%k``: the sessions with their nodes. ``mark``: before each job's fields."""
    sessions = []
    for line in text.split("\n"):
        if not line.startswith(mark):
            continue
        fields = line[len(mark) :].strip().split("|", 6)
        if len(fields) != 7 or not fields[0].isdecimal() or not fields[6].startswith(f"{MARK} "):
            continue
        number, user, state, nodes, first, reason, comment = fields
        words = comment.split()
        try:
            token = plan.parse_token(words[1])
            names = expand(nodes) if nodes else []
        except (InputError, IndexError):
            # Somebody else's comment that looks like ours.
            continue
        state, stage = state.lower(), words[2] if len(words) > 2 else WAITING
        # A session that is started again waits, regardless of its previous stage.
        told = stage if state == "running" or (stage == FAILED and state != "pending") else WAITING
        said, host = " ".join(words[3:]), "" if first == "n/a" else first
        sessions.append(Session(int(number), user, state, reason, told, token, names, printable(said), host))
    return sorted(sessions)


def queue(run: Runner, *arguments: str) -> List[Session]:
    """The waiting and running sessions. Raises CommandError.

    Each job has a line with a mark that nobody knows beforehand: whoever submits one may write line ends into its
    comment, and so what looks like the jobs of others.
    """
    mark = f"{secrets.token_hex(8)}|"
    return parse_queue(run(["squeue", "--noheader", f"--format={mark}{_FIELDS}", *arguments]).stdout, mark)


def follow(run: Runner, number: int) -> Optional[Session]:
    """The session of this job, which may have ended a while ago; None for one that Slurm does not know any more.

    Slurm may start again meanwhile. Raises CommandError where it has not answered for a while.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            found = queue(run, "--states=all", f"--jobs={number}")
        except CommandError as failure:
            if _FORGOTTEN in failure.message:
                return None
            if time.monotonic() > end:
                raise
            time.sleep(_SPACING)
        else:
            return found[0] if found else None


def own(run: Runner, name: str) -> Optional[Session]:
    """The user's own session of this name; None where there is none, or it ends just now. Raises CommandError."""
    found = [one for one in queue(run, "--me") if one.token.name == name and one.state != "completing"]
    return found[0] if found else None


def named(run: Runner, name: str) -> Session:
    """The user's own session of this name. Raises InputError where there is none."""
    found = own(run, name)
    if found is None:
        raise InputError(f"There is no session '{name}'.", "See 'gpumesh-session list'.")
    return found


def containers(session: Session, settings: Settings) -> List[Container]:
    """The containers of a session that has its nodes. Raises InputError for one that waits."""
    if not session.nodes:
        raise InputError(
            f"The session '{session.token.name}' has no nodes yet: {session.reason}.", "Wait for it to start."
        )
    slot = plan.slot_of(session.token, session.job, settings.pools)
    return plan.places(session.token, slot, session.nodes, settings.members, settings.pools)


def parse_nodes(text: str) -> Tuple[int, int]:
    """From ``sinfo --Node --format=%N|%T|%Z``: how many nodes there are to choose from, and the CPUs of a core."""
    lines = (line.strip().split("|") for line in text.splitlines())
    known = {fields[0]: fields[1:] for fields in lines if len(fields) == 3}
    fit = [threads for state, threads in known.values() if not state.startswith(_UNFIT)]
    return len(fit), max((int(threads) for threads in fit if threads.isdecimal()), default=1)


def fit(run: Runner, program: str, spec: Spec) -> Fit:
    """How the session fits the cluster, as Slurm says. Raises HostStateError with why it could never run."""
    only = [f"--partition={spec.partition}"] if spec.partition else []
    shown = run(["sinfo", "--noheader", "--Node", "--format=%N|%T|%Z", *only]).stdout
    nodes, threads = parse_nodes(shown)
    refused: List[HostStateError] = []
    for layout in plan.layouts(spec, nodes, threads):
        found, token = Fit(layout, plan.fullest(spec, layout, threads)), plan.token_of(spec, layout)
        words = ["--test-only", *options(spec, token, found.size)]
        try:
            _sbatch(run, words, script(program, spec, "/"), plan.token_text(token))
        except HostStateError as failure:
            refused.append(failure)
        else:
            return found
    raise refused[0]


def submit(run: Runner, program: str, spec: Spec, place: Fit, settings: Settings, logs: str) -> int:
    """Submit the job of a session; its number. Raises GpumeshError."""
    text, token = script(program, spec, logs), plan.token_of(spec, place.layout)
    if token.private:
        plan.refuse_full(settings.pools, slots_in(queue(run), settings))
    for _attempt in range(_ATTEMPTS):
        job = _sbatch(run, options(spec, token, place.size), text, plan.token_text(token))
        earlier = [one for one in queue(run) if one.job < job]
        if not token.private or plan.slot_of(token, job, settings.pools) not in slots_in(earlier, settings):
            return job
        # The next job has another number.
        cancel(run, job)
    raise HostStateError("Too many sessions are being started at once.", "Start the session again.")


def slots_in(sessions: Sequence[Session], settings: Settings) -> List[int]:
    """The slots of the sessions that have one."""
    return [plan.slot_of(one.token, one.job, settings.pools) for one in sessions if one.token.private]


def _sbatch(run: Runner, words: Sequence[str], text: str, token: str) -> int:
    done = run(["env", *unset_job(), "sbatch", *words], stdin=text, check=False, environment={VARIABLE: token})
    if done.rc:
        said = [line.partition("error: ")[2] or line.partition(": ")[2] for line in done.stderr.splitlines()]
        reason = ", ".join(line.rstrip(".") for line in said if line) or f"sbatch exited {done.rc}"
        raise HostStateError(
            f"Slurm refuses the session: {reason}.", "Request resources that the cluster has: see 'sinfo'."
        )
    return int(done.stdout.strip().partition(";")[0] or 0)


def cancel(run: Runner, job: int) -> None:
    """Raises CommandError, except for a job that has ended."""
    done = run(["scancel", str(job)], check=False)
    if done.rc and _FORGOTTEN not in done.stderr:
        raise CommandError(["scancel", str(job)], f"exited {done.rc}", rc=done.rc, stderr=done.stderr)


def note(run: Runner, job: int, token: str, stage: str) -> None:
    """Publish the stage of the session, where everybody can read it. ``stage``: with the reason of a failure.

    Raises CommandError.
    """
    words = " ".join(stage.split())[:_LONGEST_REASON]
    run(["scontrol", "update", f"job={job}", f"comment={MARK} {token} {words}"])
