# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether ranks have failed because the shared volume is full or fails, which neither a node nor the program can help.

Their errors seldom say which file system they are about. A path in them does, and otherwise the state of the volume: if
it has room and works, the disk of a node is full.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from typing import NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import holding, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import error_words as words
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import preflight
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.failure import OF_PROGRAM
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Cause

#: The bytes that a volume must take to be in order.
_PROBE = 1 << 20
#: A volume with less room, or with less than this part of its size, is full.
_ROOM = 1 << 30
_PART = 100
#: So many times without progress, an error of a volume that works may be that of the volume.
_BELIEVED = 2
#: Where each node has files of its own.
_OWN = ("/tmp", "/var/tmp", "/dev", "/run", "/proc", "/sys")  # noqa: S108
#: The path in an error: quoted or after the words, as Python writes it, or before them, as most other programs do.
_AFTER = re.compile(r"\]?(?: \([^)]*\))?: ?(?:b?['\"](?P<quoted>[^'\"]+)['\"]|(?P<bare>/[^\s'\":;,()<>]+))")
_BEFORE = re.compile(r"(?P<bare>/[^\s'\":;,()<>]+)['\">]?:? ?(?:\w*(?:Error|Exception): ?)?\[?$")
#: What cause writes after the words of a rank.
_OTHERS = re.compile(r"(?: \(\d+ other ranks? failed after it\)|; \d+ other ranks? gave up .*)?$")


class State(NamedTuple):
    """Why a volume takes no data; ``text`` is empty if it does. ``full``: for lack of room."""

    full: bool = False
    text: str = ""


def state(folder: str) -> State:
    """The state of the volume of a run. May block if it does not answer."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE))
            probe.flush()
            os.fsync(probe.fileno())
        found = os.statvfs(folder)
        least = max(min(_ROOM, found.f_blocks * found.f_frsize // _PART), _largest(os.path.join(folder, "checkpoints")))
    except OSError as failure:
        text = failure.strerror or str(failure)
        full = words.SPACE.search(text) is not None
        return State(full, "is full" if full else f"fails: {text}")
    left = found.f_bavail * found.f_frsize
    if left < least:
        return State(True, f"is full: {left >> 20} MiB are left, and {least >> 20} MiB are needed")
    return State(True, "has no inodes left") if found.f_files and not found.f_favail else State()


def _largest(checkpoints: str) -> int:
    """The size of the largest checkpoint, for which there must be room."""
    sizes = [0]
    with contextlib.suppress(OSError), os.scandir(checkpoints) as entries:
        for entry in entries:
            size = entry.stat(follow_symlinks=False).st_size
            for place, _folders, names in os.walk(entry.path):
                size += sum(os.lstat(os.path.join(place, name)).st_size for name in names)
            sizes.append(size)
    return max(sizes)


def judged(cause: Cause, folder: str, directory: str, times: int, had_no_room: bool) -> Cause:
    """The cause of the end of an attempt, if it is not the volume.

    ``folder``: that of the run; ``directory``: where its command starts; ``times``: how often the volume was the cause
    since the run last got further; ``had_no_room``: it was full during the attempt. May block if the volume does not
    answer.
    """
    space = words.SPACE.search(cause.detail) or words.UNWRITTEN.search(cause.detail)
    failing = None if space else words.FAILING.search(cause.detail)
    if cause.kind not in OF_PROGRAM or not (space or failing):
        return cause
    shared = _on_volume(_path(cause.detail, space is not None), folder, directory)
    if shared is False:
        return cause
    found = state(folder)
    if not found.text or (failing and found.full):
        if shared is None and not (space and had_no_room):
            return _of_disk(cause) if not found.text and words.SPACE.search(cause.detail) else cause
        if failing and times >= _BELIEVED:
            # The mount of one node, perhaps.
            return cause
        found = State(space is not None, "had no room" if space else "failed")
    return Cause("volume", f"the shared volume {found.text}: {cause.detail}")


def _of_disk(cause: Cause) -> Cause:
    local = "; the shared volume has room, so a disk of the node is full"
    return cause._replace(detail=_OTHERS.sub(lambda others: local + others.group(), cause.detail, count=1))


def _path(detail: str, space: bool) -> str:
    """The path of which an error is told; empty if it does not say."""
    found = list((words.SPACE if space else words.FAILING).finditer(detail))
    if not found:
        return ""
    after = _AFTER.match(detail, found[-1].end())
    if after:
        return str(after.group("quoted") or after.group("bare"))
    before = _BEFORE.search(detail[: found[0].start()])
    return before.group("bare") if before else ""


def _on_volume(path: str, folder: str, directory: str) -> Optional[bool]:
    """Whether a path is on a volume that nodes share; None if that is not known, such as for a path of a container."""
    if not path:
        return None
    path = os.path.normpath(os.path.join(directory, path))
    if any(path.startswith(f"{own}/") and not folder.startswith(f"{own}/") for own in _OWN):
        return False
    there = os.path.realpath(path)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    if there == "/":
        return None
    mounts = processes.text("/proc", "self", "mountinfo")
    here = os.path.realpath(folder)
    mount = holding(parse_mountinfo(mounts), here)
    volume = mount.point if mount and mount.point != "/" else here
    return preflight.is_shared(there, [volume], mounts)
