# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of rootless podman."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from typing import Dict, Iterator, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import list_names, read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import subordinate
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import PROGRAM_NAME as PROGRAM
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import Role
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.runtime import (
    ContainerPaths,
    ContainerTask,
    LocalImage,
    StartCommand,
    image_digest,
    image_reference,
    list_mounts,
    run_fetch_step,
)

#: The name of the only container in each of our podman stores.
CONTAINER_NAME = "session"
_PID_FILE = "pid"
#: The file with the process that keeps podman's namespaces.
_PAUSE_PID_FILE = "pause.pid"
#: Variables for all commands. Only overlay shares images between stores. podman of Debian 12 would choose vfs, and
#: prints many warnings about control groups.
_BASE_ENVIRONMENT = {"STORAGE_DRIVER": "overlay", "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
#: The variables by which podman, or a program that it starts, finds its files and its programs.
_PODMAN_VARIABLE = re.compile(
    r"PATH|HOME|TMPDIR|NOTIFY_SOCKET|DBUS_SESSION_BUS_ADDRESS|LD_(AUDIT|LIBRARY_PATH|PRELOAD)|STORAGE_(DRIVER|OPTS)"
    r"|XDG_(RUNTIME_DIR|[A-Z]+_HOME)|CONTAINERS?_(CONF|CONF_OVERRIDE|CONNECTION|HELPER_BINARY_DIR|HOST|[A-Z]+_CONF)"
)
_CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_CDI_KIND = "nvidia.com/gpu"


def images_command(store_path: str) -> List[str]:
    """Return podman with the image store, which has its own directories, since podman remembers them."""
    store_options = ["--root", store_path, "--runroot", f"{store_path}-run", "--tmpdir", f"{store_path}-tmp"]
    return ["podman", "--log-level=error", "--cgroup-manager=cgroupfs", "--events-backend=file", *store_options]


def container_command(paths: ContainerPaths) -> List[str]:
    """Return podman with the store of one container. The images come from the user's image store."""
    store_options = ["--root", f"{paths.storage_directory}/root", "--runroot", f"{paths.run_directory}/podman"]
    store_options += ["--storage-opt", f"overlay.imagestore={paths.image_store}"]
    return ["podman", "--log-level=error", "--cgroup-manager=cgroupfs", "--events-backend=file", *store_options]


def podman_environment(runtime_directory: str) -> Dict[str, str]:
    """Return podman's environment with a runtime directory.

    podman reuses the namespaces of the first container that it runs from a directory, so each container has its own.
    """
    # Through the bus of a user who has logged in, podman would let systemd move it out of the control group of the
    # step, where neither the limits nor the end of the job would affect it.
    return {
        **_BASE_ENVIRONMENT,
        "XDG_RUNTIME_DIR": runtime_directory,
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime_directory}/no-bus",
    }


@contextlib.contextmanager
def _image_environment(paths: ContainerPaths) -> Iterator[Dict[str, str]]:
    """Provide the environment of podman with the image store.

    podman leaves a background process that keeps its namespaces. It is killed after the last command that needs it,
    since Slurm takes a second longer to end a step that leaves a process behind.
    """
    variables = podman_environment(f"{paths.run_directory}/fetch")
    state_directory = f"{variables['XDG_RUNTIME_DIR']}/libpod/tmp"
    # podman creates the directory only if it is also that of the stored state.
    os.makedirs(state_directory, mode=0o700, exist_ok=True)
    try:
        yield variables
    finally:
        pause_pid = (read_text(f"{state_directory}/{_PAUSE_PID_FILE}") or "").strip()
        if pause_pid.isdecimal():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pause_pid), signal.SIGKILL)


def run_arguments(task: ContainerTask, image_id: str) -> List[str]:
    """Return podman's arguments to run the container. ``image_id``: the ID of its image."""
    sorted_variables = sorted(task.variables.items())
    arguments = [
        "run",
        "--rm",
        f"--name={CONTAINER_NAME}",
        f"--pidfile={task.paths.run_directory}/{_PID_FILE}",
        "--network=host",
        "--uts=private",
        f"--hostname={task.container.name}",
        "--cgroups=disabled",
    ]
    # A health check of the image would be a timer of the user's systemd, outside of the job, or fail without systemd.
    arguments += ["--no-hosts", "--pull=never", "--log-driver=none", "--security-opt=label=disable", "--no-healthcheck"]
    arguments += [f"--volume={mount}" for mount in list_mounts(task)]
    arguments += [f"--device={_CDI_KIND}={gpu}" for gpu in task.gpu_indexes]
    # Values are passed in podman's environment, which no process list shows, except for variables that affect podman.
    arguments += [
        f"--env={name}={text}" if _PODMAN_VARIABLE.fullmatch(name) else f"--env={name}"
        for name, text in sorted_variables
    ]
    if task.role.command:
        return [*arguments, image_id, *task.role.command]
    return [*arguments, "--init", "--entrypoint=sleep", image_id, "infinity"]


