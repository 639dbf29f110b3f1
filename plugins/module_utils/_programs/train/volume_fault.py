# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether ranks have failed because the shared volume is full or fails, which neither a node nor the program can help.

Their errors seldom say which file system they are about. A path in them does, and otherwise the state of the volume: if
it has free space and works, the disk of a node is full.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from typing import List, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import find_mount, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import error_words as words
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import preflight
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.failure import PROGRAM_KINDS
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Cause

#: The bytes that a working volume must accept.
_PROBE_SIZE = 1 << 20
#: A volume with less free space, or with less than this part of its size, is full.
_MIN_FREE_BYTES = 1 << 30
_MIN_FREE_DIVISOR = 100
#: The number of failures without progress for which a volume is blamed although it works now.
_MAX_UNPROVEN_FAILURES = 2
#: Directories that are local to each node.
_LOCAL_DIRS = ("/tmp", "/var/tmp", "/dev", "/run", "/proc", "/sys")  # noqa: S108
#: The path in an error: quoted or after the message, as Python writes it, or before it, as most other programs do. An error
#: of Python about moving or copying a file names the source and the target.
_PATH_AFTER_ERROR = re.compile(
    r"\]?(?: \([^)]*\))?: ?(?:b?['\"](?P<quoted>[^'\"]+)['\"](?: -> b?['\"](?P<target>[^'\"]+)['\"])?"
    r"|(?P<bare>/[^\s'\":;,()<>]+))"
)
_PATH_BEFORE_ERROR = re.compile(r"(?P<bare>/[^\s'\":;,()<>]+)['\">]?:? ?(?:\w*(?:Error|Exception): ?)?\[?$")
#: The text that attribution appends to the error of a rank.
_OTHER_RANKS_SUFFIX = re.compile(r"(?: \(\d+ other ranks? failed after it\)|; \d+ other ranks? gave up .*)?$")


class VolumeState(NamedTuple):
    """The state of a volume. ``problem``: why it accepts no data, or empty; ``is_full``: whether it lacks space."""

    is_full: bool = False
    problem: str = ""


def probe_volume(run_dir: str) -> VolumeState:
    """Return the state of the volume of a run. May block if it does not answer."""
    try:
        with tempfile.TemporaryFile(dir=run_dir) as probe:
            probe.write(bytes(_PROBE_SIZE))
            probe.flush()
            os.fsync(probe.fileno())
        filesystem = os.statvfs(run_dir)
        min_free_bytes = max(
            min(_MIN_FREE_BYTES, filesystem.f_blocks * filesystem.f_frsize // _MIN_FREE_DIVISOR),
            _largest_checkpoint(os.path.join(run_dir, "checkpoints")),
        )
    except OSError as failure:
        error_text = failure.strerror or str(failure)
        is_full = words.NO_SPACE.search(error_text) is not None
        return VolumeState(is_full, "is full" if is_full else f"fails: {error_text}")
    free_bytes = filesystem.f_bavail * filesystem.f_frsize
    if free_bytes < min_free_bytes:
        return VolumeState(True, f"is full: {free_bytes >> 20} MiB are left, and {min_free_bytes >> 20} MiB are needed")
    return VolumeState(True, "has no inodes left") if filesystem.f_files and not filesystem.f_favail else VolumeState()


def _largest_checkpoint(checkpoint_dir: str) -> int:
    """Return the size of the largest checkpoint, for which there must be space."""
    sizes = [0]
    with contextlib.suppress(OSError), os.scandir(checkpoint_dir) as entries:
        for entry in entries:
            size = entry.stat(follow_symlinks=False).st_size
            for parent_dir, _directories, file_names in os.walk(entry.path):
                size += sum(os.lstat(os.path.join(parent_dir, file_name)).st_size for file_name in file_names)
            sizes.append(size)
    return max(sizes)


def attribute_to_volume(cause: Cause, run_dir: str, directory: str, earlier_failures: int, had_no_room: bool) -> Cause:
    """Return the cause of the end of an attempt: the given one, or the volume, if that is to blame.

    ``directory``: where the command of the run starts; ``earlier_failures``: how often the volume was the cause since
    the last progress of the run; ``had_no_room``: whether it was full during the attempt. May block if the volume does
    not answer.
    """
    space_error = words.NO_SPACE.search(cause.detail) or words.WRITE_ERROR.search(cause.detail)
    volume_error = None if space_error else words.FILE_SYSTEM_ERROR.search(cause.detail)
    if cause.kind not in PROGRAM_KINDS or not (space_error or volume_error):
        return cause
    paths = _find_paths(cause.detail, space_error is not None)
    is_shared = _is_any_on_volume([_is_on_volume(path, run_dir, directory) for path in paths])
    if is_shared is False:
        return cause
    volume_state = probe_volume(run_dir)
    if not volume_state.problem or (volume_error and volume_state.is_full):
        if is_shared is None and not (space_error and had_no_room):
            return (
                _attribute_to_disk(cause) if not volume_state.problem and words.NO_SPACE.search(cause.detail) else cause
            )
        if volume_error and earlier_failures >= _MAX_UNPROVEN_FAILURES:
            # The error may be that of the mount on one node.
            return cause
        volume_state = VolumeState(space_error is not None, "had no room" if space_error else "failed")
    return Cause("volume", f"the shared volume {volume_state.problem}: {cause.detail}")


def _attribute_to_disk(cause: Cause) -> Cause:
    disk_note = "; the shared volume has room, so a disk of the node is full"
    return cause._replace(
        detail=_OTHER_RANKS_SUFFIX.sub(lambda suffix: disk_note + suffix.group(), cause.detail, count=1)
    )


def _find_paths(detail: str, is_space_error: bool) -> List[str]:
    """Return the paths that an error names, and that may be what it is about."""
    error_matches = list((words.NO_SPACE if is_space_error else words.FILE_SYSTEM_ERROR).finditer(detail))
    if not error_matches:
        return []
    path_after = _PATH_AFTER_ERROR.match(detail, error_matches[-1].end())
    if path_after and path_after.group("target"):
        # Reading needs no space, but either file system may fail.
        return (
            [path_after.group("target")] if is_space_error else [path_after.group("quoted"), path_after.group("target")]
        )
    if path_after:
        return [path_after.group("quoted") or path_after.group("bare")]
    path_before = _PATH_BEFORE_ERROR.search(detail[: error_matches[0].start()])
    return [path_before.group("bare")] if path_before else []


def _is_any_on_volume(answers: Sequence[Optional[bool]]) -> Optional[bool]:
    """Whether one of the paths is on the volume; None if that is not known."""
    if any(answers):
        return True
    return None if None in answers or not answers else False


def _is_on_volume(path: str, run_dir: str, directory: str) -> Optional[bool]:
    """Whether a path is on a volume that nodes share; None if that is not known, such as for a path of a container."""
    path = os.path.normpath(os.path.join(directory, path))
    if any(path.startswith(f"{local_dir}/") and not run_dir.startswith(f"{local_dir}/") for local_dir in _LOCAL_DIRS):
        return False
    existing_path = os.path.realpath(path)
    while not os.path.exists(existing_path):
        existing_path = os.path.dirname(existing_path)
    if existing_path == "/":
        return None
    mountinfo_text = processes.read_process_file("/proc", "self", "mountinfo")
    real_run_dir = os.path.realpath(run_dir)
    mount = find_mount(parse_mountinfo(mountinfo_text), real_run_dir)
    volume_root = mount.mount_point if mount and mount.mount_point != "/" else real_run_dir
    return preflight.is_shared(existing_path, [volume_root], mountinfo_text)
