# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What jobs leave behind, until it is removed.

Its users decide how much that is, and may have mounted something in it, so it is only renamed while others wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
from typing import List, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils import limited
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import names_in

_PREFIX = ".trash-"
#: Seconds to remove one directory. What remains is removed the next time.
_REMOVAL = 300.0
_REMOVE = ["ionice", "-t", "-c", "3", "nice", "-n", "19", "rm", "--recursive", "--force", "--one-file-system", "--"]
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_PARENT = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def discard(path: str) -> None:
    """Rename a directory. If that fails, it stays, and is found again."""
    parent, name = os.path.split(path)
    with contextlib.suppress(OSError):
        os.rename(path, f"{parent}/{_PREFIX}{name}-{secrets.token_hex(8)}")


def found(folders: Sequence[str]) -> List[str]:
    """What was discarded in these."""
    return [f"{folder}/{name}" for folder in folders for name in names_in(folder) if name.startswith(_PREFIX)]


def empty(run: Runner, folders: Sequence[str]) -> None:
    """Remove it, without disturbing others. What cannot be removed now stays."""
    for path in found(folders):
        with contextlib.suppress(CommandError, OSError):
            _detach(os.fsencode(path))
            run([*_REMOVE, path], timeout=_REMOVAL, check=False)


def _detach(top: bytes) -> None:
    """Unmount everything below, of which nothing may answer any more. What is mounted there goes with the outermost."""
    failed: List[bytes] = []
    for point in sorted(_mount_points(top), key=len):
        if not point.startswith(tuple(failed)) and not _unmount(top, point):
            failed.append(point + b"/")


def _mount_points(top: bytes) -> List[bytes]:
    with open("/proc/self/mountinfo", "rb") as stream:
        fields = [line.split(b" ") for line in (limited.read(stream) or b"").split(b"\n")]
    points = [re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), one[4]) for one in fields if len(one) > 4]
    return [point for point in points if point.startswith(top + b"/")]


def _unmount(top: bytes, point: bytes) -> bool:
    """Users may replace any directory in the path with a link: none is followed."""
    *parents, name = point[len(top) + 1 :].split(b"/")
    with contextlib.ExitStack() as opened:
        try:
            folder = os.open(top, _PARENT)
            opened.callback(os.close, folder)
            for parent in parents:
                folder = os.open(parent, _PARENT, dir_fd=folder)
                opened.callback(os.close, folder)
        except OSError:
            return False
        target = b"/proc/self/fd/%d/%s" % (folder, name)
        return int(ctypes.CDLL(None).umount2(target, _MNT_DETACH | _UMOUNT_NOFOLLOW)) == 0
