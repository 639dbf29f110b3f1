# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-session`: for users, for the batch script of a session, for its tasks, and for Slurm's plugin as root."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any, Callable, List, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils import limited
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Process
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run as run_command
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils.program import complain, exit_status, say
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import (
    container,
    forward,
    images,
    job,
    node,
    sessions,
    supervise,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import spec as specs
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import (
    NAME,
    PATH,
    Container,
    Settings,
    Spec,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import untyped

_USAGE = """gpumesh-session start FILE [--detach] | list | show [NAME] | stop NAME | images [--remove IMAGE]
       gpumesh-session enter NAME [CONTAINER] [-- COMMAND [ARGUMENT...]] | run NAME -- COMMAND [ARGUMENT...]"""
#: YAML is read with Debian's module; this program requires only the standard library.
_READ_YAML = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout, default=str)"
_SHELL = ("/bin/sh", "-c", "test -x /bin/bash && exec /bin/bash; exec /bin/sh")
#: Seconds between two looks at a session that starts: first, and later.
_SOON, _FOLLOW = 0.2, 1.0


def main(values: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """The exit status: 0 on success, 1 on failure, 2 if the request is refused, otherwise that of a command."""
    return exit_status(NAME, lambda: _main(Settings(**values), list(arguments)))


def _main(settings: Settings, arguments: List[str]) -> int:
    first, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    ours = _INTERNAL.get(first)
    if ours is not None:
        return ours(settings, [first, *rest])
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    command = arguments[len(words) + 1 :]
    asked = parser().parse_args(words)
    return _ACTIONS[asked.command](settings, asked, command)


def parser() -> argparse.ArgumentParser:
    """The parser of users' commands."""
    made = argparse.ArgumentParser(NAME, _USAGE, "Run containers with roles on a private network, as a Slurm job.")
    made.add_argument("command", choices=sorted(_ACTIONS))
    made.add_argument(
        "name",
        nargs="?",
        default="",
        help="start: the file that describes the session; otherwise: the name of a session; "
        "show without a name: the last ten that have ended",
    )
    made.add_argument("container", nargs="?", default=f"{specs.MAIN}1", help="enter: the container (default: main1)")
    made.add_argument("--detach", action="store_true", help="start: return as soon as the session is submitted")
    made.add_argument("--dry-run", action="store_true", help="start: check everything without submitting anything")
    made.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="IMAGE",
        help="images: remove this image from this node, by its name in a session's file or its ID; 'all' removes each",
    )
    return made


def _job() -> int:
    """The job of a task."""
    return int(os.environ["SLURM_JOB_ID"])


def _task(work: Any) -> int:
    try:
        return int(work())
    except GpumeshError as failure:
        # One line, which is also the reason in the comment of the job.
        complain(f"{NAME}: {' '.join(str(failure).split())}")
        return failure.status if isinstance(failure, container.ContainerError) else 1


# --- For Slurm, and for what this program itself starts. Each has its verb and what comes after it.


def _prolog(settings: Settings, _words: Sequence[str]) -> int:
    node.prolog(run_command, settings, os.environ)
    return 0


def _epilog(_settings: Settings, _words: Sequence[str]) -> int:
    node.epilog(run_command, os.environ)
    return 0


def _guard(settings: Settings, _words: Sequence[str]) -> int:
    node.guard(run_command)
    if settings.machine == settings.manager:
        node.in_background(run_command, "publish")
    return 0


def _publish(_settings: Settings, _words: Sequence[str]) -> int:
    forward.resume(run_command, PATH)
    return 0


def _watch(settings: Settings, _words: Sequence[str]) -> int:
    node.watch(run_command, settings)
    return 0


def _supervise(_settings: Settings, words: Sequence[str]) -> int:
    word, ours = sys.stdin.read(), os.path.abspath(sys.argv[0])
    return supervise.Batch(run_command, ours, word, os.environ, words[1]).work()


def _prepare(settings: Settings, _words: Sequence[str]) -> int:
    word, _line, key = sys.stdin.read().partition("\n")
    return _task(lambda: container.prepare(run_command, word, _job(), settings, key))


def _container(settings: Settings, words: Sequence[str]) -> int:
    return _task(lambda: container.run_container(run_command, _job(), int(words[1]), settings))


def _await(settings: Settings, _words: Sequence[str]) -> int:
    return _task(lambda: container.await_all(run_command, _job(), settings))


def _inside(settings: Settings, words: Sequence[str]) -> int:
    number, local = int(words[1]), int(words[2])
    return container.enter(run_command, number, local, settings, words[3:], sys.stdin.isatty())


def _login(settings: Settings, words: Sequence[str]) -> int:
    """The request of an ssh login is in the environment."""
    given = os.environ.get("SSH_ORIGINAL_COMMAND")
    return _inside(settings, [*words, *(("/bin/sh", "-c", given) if given else _SHELL)])


def _offer(settings: Settings, words: Sequence[str]) -> int:
    return _task(lambda: container.offer(words[0], int(words[1]), int(words[2]), settings.storage))


def _forward(settings: Settings, words: Sequence[str]) -> int:
    return forward.keep(run_command, PATH, int(words[1]), words[2:], settings)


_INTERNAL: Mapping[str, Callable[[Settings, Sequence[str]], int]] = {
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
    "key": _offer,
    "daemon": _offer,
    "forward": _forward,
}


# --- For users


def read_file(path: str) -> Any:
    """A session's file, in JSON or YAML. Raises InputError."""
    try:
        text = sys.stdin.read() if path == "-" else read_text(path)
    except HostStateError as failure:
        raise InputError(failure.message, failure.remedy) from failure
    if text is None:
        raise InputError(f"There is no file {path}.", "Give the file that describes the session.")
    try:
        return json.loads(text)
    except ValueError:
        done = run_command(["/usr/bin/python3", "-I", "-c", _READ_YAML], stdin=text, check=False)
        if done.rc:
            last = (done.stderr.strip().splitlines() or ["it is not YAML"])[-1]
            raise InputError(f"{path} cannot be read: {last}.", "Write it in YAML or JSON.") from None
        return json.loads(done.stdout)


def _start(settings: Settings, given: argparse.Namespace, _command: Sequence[str]) -> int:
    if not given.name:
        raise InputError("There is no file.", "Give the file that describes the session: gpumesh-session start FILE")
    spec = specs.parse(read_file(given.name))
    if given.dry_run:
        sessions.refuse(run_command, PATH, spec, settings)
        return 0
    started = sessions.start(run_command, PATH, spec, settings)
    say(f"{spec.name}: job {started.job}, log {started.log}")
    return 0 if given.detach else _follow(spec, started, settings)


def _follow(spec: Spec, started: sessions.Started, settings: Settings) -> int:
    shown, spacing = "", _SOON
    while True:
        found = job.follow(run_command, started.job)
        why = sessions.failure(found)
        if why:
            remedy = sessions.where_to_look(started.log, found.host if found else "")
            raise HostStateError(f"The session '{spec.name}' has failed: {why}", remedy)
        line = sessions.line(found, spec.name)
        if line != shown:
            shown = line
            say(line)
            sys.stdout.flush()
        if found is not None and found.stage == job.RUNNING and spec.ports:
            if not forward.started(spec.ports, settings):
                raise HostStateError(f"The ports of the session '{spec.name}' are not forwarded.", "Start it again.")
            for shown_port in forward.shown(spec, settings):
                say(shown_port)
        if found is None or found.over or found.stage == job.RUNNING:
            return 0
        time.sleep(spacing)
        spacing = min(_FOLLOW, spacing * 1.2)


def _list(_settings: Settings, _given: argparse.Namespace, _command: Sequence[str]) -> int:
    for found in job.queue(run_command):
        say(f"{found.user}  {sessions.line(found, found.token.name)}")
    return 0


def _show(settings: Settings, given: argparse.Namespace, _command: Sequence[str]) -> int:
    found = job.own(run_command, given.name) if given.name else None
    if found is None:
        return _show_ended(settings, given.name)
    say(sessions.line(found, given.name))
    if found.nodes:
        for one in job.containers(found, settings):
            say(f"{one.name:<20} {one.address:<16} {one.node}")
    log = job.log(run_command, found)
    if log and found.host:
        say(f"log {log} on {found.host}")
    return 0


def _show_ended(settings: Settings, name: str) -> int:
    """The last ones; of a name, the last one."""
    found = sessions.ended(run_command, settings, name)
    if name and not found:
        job.named(run_command, name)
    for one in found[:1] if name else found:
        for line in sessions.ended_lines(one):
            say(line)
    return 0


def _images(settings: Settings, given: argparse.Namespace, _command: Sequence[str]) -> int:
    if given.remove:
        for line in images.remove(run_command, settings, given.remove):
            say(line)
        return 0
    for one in images.listed(run_command, settings):
        say(f"{one.identifier[:12]}  {one.size:>10}  {', '.join(one.names) or 'without a name'}")
    return 0


def _stop(_settings: Settings, given: argparse.Namespace, _command: Sequence[str]) -> int:
    job.cancel(run_command, job.named(run_command, given.name).job)
    return 0


def _enter(settings: Settings, given: argparse.Namespace, command: Sequence[str]) -> int:
    found = job.named(run_command, given.name)
    session = job.containers(found, settings)
    wanted = [one for one in session if one.name == given.container]
    if not wanted:
        names = ", ".join(one.name for one in session)
        raise InputError(f"The session '{given.name}' has no container '{given.container}'.", f"It has {names}.")
    terminal = sys.stdin.isatty()
    argv = _enters(found.job, wanted[0], command or _SHELL, terminal)
    with Process(argv, env=job.clean_environment(wanted[0].local)) as process:
        return process.wait()


def _enters(number: int, one: Container, words: Sequence[str], terminal: bool) -> List[str]:
    """srun that runs a command in a container."""
    return [*job.beside(number, one, terminal), PATH, "inside", str(number), str(one.local), *words]


def _run(settings: Settings, given: argparse.Namespace, command: Sequence[str]) -> int:
    if not command:
        raise InputError("There is no command.", "Give it after '--'.")
    found = job.named(run_command, given.name)
    session = job.containers(found, settings)
    running = []
    for one in session:
        argv = _enters(found.job, one, command, False)
        process = Process(
            argv,
            env=job.clean_environment(one.local),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        running.append((one.name, process))
    unread: List[str] = []
    readers = [threading.Thread(target=_copy, args=(*pair, unread)) for pair in running]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    # A process ended by a signal has a negative status.
    status = max(abs(process.wait()) for _name, process in running)
    if unread:
        raise BrokenPipeError
    return status


def _copy(name: str, process: Process, unread: List[str]) -> None:
    """Print what a command prints. Where nobody reads on, as with head, it is ended, and its name added to ``unread``."""
    source: Any = process.stdout
    with source:
        try:
            for text in limited.lines(source):
                say(f"{name}: {untyped(text.rstrip())}")
            sys.stdout.flush()
        except BrokenPipeError:
            unread.append(name)
            process.terminate()


_ACTIONS: Mapping[str, Callable[[Settings, argparse.Namespace, Sequence[str]], int]] = {
    "start": _start,
    "list": _list,
    "show": _show,
    "enter": _enter,
    "run": _run,
    "stop": _stop,
    "images": _images,
}