class Podman:
    """The podman commands for the containers of a session."""

    def __init__(self, run: Runner) -> None:
        self._run = run

    def refuse_unfit(self, roles: Sequence[Role]) -> None:
        """Refuse a user without subordinate IDs, and a node that does not describe its GPUs. Raises HostStateError."""
        subordinate.refuse_unfit_user()
        node_name = os.uname().nodename
        if any(role.gpus for role in roles) and not _has_gpu_specification():
            raise HostStateError(
                f"{node_name} has no CDI specification of its GPUs.",
                "Install nvidia-container-toolkit, and run: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            )

    def has_image(self, paths: ContainerPaths, image: str) -> bool:
        """Return whether the image store has an image."""
        with _image_environment(paths) as variables:
            return _inspect_image(self._run, images_command(paths.image_store), image, variables) is not None

    def fetch_image(self, paths: ContainerPaths, image: str) -> None:
        """Fetch an image, and tag it so that it can be found by any name. Raises GpumeshError."""
        podman_command = images_command(paths.image_store)
        with _image_environment(paths) as variables:
            pull_output = run_fetch_step(
                self._run, [*podman_command, "pull", "--quiet", image_reference(image)], image, variables
            )
            self._run([*podman_command, "tag", pull_output.split()[-1], _image_alias(image)], environment=variables)

    def list_images(self, paths: ContainerPaths) -> str:
        """Return the images of the store as text: ID, size and name of each of their tags, one tag per line."""
        list_command = [
            *images_command(paths.image_store),
            "images",
            "--no-trunc",
            "--format={{.ID}}|{{.Size}}|{{.Repository}}:{{.Tag}}",
        ]
        with _image_environment(paths) as variables:
            return str(self._run(list_command, environment=variables).stdout)

    def remove_image(self, paths: ContainerPaths, image: str) -> str:
        """Remove an image from the store, by its name in a session's file or in podman. Returns its ID."""
        podman_command = images_command(paths.image_store)
        with _image_environment(paths) as variables:
            local_image = _inspect_image(self._run, podman_command, image, variables)
            image_id = local_image.image_id if local_image else image
            self._run([*podman_command, "rmi", "--force", "--", image_id], environment=variables)
        return image_id

    def find_image(self, paths: ContainerPaths, image: str) -> Optional[LocalImage]:
        """Return an image by the tag that fetch_image() has set; None if it is missing."""
        return _inspect_image(self._run, container_command(paths), image, podman_environment(paths.run_directory))

    def start_command(self, task: ContainerTask, image: LocalImage) -> StartCommand:
        """Return the command ``podman run`` for a container."""
        run_directory = task.paths.run_directory
        passed_variables = {name: text for name, text in task.variables.items() if not _PODMAN_VARIABLE.fullmatch(name)}
        podman_arguments = [*container_command(task.paths), *run_arguments(task, image.image_id)]
        return StartCommand(podman_arguments, {**os.environ, **passed_variables, **podman_environment(run_directory)})

    def is_running(self, paths: ContainerPaths) -> bool:
        """Return whether the container runs.

        podman writes the PID file shortly before. Without the file, podman is not queried, which would cost more.
        """
        if not os.path.exists(f"{paths.run_directory}/{_PID_FILE}"):
            return False
        inspect_command = [*container_command(paths), "inspect", "--format={{.State.Running}}", CONTAINER_NAME]
        inspect_result = self._run(inspect_command, check=False, environment=podman_environment(paths.run_directory))
        return bool(inspect_result.stdout.strip() == "true")

    def exec_command(self, paths: ContainerPaths, arguments: Sequence[str], with_terminal: bool) -> StartCommand:
        """Return the command ``podman exec`` for a container."""
        input_options = ["--interactive", "--tty"] if with_terminal else ["--interactive"]
        exec_arguments = [*container_command(paths), "exec", *input_options, CONTAINER_NAME, *arguments]
        return StartCommand(exec_arguments, {**os.environ, **podman_environment(paths.run_directory)})


def is_alias(name: str) -> bool:
    """Return whether a name is used only by this program."""
    return name.startswith(f"localhost/{PROGRAM}/")


def _image_alias(image: str) -> str:
    """Return the tag by which this program finds an image, whatever its transport."""
    return f"localhost/{PROGRAM}/{image_digest(image)}:latest"


def _inspect_image(
    run: Runner, podman_command: Sequence[str], image: str, podman_variables: Mapping[str, str]
) -> Optional[LocalImage]:
    """Return an image that is present; None if it is missing. Its own tag may belong to a newer image by now."""
    inspect_command = [*podman_command, "image", "inspect", "--format={{.Id}} {{.User}}", _image_alias(image)]
    inspect_result = run(inspect_command, check=False, environment=dict(podman_variables))
    image_id, _space, image_user = (
        inspect_result.stdout.strip().partition(" ") if not inspect_result.rc else ("", "", "")
    )
    return LocalImage(image_id, image_user.partition(":")[0] in ("", "0", "root")) if image_id else None


def _has_gpu_specification() -> bool:
    """Return whether a CDI file describes NVIDIA GPUs: there may also be files of other devices."""
    specification_files = (f"{directory}/{name}" for directory in _CDI_DIRECTORIES for name in list_names(directory))
    return any(
        path.endswith((".yaml", ".json")) and _CDI_KIND in (read_text(path) or "") for path in specification_files
    )
