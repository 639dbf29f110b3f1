# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job of a session: how it is submitted, found again and described."""

from __future__ import annotations

import base64
import json
import os
import shlex
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import spec as specs
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import (
    NAME,
    Component,
    Container,
    Settings,
    Spec,
    Token,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.hostlist import expand

#: The comment of each job of a session begins with it, then come the token and how far it is.
MARK = NAME
#: What the plugin of Slurm hands on to the nodes, and what tells it which container a step is about.
VARIABLE, PLACE = "GPUMESH_SESSION", "GPUMESH_SESSION_PLACE"
#: The place of a step that is about no container.
HOST = "host"
#: Minutes of the job beyond those of the session, in which images are fetched.
_ALLOWANCE = 30
_LONGEST = 96 << 10
_FORMAT = "%A|%i|%u|%T|%N|%r|%k"
_ATTEMPTS = 8
_LONGEST_REASON = 600
WAITING, FETCHING, STARTING, RUNNING, FAILED = "waiting", "fetching", "starting", "running", "failed"
#: How Slurm calls jobs that are over.
_OVER = (
    "completed",
    "cancelled",
    "failed",
    "timeout",
    "node_fail",
    "preempted",
    "out_of_memory",
    "boot_fail",
    "deadline",
)


class Session(NamedTuple):
    """A session in the queue. ``job``: of its first component. ``nodes``: of each component, empty while it waits.

    ``state``: Slurm's, in lower case. ``reason``: why it waits. ``stage``: waiting, fetching, starting, running or
    failed. ``said``: why it has failed, if it could say so.
    """

    job: int
    user: str
    state: str
    reason: str
    stage: str
    token: Token
    nodes: List[List[str]]
    said: str = ""

    @property
    def over(self) -> bool:
        """Whether its job has ended."""
        return self.state.startswith(_OVER)


def encode(spec: Spec) -> str:
    """A session as one word. Raises InputError for one that is too long."""
    word = base64.urlsafe_b64encode(json.dumps(specs.as_values(spec)).encode("utf-8")).decode("ascii")
    if len(word) > _LONGEST:
        raise InputError("The session's description is too long.", "Put long commands and values into the image.")
    return word


def decode(word: str) -> Spec:
    """The session of such a word. Raises InputError."""
    try:
        document = json.loads(base64.urlsafe_b64decode(word.encode("ascii")))
    except ValueError as failure:
        raise InputError("The session's description cannot be read.", "Start it with gpumesh-session.") from failure
    return specs.parse(document)


def options(spec: Spec, token: Token, log: str) -> List[str]:
    """The arguments of sbatch, which reads the script from its standard input."""
    words = ["--parsable"]
    for number, component in enumerate(token.components):
        role = spec.role(component.roles[0][0])
        words += [":"] if number else []
        words += [f"--job-name={spec.name}", f"--comment={MARK} {plan.token_text(token)} {WAITING}", "--chdir=/"]
        words += [*size(component, spec), f"--output={log}", "--requeue" if spec.retry else "--no-requeue"]
        words += [f"--partition={spec.partition}"] if spec.partition else []
        words += [f"--time={spec.time + _ALLOWANCE}"] if spec.time else []
        words += [f"--mem={role.memory * component.per_node}M"] if role.memory else []
        words += [f"--gres=gpu:{role.gpus * component.per_node}"] if role.gpus else []
    return words


def size(component: Component, spec: Spec) -> List[str]:
    """Nodes and tasks of a component, for sbatch and srun."""
    per_node, nodes = component.per_node, component.nodes
    role = spec.role(component.roles[0][0])
    words = [f"--nodes={nodes}", f"--ntasks={nodes * per_node}", f"--ntasks-per-node={per_node}"]
    return [*words, f"--cpus-per-task={role.cpus}"]


def script(program: str, spec: Spec) -> str:
    """The batch script."""
    return f"#!/bin/sh\nexec {shlex.quote(program)} supervise {encode(spec)}\n"


def step(
    component: int, components: Sequence[Component], spec: Spec, once_per_node: bool = False, overlap: bool = False
) -> List[str]:
    """srun for the containers of a component, or for one task on each of its nodes, by choice beside the containers."""
    one = components[component]
    group = [f"--het-group={component}"] if len(components) > 1 else []
    words = size(one, spec)
    if once_per_node:
        words = [f"--nodes={one.nodes}", f"--ntasks={one.nodes}", "--ntasks-per-node=1"]
    words += ["--overlap", "--cpus-per-task=1", "--mem=0"] if overlap else []
    return ["srun", *group, *words, "--kill-on-bad-exit=1", "--wait=2", "--chdir=/", "--cpu-bind=none"]


def beside(leader: int, one: Container, terminal: bool = False) -> List[str]:
    """srun for a command on the node of a container, which takes nothing from the containers. Its namespace is that of
    clean_environment()."""
    words = ["srun", f"--jobid={leader + one.component}", "--overlap", "--nodes=1", "--ntasks=1"]
    words += [f"--nodelist={one.node}", "--cpus-per-task=1", "--cpu-bind=none", "--mem=0", "--quiet", "--chdir=/"]
    return [*words, *(["--pty"] if terminal else [])]


def clean_environment(local: int) -> Dict[str, str]:
    """The environment without what an outer job has set, for a step in the namespace of this container."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SPANK_", "SBATCH_"))}
    return {**kept, PLACE: str(local)}


def parse_queue(text: str) -> List[Session]:
    """From ``squeue --format=%A|%i|%u|%T|%N|%r|%k``: the sessions, each with the nodes of all of its components."""
    found: Dict[int, List[Any]] = {}
    for line in text.splitlines():
        fields = line.strip().split("|", 6)
        if len(fields) != 7 or not fields[6].startswith(f"{MARK} "):
            continue
        words = fields[6].split()
        leader, _plus, offset = fields[1].partition("+")
        try:
            token = plan.parse_token(words[1])
            nodes = expand(fields[4]) if fields[4] else []
        except (InputError, IndexError):
            # Somebody else's comment, which looks like ours.
            continue
        if leader.isdecimal():
            found.setdefault(int(leader), []).append((int(offset or 0), fields, token, nodes, words[2:]))
    sessions = []
    for number, parts in sorted(found.items()):
        parts.sort(key=lambda part: part[0])
        _offset, fields, token, _nodes, stage = parts[0]
        state = fields[3].lower()
        told = stage[0] if stage and (state == "running" or stage[0] == FAILED) else WAITING
        said = " ".join(stage[1:])
        sessions.append(Session(number, fields[2], state, fields[5], told, token, [part[3] for part in parts], said))
    return sessions


def queue(run: Runner, *arguments: str, check: bool = True) -> List[Session]:
    """The sessions that wait or run. Raises CommandError."""
    return parse_queue(run(["squeue", "--noheader", f"--format={_FORMAT}", *arguments], check=check).stdout)


def follow(run: Runner, number: int) -> Optional[Session]:
    """The session of this job, which may have ended a while ago; None for one that Slurm does not know any more."""
    # An error is that of a job that Slurm has forgotten.
    found = queue(run, "--states=all", f"--jobs={number}", check=False)
    return found[0] if found else None


def named(run: Runner, name: str) -> Session:
    """The user's own session of this name. Raises InputError where there is none."""
    for session in queue(run, "--me"):
        if session.token.name == name:
            return session
    raise InputError(f"There is no session '{name}'.", "See 'gpumesh-session list'.")


def containers(session: Session, settings: Settings) -> List[Container]:
    """Those of a session that has its nodes. Raises InputError for one that waits."""
    if not all(session.nodes) or len(session.nodes) < len(session.token.components):
        raise InputError(
            f"The session '{session.token.name}' has no nodes yet: {session.reason}.", "Wait for it to start."
        )
    return plan.places(session.token, session.nodes, settings.members, settings.pools)


def nodes_of_cluster(run: Runner, partition: str) -> int:
    """How many there are to choose from. Raises CommandError."""
    only = [f"--partition={partition}"] if partition else []
    shown = run(["sinfo", "--noheader", "--Node", "--format=%N|%T", *only]).stdout
    states = dict(line.partition("|")[::2] for line in shown.splitlines() if "|" in line)
    fit = [
        name
        for name, state in states.items()
        if not state.strip().startswith(("down", "drain", "fail", "unknown", "inval"))
    ]
    return len(fit)


def submit(run: Runner, program: str, spec: Spec, settings: Settings, log: str) -> int:
    """Submit the job of a session; its number. Raises GpumeshError."""
    for _attempt in range(_ATTEMPTS):
        sessions = queue(run)
        token = plan.token_of(spec, nodes_of_cluster(run, spec.partition), 0)
        if token.slot == 0:
            taken = [session.token.slot for session in sessions]
            count = plan.slots(settings.pools)
            token = token._replace(
                slot=plan.free_slot(settings.pools, taken, int.from_bytes(os.urandom(4), "big") % count)
            )
        job = _sbatch(run, options(spec, token, log), script(program, spec), plan.token_text(token))
        # Two that submit at the same time may have chosen the same: the later one steps back.
        earlier = [one for one in queue(run) if one.token.slot == token.slot and one.job < job]
        if token.slot < 0 or not earlier:
            return job
        cancel(run, job)
    raise HostStateError("Others start sessions at the same time.", "Start the session again.")


def refuse_impossible(run: Runner, program: str, spec: Spec) -> None:
    """Have Slurm say whether the job could ever run. Raises HostStateError with what it says."""
    token = plan.token_of(spec, nodes_of_cluster(run, spec.partition), 0)
    if len(token.components) > 1:
        # Slurm does not test heterogeneous jobs as a whole: each part is one that has to fit.
        for number, component in enumerate(token.components):
            alone = token._replace(components=(component,))
            _test(run, program, spec, alone, number)
    else:
        _test(run, program, spec, token, 0)


def _test(run: Runner, program: str, spec: Spec, token: Token, _number: int) -> None:
    _sbatch(run, ["--test-only", *options(spec, token, os.devnull)], script(program, spec), plan.token_text(token))


def _sbatch(run: Runner, words: Sequence[str], text: str, token: str) -> int:
    gone = [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "SPANK_"))]
    unset = [word for name in gone for word in ("-u", name)]
    done = run(["env", *unset, "sbatch", *words], stdin=text, check=False, environment={VARIABLE: token})
    if done.rc:
        said = [line.partition("error: ")[2] or line.partition(": ")[2] for line in done.stderr.splitlines()]
        reason = ", ".join(line.rstrip(".") for line in said if line) or f"sbatch exited {done.rc}"
        raise HostStateError(f"Slurm refuses the session: {reason}.", "Ask for what the cluster has: see 'sinfo'.")
    return int(done.stdout.strip().partition(";")[0] or 0)


def cancel(run: Runner, job: int) -> None:
    """Raises CommandError, but not for a job that is over."""
    done = run(["scancel", str(job)], check=False)
    if done.rc and "Invalid job id" not in done.stderr:
        raise CommandError(["scancel", str(job)], f"exited {done.rc}", rc=done.rc, stderr=done.stderr)


def note(run: Runner, job: int, token: str, stage: str) -> None:
    """Tell how far the session is, where everybody can read it. ``stage``: with the reason of what has failed."""
    words = " ".join(stage.split())[:_LONGEST_REASON]
    run(["scontrol", "update", f"job={job}", f"comment={MARK} {token} {words}"], check=False)


def job_nodes(variables: Mapping[str, str], components: int) -> List[List[str]]:
    """The nodes of each component, as the batch script finds them. Raises InputError."""
    if components == 1:
        return [expand(variables.get("SLURM_JOB_NODELIST", ""))]
    return [expand(variables.get(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", "")) for number in range(components)]
