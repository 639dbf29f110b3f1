# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images as directories, for runtimes that only run what somebody else has fetched and unpacked: skopeo and umoci.

All files of such a directory belong to the user of the sessions, and the containers of all sessions read the same one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.runtime import (
    Image,
    Place,
    digest,
    fetching,
    reference,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Role

#: Below the directory of an image.
ROOT, _CONFIG = "rootfs", "image.json"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NEW, _LOCK = "new", ".lock"


class Tree(NamedTuple):
    """An unpacked image, and how its programs want to be run. ``user``: their numbers in the container."""

    path: str
    entrypoint: Tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    user: Tuple[int, int]

    def command(self, role: Role) -> List[str]:
        """What a container runs: without a command, it waits for users to enter it."""
        return [*self.entrypoint, *role.command] if role.command else ["sleep", "infinity"]


def folder(place: Place, image: str) -> str:
    """The directory of an image, beside the store of podman."""
    return os.path.join(os.path.dirname(place.images), "trees", digest(image))


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """One session of the user at a time."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _remove(run: Runner, path: str) -> None:
    """An image may have directories in which even their owner cannot remove anything."""
    if os.path.lexists(path):
        run(["chmod", "--recursive", "u+rwX", path], check=False)
        shutil.rmtree(path)


def read(path: str) -> Tree:
    """An image that is there. Raises HostStateError for one whose user it does not have."""
    document = json.loads(read_text(f"{path}/{_CONFIG}") or "{}")
    root = f"{path}/{ROOT}"
    return parse(root, document, *(read_text(f"{root}/etc/{name}") or "" for name in ("passwd", "group")))


def parse(root: str, document: Mapping[str, Any], passwd: str, group: str) -> Tree:
    """From the configuration of an image, and its files of that name. Raises HostStateError."""
    config = document.get("config") or {}
    given: Dict[str, str] = {}
    for word in config.get("Env") or ():
        name, _equals, text = str(word).partition("=")
        given[name] = text
    user, home = _user(str(config.get("User") or "0"), passwd, group)
    return Tree(
        root,
        tuple(config.get("Entrypoint") or ()),
        {"PATH": _PATH, "HOME": home, **given},
        str(config.get("WorkingDir") or "/"),
        user,
    )


def _user(text: str, passwd: str, group: str) -> Tuple[Tuple[int, int], str]:
    """The numbers of a user as NAME or NUMBER, and perhaps :GROUP, with the home directory. Raises HostStateError."""
    name, _colon, wanted = text.partition(":")
    entry = _line(passwd, name, 7)
    number = name if name.isdecimal() else entry[2]
    own = wanted or entry[3] or "0"
    its = own if own.isdecimal() else _line(group, own, 4)[2]
    if not number.isdecimal() or not its.isdecimal():
        raise HostStateError(f"The image has no user '{text}'.", "Correct USER in the image.")
    return (int(number), int(its)), entry[5] or ("/root" if number == "0" else "/")


def _line(text: str, name: str, fields: int) -> List[str]:
    """The line of a user or group by name or number, or one of empty fields."""
    lines = (line.split(":") for line in text.splitlines())
    known = (line for line in lines if len(line) >= fields and name in (line[0], line[2]))
    return next(known, [""] * fields)


def make_targets(root: str, mounts: Sequence[str]) -> None:
    """Make what mounts cover where an image lacks it, since containers cannot write to it. Raises HostStateError."""
    for source, target in (one.split(":")[:2] for one in mounts):
        path = f"{root}{target}"
        parent, name = os.path.dirname(path), os.path.basename(path)
        # Of links, the runtime would follow those that leave the image.
        if not f"{os.path.realpath(parent)}/".startswith(f"{os.path.realpath(root)}/"):
            raise HostStateError(
                f"The image has a link that leaves it in {os.path.dirname(target)}.", "Correct the image."
            )
        try:
            os.makedirs(parent, exist_ok=True)
            if os.path.islink(path):
                os.unlink(path)
            if os.path.isdir(source):
                os.makedirs(path, exist_ok=True)
            elif name and not os.path.lexists(path):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644))
        except OSError as failure:
            raise HostStateError(
                f"{target} cannot be mounted into the image: {failure.strerror}.", "Correct the mount, or the image."
            ) from failure


class Unpacked:
    """What the runtimes of such images have in common; see Runtime."""

    def __init__(self, run: Runner) -> None:
        self._run = run

    def refuse_unfit(self, roles: Sequence[Role]) -> None:
        """GPUs, which have been refused before where the settings of all nodes are the same."""
        if any(role.gpus for role in roles):
            raise HostStateError(
                f"Containers on {os.uname().nodename} get no GPUs.",
                "Ask the administrator to set session_runtime: podman.",
            )

    def has(self, place: Place, image: str) -> bool:
        """As a directory."""
        return os.path.exists(f"{folder(place, image)}/{_CONFIG}")

    def fetch(self, place: Place, image: str) -> None:
        """Fetch and unpack it. One that was interrupted leaves something that the next one removes."""
        target = folder(place, image)
        top = os.path.dirname(target)
        os.makedirs(top, mode=0o700, exist_ok=True)
        with _locked(f"{top}/{_LOCK}"):
            if self.has(place, image):
                return
            new = f"{top}/{_NEW}"
            _remove(self._run, new)
            os.mkdir(new, 0o700)
            layout, bundle = f"{new}/layout:image", f"{new}/bundle"
            # Without it, skopeo looks for credentials in a directory of /run that root's podman closes to users.
            own = {"XDG_RUNTIME_DIR": place.run}
            fetching(self._run, ["skopeo", "copy", "--quiet", reference(image), f"oci:{layout}"], image, own)
            config = fetching(self._run, ["skopeo", "inspect", "--config", f"oci:{layout}"], image, own)
            fetching(self._run, ["umoci", "unpack", "--rootless", "--image", layout, bundle], image, own)
            write_atomic(f"{bundle}/{_CONFIG}", config, 0o600)
            os.rename(bundle, target)
            _remove(self._run, new)

    def find(self, place: Place, image: str) -> Optional[Image]:
        """Any user of an image is that of the session under another number."""
        return Image(folder(place, image), True) if self.has(place, image) else None
