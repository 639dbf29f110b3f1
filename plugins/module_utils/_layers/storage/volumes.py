# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mount at a path, and whether the right external file system is mounted there."""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import (
    MountEntry,
    find_mount,
    parse_mountinfo,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.subprocess_deadline import (
    VolumeError,
    run_with_deadline,
)

#: A working file system answers in milliseconds.
_PROBE_TIMEOUT = 10.0
#: The type of automounts, which mount another file system on first use.
AUTOMOUNT_FILESYSTEM = "autofs"


def require_mount(mount_entries: Sequence[MountEntry], path: str) -> MountEntry:
    """Return the mount that contains ``path``. Raises VolumeError if the list does not even have a root."""
    mount = find_mount(mount_entries, path)
    if mount is None:
        raise VolumeError("nothing is mounted")
    return mount


def locate_mount(path: str) -> Dict[str, Any]:
    """Return the mount at ``path``. May wait for a dead server: run it with a deadline."""
    # Listing the directory triggers an automount.
    with os.scandir(path) as entries:
        next(entries, None)
    resolved_path = os.path.realpath(path)
    if resolved_path != path:
        # The checks compare paths with mount points, some of them without accessing the file system.
        raise VolumeError(f"it is a symbolic link; set mount_point to {resolved_path}")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as stream:
        mount = require_mount(parse_mountinfo(stream.read()), path)
    if mount.filesystem == AUTOMOUNT_FILESYSTEM:
        raise VolumeError("nothing is mounted there")
    return describe_mount(mount)


def describe_mount(mount: MountEntry) -> Dict[str, Any]:
    """Return what the checks compare of a mount, by the keys of their results."""
    return {
        "filesystem": mount.filesystem,
        "source": mount.source,
        "point": mount.mount_point,
        "read_only": mount.read_only,
    }


def explain_wrong_mount(volume: Mapping[str, Any], mount_fields: Mapping[str, Any]) -> str:
    """Explain why a mount is not the required one; empty if it is. ``mount_fields``: the result of locate_mount()."""
    required_filesystem = volume.get("filesystem")
    if required_filesystem and mount_fields["filesystem"] != required_filesystem:
        return (
            f"it is {mount_fields['filesystem']} from {mount_fields['source']}, but {required_filesystem} is required"
        )
    if not required_filesystem and mount_fields["point"] == "/":
        return "nothing is mounted there: it is a directory on the host's own root file system"
    if mount_fields["read_only"] and not volume.get("read_only"):
        return "it is mounted read-only, but the volume is not declared read_only"
    return ""


def refuse_missing_volumes(volumes: Sequence[Mapping[str, Any]]) -> None:
    """Raise HostStateError that names every external volume that is missing or wrong."""
    volume_problems = []
    for volume in volumes:
        mount_point = volume["mount_point"]
        try:
            problem = explain_wrong_mount(
                volume, run_with_deadline(functools.partial(locate_mount, mount_point), _PROBE_TIMEOUT)
            )
        except VolumeError as failure:
            problem = failure.message
        if problem:
            volume_problems.append(f"volume {volume['volume']} at {mount_point}: {problem}")
    if volume_problems:
        raise HostStateError(
            f"A required file system is missing: {'; '.join(volume_problems)}.",
            "Mount it on this host according to its own instructions, or correct storage_volumes: "
            "this collection never mounts a volume without a server.",
            troubles=volume_problems,
        )
