# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program `gpumesh-session`: for users, for the batch script of a session, for its tasks, and for Slurm as root."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any, Callable, List, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import bounded_read
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import exit_status, print_error, print_line
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import ChildProcess
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run as run_command
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    GpumeshError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import strip_terminal_codes
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import (
    container,
    forward,
    images,
    job,
    node,
    sessions,
    supervise,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import spec as specs
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    PROGRAM_NAME,
    PROGRAM_PATH,
    Container,
    SessionSettings,
    SessionSpec,
)

_USAGE_TEXT = """gpumesh-session start FILE [--detach] | list | show [NAME] | stop NAME | images [--remove IMAGE]
       gpumesh-session enter NAME [CONTAINER] [-- COMMAND [ARGUMENT...]] | run NAME -- COMMAND [ARGUMENT...]"""
#: The program that converts YAML with Debian's module, since this one requires only the standard library.
_READ_YAML = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout, default=str)"
_DEFAULT_SHELL = ("/bin/sh", "-c", "test -x /bin/bash && exec /bin/bash; exec /bin/sh")
#: The intervals, in seconds, between two checks of a starting session: the first one, and the longest.
_FIRST_INTERVAL, _MAX_INTERVAL = 0.2, 1.0


def main(installed_settings: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Return the exit status: 0 on success, 1 on failure, 2 if the request is refused, otherwise that of a command."""
    return exit_status(PROGRAM_NAME, lambda: _main(SessionSettings(**installed_settings), list(arguments)))


def _main(settings: SessionSettings, arguments: List[str]) -> int:
    verb, verb_arguments = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    internal_action = _INTERNAL_ACTIONS.get(verb)
    if internal_action is not None:
        return internal_action(settings, [verb, *verb_arguments])
    user_arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
    command = arguments[len(user_arguments) + 1 :]
    parsed_arguments = make_parser().parse_args(user_arguments)
    return _USER_ACTIONS[parsed_arguments.command](settings, parsed_arguments, command)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of users' commands."""
    parser = argparse.ArgumentParser(
        PROGRAM_NAME, _USAGE_TEXT, "Run containers with roles on a private network, as a Slurm job."
    )
    parser.add_argument("command", choices=sorted(_USER_ACTIONS))
    parser.add_argument(
        "name",
        nargs="?",
        default="",
        help="start: the file that describes the session; otherwise: the name of a session; "
        "show without a name: the last ten that have ended",
    )
    parser.add_argument(
        "container", nargs="?", default=f"{specs.MAIN_ROLE}1", help="enter: the container (default: main1)"
    )
    parser.add_argument("--detach", action="store_true", help="start: return as soon as the session is submitted")
    parser.add_argument("--dry-run", action="store_true", help="start: check everything without submitting anything")
    parser.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="IMAGE",
        help="images: remove this image from this node, by its name in a session's file or its ID; 'all' removes each",
    )
    return parser


def _current_job() -> int:
    """Return the job of this task."""
    return int(os.environ["SLURM_JOB_ID"])


def _run_task(task: Any) -> int:
    try:
        return int(task())
    except GpumeshError as failure:
        # The message is one line, which is also the reason in the comment of the job.
        print_error(f"{PROGRAM_NAME}: {' '.join(str(failure).split())}")
        return failure.status if isinstance(failure, container.ContainerError) else 1


# --- Actions for Slurm, and for what this program itself starts. Each gets its verb and the arguments after it.


def _prolog(settings: SessionSettings, _arguments: Sequence[str]) -> int:
    node.prolog(run_command, settings, os.environ)
    return 0


def _epilog(_settings: SessionSettings, _arguments: Sequence[str]) -> int:
    node.epilog(run_command, os.environ)
    return 0


def _guard(settings: SessionSettings, _arguments: Sequence[str]) -> int:
    node.start_watching(run_command)
    if settings.machine == settings.manager:
        node.start_own_task(run_command, "publish")
    return 0


def _publish(_settings: SessionSettings, _arguments: Sequence[str]) -> int:
    forward.resume_forwards(run_command, PROGRAM_PATH)
    return 0


def _watch(settings: SessionSettings, _arguments: Sequence[str]) -> int:
    node.watch_leftovers(run_command, settings)
    return 0


def _supervise(_settings: SessionSettings, arguments: Sequence[str]) -> int:
    encoded_spec, program_path = sys.stdin.read(), os.path.abspath(sys.argv[0])
    return supervise.SessionBatch(run_command, program_path, encoded_spec, os.environ, arguments[1]).work()


def _prepare(settings: SessionSettings, _arguments: Sequence[str]) -> int:
    encoded_spec, _line, session_key = sys.stdin.read().partition("\n")
    return _run_task(lambda: container.prepare(run_command, encoded_spec, _current_job(), settings, session_key))


