# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks of a session on its nodes, as the job's user: fetch the images, run a container, enter one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import Any, List, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import current_user_name
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import print_line
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import ChildProcess, Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, write_all, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.private_dir import open_private_dir
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import environment, node, ssh
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.job import decode_spec
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    Container,
    Role,
    SessionSettings,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.runtime import (
    HOSTFILE,
    REQUIRED_PROGRAMS,
    ContainerPaths,
    ContainerTask,
    StartCommand,
    last_line,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.runtime_podman import Podman

_ENDED_FILE, _SPEC_FILE = "ended", "spec"
#: The timeout, in seconds, until a container of a running session can be entered.
_ENTER_TIMEOUT = 60.0
#: The timeout, in seconds, for the containers of a node to start.
_START_TIMEOUT = 300.0
_TAIL_BYTES = 4096
_USER_NAMESPACE_LIMIT = "/proc/sys/user/max_user_namespaces"


class ContainerError(HostStateError):
    """A container ended with its own exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def locate_container(job: int, local_index: int, storage_template: str) -> ContainerPaths:
    """Return the directories of a container. ``storage_template``: the setting, with {user}."""
    return ContainerPaths(
        f"{node.job_directory(job)}/{local_index}",
        f"{node.storage_directory(job)}/{local_index}",
        image_store(storage_template),
    )


def image_store(storage_template: str) -> str:
    """Return the user's image store on this node."""
    return f"{os.path.normpath(storage_template.replace('{user}', current_user_name()))}/images"


def allocated_gpus(step_variables: Mapping[str, str], gpu_count: int) -> List[str]:
    """Return the GPUs that Slurm has allocated to the step on this node, where it runs one container.

    Raises HostStateError.
    """
    gpu_indexes = (
        [index for index in step_variables.get("SLURM_STEP_GPUS", "").split(",") if index] if gpu_count else []
    )
    if len(gpu_indexes) != gpu_count:
        raise HostStateError(f"Slurm has allocated {len(gpu_indexes)} GPUs to a container that requests {gpu_count}.")
    return gpu_indexes


# --- On a node


def prepare(run: Runner, encoded_spec: str, job: int, settings: SessionSettings, session_key: str) -> int:
    """Refuse what cannot run on this node, and fetch the images. Returns the exit status. Raises GpumeshError.

    ``encoded_spec``: the session, which is stored for its containers. ``session_key``: its private ssh key.
    """
    spec, plan, podman = decode_spec(encoded_spec), node.read_plan(job), Podman(run)
    local_containers = [container for container in _parse_containers(plan) if container.name in plan["here"]]
    for container in local_containers:
        run_directory = locate_container(job, container.local, settings.storage).run_directory
        write_atomic(f"{run_directory}/{_SPEC_FILE}", encoded_spec, 0o600)
        if session_key:
            write_atomic(f"{run_directory}/{ssh.KEY_FILE}", session_key, 0o600)
    local_roles = [spec.role(container.role) for container in local_containers]
    _refuse_unfit(local_roles)
    podman.refuse_unfit(local_roles)
    paths = locate_container(job, local_containers[0].local, settings.storage)
    # Anyone who can write to the image store can run anything as this user.
    os.close(open_private_dir(os.path.dirname(paths.image_store), "session_storage_dir", 0o022))
    for image in sorted({role.image for role in local_roles}):
        if not podman.has_image(paths, image):
            _print_progress(f"fetching {image}")
            podman.fetch_image(paths, image)
    return 0


def _refuse_unfit(roles: Sequence[Role]) -> None:
    node_name = os.uname().nodename
    missing_programs = [program for program in REQUIRED_PROGRAMS if find_program(program) is None]
    if missing_programs:
        raise HostStateError(f"{node_name} has no {missing_programs[0]}.", "Run the role session on this node.")
    namespace_limit = read_text(_USER_NAMESPACE_LIMIT) or ""
    if namespace_limit.strip() == "0":
        raise HostStateError(f"{node_name} has no user namespaces.", "Set the kernel's user.max_user_namespaces.")
    for role in roles:
        for mount in role.mounts:
            if not os.path.exists(mount.split(":")[0]):
                raise HostStateError(f"{node_name} has no {mount.split(':')[0]}.", "Mount or create it on all nodes.")


def run_container(run: Runner, job: int, local_index: int, settings: SessionSettings) -> int:
    """Run the container of this task until it ends. Returns its exit status. Raises GpumeshError."""
    plan, paths = node.read_plan(job), locate_container(job, local_index, settings.storage)
    podman = Podman(run)
    containers, spec = _parse_containers(plan), decode_spec(read_text(f"{paths.run_directory}/{_SPEC_FILE}") or "")
    container = next(
        candidate for candidate in containers if candidate.name in plan["here"] and candidate.local == local_index
    )
    role = spec.role(container.role)
    gpus_by_role = {candidate.name: candidate.gpus for candidate in spec.roles}
    model, settings_text = environment.load_model(), environment.read_settings()
    variables = environment.build_variables(
        model, plan["job"], containers, container, gpus_by_role, settings_text, HOSTFILE
    )
    variables.update(role.env)
    resolver_config = read_text("/run/systemd/resolve/resolv.conf") or read_text("/etc/resolv.conf")
    texts_by_file = {
        "hosts": environment.format_hosts(containers),
        "hostfile": environment.format_hostfile(containers, gpus_by_role),
        "resolv.conf": environment.filter_resolvers(resolver_config),
    }
    for file_name, file_text in texts_by_file.items():
        write_atomic(f"{paths.run_directory}/{file_name}", file_text, 0o644)
    image = podman.find_image(paths, role.image)
    if image is None:
        raise HostStateError(f"The image {role.image} is not on {container.node}.", "Start the session again.")
    # The files of the ssh daemon are among the mounts, so they are written before the container starts.
    login_command = (
        _login_daemon_command(run, paths, container, containers, job, image.runs_as_user) if container.vni else []
    )
    start_command = podman.start_command(
        ContainerTask(job, role, container, paths, variables, allocated_gpus(os.environ, role.gpus)), image
    )
    with contextlib.ExitStack() as stack:
        if login_command:
            login_daemon = stack.enter_context(
                _start_process(StartCommand(login_command, dict(os.environ)), stdin=subprocess.DEVNULL)
            )
            stack.callback(login_daemon.terminate)
        process = _start_process(start_command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        stderr_stream: Any = stack.enter_context(process).stderr
        final_line = _copy_stderr(stderr_stream.fileno())
        exit_status = process.wait()
    if exit_status:
        raise ContainerError(
            f"{container.name} on {container.node} ended with status {exit_status}: {final_line}", exit_status
        )
    write_atomic(f"{paths.run_directory}/{_ENDED_FILE}", "", 0o600)
    if container.rank:
        # The session runs as long as its first container: when the step of that container ends, so does the job.
        while True:
            time.sleep(3600)
    return exit_status


def _start_process(command: StartCommand, **streams: Any) -> ChildProcess:
    """Start a command with its own environment."""
    program, *arguments = command.arguments
    return ChildProcess([find_program(program) or program, *arguments], env=command.environment, **streams)


def _login_daemon_command(
    run: Runner, paths: ContainerPaths, container: Container, containers: Sequence[Container], job: int, as_user: bool
) -> List[str]:
    """Write the files of the ssh daemon by which the other containers enter this one. Returns its command.

    ``as_user``: whether programs in the container run as the user of the session.
    """
    key_path = f"{paths.run_directory}/{ssh.KEY_FILE}"
    private_key, public_key = read_text(key_path), ssh.read_public_key(run, key_path)
    os.makedirs(f"{paths.run_directory}/{ssh.CLIENT_DIRECTORY}", mode=0o755, exist_ok=True)
    login_command = f"{os.path.abspath(sys.argv[0])} login {job} {container.local}"
    login_files = ssh.build_files(
        container, containers, paths.run_directory, login_command, current_user_name(), private_key or "", public_key
    )
    for file_name, file_text in login_files.items():
        # ssh refuses a private key of its own user that others can read. If programs in the container run as another
        # user, that user must be able to read it.
        only_owner_reads = file_name.endswith(f"/{ssh.KEY_FILE}") and as_user
        write_atomic(f"{paths.run_directory}/{file_name}", file_text, 0o600 if only_owner_reads else 0o644)
    return [find_program("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", f"{paths.run_directory}/{ssh.SERVER_CONFIG}"]


def _copy_stderr(descriptor: int) -> str:
    """Copy the standard error of a container or podman to that of this process. Returns its last line."""
    stderr_tail = b""
    while True:
        chunk = os.read(descriptor, _TAIL_BYTES)
        if not chunk:
            break
        stderr_tail = (stderr_tail + chunk)[-_TAIL_BYTES:]
        write_all(2, chunk)
    return last_line(stderr_tail.decode("utf-8", "replace"))


def wait_for_start(run: Runner, job: int, settings: SessionSettings) -> int:
    """Wait until each container of this node runs, or has ended. Returns the exit status. Raises HostStateError."""
    plan, podman = node.read_plan(job), Podman(run)
    local_containers = [container for container in _parse_containers(plan) if container.name in plan["here"]]
    pending_containers = {
        container.name: locate_container(job, container.local, settings.storage) for container in local_containers
    }
    deadline = time.monotonic() + _START_TIMEOUT
    while True:
        pending_containers = {
            name: paths for name, paths in pending_containers.items() if not _has_started(podman, paths)
        }
        if not pending_containers:
            return 0
        if time.monotonic() > deadline:
            pending_names = ", ".join(pending_containers)
            raise HostStateError(
                f"{pending_names} on {os.uname().nodename} did not start within {_START_TIMEOUT:g} s.",
                "See the log of the session.",
            )
        time.sleep(0.2)


def _has_started(podman: Podman, paths: ContainerPaths) -> bool:
    return os.path.exists(f"{paths.run_directory}/{_ENDED_FILE}") or podman.is_running(paths)


def run_in_container(
    run: Runner, job: int, local_index: int, settings: SessionSettings, arguments: Sequence[str], with_terminal: bool
) -> int:
    """Run a command in the container, which may still be starting. Returns its exit status. Raises GpumeshError."""
    paths, podman = locate_container(job, local_index, settings.storage), Podman(run)
    deadline = time.monotonic() + _ENTER_TIMEOUT
    while not podman.is_running(paths):
        if time.monotonic() > deadline:
            raise HostStateError(
                "The container is not running.", "See the log of the session, which gpumesh-session show names."
            )
        time.sleep(0.5)
    with _start_process(podman.exec_command(paths, arguments, with_terminal)) as process:
        return process.wait()


def offer_login(login_part: str, job: int, local_index: int, storage_template: str) -> int:
    """Serve an ssh login from outside, through a step of the job: print the session's key, or run sshd for a container."""
    run_directory = locate_container(job, local_index, storage_template).run_directory
    if login_part == "key":
        sys.stdout.write(read_text(f"{run_directory}/{ssh.KEY_FILE}") or "")
        return 0
    with ChildProcess(
        [find_program("sshd") or "/usr/sbin/sshd", "-i", "-e", "-f", f"{run_directory}/{ssh.SERVER_CONFIG}"]
    ) as process:
        return process.wait()


def _parse_containers(plan: Mapping[str, Any]) -> List[Container]:
    return [Container(**fields) for fields in plan["containers"]]


def _print_progress(message: str) -> None:
    print_line(f"{os.uname().nodename}: {message}")
    sys.stdout.flush()
