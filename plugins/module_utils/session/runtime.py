# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each runtime of containers does for a session, and what is the same for all of them."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import ssh
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import (
    CHARLIECLOUD,
    PODMAN,
    SLURM,
    Container,
    Role,
    Settings,
    Spec,
)

#: In the directory of a container: the process that its runtime was started as.
PROCESS = "process"
HOSTFILE = "/etc/gpumesh-hostfile"
#: What each runtime calls on a node.
PROGRAMS: Mapping[str, Sequence[str]] = {
    PODMAN: ("podman", "crun", "newuidmap", "fuse-overlayfs", "catatonit"),
    CHARLIECLOUD: ("ch-run", "bwrap", "skopeo", "umoci"),
    SLURM: ("crun", "catatonit", "skopeo", "umoci"),
}
#: Seconds for one image.
_PULL = 7200.0
#: A line of skopeo.
_LOGGED = re.compile(r'time="[^"]*" level=\w+ msg="(.*)"')
#: The transports of files and directories.
FILES = ("oci-archive:", "docker-archive:", "oci:", "dir:")


class Place(NamedTuple):
    """The directories of one container. ``images``: the store of all sessions of the user on this node."""

    run: str
    storage: str
    images: str


class Image(NamedTuple):
    """An image on this node. ``own``: whether its command runs as the user of the session."""

    identifier: str
    own: bool


class Start(NamedTuple):
    """A command with its whole environment."""

    argv: List[str]
    environment: Dict[str, str]


class Task(NamedTuple):
    """A container to run. ``variables``: of its environment. ``gpus``: those that Slurm has given it."""

    job: int
    role: Role
    own: Container
    place: Place
    variables: Mapping[str, str]
    gpus: Sequence[str]


class Runtime(Protocol):
    """Runs containers as the user of the session, in the network namespace that it is started in."""

    def refuse_unfit(self, roles: Sequence[Role]) -> None:
        """Refuse a node that could not run containers of these roles. Raises HostStateError."""

    def has(self, place: Place, image: str) -> bool:
        """Whether the image is on this node."""

    def fetch(self, place: Place, image: str) -> None:
        """Raises GpumeshError."""

    def find(self, place: Place, image: str) -> Optional[Image]:
        """The image for the container of this place."""

    def start(self, task: Task, image: Image) -> Start:
        """The command that runs the container until it ends. Raises GpumeshError."""

    def runs(self, place: Place) -> bool:
        """Whether the container of this place runs."""

    def enter(self, place: Place, words: Sequence[str], terminal: bool) -> Start:
        """The command that runs another one in the container, which runs. Raises HostStateError."""


def refuse(spec: Spec, settings: Settings) -> None:
    """Refuse what the runtime of the cluster cannot do. Raises InputError."""
    for role in spec.roles:
        if role.gpus and settings.runtime != PODMAN:
            raise InputError(
                f"session_roles: {role.name}: with session_runtime={settings.runtime}, containers get no GPUs: the CDI "
                "specification that describes them is for podman.",
                f"Ask the administrator to set session_runtime: {PODMAN}.",
            )


def mounts(task: Task) -> List[str]:
    """All mounts of a container, as HOST:CONTAINER with :ro where they are read-only."""
    folder = task.place.run
    found = [f"{folder}/hosts:/etc/hosts:ro", f"{folder}/hostfile:{HOSTFILE}:ro"]
    found.append(f"{folder}/resolv.conf:/etc/resolv.conf:ro")
    return [*found, *(ssh.mounts(folder) if task.own.vni else ()), *task.role.mounts]


def reference(image: str) -> str:
    """The image as podman and skopeo take it: files and directories with their transport."""
    return image if image.startswith((*FILES, "docker://")) else f"docker://{image}"


def digest(image: str) -> str:
    """Of the name of an image of any kind, so that it is found again."""
    return hashlib.sha256(image.encode("utf-8")).hexdigest()[:32]


def fetching(run: Runner, argv: Sequence[str], image: str, variables: Mapping[str, str]) -> str:
    """Run a step of the fetching of an image; what it prints. Raises HostStateError."""
    done = run(argv, timeout=_PULL, environment=dict(variables), check=False)
    if done.rc:
        raise HostStateError(
            f"The image {image} cannot be fetched on {os.uname().nodename}: {last_line(done.stderr)}",
            "Correct its name.",
        )
    return str(done.stdout)


def last_line(text: str) -> str:
    """What a program has said last. What srun says of its end is no part of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("srun: ")]
    last = lines[-1] if lines else "it printed no error"
    logged = _LOGGED.fullmatch(last)
    last = logged.group(1).replace('\\"', '"') if logged else last
    return f"{last.rstrip('.')}."