def _container(settings: SessionSettings, arguments: Sequence[str]) -> int:
    return _run_task(lambda: container.run_container(run_command, _current_job(), int(arguments[1]), settings))


def _await(settings: SessionSettings, _arguments: Sequence[str]) -> int:
    return _run_task(lambda: container.wait_for_start(run_command, _current_job(), settings))


def _inside(settings: SessionSettings, arguments: Sequence[str]) -> int:
    job_id, local_index = int(arguments[1]), int(arguments[2])
    return container.run_in_container(run_command, job_id, local_index, settings, arguments[3:], sys.stdin.isatty())


def _login(settings: SessionSettings, arguments: Sequence[str]) -> int:
    """Run the command of an ssh login, which sshd passes in the environment, or a shell."""
    requested_command = os.environ.get("SSH_ORIGINAL_COMMAND")
    return _inside(
        settings, [*arguments, *(("/bin/sh", "-c", requested_command) if requested_command else _DEFAULT_SHELL)]
    )


def _offer_login(settings: SessionSettings, arguments: Sequence[str]) -> int:
    return _run_task(
        lambda: container.offer_login(arguments[0], int(arguments[1]), int(arguments[2]), settings.storage)
    )


def _forward(settings: SessionSettings, arguments: Sequence[str]) -> int:
    return forward.forward_while_running(run_command, PROGRAM_PATH, int(arguments[1]), arguments[2:], settings)


_INTERNAL_ACTIONS: Mapping[str, Callable[[SessionSettings, Sequence[str]], int]] = {
    "prolog": _prolog,
    "epilog": _epilog,
    "guard": _guard,
    "watch": _watch,
    "publish": _publish,
    "supervise": _supervise,
    "prepare": _prepare,
    "container": _container,
    "await": _await,
    "inside": _inside,
    "login": _login,
    "key": _offer_login,
    "daemon": _offer_login,
    "forward": _forward,
}


# --- For users


def read_session_file(path: str) -> Any:
    """Read a session's file, in JSON or YAML. Raises InputError."""
    try:
        file_text = sys.stdin.read() if path == "-" else read_text(path)
    except HostStateError as failure:
        raise InputError(failure.message, failure.remedy) from failure
    if file_text is None:
        raise InputError(f"There is no file {path}.", "Give the file that describes the session.")
    try:
        return json.loads(file_text)
    except ValueError:
        yaml_result = run_command(["/usr/bin/python3", "-I", "-c", _READ_YAML], stdin=file_text, check=False)
        if yaml_result.rc:
            error_line = (yaml_result.stderr.strip().splitlines() or ["it is not YAML"])[-1]
            raise InputError(f"{path} cannot be read: {error_line}.", "Write it in YAML or JSON.") from None
        return json.loads(yaml_result.stdout)


def _start(settings: SessionSettings, options: argparse.Namespace, _command: Sequence[str]) -> int:
    if not options.name:
        raise InputError("There is no file.", "Give the file that describes the session: gpumesh-session start FILE")
    spec = specs.parse_spec(read_session_file(options.name))
    if options.dry_run:
        sessions.refuse_session(run_command, PROGRAM_PATH, spec, settings)
        return 0
    started_session = sessions.start_session(run_command, PROGRAM_PATH, spec, settings)
    print_line(f"{spec.name}: job {started_session.job_id}, log {started_session.log_path}")
    return 0 if options.detach else _follow_start(spec, started_session, settings)


def _follow_start(spec: SessionSpec, started_session: sessions.StartedSession, settings: SessionSettings) -> int:
    shown_line, poll_interval = "", _FIRST_INTERVAL
    while True:
        session = job.query_session(run_command, started_session.job_id)
        failure_reason = sessions.failure_reason(session)
        if failure_reason:
            remedy = sessions.log_remedy(started_session.log_path, session.log_node if session else "")
            raise HostStateError(f"The session '{spec.name}' has failed: {failure_reason}", remedy)
        status_line = sessions.format_session(session, spec.name)
        if status_line != shown_line:
            shown_line = status_line
            print_line(status_line)
            sys.stdout.flush()
        if session is not None and session.stage == job.RUNNING and spec.ports:
            if not forward.wait_until_listening(spec.ports, settings):
                raise HostStateError(f"The ports of the session '{spec.name}' are not forwarded.", "Start it again.")
            for shown_port in forward.format_forwards(spec, settings):
                print_line(shown_port)
        if session is None or session.has_ended or session.stage == job.RUNNING:
            return 0
        time.sleep(poll_interval)
        poll_interval = min(_MAX_INTERVAL, poll_interval * 1.2)


