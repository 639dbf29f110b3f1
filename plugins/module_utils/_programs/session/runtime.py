# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The description of a container for podman, and what all of podman's commands have in common."""

from __future__ import annotations

import hashlib
import os
from typing import Dict, List, Mapping, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import ssh
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import Container, Role

HOSTFILE = "/etc/gpumesh-hostfile"
#: The variable with the certificates against which jobs verify the tracking server, and the directory of that file.
_TRUST_VARIABLE, _TRUST_DIRECTORY = "MLFLOW_TRACKING_SERVER_CERT_PATH", "/etc/gpumesh"
#: The programs that containers need on a node.
REQUIRED_PROGRAMS = ("podman", "crun", "newuidmap", "fuse-overlayfs", "catatonit")
#: The timeout, in seconds, for fetching one image.
_PULL_TIMEOUT = 7200.0
#: The transports of files and directories.
FILE_TRANSPORTS = ("oci-archive:", "docker-archive:", "oci:", "dir:")


class ContainerPaths(NamedTuple):
    """The directories of one container. ``image_store``: shared by all sessions of the user on this node."""

    run_directory: str
    storage_directory: str
    image_store: str


class LocalImage(NamedTuple):
    """An image on this node. ``runs_as_user``: whether its command runs as the user of the session."""

    image_id: str
    runs_as_user: bool


class StartCommand(NamedTuple):
    """A command with its complete environment."""

    arguments: List[str]
    environment: Dict[str, str]


class ContainerTask(NamedTuple):
    """A container to run. ``variables``: its environment. ``gpu_indexes``: the GPUs that Slurm has allocated to it."""

    job: int
    role: Role
    container: Container
    paths: ContainerPaths
    variables: Mapping[str, str]
    gpu_indexes: Sequence[str]


def list_mounts(task: ContainerTask) -> List[str]:
    """Return all mounts of a container, as HOST:CONTAINER, with :ro if they are read-only."""
    run_directory = task.paths.run_directory
    mount_options = [f"{run_directory}/hosts:/etc/hosts:ro", f"{run_directory}/hostfile:{HOSTFILE}:ro"]
    mount_options.append(f"{run_directory}/resolv.conf:/etc/resolv.conf:ro")
    # The directory is mounted, since the file is replaced when the tracking server renews its certificate.
    trust_path = task.variables.get(_TRUST_VARIABLE, "")
    if os.path.dirname(trust_path) == _TRUST_DIRECTORY and os.path.exists(trust_path):
        mount_options.append(f"{_TRUST_DIRECTORY}:{_TRUST_DIRECTORY}:ro")
    return [*mount_options, *(ssh.client_mounts(run_directory) if task.container.vni else ()), *task.role.mounts]


def image_reference(image: str) -> str:
    """Return the image as podman accepts it: files and directories with their transport."""
    return image if image.startswith((*FILE_TRANSPORTS, "docker://")) else f"docker://{image}"


def image_digest(image: str) -> str:
    """Return a digest of the name of an image, by which it can be found, whatever its transport."""
    return hashlib.sha256(image.encode("utf-8")).hexdigest()[:32]


def run_fetch_step(run: Runner, arguments: Sequence[str], image: str, podman_variables: Mapping[str, str]) -> str:
    """Run a command that fetches an image. Returns its output. Raises HostStateError."""
    fetch_result = run(arguments, timeout=_PULL_TIMEOUT, environment=dict(podman_variables), check=False)
    if fetch_result.rc:
        raise HostStateError(
            f"The image {image} cannot be fetched on {os.uname().nodename}: {last_line(fetch_result.stderr)}",
            "Correct the name of the image, or check whether this node reaches its registry.",
        )
    return str(fetch_result.stdout)


def last_line(error_output: str) -> str:
    """Return the last line that a program has printed, as a sentence."""
    nonempty_lines = [line.strip() for line in error_output.splitlines() if line.strip()]
    last_message = nonempty_lines[-1] if nonempty_lines else "it printed no error"
    return f"{last_message.rstrip('.')}."
