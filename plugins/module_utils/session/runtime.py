# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What podman needs to know of a container, and what is the same for all of its commands."""

from __future__ import annotations

import hashlib
import os
from typing import Dict, List, Mapping, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import ssh
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container, Role

HOSTFILE = "/etc/gpumesh-hostfile"
#: The variable with the certificates against which jobs verify the tracking server, and the directory of that file.
_TRUST, _SETTINGS = "MLFLOW_TRACKING_SERVER_CERT_PATH", "/etc/gpumesh"
#: What containers need on a node.
PROGRAMS = ("podman", "crun", "newuidmap", "fuse-overlayfs", "catatonit")
#: Seconds for one image.
_PULL = 7200.0
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


def mounts(task: Task) -> List[str]:
    """All mounts of a container, as HOST:CONTAINER with :ro where they are read-only."""
    folder = task.place.run
    found = [f"{folder}/hosts:/etc/hosts:ro", f"{folder}/hostfile:{HOSTFILE}:ro"]
    found.append(f"{folder}/resolv.conf:/etc/resolv.conf:ro")
    # The directory: the file is replaced when the tracking server renews its certificate.
    trust = task.variables.get(_TRUST, "")
    if os.path.dirname(trust) == _SETTINGS and os.path.exists(trust):
        found.append(f"{_SETTINGS}:{_SETTINGS}:ro")
    return [*found, *(ssh.mounts(folder) if task.own.vni else ()), *task.role.mounts]


def reference(image: str) -> str:
    """The image as podman takes it: files and directories with their transport."""
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
    """What a program has said last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else "it printed no error"
    return f"{last.rstrip('.')}."