def _list(_settings: SessionSettings, _options: argparse.Namespace, _command: Sequence[str]) -> int:
    for session in job.list_sessions(run_command):
        print_line(f"{session.user}  {sessions.format_session(session, session.token.name)}")
    return 0


def _show(settings: SessionSettings, options: argparse.Namespace, _command: Sequence[str]) -> int:
    session = job.find_own_session(run_command, options.name) if options.name else None
    if session is None:
        return _show_ended(settings, options.name)
    print_line(sessions.format_session(session, options.name))
    if session.node_names:
        for entry in job.list_containers(session, settings):
            print_line(f"{entry.name:<20} {entry.address:<16} {entry.node}")
    log_path = job.find_log(run_command, session)
    if log_path and session.log_node:
        print_line(f"log {log_path} on {session.log_node}")
    return 0


def _show_ended(settings: SessionSettings, session_name: str) -> int:
    """Show the sessions that have ended last; if a name is given, only the last one of this name."""
    ended_sessions = sessions.list_ended(run_command, settings, session_name)
    if session_name and not ended_sessions:
        job.require_session(run_command, session_name)
    for ended_session in ended_sessions[:1] if session_name else ended_sessions:
        for line in sessions.format_ended(ended_session):
            print_line(line)
    return 0


def _images(settings: SessionSettings, options: argparse.Namespace, _command: Sequence[str]) -> int:
    if options.remove:
        for line in images.remove_images(run_command, settings, options.remove):
            print_line(line)
        return 0
    for image in images.list_images(run_command, settings):
        print_line(
            f"{image.identifier[:12]}  {image.display_size:>10}  {', '.join(image.image_names) or 'without a name'}"
        )
    return 0


def _stop(_settings: SessionSettings, options: argparse.Namespace, _command: Sequence[str]) -> int:
    job.cancel(run_command, job.require_session(run_command, options.name).job_id)
    return 0


def _enter(settings: SessionSettings, options: argparse.Namespace, command: Sequence[str]) -> int:
    session = job.require_session(run_command, options.name)
    session_containers = job.list_containers(session, settings)
    matching_containers = [candidate for candidate in session_containers if candidate.name == options.container]
    if not matching_containers:
        container_names = ", ".join(candidate.name for candidate in session_containers)
        raise InputError(
            f"The session '{options.name}' has no container '{options.container}'.", f"It has {container_names}."
        )
    has_terminal = sys.stdin.isatty()
    srun_command = _enter_command(session.job_id, matching_containers[0], command or _DEFAULT_SHELL, has_terminal)
    with ChildProcess(srun_command, env=job.clean_environment(matching_containers[0].local)) as process:
        return process.wait()


def _enter_command(job_id: int, target: Container, arguments: Sequence[str], with_terminal: bool) -> List[str]:
    """Return the srun command that runs a command in a container."""
    return [
        *job.step_beside(job_id, target, with_terminal),
        PROGRAM_PATH,
        "inside",
        str(job_id),
        str(target.local),
        *arguments,
    ]


def _run(settings: SessionSettings, options: argparse.Namespace, command: Sequence[str]) -> int:
    if not command:
        raise InputError("There is no command.", "Give it after '--'.")
    session = job.require_session(run_command, options.name)
    session_containers = job.list_containers(session, settings)
    running_processes = []
    for target in session_containers:
        srun_command = _enter_command(session.job_id, target, command, False)
        process = ChildProcess(
            srun_command,
            env=job.clean_environment(target.local),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        running_processes.append((target.name, process))
    unread_names: List[str] = []
    readers = [threading.Thread(target=_copy_output, args=(*pair, unread_names)) for pair in running_processes]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    # A process ended by a signal has a negative status.
    highest_status = max(abs(process.wait()) for _container_name, process in running_processes)
    if unread_names:
        raise BrokenPipeError
    return highest_status


def _copy_output(container_name: str, process: ChildProcess, unread_names: List[str]) -> None:
    """Print what a command prints.

    If nobody reads on, as with head, the command is ended, and its container added to ``unread_names``.
    """
    output_stream: Any = process.stdout
    with output_stream:
        try:
            for output_line in bounded_read.read_lines(output_stream):
                print_line(f"{container_name}: {strip_terminal_codes(output_line.rstrip())}")
            sys.stdout.flush()
        except BrokenPipeError:
            unread_names.append(container_name)
            process.terminate()


_USER_ACTIONS: Mapping[str, Callable[[SessionSettings, argparse.Namespace, Sequence[str]], int]] = {
    "start": _start,
    "list": _list,
    "show": _show,
    "enter": _enter,
    "run": _run,
    "stop": _stop,
    "images": _images,
}
