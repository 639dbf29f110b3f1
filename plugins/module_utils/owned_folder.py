# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user's directory in a place where all users can create some, such as /var/tmp: nobody else may have created it."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
import tempfile
from typing import Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError

_NOBODY = 65534
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def owned(path: str, option: str, forbidden: int = 0o077) -> int:
    """Open a directory in which nobody else can create anything. It is created if it does not exist.

    ``option``: the option with which another one is chosen. ``forbidden``: the mode bits that others must not have, by
    default all. Returns a descriptor. Raises HostStateError.
    """
    refuse_open(os.path.dirname(path), option)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        descriptor = os.open(path, _DIRECTORY)
    except OSError as failure:
        raise HostStateError(
            f"The directory {path} cannot be used: {failure.strerror}.", f"Give another one with {option}."
        ) from failure
    about = os.fstat(descriptor)
    if about.st_uid != os.geteuid() or about.st_mode & forbidden:
        os.close(descriptor)
        raise HostStateError(
            f"{path} is open to other users: it belongs to user {about.st_uid} and has mode {about.st_mode & 0o7777:04o}.",
            f"Remove it, or give another one with {option}.",
        )
    return descriptor


def of_user(pattern: str, user: str, mode: Optional[int] = None) -> str:
    """Replace ``{user}`` in a path. If another user has taken the name of that directory, it is the user's own one beside it.

    Where everybody can create directories, anybody can take the name of another user, but nobody can foresee that of the
    other directory, which is created with ``mode`` if that is given. Raises OSError.
    """
    before, found, rest = pattern.partition("{user}")
    if not found:
        return pattern
    end, slash, below = rest.partition("/")
    own = unless_taken(os.path.normpath(f"{before}{user}{end}"), mode)
    return own + (slash + below).replace("{user}", user)


def unless_taken(path: str, mode: Optional[int]) -> str:
    """The same for a directory that is named after a user, or is only for one."""
    parent, name = os.path.split(path)
    try:
        is_open = os.stat(parent).st_mode & (stat.S_IWOTH | stat.S_IWGRP)
        owner = os.lstat(path).st_uid
    except OSError:
        return path
    if not is_open or owner == 0 or _is_own(owner):
        return path
    with os.scandir(parent) as entries:
        found = sorted(entry.path for entry in entries if entry.name.startswith(f"{name}.") and _is_safe(entry))
    if found or mode is None:
        return found[0] if found else path
    made = tempfile.mkdtemp(prefix=f"{name}.", dir=parent)
    os.chmod(made, mode)
    return made


def _is_safe(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        about = entry.stat(follow_symlinks=False)
        return stat.S_ISDIR(about.st_mode) and _is_own(about.st_uid) and not about.st_mode & 0o022
    return False


def _is_own(owner: int) -> bool:
    """Whether this is the owner of what this process creates. A volume may map root to nobody."""
    return owner == os.geteuid() or (os.geteuid() == 0 and owner == _NOBODY)


def give(path: str, uid: int, gid: int) -> None:
    """As root: create a directory for a user where nobody else can create any. Elsewhere, ``owned`` decides later.

    If its parent is missing, that is created, too.
    """
    parent, name = os.path.split(path)
    with contextlib.suppress(OSError):
        new = not os.path.lexists(parent)
        if new:
            os.mkdir(parent, 0o700)
        folder = os.open(parent, _DIRECTORY)
        try:
            if new:
                # Regardless of the umask.
                os.fchmod(folder, 0o711)
            about = os.fstat(folder)
            if about.st_uid != 0 or about.st_mode & 0o022:
                return
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
            made = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(made.st_mode) and made.st_uid == 0:
                os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(folder)


def refuse_open(path: str, option: str, own: Optional[int] = None) -> None:
    """Raises HostStateError if another user could replace a directory below this one.

    ``own``: the user who owns what this process creates there, if that may be another one: a volume may map root to
    nobody.
    """
    place = os.path.realpath(path)
    trusted = (0, os.geteuid(), own)
    while True:
        try:
            about = os.stat(place)
        except OSError as failure:
            raise HostStateError(
                f"{place} cannot be used: {failure.strerror}.", f"Give another directory with {option}."
            ) from failure
        if about.st_uid not in trusted:
            raise HostStateError(
                f"{place} belongs to user {about.st_uid}, who may rename what is in it.",
                f"Give a directory of your own with {option}, or ask an administrator to give this one to root.",
            )
        others = about.st_mode & stat.S_IWOTH or (about.st_mode & stat.S_IWGRP and not _private(about.st_gid))
        if others and not about.st_mode & stat.S_ISVTX:
            raise HostStateError(
                f"Other users may rename what is in {place}: it has mode {about.st_mode & 0o7777:04o}.",
                f"Run 'chmod go-w {place}', or 'chmod +t {place}' if they have to write there, or give another "
                f"directory with {option}.",
            )
        if place == "/":
            return
        place = os.path.dirname(place)


def _private(group: int) -> bool:
    """Whether this is the group that is named after the user, with nobody else in it.

    Where all users have one, they also have the umask 002, so that it may write to most of their directories.
    """
    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    own = (user.pw_gid, user.pw_name) == (group, entry.gr_name)
    return own and set(entry.gr_mem) <= {user.pw_name}
