# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuses to take over what others have mounted where a volume belongs.

Otherwise, the data would go to another file system without anyone noticing, and its mount options would be changed.
"""

from __future__ import annotations

import os
from typing import Any, Collection, Mapping, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import Mounted, holding, unescaped
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.fstab import PATH, line_of
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.volumes import AUTOMOUNT

_NFS = ("nfs", "nfs4")
#: What a bind mount has in place of a file system.
BIND = "none"


class Wanted(NamedTuple):
    """A volume to be mounted. On its server, ``source`` is a directory and ``filesystem`` is BIND."""

    volume: str
    mount_point: str
    source: str
    filesystem: str


def wanted_of(mount: Mapping[str, Any]) -> Wanted:
    """The volume that one of the module's ``mounts`` describes."""
    source, _where, filesystem = line_of(mount["mount"])[1].split()[:3]
    return Wanted(mount["volume"], mount["mount_point"], source, filesystem)


def refuse(table: Sequence[Mounted], wanted: Sequence[Wanted], ours: Collection[str]) -> None:
    """Raises HostStateError that names every other file system in the place of a volume.

    ``ours``: the mount points that have a unit of ours or a line of ours in fstab. What is mounted there was mounted
    by an earlier run, with the settings of that time.
    """
    mounted = {mount.point: mount for mount in table if mount.filesystem != AUTOMOUNT}
    found = [
        {"volume": one.volume, "mount_point": one.mount_point, "mounted": _name(mounted[one.mount_point])}
        for one in wanted
        if one.mount_point in mounted and one.mount_point not in ours and not _is_wanted(one, mounted, table)
    ]
    if found:
        words = "; ".join(f"volume {one['volume']} at {one['mount_point']}: {one['mounted']}" for one in found)
        raise HostStateError(
            f"Another file system is mounted where a volume is to be mounted: {words}.",
            "Unmount it and remove what mounts it, such as its line in /etc/fstab, or choose another mount_point. If it is "
            "what the volume should be, declare the volume without server and path.",
            mounts=found,
        )


def refuse_lines(lines: Sequence[str], wanted: Sequence[Wanted], ours: Collection[str]) -> None:
    """Raises HostStateError for a volume whose mount point others have in fstab: mount(8) would use their line.

    ``lines`` are those of others.
    """
    for one in wanted:
        for line in lines:
            fields = line.split("#")[0].split()
            if one.mount_point in ours or len(fields) < 3 or unescaped(fields[1]).rstrip("/") != one.mount_point:
                continue
            if unescaped(fields[0]) != one.source:
                raise HostStateError(
                    f"{PATH} already has another file system for {one.mount_point}, where volume {one.volume} is to be "
                    f"mounted: {' '.join(fields)}.",
                    "Remove the line, or choose another mount_point.",
                    volume=one.volume,
                    mount_point=one.mount_point,
                )


def _name(mount: Mounted) -> str:
    return f"{mount.filesystem} from {mount.source}"


def _is_wanted(wanted: Wanted, mounted: Mapping[str, Mounted], table: Sequence[Mounted]) -> bool:
    """Whether the mount is the volume itself, such as that of a container whose fstab was replaced."""
    mount = mounted[wanted.mount_point]
    if wanted.filesystem != BIND:
        return mount.source == wanted.source and mount.filesystem in _NFS
    # A bind mount is shown with the file system that contains the directory, and the path there.
    around = holding([other for other in table if other.filesystem != AUTOMOUNT], wanted.source)
    if around is None:
        return False
    path = os.path.normpath(os.path.join(around.root, os.path.relpath(wanted.source, around.point)))
    return (mount.device, mount.root) == (around.device, path)
