# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A directory of a user where all users can make some, such as below /var/tmp: nobody else may have put it there."""

from __future__ import annotations

import contextlib
import os
import stat

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def owned(path: str, option: str, forbidden: int = 0o077) -> int:
    """Open a directory in which nobody else can put anything, which is made where it is not there.

    ``option``: what chooses another one. ``forbidden``: what others must not have, by default any right. Raises
    HostStateError.
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


def refuse_open(path: str, option: str) -> None:
    """Raises HostStateError where another user could put another directory in the place of one below this one."""
    place = os.path.realpath(path)
    while True:
        try:
            about = os.stat(place)
        except OSError as failure:
            raise HostStateError(
                f"{place} cannot be used: {failure.strerror}.", f"Give another directory with {option}."
            ) from failure
        shared = about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX
        if about.st_uid not in (0, os.geteuid()) or shared:
            raise HostStateError(
                f"Other users may rename what is in {place}.", f"Run 'chmod +t {place}', or give another {option}."
            )
        if place == "/":
            return
        place = os.path.dirname(place)
