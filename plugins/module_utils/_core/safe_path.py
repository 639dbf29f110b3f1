# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let root use paths safely although other users can write to directories in them.

Each directory is opened relative to the previous one and kept open, so that nobody can replace it. Directories that
only root can write to are trusted, and so are links in them. From the first directory of another account on, root acts
as that account: wherever its links lead, root can do no more than the account itself. In a directory of root that
others can write to, such as /tmp, or that is inside the directory of an account, links are not followed, and only files
of root and of the desired owner are changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from typing import Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError

_OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | _OPEN_FLAGS
_MAX_LINKS = 40
_NOBODY_ID = 65534
_KIND_NAMES = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "named pipe",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFSOCK: "socket",
    stat.S_IFLNK: "link",
}


class SafePath(NamedTuple):
    """The last component of a path: a name in an open directory. ``status`` is None if it does not exist.

    ``directory_fd`` is -1 if the directory does not exist either. ``in_shared_directory``: the directory belongs to
    root, but others can write to it or to one above it. ``below_foreign_directory``: others can write to one above it.
    """

    path: str
    directory_fd: int
    name: str
    status: Optional[os.stat_result]
    in_shared_directory: bool
    below_foreign_directory: bool


def file_kind(mode: int) -> str:
    """Return ``file``, ``directory``, ``named pipe``, ``device``, ``socket`` or ``link``."""
    return _KIND_NAMES.get(stat.S_IFMT(mode), "file")


