# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rootless podman."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from typing import Dict, Iterator, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import names_in, read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import subordinate
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.runtime import (
    Image,
    Place,
    Start,
    Task,
    digest,
    fetching,
    mounts,
    reference,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import NAME as PROGRAM
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Role

#: The name of the only container in each of our podman stores.
NAME = "session"
_PID = "pid"
#: Where podman writes the process that keeps its namespaces.
_KEEPER = "pause.pid"
#: Only overlay shares images between stores. podman of Debian 12 would choose vfs, and says much about control groups.
_ALWAYS = {"STORAGE_DRIVER": "overlay", "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
#: Variables by which podman, or a program that it starts, finds its files and its programs.
_HEEDED = re.compile(
    r"PATH|HOME|TMPDIR|NOTIFY_SOCKET|DBUS_SESSION_BUS_ADDRESS|LD_(AUDIT|LIBRARY_PATH|PRELOAD)|STORAGE_(DRIVER|OPTS)"
    r"|XDG_(RUNTIME_DIR|[A-Z]+_HOME)|CONTAINERS?_(CONF|CONF_OVERRIDE|CONNECTION|HELPER_BINARY_DIR|HOST|[A-Z]+_CONF)"
)
_CDI = ("/etc/cdi", "/var/run/cdi")
_CDI_KIND = "nvidia.com/gpu"


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
    return {**_ALWAYS, "XDG_RUNTIME_DIR": folder, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={folder}/no-bus"}


@contextlib.contextmanager
def _for_images(place: Place) -> Iterator[Dict[str, str]]:
    """The environment of podman with the store of images.

    podman leaves a process in the background that keeps its namespaces. It is ended with the last command that needs
    it, since Slurm would take a second to end a step that leaves any.
    """
    variables = podman_environment(f"{place.run}/fetch")
    state = f"{variables['XDG_RUNTIME_DIR']}/libpod/tmp"
    # podman creates it only if the directory of the state is the same.
    os.makedirs(state, mode=0o700, exist_ok=True)
    try:
        yield variables
    finally:
        keeper = (read_text(f"{state}/{_KEEPER}") or "").strip()
        if keeper.isdecimal():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(keeper), signal.SIGKILL)


def run_arguments(task: Task, image: str) -> List[str]:
    """The arguments of podman to run the container. ``image``: its identifier. Most variables are in the environment."""
    in_order = sorted(task.variables.items())
    words = [
        "run",
        "--rm",
        f"--name={NAME}",
        f"--pidfile={task.place.run}/{_PID}",
        "--network=host",
        "--uts=private",
        f"--hostname={task.own.name}",
        "--cgroups=disabled",
    ]
    # A check that an image brings would be a timer of the user's systemd: outside of the job, or an error without one.
    words += ["--no-hosts", "--pull=never", "--log-driver=none", "--security-opt=label=disable", "--no-healthcheck"]
    words += [f"--volume={one}" for one in mounts(task)]
    words += [f"--device={_CDI_KIND}={gpu}" for gpu in task.gpus]
    # Values are in the environment of podman and in no list of processes, but for those that podman itself would heed.
    words += [f"--env={name}={text}" if _HEEDED.fullmatch(name) else f"--env={name}" for name, text in in_order]
    if task.role.command:
        return [*words, image, *task.role.command]
    return [*words, "--init", "--entrypoint=sleep", image, "infinity"]


class Podman:
    """See Runtime."""

    def __init__(self, run: Runner) -> None:
        self._run = run

    def refuse_unfit(self, roles: Sequence[Role]) -> None:
        """Subordinate ids, and a description of GPUs."""
        subordinate.refuse_unfit()
        here = os.uname().nodename
        if any(role.gpus for role in roles) and not _describes_gpus():
            raise HostStateError(
                f"{here} has no CDI specification of its GPUs.",
                "Install nvidia-container-toolkit, and run: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            )

    def has(self, place: Place, image: str) -> bool:
        """In the store of images."""
        with _for_images(place) as variables:
            return _inspect(self._run, images_command(place.images), image, variables) is not None

    def fetch(self, place: Place, image: str) -> None:
        """With a tag by which it is found again."""
        podman = images_command(place.images)
        with _for_images(place) as variables:
            printed = fetching(self._run, [*podman, "pull", "--quiet", reference(image)], image, variables)
            self._run([*podman, "tag", printed.split()[-1], _alias(image)], environment=variables)

    def listed(self, place: Place) -> str:
        """The images of the store: ID, size and name of each of their tags, one tag a line."""
        argv = [
            *images_command(place.images),
            "images",
            "--no-trunc",
            "--format={{.ID}}|{{.Size}}|{{.Repository}}:{{.Tag}}",
        ]
        with _for_images(place) as variables:
            return str(self._run(argv, environment=variables).stdout)

    def remove(self, place: Place, image: str) -> str:
        """Remove an image from the store, by its name in a session's file or for podman. Returns its ID."""
        podman = images_command(place.images)
        with _for_images(place) as variables:
            known = _inspect(self._run, podman, image, variables)
            identifier = known.identifier if known else image
            self._run([*podman, "rmi", "--force", "--", identifier], environment=variables)
        return identifier

    def find(self, place: Place, image: str) -> Optional[Image]:
        """By that tag."""
        return _inspect(self._run, command(place), image, podman_environment(place.run))

    def start(self, task: Task, image: Image) -> Start:
        """``podman run``."""
        folder = task.place.run
        handed_on = {name: text for name, text in task.variables.items() if not _HEEDED.fullmatch(name)}
        words = [*command(task.place), *run_arguments(task, image.identifier)]
        return Start(words, {**os.environ, **handed_on, **podman_environment(folder)})

    def runs(self, place: Place) -> bool:
        """podman writes the file shortly before the container runs, and querying podman costs more."""
        if not os.path.exists(f"{place.run}/{_PID}"):
            return False
        argv = [*command(place), "inspect", "--format={{.State.Running}}", NAME]
        done = self._run(argv, check=False, environment=podman_environment(place.run))
        return bool(done.stdout.strip() == "true")

    def enter(self, place: Place, words: Sequence[str], terminal: bool) -> Start:
        """``podman exec``."""
        options = ["--interactive", "--tty"] if terminal else ["--interactive"]
        argv = [*command(place), "exec", *options, NAME, *words]
        return Start(argv, {**os.environ, **podman_environment(place.run)})


def is_alias(name: str) -> bool:
    """Whether a name is only for this program."""
    return name.startswith(f"localhost/{PROGRAM}/")


def _alias(image: str) -> str:
    """A name for an image of any kind, so that it is found again."""
    return f"localhost/{PROGRAM}/{digest(image)}:latest"


def _inspect(run: Runner, podman: Sequence[str], image: str, variables: Mapping[str, str]) -> Optional[Image]:
    """An image that is there. One that has a tag of its own may be another one by now: only digests are kept."""
    argv = [*podman, "image", "inspect", "--format={{.Id}} {{.User}}", _alias(image)]
    done = run(argv, check=False, environment=dict(variables))
    identifier, _space, user = done.stdout.strip().partition(" ") if not done.rc else ("", "", "")
    return Image(identifier, user.partition(":")[0] in ("", "0", "root")) if identifier else None


def _describes_gpus() -> bool:
    """Whether a file is about NVIDIA's GPUs: there may be others, of other devices."""
    files = (f"{top}/{name}" for top in _CDI for name in names_in(top))
    return any(path.endswith((".yaml", ".json")) and _CDI_KIND in (read_text(path) or "") for path in files)
