# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directories that jobs leave behind, until they are removed.

Users decide how much is in them, and may have mounted something, so they are only renamed while others wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
from typing import List, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import bounded_read
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import list_names

_TRASH_PREFIX = ".trash-"
#: The timeout, in seconds, to remove one directory. The rest is removed the next time.
_REMOVAL_TIMEOUT = 300.0
_REMOVE_COMMAND = [
    "ionice",
    "-t",
    "-c",
    "3",
    "nice",
    "-n",
    "19",
    "rm",
    "--recursive",
    "--force",
    "--one-file-system",
    "--",
]
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def discard(path: str) -> None:
    """Rename a directory for its removal. If that fails, it stays, and the next run finds it."""
    parent, name = os.path.split(path)
    with contextlib.suppress(OSError):
        os.rename(path, f"{parent}/{_TRASH_PREFIX}{name}-{secrets.token_hex(8)}")


def list_discarded(directories: Sequence[str]) -> List[str]:
    """Return the discarded directories in these directories."""
    return [
        f"{directory}/{name}"
        for directory in directories
        for name in list_names(directory)
        if name.startswith(_TRASH_PREFIX)
    ]


def remove_discarded(run: Runner, directories: Sequence[str]) -> None:
    """Remove discarded directories at a low priority. Those that cannot be removed now stay."""
    for path in list_discarded(directories):
        with contextlib.suppress(CommandError, OSError):
            _unmount_below(os.fsencode(path))
            run([*_REMOVE_COMMAND, path], timeout=_REMOVAL_TIMEOUT, check=False)


def _unmount_below(top_directory: bytes) -> None:
    """Unmount everything below a directory, even if its servers do not respond any more.

    Unmounting the outermost mount also removes those inside it.
    """
    failed_prefixes: List[bytes] = []
    for mount_point in sorted(_mount_points(top_directory), key=len):
        if not mount_point.startswith(tuple(failed_prefixes)) and not _unmount(top_directory, mount_point):
            failed_prefixes.append(mount_point + b"/")


def _mount_points(top_directory: bytes) -> List[bytes]:
    with open("/proc/self/mountinfo", "rb") as stream:
        entries = [line.split(b" ") for line in (bounded_read.read(stream) or b"").split(b"\n")]
    mount_points = [
        re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), entry[4])
        for entry in entries
        if len(entry) > 4
    ]
    return [mount_point for mount_point in mount_points if mount_point.startswith(top_directory + b"/")]


def _unmount(top_directory: bytes, mount_point: bytes) -> bool:
    """Unmount a mount point without following links, since users may replace any directory in the path with one."""
    *parent_names, mount_name = mount_point[len(top_directory) + 1 :].split(b"/")
    with contextlib.ExitStack() as exit_stack:
        try:
            directory_descriptor = os.open(top_directory, _DIRECTORY_FLAGS)
            exit_stack.callback(os.close, directory_descriptor)
            for parent_name in parent_names:
                directory_descriptor = os.open(parent_name, _DIRECTORY_FLAGS, dir_fd=directory_descriptor)
                exit_stack.callback(os.close, directory_descriptor)
        except OSError:
            return False
        target_path = b"/proc/self/fd/%d/%s" % (directory_descriptor, mount_name)
        return int(ctypes.CDLL(None).umount2(target_path, _MNT_DETACH | _UMOUNT_NOFOLLOW)) == 0
