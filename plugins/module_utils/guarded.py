# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths that root can use safely although other users can write to directories in them.

Each directory is opened relative to the previous one and kept open, so that nobody can replace it. Directories that
only root can write to are trusted, and so are links in them. From the first directory of another account on, root acts
as that account: wherever its links lead, it can do no more than the account itself. In a directory of root's that
others can write to, such as /tmp, or that is inside an account's directory, links are not followed, and only files of
root and of the wanted owner are touched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from typing import Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _FLAGS
_MOST_LINKS = 40
_NOBODY = 65534
_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "named pipe",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFSOCK: "socket",
    stat.S_IFLNK: "link",
}


class Place(NamedTuple):
    """The end of a path: a name in an open directory. ``found`` is its status, None if it does not exist.

    ``folder`` is -1 if the directory does not exist either. ``shared``: the directory is root's, but others can write
    to it or to one above it. ``outside``: others can write to one above it.
    """

    path: str
    folder: int
    name: str
    found: Optional[os.stat_result]
    shared: bool
    outside: bool


def kind_of(mode: int) -> str:
    """``file``, ``directory``, ``named pipe``, ``device``, ``socket`` or ``link``."""
    return _KINDS.get(stat.S_IFMT(mode), "file")


def account_name(uid: int) -> str:
    """The account's name, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def become(uid: int, gid: int) -> None:
    """Act as the account ``uid`` from here on. ``gid`` is used if this host does not know the account."""
    groups: List[int] = []
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        gid = gid or _NOBODY
    else:
        gid, groups = account.pw_gid, os.getgrouplist(account.pw_name, account.pw_gid)
    os.setgroups(groups)
    os.setegid(gid)
    os.seteuid(uid)


@contextlib.contextmanager
def reach(path: str, follow: bool = True, make: bool = False) -> Iterator[Place]:
    """The end of ``path``. Within the context, this process acts as the account that can write there.

    ``follow``: whether a link at the end is followed. ``make``: whether missing directories in the path are created.
    Raises OSError, and HostStateError for a link that any user could have created.
    """
    walk = _Walk(path)
    try:
        yield walk.go(follow, make)
    finally:
        os.close(walk.folder)
        walk.be_oneself()


class _Walk:
    """The walk from the root directory down."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = os.open("/", _FOLDER)
        self.root = os.geteuid() == 0
        self.groups, self.gid = os.getgroups(), os.getegid()
        self.acting = False
        self.shared = False
        #: Whether a directory of another account was passed, and whether a link was followed after that.
        self.outside = False
        self.astray = False

    def go(self, follow: bool, make: bool) -> Place:
        rest, links = _parts(self.path), 0
        while True:
            name = rest.pop() if rest else "."
            found = self._look(name)
            if found is not None and stat.S_ISLNK(found.st_mode) and (rest or follow):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.path)
                rest += self._target(name)
            elif not rest:
                return Place(self.path, self.folder, name, found, self.shared, self.outside)
            elif found is None and not make:
                return Place(self.path, -1, rest[0], None, self.shared, self.outside)
            else:
                if found is None:
                    os.mkdir(name, 0o755, dir_fd=self.folder)
                self._enter(_open_folder(name, self.folder))

    def _look(self, name: str) -> Optional[os.stat_result]:
        try:
            return os.stat(name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _target(self, name: str) -> List[str]:
        if self.shared:
            raise HostStateError(
                f"{self.path}: {name} is a link in a directory that others can write to.",
                "Remove it, and run again.",
                path=self.path,
            )
        self.astray = self.outside
        target = os.readlink(name, dir_fd=self.folder)
        if target.startswith("/"):
            self._enter(os.open("/", _FOLDER))
        return _parts(target)

    def _enter(self, folder: int) -> None:
        os.close(self.folder)
        self.folder = folder
        if not self.root or self.astray:
            return
        about = os.fstat(folder)
        open_to_others = bool(about.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        if self.acting and not about.st_uid and not open_to_others:
            # Root has created it inside an account's directory. The account can rename it, but not change it.
            self.be_oneself()
        elif about.st_uid and not self.acting:
            self.acting = self.outside = True
            become(about.st_uid, about.st_gid)
        self.shared = not self.acting and (self.outside or open_to_others)

    def be_oneself(self) -> None:
        """Stop acting as the account of a directory."""
        if self.acting:
            os.seteuid(0)
            os.setegid(self.gid)
            os.setgroups(self.groups)
        self.acting = False


def _parts(path: str) -> List[str]:
    """The names in a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _open_folder(name: str, folder: int) -> int:
    # Opening it for reading triggers an automount.
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except PermissionError:
        return os.open(name, os.O_PATH | os.O_DIRECTORY | _FLAGS, dir_fd=folder)


@contextlib.contextmanager
def opened(place: Place, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A descriptor of the place. Raises OSError, and HostStateError if it is neither a file nor a directory."""
    # Opening a pipe would wait for its other end, and opening a device may have side effects.
    if place.found is not None and kind_of(place.found.st_mode) not in ("file", "directory"):
        raise unusual(place.path, place.found.st_mode)
    descriptor = os.open(place.name, flags | os.O_NONBLOCK | _FLAGS, dir_fd=place.folder)
    try:
        about = os.fstat(descriptor)
        if kind_of(about.st_mode) not in ("file", "directory"):
            raise unusual(place.path, about.st_mode)
        yield descriptor
    finally:
        os.close(descriptor)


def refuse_others(place: Place) -> None:
    """Refuse a file of another account when acting as an account other than root."""
    own = os.geteuid()
    if place.found is not None and own not in (0, place.found.st_uid):
        raise HostStateError(
            f"{place.path} belongs to {account_name(place.found.st_uid)}, in a directory of {account_name(own)}.",
            f"Change its owner to {account_name(own)}, or remove it.",
            path=place.path,
        )


def settle(place: Place, descriptor: int, mode: int, owner: Tuple[int, int]) -> None:
    """Set the mode, user and group of an open file.

    Raises OSError, and HostStateError if it may belong to another user.
    """
    about = os.fstat(descriptor)
    if place.shared and (about.st_uid not in (0, owner[0]) or (stat.S_ISREG(about.st_mode) and about.st_nlink > 1)):
        raise HostStateError(
            f"{place.path} belongs to {account_name(about.st_uid)}, in a directory that others can write to.",
            "Remove it, and run again.",
            path=place.path,
        )
    if (about.st_uid, about.st_gid) != owner:
        os.fchown(descriptor, *owner)
    # Changing the owner clears bits of the mode.
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        os.fchmod(descriptor, mode)


def refuse_swappable(paths: Iterable[str]) -> None:
    """Raises HostStateError for a mount point that another user could replace: root mounts by its path."""
    for path in paths:
        try:
            with reach(path) as place:
                # The owner of a directory in the path could rename its content.
                swappable = place.outside or (place.shared and (place.found is None or place.found.st_uid != 0))
        except OSError as failure:
            raise HostStateError(f"{path} cannot be read: {failure.strerror}.", path=path) from failure
        if swappable:
            raise HostStateError(
                f"A volume cannot be mounted at {path}: others could replace it.",
                "Choose a mount point below directories that only root can write to, such as /mnt or /srv.",
                path=path,
            )


def unusual(path: str, mode: int) -> HostStateError:
    """The error for what is neither a file nor a directory."""
    return HostStateError(
        f"{path} is a {kind_of(mode)}, but a file is required.", "Move it away, and run again.", path=path
    )
