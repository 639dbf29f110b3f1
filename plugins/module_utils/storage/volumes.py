# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mount at a path, and whether the right external file system is mounted there."""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import Mounted, holding, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.bounded import VolumeError, bounded

#: A working file system answers in milliseconds.
_SECONDS = 10.0
#: These mount another file system on first use, and are none themselves.
AUTOMOUNT = "autofs"


def mount_of(mounted: Sequence[Mounted], path: str) -> Mounted:
    """The mount that contains ``path``. Raises VolumeError if the list does not even have a root."""
    mount = holding(mounted, path)
    if mount is None:
        raise VolumeError("nothing is mounted")
    return mount


def locate(path: str) -> Dict[str, Any]:
    """The mount at ``path``. May wait for a dead server: see ``bounded``."""
    # Listing the folder triggers an automount.
    with os.scandir(path) as entries:
        next(entries, None)
    real = os.path.realpath(path)
    if real != path:
        # The checks compare paths with mount points, some of them without accessing the file system.
        raise VolumeError(f"it is a symbolic link; set mount_point to {real}")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as stream:
        mount = mount_of(parse_mountinfo(stream.read()), path)
    if mount.filesystem == AUTOMOUNT:
        raise VolumeError("nothing is mounted there")
    return mount._asdict()


def trouble_of(volume: Mapping[str, Any], mount: Mapping[str, Any]) -> str:
    """Why a file system is not the wanted one of the volume; empty if it is. ``mount`` is the result of ``locate``."""
    wanted = volume.get("filesystem")
    if wanted and mount["filesystem"] != wanted:
        return f"it is {mount['filesystem']} from {mount['source']}, but {wanted} is required"
    if not wanted and mount["point"] == "/":
        return "nothing is mounted there: it is a directory on the host's own root file system"
    if mount["read_only"] and not volume.get("read_only"):
        return "it is mounted read-only, but the volume is not declared read_only"
    return ""


def refuse_missing(volumes: Sequence[Mapping[str, Any]]) -> None:
    """Raises HostStateError that names every external volume that is missing or wrong."""
    troubles = []
    for volume in volumes:
        path = volume["mount_point"]
        try:
            trouble = trouble_of(volume, bounded(functools.partial(locate, path), _SECONDS))
        except VolumeError as failure:
            trouble = failure.message
        if trouble:
            troubles.append(f"volume {volume['volume']} at {path}: {trouble}")
    if troubles:
        raise HostStateError(
            f"A required file system is missing: {'; '.join(troubles)}.",
            "Mount it on this host according to its own instructions, or correct storage_volumes: this collection never "
            "mounts a volume without a server.",
            troubles=troubles,
        )
