# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Open and create private directories of users, also where all users can create some, such as /var/tmp."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
import tempfile
from typing import Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError

_NOBODY_ID = 65534
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_private_dir(path: str, option_name: str, forbidden_bits: int = 0o077) -> int:
    """Open a directory in which nobody else can create anything. The directory is created if it does not exist.

    ``option_name``: the option with which the user chooses another one. ``forbidden_bits``: the mode bits that must not
    be set, by default all for other users. Return a descriptor. Raises HostStateError.
    """
    refuse_replaceable_dir(os.path.dirname(path), option_name)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        descriptor = os.open(path, _DIRECTORY_FLAGS)
    except OSError as failure:
        raise HostStateError(
            f"The directory {path} cannot be used: {failure.strerror}.", f"Give another one with {option_name}."
        ) from failure
    directory_status = os.fstat(descriptor)
    if directory_status.st_uid != os.geteuid() or directory_status.st_mode & forbidden_bits:
        os.close(descriptor)
        raise HostStateError(
            f"{path} is open to other users: it belongs to user {directory_status.st_uid} and has mode {directory_status.st_mode & 0o7777:04o}.",
            f"Remove it, or give another one with {option_name}.",
        )
    return descriptor


def expand_user_path(path_pattern: str, user_name: str, mode: Optional[int] = None) -> str:
    """Replace ``{user}`` in a path. If another user has taken that directory, use an alternative in the same parent.

    Where everybody can create directories, anybody can take the name of another user, but nobody can foresee the name
    of the alternative, which is created with ``mode`` if that is set. Raises OSError.
    """
    path_prefix, placeholder, path_suffix = path_pattern.partition("{user}")
    if not placeholder:
        return path_pattern
    name_end, slash, subpath = path_suffix.partition("/")
    user_directory = find_private_dir(os.path.normpath(f"{path_prefix}{user_name}{name_end}"), mode)
    return user_directory + (slash + subpath).replace("{user}", user_name)


def find_private_dir(path: str, mode: Optional[int]) -> str:
    """Return the path of a directory for one user, or of the alternative if another user has taken the name.

    The alternative is created with ``mode`` if that is set. Raises OSError.
    """
    parent, name = os.path.split(path)
    try:
        is_shared = os.stat(parent).st_mode & (stat.S_IWOTH | stat.S_IWGRP)
        owner_uid = os.lstat(path).st_uid
    except OSError:
        return path
    if not is_shared or owner_uid == 0 or _is_own_uid(owner_uid):
        return path
    with os.scandir(parent) as entries:
        own_directories = sorted(
            entry.path for entry in entries if entry.name.startswith(f"{name}.") and _is_private_entry(entry)
        )
    if own_directories or mode is None:
        return own_directories[0] if own_directories else path
    new_directory = tempfile.mkdtemp(prefix=f"{name}.", dir=parent)
    os.chmod(new_directory, mode)
    return new_directory


def _is_private_entry(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        entry_status = entry.stat(follow_symlinks=False)
        return (
            stat.S_ISDIR(entry_status.st_mode) and _is_own_uid(entry_status.st_uid) and not entry_status.st_mode & 0o022
        )
    return False


def _is_own_uid(owner_uid: int) -> bool:
    """Whether files that this process creates belong to ``owner_uid``. A volume may map root to nobody."""
    return owner_uid == os.geteuid() or (os.geteuid() == 0 and owner_uid == _NOBODY_ID)


def create_for_user(path: str, uid: int, gid: int) -> None:
    """Create a directory for a user as root where nobody else can create any; elsewhere, open_private_dir() decides.

    A missing parent is created, too.
    """
    parent, name = os.path.split(path)
    with contextlib.suppress(OSError):
        parent_missing = not os.path.lexists(parent)
        if parent_missing:
            os.mkdir(parent, 0o700)
        parent_fd = os.open(parent, _DIRECTORY_FLAGS)
        try:
            if parent_missing:
                # The mode must not depend on the umask.
                os.fchmod(parent_fd, 0o711)
            parent_status = os.fstat(parent_fd)
            if parent_status.st_uid != 0 or parent_status.st_mode & 0o022:
                return
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent_fd)
            directory_status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
            if stat.S_ISDIR(directory_status.st_mode) and directory_status.st_uid == 0:
                os.chown(name, uid, gid, dir_fd=parent_fd, follow_symlinks=False)
        finally:
            os.close(parent_fd)


def refuse_replaceable_dir(path: str, option_name: str, allowed_uid: Optional[int] = None) -> None:
    """Refuse a directory below which another user could replace one. Raises HostStateError.

    ``allowed_uid``: the owner of what this process creates there, if that may be another user: a volume may map root to
    nobody.
    """
    ancestor = os.path.realpath(path)
    trusted_uids = (0, os.geteuid(), allowed_uid)
    while True:
        try:
            ancestor_status = os.stat(ancestor)
        except OSError as failure:
            raise HostStateError(
                f"{ancestor} cannot be used: {failure.strerror}.", f"Give another directory with {option_name}."
            ) from failure
        if ancestor_status.st_uid not in trusted_uids:
            raise HostStateError(
                f"{ancestor} belongs to user {ancestor_status.st_uid}, who may rename what is in it.",
                f"Give a directory of your own with {option_name}, or ask an administrator to give this one to root.",
            )
        others_can_write = ancestor_status.st_mode & stat.S_IWOTH or (
            ancestor_status.st_mode & stat.S_IWGRP and not _is_private_group(ancestor_status.st_gid)
        )
        if others_can_write and not ancestor_status.st_mode & stat.S_ISVTX:
            raise HostStateError(
                f"Other users may rename what is in {ancestor}: it has mode {ancestor_status.st_mode & 0o7777:04o}.",
                f"Run 'chmod go-w {ancestor}', or 'chmod +t {ancestor}' if they have to write there, or give another "
                f"directory with {option_name}.",
            )
        if ancestor == "/":
            return
        ancestor = os.path.dirname(ancestor)


def _is_private_group(group_id: int) -> bool:
    """Whether the group is named after the user and has no other member.

    Where all users have such a group, they also have the umask 002, so that it may write to most of their directories.
    """
    try:
        user_account, group_entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except KeyError:
        return False
    is_own_group = (user_account.pw_gid, user_account.pw_name) == (group_id, group_entry.gr_name)
    return is_own_group and set(group_entry.gr_mem) <= {user_account.pw_name}