def account_name(uid: int) -> str:
    """Return the name of the account, or its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def become_account(uid: int, gid: int) -> None:
    """Act as the account ``uid`` from here on. ``gid`` is used if this host does not know the account."""
    supplementary_groups: List[int] = []
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        gid = gid or _NOBODY_ID
    else:
        gid, supplementary_groups = account.pw_gid, os.getgrouplist(account.pw_name, account.pw_gid)
    os.setgroups(supplementary_groups)
    os.setegid(gid)
    os.seteuid(uid)


@contextlib.contextmanager
def open_safe_path(path: str, follow_link: bool = True, create_directories: bool = False) -> Iterator[SafePath]:
    """Open the directory of ``path``. Within the context, this process acts as the account that can write there.

    ``follow_link``: whether a link in the last component is followed. ``create_directories``: whether missing
    directories in the path are created. Raises OSError, and HostStateError for a link that any user could have created.
    """
    path_walk = _PathWalk(path)
    try:
        yield path_walk.descend(follow_link, create_directories)
    finally:
        os.close(path_walk.directory_fd)
        path_walk.restore_identity()


class _PathWalk:
    """A walk from the root directory down to the last component of a path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.directory_fd = os.open("/", _DIRECTORY_FLAGS)
        self.is_root = os.geteuid() == 0
        self.original_groups, self.original_gid = os.getgroups(), os.getegid()
        self.acting_as_owner = False
        self.in_shared_directory = False
        #: The walk has passed a directory of another account, and has followed a link after that.
        self.below_foreign_directory = False
        self.followed_foreign_link = False

    def descend(self, follow_link: bool, create_directories: bool) -> SafePath:
        remaining_names, link_count = _reversed_names(self.path), 0
        while True:
            name = remaining_names.pop() if remaining_names else "."
            status = self._entry_status(name)
            if status is not None and stat.S_ISLNK(status.st_mode) and (remaining_names or follow_link):
                link_count += 1
                if link_count > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.path)
                remaining_names += self._resolve_link(name)
            elif not remaining_names:
                return SafePath(
                    self.path, self.directory_fd, name, status, self.in_shared_directory, self.below_foreign_directory
                )
            elif status is None and not create_directories:
                return SafePath(
                    self.path, -1, remaining_names[0], None, self.in_shared_directory, self.below_foreign_directory
                )
            else:
                if status is None:
                    os.mkdir(name, 0o755, dir_fd=self.directory_fd)
                self._enter_directory(_open_directory(name, self.directory_fd))

    def _entry_status(self, name: str) -> Optional[os.stat_result]:
        try:
            return os.stat(name, dir_fd=self.directory_fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _resolve_link(self, name: str) -> List[str]:
        if self.in_shared_directory:
            raise HostStateError(
                f"{self.path}: {name} is a link in a directory that others can write to.",
                "Remove it, and run again.",
                path=self.path,
            )
        self.followed_foreign_link = self.below_foreign_directory
        link_target = os.readlink(name, dir_fd=self.directory_fd)
        if link_target.startswith("/"):
            self._enter_directory(os.open("/", _DIRECTORY_FLAGS))
        return _reversed_names(link_target)

    def _enter_directory(self, directory_fd: int) -> None:
        os.close(self.directory_fd)
        self.directory_fd = directory_fd
        if not self.is_root or self.followed_foreign_link:
            return
        directory_status = os.fstat(directory_fd)
        open_to_others = bool(directory_status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        if self.acting_as_owner and not directory_status.st_uid and not open_to_others:
            # Root has created this directory inside that of an account, which can rename it, but not change it.
            self.restore_identity()
        elif directory_status.st_uid and not self.acting_as_owner:
            self.acting_as_owner = self.below_foreign_directory = True
            become_account(directory_status.st_uid, directory_status.st_gid)
        self.in_shared_directory = not self.acting_as_owner and (self.below_foreign_directory or open_to_others)

    def restore_identity(self) -> None:
        """Stop acting as the account of a directory."""
        if self.acting_as_owner:
            os.seteuid(0)
            os.setegid(self.original_gid)
            os.setgroups(self.original_groups)
        self.acting_as_owner = False


def _reversed_names(path: str) -> List[str]:
    """Return the names in a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _open_directory(name: str, parent_fd: int) -> int:
    # Opening a directory for reading triggers an automount.
    try:
        return os.open(name, _DIRECTORY_FLAGS, dir_fd=parent_fd)
    except PermissionError:
        return os.open(name, os.O_PATH | os.O_DIRECTORY | _OPEN_FLAGS, dir_fd=parent_fd)


@contextlib.contextmanager
def open_descriptor(safe_path: SafePath, open_flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file or directory. Raises OSError, and HostStateError if it is neither of them."""
    # Opening a pipe would wait for its other end, and opening a device may have side effects.
    if safe_path.status is not None and file_kind(safe_path.status.st_mode) not in ("file", "directory"):
        raise irregular_file_error(safe_path.path, safe_path.status.st_mode)
    descriptor = os.open(safe_path.name, open_flags | os.O_NONBLOCK | _OPEN_FLAGS, dir_fd=safe_path.directory_fd)
    try:
        file_status = os.fstat(descriptor)
        if file_kind(file_status.st_mode) not in ("file", "directory"):
            raise irregular_file_error(safe_path.path, file_status.st_mode)
        yield descriptor
    finally:
        os.close(descriptor)


def refuse_foreign_file(safe_path: SafePath) -> None:
    """Refuse a file of another account when acting as an account other than root."""
    effective_uid = os.geteuid()
    if safe_path.status is not None and effective_uid not in (0, safe_path.status.st_uid):
        raise HostStateError(
            f"{safe_path.path} belongs to {account_name(safe_path.status.st_uid)}, in a directory of {account_name(effective_uid)}.",
            f"Change its owner to {account_name(effective_uid)}, or remove it.",
            path=safe_path.path,
        )


def set_mode_and_owner(safe_path: SafePath, descriptor: int, mode: int, owner: Tuple[int, int]) -> None:
    """Set the mode, user and group of an open file.

    Raises OSError, and HostStateError if it may belong to another user.
    """
    file_status = os.fstat(descriptor)
    if safe_path.in_shared_directory and (
        file_status.st_uid not in (0, owner[0]) or (stat.S_ISREG(file_status.st_mode) and file_status.st_nlink > 1)
    ):
        raise HostStateError(
            f"{safe_path.path} belongs to {account_name(file_status.st_uid)}, in a directory that others can write to.",
            "Remove it, and run again.",
            path=safe_path.path,
        )
    if (file_status.st_uid, file_status.st_gid) != owner:
        os.fchown(descriptor, *owner)
    # Changing the owner clears bits of the mode.
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        os.fchmod(descriptor, mode)


def refuse_replaceable_mount_points(mount_points: Iterable[str]) -> None:
    """Refuse a mount point that another user could replace, since root mounts by path. Raises HostStateError."""
    for mount_point in mount_points:
        try:
            with open_safe_path(mount_point) as safe_path:
                # The owner of a directory in the path could rename its content.
                is_replaceable = safe_path.below_foreign_directory or (
                    safe_path.in_shared_directory and (safe_path.status is None or safe_path.status.st_uid != 0)
                )
        except OSError as failure:
            raise HostStateError(f"{mount_point} cannot be read: {failure.strerror}.", path=mount_point) from failure
        if is_replaceable:
            raise HostStateError(
                f"A volume cannot be mounted at {mount_point}: others could replace it.",
                "Choose a mount point below directories that only root can write to, such as /mnt or /srv.",
                path=mount_point,
            )


def irregular_file_error(path: str, mode: int) -> HostStateError:
    """Return the error for a path that is neither a file nor a directory."""
    return HostStateError(
        f"{path} is a {file_kind(mode)}, but a file is required.", "Move it away, and run again.", path=path
    )
