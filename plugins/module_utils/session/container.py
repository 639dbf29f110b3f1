# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks of a session on its nodes: fetch the images, run a container, enter one. As the job's user, with podman."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import own_name
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Process, Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, write_all, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.owned_folder import owned
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import environment, node, ssh
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.job import decode
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import NAME as PROGRAM
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container, Role

#: The name of the only container in each of our podman stores.
NAME = "session"
_PID, _ENDED, _SPEC = "pid", "ended", "spec"
_LOCAL = ("oci-archive:", "docker-archive:", "oci:", "dir:")
_QUIET = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
#: Seconds until a container of a running session can be entered, and for one image.
_PATIENCE = 60.0
#: Seconds for the containers of a node to start.
_START = 300.0
_LONGEST_TAIL = 4096
#: Variables by which podman, or a program that it starts, finds its files and its programs.
_HEEDED = re.compile(
    r"PATH|HOME|TMPDIR|NOTIFY_SOCKET|DBUS_SESSION_BUS_ADDRESS|LD_(AUDIT|LIBRARY_PATH|PRELOAD)|STORAGE_(DRIVER|OPTS)"
    r"|XDG_(RUNTIME_DIR|[A-Z]+_HOME)|CONTAINERS?_(CONF|CONF_OVERRIDE|CONNECTION|HELPER_BINARY_DIR|HOST|[A-Z]+_CONF)"
)
_PULL = 7200.0
_SUBUID = "/etc/subuid"
_LIMIT = "/proc/sys/user/max_user_namespaces"
_CDI = ("/etc/cdi", "/var/run/cdi")
_CDI_KIND = "nvidia.com/gpu"


class Place(NamedTuple):
    """The directories of one container. ``images``: the store of all sessions of the user on this node."""

    run: str
    storage: str
    images: str


class ContainerError(HostStateError):
    """A container ended with its own exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def place_of(job: int, local: int, storage: str) -> Place:
    """The place of a container. ``storage``: the setting, with {user}."""
    base = os.path.normpath(storage.replace("{user}", own_name()))
    return Place(f"{node.folder(job)}/{local}", f"{node.storage(job)}/{local}", f"{base}/images")


def images_command(images: str) -> List[str]:
    """podman with the store of images, which shares no directory: podman remembers them."""
    folders = ["--root", images, "--runroot", f"{images}-run", "--tmpdir", f"{images}-tmp"]
    return ["podman", "--log-level=error", "--cgroup-manager=cgroupfs", "--events-backend=file", *folders]


def command(place: Place) -> List[str]:
    """podman with the store of one container. The images come from the user's store."""
    folders = ["--root", f"{place.storage}/root", "--runroot", f"{place.run}/podman"]
    folders += ["--storage-opt", f"overlay.imagestore={place.images}"]
    return ["podman", "--log-level=error", "--cgroup-manager=cgroupfs", "--events-backend=file", *folders]


