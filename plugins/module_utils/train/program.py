# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-train`: for users, for the batch script of a run, and for its task on each node."""

from __future__ import annotations

import argparse
import difflib
import getpass
import os
import signal
import sys
import time
from typing import Any, List, Mapping, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run as run_command
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.owned_folder import of_user
from ansible_collections.gpumesh.cluster.plugins.module_utils.program import exit_status, say
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.inherited import inherited
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import agent as agents
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import health as node_health
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import (
    manage,
    runs,
    scheduler,
    snapshot,
    supervisor,
    volume,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import request as requests
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.paths import NAME, STAGE
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import HANG_TIMEOUT, Request
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.store import Folder

#: What people type for the commands.
_MEANT = {
    **dict.fromkeys(("ls", "ps", "runs"), "list"),
    **dict.fromkeys(("status", "info", "describe"), "show"),
    **dict.fromkeys(("watch", "follow"), "attach"),
    **dict.fromkeys(("log", "tail", "output"), "logs"),
    **dict.fromkeys(("stop", "kill", "abort", "end"), "cancel"),
    **dict.fromkeys(("continue", "restart", "retry"), "resume"),
    **dict.fromkeys(("rm", "remove", "del"), "delete"),
}
#: Seconds in which a controller that was away may not know its nodes yet.
_OUTAGE = 60.0
#: The variables of a step that are those of its job. With the number of times that Slurm has started it again, a
#: supervisor knows whether Slurm has done so since.
_OF_JOB = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURMD_NODENAME", "SLURM_RESTART_COUNT")
#: Options that sbatch has as well.
_SHARED = ("-h", "--help", "--name", "--nodes", "--gpus-per-node", "--time", "--partition")


class Settings:
    """The settings with which the program was installed. ``volumes``: mount points that all nodes see."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.volumes: List[str] = list(values["volumes"])
        self.run_dir: str = str(values["run_dir"])
        self.stage_dir: str = str(values.get("stage_dir") or STAGE)

    def base(self, given: str, new: bool = False) -> str:
        """The directory with the runs of this user. Raises GpumeshError if there is none.

        ``new``: a run is to be created there.
        """
        if given:
            return os.path.abspath(given)
        if self.run_dir or self.volumes:
            pattern = self.run_dir or f"{self.volumes[0]}/{{user}}/runs"
            try:
                return of_user(pattern, getpass.getuser(), 0o755 if new else None)
            except OSError as failure:
                raise HostStateError(
                    f"{failure.filename or pattern} cannot be used: {failure.strerror}.",
                    "Set --run-dir to a directory on a shared volume that you can write to.",
                ) from failure
        raise InputError("The cluster has no shared volume.", "Set --run-dir to a directory that all nodes share.")

    def local(self, given: str) -> str:
        """The directory of this user's copies of data on the nodes."""
        return os.path.normpath(os.path.join("/", given or self.stage_dir.replace("{user}", getpass.getuser())))


def main(values: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 if the run has finished or continues, 1 if it has failed, 2 if the request is refused."""
    return exit_status(NAME, lambda: _main(Settings(values), list(arguments)))


def _main(settings: Settings, arguments: List[str]) -> int:
    program = os.path.abspath(sys.argv[0])
    host = runs.Host(run_command, program, settings.volumes)
    arguments = arguments or ["--help"]
    first = arguments[0]
    if first == "supervise":
        # A job that an older version has submitted has no numbers.
        daemon, killed = [int(word) for word in arguments[3:5]] or [0, 0]
        return _supervise(program, arguments[1], arguments[2], settings.volumes, daemon=daemon, killed=killed)
    if first == "examine":
        return _examine(settings, arguments[1])
    if first == "agent":
        return _agent(program, arguments[1:])
    if first in manage.COMMANDS:
        return manage.main(host, settings.base, *split(arguments)[::2])
    if not first.startswith("-"):
        raise _unknown(first)
    return _start(host, settings, arguments)


def _unknown(word: str) -> InputError:
    """The message for a first word that is neither a command nor an option."""
    meant = _MEANT.get(word) or next(iter(difflib.get_close_matches(word, manage.COMMANDS, 1)), "")
    if meant:
        return InputError(f"There is no command '{word}'.", f"Did you mean: {NAME} {meant} NAME")
    return InputError(
        f"There is no command '{word}'.",
        f"Use one of {', '.join(manage.COMMANDS)}, or start a run: {NAME} --name NAME -- {word}",
    )


# --- For users


def parser() -> argparse.ArgumentParser:
    """The options of a new run."""
    made = argparse.ArgumentParser(
        NAME,
        manage.USAGE,
        "Run a training program on nodes of the cluster, and keep it running when nodes fail.",
        add_help=True,
    )
    made.add_argument("--name", required=True, help="name of the run")
    made.add_argument("--nodes", type=int, default=1, help="number of nodes (default: 1)")
    made.add_argument("--min-nodes", type=int, help="minimum number of nodes to continue with (default: --nodes)")
    made.add_argument("--spare", type=int, default=0, help="number of additional nodes, to replace nodes that fail")
    made.add_argument(
        "--gpus-per-node",
        type=int,
        default=0,
        help="number of GPUs per node, each with a rank (default: one rank without a GPU)",
    )
    made.add_argument(
        "--ranks-per-node",
        type=int,
        default=0,
        dest="ranks",
        metavar="N",
        help="number of ranks per node (default: --gpus-per-node)",
    )
    made.add_argument(
        "--time", default="", help="time limit of each job in Slurm's format; the run then continues in another job"
    )
    made.add_argument("--partition", default="", help="Slurm partition")
    made.add_argument("--run-dir", default="", help="directory on a shared volume that contains the runs")
    made.add_argument(
        "--max-restarts",
        type=int,
        default=10,
        help="give up after this many failures since the last new checkpoint (default: 10)",
    )
    made.add_argument(
        "--hang-timeout",
        type=float,
        default=HANG_TIMEOUT,
        help="seconds without a sign of life until the run is considered hung, plus 120 before the first step "
        f"(default: {HANG_TIMEOUT:.0f})",
    )
    made.add_argument("--stop-on-nan", action="store_true", help="stop the run when its loss is not a number")
    made.add_argument(
        "--grace", type=float, default=60.0, help="seconds to save a checkpoint after a warning (default: 60)"
    )
    made.add_argument(
        "--warn-signal",
        default="SIGUSR1",
        metavar="SIGNAL",
        help=f"signal that asks the program for it: {', '.join(requests.WARN_SIGNALS)} (default: SIGUSR1)",
    )
    made.add_argument("--code", default="", metavar="DIR", help="copy this directory into the run, and start there")
    made.add_argument(
        "--code-limit",
        type=int,
        default=snapshot.LIMIT,
        metavar="MIB",
        help=f"maximum size of that directory in MiB (default: {snapshot.LIMIT})",
    )
    made.add_argument("--stage", default="", metavar="DIR", help="copy this data to a local disk of each node first")
    made.add_argument("--stage-dir", default="", metavar="DIR", help="directory for these copies on the nodes")
    made.add_argument(
        "--profile", default="", metavar="PROFILE", help="record torch[:STEPS] or nsys[:SECONDS] of each rank"
    )
    made.add_argument("--detach", action="store_true", help="return as soon as the run is submitted")
    made.add_argument("--dry-run", action="store_true", help="check everything, and show the batch script")
    return made


def split(arguments: Sequence[str]) -> Tuple[List[str], List[str], List[str]]:
    """Split the arguments into our options, those after ``--sbatch``, and the command after ``--``."""
    ours, command = list(arguments), []
    if "--" in ours:
        place = ours.index("--")
        ours, command = ours[:place], ours[place + 1 :]
    sbatch: List[str] = []
    if "--sbatch" in ours:
        place = ours.index("--sbatch")
        ours, sbatch = ours[:place], ours[place + 1 :]
    return ours, sbatch, command


def _own_options(made: argparse.ArgumentParser) -> List[str]:
    """The options that sbatch does not have."""
    names = [requests.option(name) for name in vars(made.parse_args(["--name", "any"]))]
    return [name for name in names if name not in _SHARED]


def _start(host: runs.Host, settings: Settings, arguments: Sequence[str]) -> int:
    ours, sbatch, command = split(arguments)
    made = parser()
    misplaced = [option for option in sbatch if option.partition("=")[0] in _own_options(made)]
    if misplaced:
        raise InputError(
            f"'{misplaced[0]}' comes after --sbatch, which takes all options up to '--'.", "Put it before."
        )
    given, rest = made.parse_known_args(ours)
    if rest and not command and not rest[0].startswith("-"):
        raise InputError(
            f"The command '{' '.join(rest)}' does not follow '--'.",
            f"Write: {NAME} --name {given.name} ... -- {' '.join(rest)}",
        )
    given = made.parse_args(ours)
    options = {name: value for name, value in vars(given).items() if name in Request._fields}
    options.update(
        command=tuple(command),
        folder=f"{settings.base(given.run_dir, not given.dry_run)}/{given.name}",
        min_nodes=given.nodes if given.min_nodes is None else given.min_nodes,
        sbatch=tuple(sbatch),
        directory=os.getcwd(),
        code=given.code and os.path.abspath(given.code),
        stage=given.stage and os.path.abspath(given.stage),
        stage_dir=settings.local(given.stage_dir) if given.stage else "",
    )
    request = Request(**options)
    host = host._replace(code_limit=given.code_limit)
    if given.dry_run:
        runs.refuse(host, request)
        say(requests.shown(runs.placed(host, request), host.program).rstrip("\n"))
        return 0
    run = runs.start(host, request)
    return manage.follow(host, Folder(request.folder), run, given.detach)


# --- For jobs


def _supervise(program: str, path: str, token: str, volumes: Sequence[str] = (), **place: Any) -> int:
    nodes = scheduler.hostnames(run_command, os.environ["SLURM_JOB_NODELIST"])
    job = int(os.environ["SLURM_JOB_ID"])
    post = supervisor.Post(program, job, token, os.environ["SLURMD_NODENAME"], nodes, **place)
    return supervisor.main(Folder(path), post, volumes)


def _agent(program: str, words: Sequence[str]) -> int:
    """``words``: the task, if the supervisor is of an older version, which has it on the command line."""
    task, pending = (agents.parse_task(words[0]), b"") if words else agents.receive(sys.stdin.fileno())
    node = os.environ["SLURMD_NODENAME"]
    agent = agents.Agent(task, node, sys.stdout)
    told: List[int] = []

    def end(number: int, _frame: Any) -> None:
        told.append(number)
        agent.end()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    present = True
    try:
        agent.start()
        present = agent.run(sys.stdin.fileno(), pending)
    except (OSError, GpumeshError) as failure:
        agent.say("failed", reason=str(failure), of_node=isinstance(failure, agents.NodeError))
    finally:
        agent.close()
    if present and agent.rests and not told:
        present = agent.rest(sys.stdin.fileno())
    if present and not told:
        return 0
    return _go_on(program, task, agent, told)


def _go_on(program: str, task: agents.Task, agent: agents.Agent, told: Sequence[int]) -> int:
    """Continue the run if the supervisor is lost, or this job ends although nobody has cancelled it.

    ``told``: the signals that this process gets. With SIGTERM, Slurm ends the job; it kills what is left KillWait, by
    default 30 s, later.
    """
    node = os.environ["SLURMD_NODENAME"]
    outages: List[float] = []

    def reaches() -> bool:
        there = scheduler.answers(run_command)
        if not there:
            outages.append(time.monotonic())
        return there

    def over() -> bool:
        return bool(told) or agent.abandoned

    def killed() -> bool:
        return scheduler.fate(run_command, int(os.environ["SLURM_JOB_ID"])) == "killed"

    turn = None if told else agents.inherits(task, node, reaches, closed=agent.closed, over=over)
    if turn is not None:
        outage = bool(outages) and time.monotonic() - outages[-1] < _OUTAGE
        return _succeed(program, task, turn=turn, outage=outage)
    return _succeed(program, task, ends=True) if told and agents.submits(task, node, killed) else 0


def _leave_step() -> None:
    """Remove the variables of this step, which would affect others. A supervisor needs those of its job."""
    for name in inherited(os.environ):
        if name not in _OF_JOB:
            del os.environ[name]


def _examine(settings: Settings, path: str) -> int:
    """Report whether this node is healthy, as far as a user can tell."""
    try:
        gpus = bool(Folder(path).request().gpus_per_node)
    except (HostStateError, InputError) as failure:
        # The other nodes of the run have read it.
        say(failure.message)
        return node_health.UNHEALTHY
    failing = node_health.examine([volume for volume in settings.volumes if os.path.ismount(volume)], gpus)
    if failing:
        say(node_health.words(failing))
    return node_health.UNHEALTHY if failing else 0


def _succeed(program: str, task: agents.Task, **place: Any) -> int:
    """Become the supervisor, in the same job. Nothing reads the output of this process, or writes to its input."""
    log = volume.open_log(Folder(task.folder))
    null = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, number)
    _leave_step()
    return _supervise(program, task.folder, task.token, inherited=task.attempt, **place)
