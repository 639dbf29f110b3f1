# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks of a session on its nodes: fetch the images, run a container, enter one. As the job's user."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import Any, List, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import own_name
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Process, Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, write_all, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.owned_folder import owned
from ansible_collections.gpumesh.cluster.plugins.module_utils.program import say
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import environment, node, ssh
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.job import decode
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.runtime import (
    HOSTFILE,
    PROGRAMS,
    Place,
    Start,
    Task,
    last_line,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.runtime_podman import Podman
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container, Role, Settings

_ENDED, _SPEC = "ended", "spec"
#: Seconds until a container of a running session can be entered.
_PATIENCE = 60.0
#: Seconds for the containers of a node to start.
_START = 300.0
_LONGEST_TAIL = 4096
_LIMIT = "/proc/sys/user/max_user_namespaces"


class ContainerError(HostStateError):
    """A container ended with its own exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def place_of(job: int, local: int, storage: str) -> Place:
    """The place of a container. ``storage``: the setting, with {user}."""
    return Place(f"{node.folder(job)}/{local}", f"{node.storage(job)}/{local}", image_store(storage))


def image_store(storage: str) -> str:
    """The user's store of images on this node."""
    return f"{os.path.normpath(storage.replace('{user}', own_name()))}/images"


def own_gpus(variables: Mapping[str, str], count: int) -> List[str]:
    """The GPUs that Slurm has given the step on this node, which runs one container here. Raises HostStateError."""
    given = [word for word in variables.get("SLURM_STEP_GPUS", "").split(",") if word] if count else []
    if len(given) != count:
        raise HostStateError(f"Slurm has allocated {len(given)} GPUs to a container that requests {count}.")
    return given


# --- On a node


def prepare(run: Runner, word: str, job: int, settings: Settings, key: str) -> int:
    """Refuse what could not run here, and fetch the images; the exit status. ``word``: the session, which is kept for its
    containers. ``key``: its own. Raises GpumeshError."""
    spec, plan, podman = decode(word), node.read_plan(job), Podman(run)
    here = [one for one in _containers(plan) if one.name in plan["here"]]
    for one in here:
        folder = place_of(job, one.local, settings.storage).run
        write_atomic(f"{folder}/{_SPEC}", word, 0o600)
        if key:
            write_atomic(f"{folder}/{ssh.KEY}", key, 0o600)
    roles = [spec.role(one.role) for one in here]
    _refuse_unfit(roles)
    podman.refuse_unfit(roles)
    place = place_of(job, here[0].local, settings.storage)
    # Anyone who can write there can run anything as this user.
    os.close(owned(os.path.dirname(place.images), "session_storage_dir", 0o022))
    for image in sorted({role.image for role in roles}):
        if not podman.has(place, image):
            _say(f"fetching {image}")
            podman.fetch(place, image)
    return 0


def _refuse_unfit(roles: Sequence[Role]) -> None:
    here = os.uname().nodename
    lacking = [program for program in PROGRAMS if find(program) is None]
    if lacking:
        raise HostStateError(f"{here} has no {lacking[0]}.", "Run the role session on this node.")
    limit = read_text(_LIMIT) or ""
    if limit.strip() == "0":
        raise HostStateError(f"{here} has no user namespaces.", "Set the kernel's user.max_user_namespaces.")
    for role in roles:
        for mount in role.mounts:
            if not os.path.exists(mount.split(":")[0]):
                raise HostStateError(f"{here} has no {mount.split(':')[0]}.", "Mount or create it on all nodes.")


def run_container(run: Runner, job: int, local: int, settings: Settings) -> int:
    """Run the container of this task until it ends; its exit status. Raises GpumeshError."""
    plan, place = node.read_plan(job), place_of(job, local, settings.storage)
    podman = Podman(run)
    session, spec = _containers(plan), decode(read_text(f"{place.run}/{_SPEC}") or "")
    own = next(one for one in session if one.name in plan["here"] and one.local == local)
    role = spec.role(own.role)
    gpus = {one.name: one.gpus for one in spec.roles}
    model, given = environment.load(), environment.read_settings()
    variables = environment.variables(model, plan["job"], session, own, gpus, given, HOSTFILE)
    variables.update(role.env)
    resolv = read_text("/run/systemd/resolve/resolv.conf") or read_text("/etc/resolv.conf")
    files = {
        "hosts": environment.hosts(session),
        "hostfile": environment.hostfile(session, gpus),
        "resolv.conf": environment.resolvers(resolv),
    }
    for name, text in files.items():
        write_atomic(f"{place.run}/{name}", text, 0o644)
    image = podman.find(place, role.image)
    if image is None:
        raise HostStateError(f"The image {role.image} is not on {own.node}.", "Start the session again.")
    # Its files are among the mounts.
    login = _login(run, place, own, session, job, image.own) if own.vni else []
    begin = podman.start(Task(job, role, own, place, variables, own_gpus(os.environ, role.gpus)), image)
    with contextlib.ExitStack() as stack:
        if login:
            daemon = stack.enter_context(_process(Start(login, dict(os.environ)), stdin=subprocess.DEVNULL))
            stack.callback(daemon.terminate)
        process = _process(begin, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        source: Any = stack.enter_context(process).stderr
        last = _pass_on(source.fileno())
        status = process.wait()
    if status:
        raise ContainerError(f"{own.name} on {own.node} ended with status {status}: {last}", status)
    write_atomic(f"{place.run}/{_ENDED}", "", 0o600)
    if own.rank:
        # The session continues as long as its first container, and ends with the first step.
        while True:
            time.sleep(3600)
    return status


def _process(begin: Start, **streams: Any) -> Process:
    """Start a command."""
    name, *words = begin.argv
    return Process([find(name) or name, *words], env=begin.environment, **streams)


def _login(
    run: Runner, place: Place, own: Container, session: Sequence[Container], job: int, as_user: bool
) -> List[str]:
    """The daemon by which the other containers enter this one, with its files. ``as_user``: whether programs in it run as
    the user of the session."""
    key = f"{place.run}/{ssh.KEY}"
    private, public = read_text(key), ssh.public_half(run, key)
    os.makedirs(f"{place.run}/{ssh.CLIENT}", mode=0o755, exist_ok=True)
    command_of = f"{os.path.abspath(sys.argv[0])} login {job} {own.local}"
    texts = ssh.files(own, session, place.run, command_of, own_name(), private or "", public)
    for name, text in texts.items():
        # ssh refuses a key of the user's own that others can read. Another user inside could not read it else.
        own_key = name.endswith(f"/{ssh.KEY}") and as_user
        write_atomic(f"{place.run}/{name}", text, 0o600 if own_key else 0o644)
    return [find("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", f"{place.run}/{ssh.SERVER}"]


def _pass_on(source: int) -> str:
    """Copy the standard error of a container or podman until its end; its last line."""
    tail = b""
    while True:
        chunk = os.read(source, _LONGEST_TAIL)
        if not chunk:
            break
        tail = (tail + chunk)[-_LONGEST_TAIL:]
        write_all(2, chunk)
    return last_line(tail.decode("utf-8", "replace"))


def await_all(run: Runner, job: int, settings: Settings) -> int:
    """Wait until each container of this node runs, or has ended; the exit status. Raises HostStateError."""
    plan, podman = node.read_plan(job), Podman(run)
    here = [one for one in _containers(plan) if one.name in plan["here"]]
    waiting = {one.name: place_of(job, one.local, settings.storage) for one in here}
    end = time.monotonic() + _START
    while True:
        waiting = {name: place for name, place in waiting.items() if not _started(podman, place)}
        if not waiting:
            return 0
        if time.monotonic() > end:
            names = ", ".join(waiting)
            raise HostStateError(
                f"{names} on {os.uname().nodename} did not start within {_START:g} s.", "See the log of the session."
            )
        time.sleep(0.2)


def _started(podman: Podman, place: Place) -> bool:
    return os.path.exists(f"{place.run}/{_ENDED}") or podman.runs(place)


def enter(run: Runner, job: int, local: int, settings: Settings, words: Sequence[str], terminal: bool) -> int:
    """Run a command in the container, which may still be starting; its exit status. Raises GpumeshError."""
    place, podman = place_of(job, local, settings.storage), Podman(run)
    end = time.monotonic() + _PATIENCE
    while not podman.runs(place):
        if time.monotonic() > end:
            raise HostStateError(
                "The container is not running.", "See the log of the session, which gpumesh-session show names."
            )
        time.sleep(0.5)
    with _process(podman.enter(place, words, terminal)) as process:
        return process.wait()


def offer(what: str, job: int, local: int, storage: str) -> int:
    """For ssh from outside, through a step of the job: print the session's key, or be the daemon of this container."""
    run_folder = place_of(job, local, storage).run
    if what == "key":
        sys.stdout.write(read_text(f"{run_folder}/{ssh.KEY}") or "")
        return 0
    with Process([find("sshd") or "/usr/sbin/sshd", "-i", "-e", "-f", f"{run_folder}/{ssh.SERVER}"]) as process:
        return process.wait()


def _containers(plan: Mapping[str, Any]) -> List[Container]:
    return [Container(**one) for one in plan["containers"]]


def _say(text: str) -> None:
    say(f"{os.uname().nodename}: {text}")
    sys.stdout.flush()
