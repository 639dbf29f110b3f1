# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-train`: for users, for the batch script of a run, and for its task on each node."""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
import time
from typing import Any, List, Mapping, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import exit_status, print_line
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run as run_command
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    GpumeshError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.inherited import find_job_variables
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import agent as agents
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import (
    early_standby,
    manage,
    runs,
    scheduler,
    snapshot,
    supervisor,
    volume,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import health as node_health
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import request as requests
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import HANG_TIMEOUT, RunRequest
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.paths import PROGRAM_NAME
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.settings import TrainSettings
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory

#: Common synonyms of the commands.
_COMMAND_SYNONYMS = {
    **dict.fromkeys(("ls", "ps", "runs"), "list"),
    **dict.fromkeys(("status", "info", "describe"), "show"),
    **dict.fromkeys(("watch", "follow"), "attach"),
    **dict.fromkeys(("log", "tail", "output"), "logs"),
    **dict.fromkeys(("stop", "kill", "abort", "end"), "cancel"),
    **dict.fromkeys(("continue", "restart", "retry"), "resume"),
    **dict.fromkeys(("rm", "remove", "del"), "delete"),
}
#: Seconds after an outage in which a controller may not know its nodes yet.
_RECENT_OUTAGE = 60.0
#: The variables of a step that describe its job. From SLURM_RESTART_COUNT, a supervisor knows whether Slurm has
#: requeued the job since.
_JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURMD_NODENAME", "SLURM_RESTART_COUNT")
#: Options that sbatch also has.
_SHARED_WITH_SBATCH = ("-h", "--help", "--name", "--nodes", "--gpus-per-node", "--time", "--partition")


def main(installed_settings: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Return the exit status: 0 if the run has finished or continues, 1 if it has failed, 2 for a refused request."""
    return exit_status(PROGRAM_NAME, lambda: _dispatch(TrainSettings(installed_settings), list(arguments)))


def _dispatch(settings: TrainSettings, arguments: List[str]) -> int:
    program_path = os.path.abspath(sys.argv[0])
    submit_host = runs.SubmitHost(run_command, program_path, settings.volumes)
    arguments = arguments or ["--help"]
    command_name = arguments[0]
    if command_name == "supervise":
        # A job that an older version has submitted has no numbers.
        daemon_pid, fatal_signal = [int(number_text) for number_text in arguments[3:5]] or [0, 0]
        return _run_supervisor(
            program_path, arguments[1], arguments[2], settings.volumes, daemon=daemon_pid, killed=fatal_signal
        )
    if command_name == "examine":
        return _examine_node(settings, arguments[1])
    if command_name == early_standby.COMMAND_NAME:
        early_standby.stand_by(run_command, program_path, sys.stdin.fileno())
        return 0
    if command_name == "agent":
        return _run_agent(program_path, arguments[1:])
    if command_name in manage.COMMAND_NAMES:
        return manage.main(submit_host, settings.runs_dir, *split_arguments(arguments)[::2])
    if not command_name.startswith("-"):
        raise _unknown_command_error(command_name)
    return _start_run(submit_host, settings, arguments)


def _unknown_command_error(typed_command: str) -> InputError:
    """Return the error for a first argument that is neither a command nor an option."""
    suggested_command = _COMMAND_SYNONYMS.get(typed_command) or next(
        iter(difflib.get_close_matches(typed_command, manage.COMMAND_NAMES, 1)), ""
    )
    if suggested_command:
        return InputError(
            f"There is no command '{typed_command}'.", f"Did you mean: {PROGRAM_NAME} {suggested_command} NAME"
        )
    return InputError(
        f"There is no command '{typed_command}'.",
        f"Use one of {', '.join(manage.COMMAND_NAMES)}, or start a run: {PROGRAM_NAME} --name NAME -- {typed_command}",
    )


# --- For users


def build_parser() -> argparse.ArgumentParser:
    """The options of a new run."""
    argument_parser = argparse.ArgumentParser(
        PROGRAM_NAME,
        manage.USAGE_TEXT,
        "Run a training program on nodes of the cluster, and keep it running when nodes fail.",
        add_help=True,
    )
    argument_parser.add_argument("--name", required=True, help="name of the run")
    argument_parser.add_argument("--nodes", type=int, default=1, help="number of nodes (default: 1)")
    argument_parser.add_argument(
        "--min-nodes", type=int, help="minimum number of nodes to continue with (default: --nodes)"
    )
    argument_parser.add_argument(
        "--spare", type=int, default=0, help="number of additional nodes, to replace nodes that fail"
    )
    argument_parser.add_argument(
        "--gpus-per-node",
        type=int,
        default=0,
        help="number of GPUs per node, each with a rank (default: one rank without a GPU)",
    )
    argument_parser.add_argument(
        "--ranks-per-node",
        type=int,
        default=0,
        dest="ranks",
        metavar="N",
        help="number of ranks per node (default: --gpus-per-node)",
    )
    argument_parser.add_argument(
        "--time", default="", help="time limit of each job in Slurm's format; the run then continues in another job"
    )
    argument_parser.add_argument("--partition", default="", help="Slurm partition")
    argument_parser.add_argument("--run-dir", default="", help="directory on a shared volume that contains the runs")
    argument_parser.add_argument(
        "--max-restarts",
        type=int,
        default=10,
        help="give up after this many failures since the last new checkpoint (default: 10)",
    )
    argument_parser.add_argument(
        "--hang-timeout",
        type=float,
        default=HANG_TIMEOUT,
        help="seconds without a sign of life until the run is considered hung, plus 120 before the first step "
        f"(default: {HANG_TIMEOUT:.0f})",
    )
    argument_parser.add_argument(
        "--stop-on-nan", action="store_true", help="stop the run when its loss is not a number"
    )
    argument_parser.add_argument(
        "--grace", type=float, default=60.0, help="seconds to save a checkpoint after a warning (default: 60)"
    )
    argument_parser.add_argument(
        "--warn-signal",
        default="SIGUSR1",
        metavar="SIGNAL",
        help=f"signal that asks the program for it: {', '.join(requests.WARN_SIGNALS)} (default: SIGUSR1)",
    )
    argument_parser.add_argument(
        "--code", default="", metavar="DIR", help="copy this directory into the run, and start there"
    )
    argument_parser.add_argument(
        "--code-limit",
        type=int,
        default=snapshot.DEFAULT_LIMIT_MIB,
        metavar="MIB",
        help=f"maximum size of that directory in MiB (default: {snapshot.DEFAULT_LIMIT_MIB})",
    )
    argument_parser.add_argument(
        "--stage", default="", metavar="DIR", help="copy this data to a local disk of each node first"
    )
    argument_parser.add_argument(
        "--stage-dir", default="", metavar="DIR", help="directory for these copies on the nodes"
    )
    argument_parser.add_argument(
        "--profile", default="", metavar="PROFILE", help="record torch[:STEPS] or nsys[:SECONDS] of each rank"
    )
    argument_parser.add_argument("--detach", action="store_true", help="return as soon as the run is submitted")
    argument_parser.add_argument("--dry-run", action="store_true", help="check everything, and show the batch script")
    return argument_parser


def split_arguments(arguments: Sequence[str]) -> Tuple[List[str], List[str], List[str]]:
    """Split the arguments into our options, those after ``--sbatch``, and the command after ``--``."""
    own_arguments, command = list(arguments), []
    if "--" in own_arguments:
        separator_index = own_arguments.index("--")
        own_arguments, command = own_arguments[:separator_index], own_arguments[separator_index + 1 :]
    sbatch_options: List[str] = []
    if "--sbatch" in own_arguments:
        separator_index = own_arguments.index("--sbatch")
        own_arguments, sbatch_options = own_arguments[:separator_index], own_arguments[separator_index + 1 :]
    return own_arguments, sbatch_options, command


def _exclusive_options(argument_parser: argparse.ArgumentParser) -> List[str]:
    """The options that sbatch does not have."""
    option_names = [requests.option_name(name) for name in vars(argument_parser.parse_args(["--name", "any"]))]
    return [name for name in option_names if name not in _SHARED_WITH_SBATCH]


def _start_run(submit_host: runs.SubmitHost, settings: TrainSettings, arguments: Sequence[str]) -> int:
    own_arguments, sbatch_options, command = split_arguments(arguments)
    argument_parser = build_parser()
    misplaced_options = [
        option for option in sbatch_options if option.partition("=")[0] in _exclusive_options(argument_parser)
    ]
    if misplaced_options:
        raise InputError(
            f"'{misplaced_options[0]}' comes after --sbatch, which takes all options up to '--'.", "Put it before."
        )
    parsed_options, unparsed_arguments = argument_parser.parse_known_args(own_arguments)
    if unparsed_arguments and not command and not unparsed_arguments[0].startswith("-"):
        raise InputError(
            f"The command '{' '.join(unparsed_arguments)}' does not follow '--'.",
            f"Write: {PROGRAM_NAME} --name {parsed_options.name} ... -- {' '.join(unparsed_arguments)}",
        )
    parsed_options = argument_parser.parse_args(own_arguments)
    request_fields = {
        name: option_setting for name, option_setting in vars(parsed_options).items() if name in RunRequest._fields
    }
    request_fields.update(
        command=tuple(command),
        folder=f"{settings.runs_dir(parsed_options.run_dir, not parsed_options.dry_run)}/{parsed_options.name}",
        min_nodes=parsed_options.nodes if parsed_options.min_nodes is None else parsed_options.min_nodes,
        sbatch=tuple(sbatch_options),
        directory=os.getcwd(),
        code=parsed_options.code and os.path.abspath(parsed_options.code),
        stage=parsed_options.stage and os.path.abspath(parsed_options.stage),
        stage_dir=settings.staging_dir(parsed_options.stage_dir) if parsed_options.stage else "",
    )
    request = RunRequest(**request_fields)
    submit_host = submit_host._replace(code_limit=parsed_options.code_limit)
    if parsed_options.dry_run:
        runs.check_request(submit_host, request)
        print_line(
            requests.format_dry_run(runs.stored_request(submit_host, request), submit_host.program_path).rstrip("\n")
        )
        return 0
    run = runs.start_run(submit_host, request)
    return manage.follow_run(submit_host, RunDirectory(request.folder), run, parsed_options.detach)


# --- For jobs


def _run_supervisor(
    program_path: str, run_dir: str, token: str, volumes: Sequence[str] = (), **supervisor_fields: Any
) -> int:
    allocated_nodes = scheduler.expand_hostlist(run_command, os.environ["SLURM_JOB_NODELIST"])
    job_id = int(os.environ["SLURM_JOB_ID"])
    supervisor_id = supervisor.SupervisorId(
        program_path, job_id, token, os.environ["SLURMD_NODENAME"], allocated_nodes, **supervisor_fields
    )
    return supervisor.main(RunDirectory(run_dir), supervisor_id, volumes)


def _run_agent(program_path: str, task_arguments: Sequence[str]) -> int:
    """Run the agent of this node. ``task_arguments``: the task, if the supervisor is of an older version."""
    task, pending_input = (
        (agents.parse_task(task_arguments[0]), b"") if task_arguments else agents.receive_task(sys.stdin.fileno())
    )
    node = os.environ["SLURMD_NODENAME"]
    agent = agents.Agent(task, node, sys.stdout)
    received_signals: List[int] = []

    def end_ranks(signal_number: int, _frame: Any) -> None:
        received_signals.append(signal_number)
        agent.cancel()

    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, end_ranks)
    supervisor_present = True
    try:
        agent.start()
        supervisor_present = agent.run(sys.stdin.fileno(), pending_input)
    except (OSError, GpumeshError) as failure:
        agent.send_event("failed", reason=str(failure), of_node=isinstance(failure, agents.NodeError))
    finally:
        agent.close()
    if supervisor_present and agent.waits_for_next and not received_signals:
        supervisor_present = agent.wait_for_next_attempt(sys.stdin.fileno())
    if supervisor_present and not received_signals:
        return 0
    return _continue_run(program_path, task, agent, received_signals)


def _continue_run(
    program_path: str, task: agents.AgentTask, agent: agents.Agent, received_signals: Sequence[int]
) -> int:
    """Continue the run if the supervisor is lost, or if this job ends although nobody has cancelled it.

    ``received_signals`` may still grow. Slurm ends a job with SIGTERM, and kills the remaining processes after
    KillWait, by default 30 s.
    """
    node = os.environ["SLURMD_NODENAME"]
    outage_times: List[float] = []

    def reaches_controller() -> bool:
        controller_answered = scheduler.controller_answers(run_command)
        if not controller_answered:
            outage_times.append(time.monotonic())
        return controller_answered

    def is_over() -> bool:
        return bool(received_signals) or agent.abandoned

    def script_was_killed() -> bool:
        return scheduler.job_fate(run_command, int(os.environ["SLURM_JOB_ID"])) == "killed"

    epoch = (
        None
        if received_signals
        else agents.claim_takeover(task, node, reaches_controller, node_alive=agent.orders_closed, should_stop=is_over)
    )
    if epoch is not None:
        recent_outage = bool(outage_times) and time.monotonic() - outage_times[-1] < _RECENT_OUTAGE
        return _become_supervisor(program_path, task, turn=epoch, outage=recent_outage)
    return (
        _become_supervisor(program_path, task, ends=True)
        if received_signals and agents.should_submit_next(task, node, script_was_killed)
        else 0
    )


def _clear_step_variables() -> None:
    """Remove the variables of this step, which would affect others. A supervisor needs those of its job."""
    for variable_name in find_job_variables(os.environ):
        if variable_name not in _JOB_VARIABLES:
            del os.environ[variable_name]


def _examine_node(settings: TrainSettings, run_dir: str) -> int:
    """Report whether this node is healthy, as far as a user can tell."""
    try:
        needs_gpus = bool(RunDirectory(run_dir).read_request().gpus_per_node)
    except (HostStateError, InputError) as failure:
        # The request is readable, since the other nodes of the run have read it: the fault is on this node.
        print_line(failure.message)
        return node_health.UNHEALTHY_STATUS
    health_problems = node_health.examine(
        [volume for volume in settings.volumes if os.path.ismount(volume)], needs_gpus
    )
    if health_problems:
        print_line(node_health.format_failures(health_problems))
    return node_health.UNHEALTHY_STATUS if health_problems else 0


def _become_supervisor(program_path: str, task: agents.AgentTask, **supervisor_fields: Any) -> int:
    """Become the supervisor in the same job, with the log of the run as output: nothing reads that of the agent now."""
    log_fd = volume.open_log(RunDirectory(task.folder))
    null_fd = os.open(os.devnull, os.O_RDONLY)
    for source_fd, target_fd in ((null_fd, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(source_fd, target_fd)
    _clear_step_variables()
    return _run_supervisor(program_path, task.folder, task.token, inherited=task.attempt, **supervisor_fields)