def podman_environment(folder: str) -> Dict[str, str]:
    """podman keeps the namespaces of the first container that it runs from a folder, so each container has its own."""
    # By the bus of a user who has logged in, podman would have their systemd take it out of the control group of the
    # step, and so from the limits and the end of the job.
    return {**_QUIET, "XDG_RUNTIME_DIR": folder, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={folder}/no-bus"}


def reference(image: str) -> str:
    """The image as podman pulls it: files and directories with their transport."""
    return image if image.startswith((*_LOCAL, "docker://")) else f"docker://{image}"


def run_arguments(
    role: Role, own: Container, place: Place, image: str, variables: Mapping[str, str], gpus: Sequence[str]
) -> List[str]:
    """The arguments of podman to run the container. ``image``: its identifier. Most variables are in the environment."""
    mounts = [f"{place.run}/hosts:/etc/hosts:ro", f"{place.run}/hostfile:/etc/gpumesh-hostfile:ro"]
    mounts += [
        f"{place.run}/resolv.conf:/etc/resolv.conf:ro",
        *(ssh.mounts(place.run) if own.vni else ()),
        *role.mounts,
    ]
    in_order = sorted(variables.items())
    words = [
        "run",
        "--rm",
        f"--name={NAME}",
        f"--pidfile={place.run}/{_PID}",
        "--network=host",
        "--uts=private",
        f"--hostname={own.name}",
        "--cgroups=disabled",
    ]
    # A check that an image brings would be a timer of the user's systemd: outside of the job, or an error without one.
    words += ["--no-hosts", "--pull=never", "--log-driver=none", "--security-opt=label=disable", "--no-healthcheck"]
    words += [f"--volume={one}" for one in mounts]
    words += [f"--device={_CDI_KIND}={gpu}" for gpu in gpus]
    # Values are in the environment of podman and in no list of processes, but for those that podman itself would heed.
    words += [f"--env={name}={text}" if _HEEDED.fullmatch(name) else f"--env={name}" for name, text in in_order]
    if role.command:
        return [*words, image, *role.command]
    return [*words, "--init", "--entrypoint=sleep", image, "infinity"]


def own_gpus(variables: Mapping[str, str], count: int) -> List[str]:
    """The GPUs that Slurm has given the step on this node, which runs one container here. Raises HostStateError."""
    given = [word for word in variables.get("SLURM_STEP_GPUS", "").split(",") if word] if count else []
    if len(given) != count:
        raise HostStateError(f"Slurm has given {len(given)} GPUs to a container that asks for {count}.")
    return given


# --- On a node


def prepare(run: Runner, word: str, job: int, storage: str, key: str) -> int:
    """Refuse what could not run here, and fetch the images; the exit status. ``word``: the session, which is kept for its
    containers. ``key``: its own. Raises GpumeshError."""
    spec, plan = decode(word), node.read_plan(job)
    here = [one for one in _containers(plan) if one.name in plan["here"]]
    for one in here:
        folder = place_of(job, one.local, storage).run
        write_atomic(f"{folder}/{_SPEC}", word, 0o600)
        if key:
            write_atomic(f"{folder}/{ssh.KEY}", key, 0o600)
    roles = [spec.role(one.role) for one in here]
    _refuse_unfit(roles)
    place = place_of(job, here[0].local, storage)
    images, variables = place.images, podman_environment(f"{place.run}/fetch")
    # podman creates it only if the directory of the state is the same.
    os.makedirs(f"{variables['XDG_RUNTIME_DIR']}/libpod/tmp", mode=0o700, exist_ok=True)
    # Anyone who can write there can run anything as this user.
    os.close(owned(os.path.dirname(images), "session_storage_dir", 0o022))
    for image in sorted({role.image for role in roles}):
        if not _identifier(run, images_command(images), image, variables)[0]:
            _say(f"fetching {image}")
            argv = [*images_command(images), "pull", "--quiet", reference(image)]
            pulled = run(argv, timeout=_PULL, environment=variables, check=False)
            if pulled.rc:
                raise HostStateError(
                    f"The image {image} cannot be fetched on {os.uname().nodename}: {_last_line(pulled.stderr)}",
                    "Correct its name.",
                )
            run([*images_command(images), "tag", pulled.stdout.split()[-1], _alias(image)], environment=variables)
    return 0


def _alias(image: str) -> str:
    """A name for an image of any kind, so that it is found again."""
    return f"localhost/{PROGRAM}/{hashlib.sha256(image.encode('utf-8')).hexdigest()[:32]}:latest"


def _identifier(run: Runner, podman: Sequence[str], image: str, variables: Mapping[str, str]) -> Tuple[str, str]:
    """Of an image that is there, and as whom its command runs. One that has a tag of its own may be another one by now:
    only digests are kept."""
    argv = [*podman, "image", "inspect", "--format={{.Id}} {{.User}}", _alias(image)]
    done = run(argv, check=False, environment=dict(variables))
    identifier, _space, user = done.stdout.strip().partition(" ") if not done.rc else ("", "", "")
    return identifier, user


def _refuse_unfit(roles: Sequence[Role]) -> None:
    here, user = os.uname().nodename, own_name()
    if find("podman") is None:
        raise HostStateError(f"{here} has no podman.", "Run the role session on this node.")
    limit = read_text(_LIMIT) or ""
    if limit.strip() == "0":
        raise HostStateError(f"{here} has no user namespaces.", "Set the kernel's user.max_user_namespaces.")
    # Either is right; subuid(5).
    lines = (read_text(_SUBUID) or "").splitlines()
    if not any(line.startswith((f"{user}:", f"{os.geteuid()}:")) for line in lines):
        raise HostStateError(
            f"{here}: {user} has no subordinate user ids.",
            f"Have root run: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}",
        )
    if any(role.gpus for role in roles) and not _describes_gpus():
        raise HostStateError(
            f"{here} has no description of its GPUs for containers.",
            "Install nvidia-container-toolkit, and run: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    for role in roles:
        for mount in role.mounts:
            if not os.path.exists(mount.split(":")[0]):
                raise HostStateError(f"{here} has no {mount.split(':')[0]}.", "Mount what is there on all nodes.")


def _describes_gpus() -> bool:
    """Whether a file is about NVIDIA's GPUs: there may be others, of other devices."""
    files = (f"{top}/{name}" for top in _CDI if os.path.isdir(top) for name in os.listdir(top))
    return any(path.endswith((".yaml", ".json")) and _CDI_KIND in (read_text(path) or "") for path in files)


def run_container(run: Runner, job: int, local: int, storage: str) -> int:
    """Run the container of this task until it ends; its exit status. Raises GpumeshError."""
    plan, place = node.read_plan(job), place_of(job, local, storage)
    session, spec = _containers(plan), decode(read_text(f"{place.run}/{_SPEC}") or "")
    own = next(one for one in session if one.name in plan["here"] and one.local == local)
    role = spec.role(own.role)
    gpus = {one.name: one.gpus for one in spec.roles}
    model, settings = environment.load(), environment.read_settings()
    variables = environment.variables(model, plan["job"], session, own, gpus, settings, "/etc/gpumesh-hostfile")
    variables.update(role.env)
    resolv = read_text("/run/systemd/resolve/resolv.conf") or read_text("/etc/resolv.conf")
    files = {
        "hosts": environment.hosts(session),
        "hostfile": environment.hostfile(session, gpus),
        "resolv.conf": environment.resolvers(resolv),
    }
    for name, text in files.items():
        write_atomic(f"{place.run}/{name}", text, 0o644)
    image, user = _identifier(run, command(place), role.image, podman_environment(place.run))
    if not image:
        raise HostStateError(f"The image {role.image} is not on {own.node}.", "Start the session again.")
    given = own_gpus(os.environ, role.gpus)
    podman, *words = [*command(place), *run_arguments(role, own, place, image, variables, given)]
    with contextlib.ExitStack() as stack:
        if own.vni:
            daemon = stack.enter_context(Process(_login(run, place, own, session, job, user), stdin=subprocess.DEVNULL))
            stack.callback(daemon.terminate)
        handed_on = {name: text for name, text in variables.items() if not _HEEDED.fullmatch(name)}
        process = Process(
            [find(podman) or podman, *words],
            env={**os.environ, **handed_on, **podman_environment(place.run)},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
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


def _login(run: Runner, place: Place, own: Container, session: Sequence[Container], job: int, user: str) -> List[str]:
    """The daemon by which the other containers enter this one, with its files. ``user``: of the image."""
    key = f"{place.run}/{ssh.KEY}"
    private, public = read_text(key), ssh.public_half(run, key)
    os.makedirs(f"{place.run}/{ssh.CLIENT}", mode=0o755, exist_ok=True)
    command_of = f"{os.path.abspath(sys.argv[0])} login {job} {own.local}"
    texts = ssh.files(own, session, place.run, command_of, own_name(), private or "", public)
    for name, text in texts.items():
        # ssh refuses a key of the user's own that others can read. Another user inside could not read it else.
        own_key = name.endswith(f"/{ssh.KEY}") and user.partition(":")[0] in ("", "0", "root")
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
    return _last_line(tail.decode("utf-8", "replace"))


def _last_line(text: str) -> str:
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it has printed no error")
    return f"{last.rstrip('.')}."


def await_all(run: Runner, job: int, storage: str) -> int:
    """Wait until each container of this node runs, or has ended; the exit status. Raises HostStateError."""
    plan = node.read_plan(job)
    waiting = {one.name: place_of(job, one.local, storage) for one in _containers(plan) if one.name in plan["here"]}
    end = time.monotonic() + _START
    while True:
        waiting = {name: place for name, place in waiting.items() if not _started(run, place)}
        if not waiting:
            return 0
        if time.monotonic() > end:
            names = ", ".join(waiting)
            raise HostStateError(
                f"{names} on {os.uname().nodename} did not start within {_START:g} s.", "See the log of the session."
            )
        time.sleep(0.2)


def _started(run: Runner, place: Place) -> bool:
    if os.path.exists(f"{place.run}/{_ENDED}"):
        return True
    # podman writes it shortly before the container runs, and querying podman costs more.
    return os.path.exists(f"{place.run}/{_PID}") and _runs(run, place)


def enter(run: Runner, job: int, local: int, storage: str, words: Sequence[str], terminal: bool) -> int:
    """Run a command in the container, which may still be starting; its exit status. Raises GpumeshError."""
    place = place_of(job, local, storage)
    end = time.monotonic() + _PATIENCE
    variables = podman_environment(place.run)
    while not os.path.exists(f"{place.run}/hosts") or not _runs(run, place):
        if time.monotonic() > end:
            raise HostStateError("The container does not run.", "See the log of the session: gpumesh-session show.")
        time.sleep(0.5)
    options = ["--interactive", "--tty"] if terminal else ["--interactive"]
    argv = [*command(place), "exec", *options, NAME, *words]
    with Process(argv, env={**os.environ, **variables}) as process:
        return process.wait()


def offer(what: str, job: int, local: int, storage: str) -> int:
    """For ssh from outside, through a step of the job: print the session's key, or be the daemon of this container."""
    run_folder = place_of(job, local, storage).run
    if what == "key":
        sys.stdout.write(read_text(f"{run_folder}/{ssh.KEY}") or "")
        return 0
    with Process([find("sshd") or "/usr/sbin/sshd", "-i", "-e", "-f", f"{run_folder}/{ssh.SERVER}"]) as process:
        return process.wait()


def _runs(run: Runner, place: Place) -> bool:
    argv = [*command(place), "inspect", "--format={{.State.Running}}", NAME]
    return run(argv, check=False, environment=podman_environment(place.run)).stdout.strip() == "true"


def _containers(plan: Mapping[str, Any]) -> List[Container]:
    return [Container(**one) for one in plan["containers"]]


def _say(text: str) -> None:
    sys.stdout.write(f"{os.uname().nodename}: {text}\n")
    sys.stdout.flush()
