# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse to take over what others have mounted where a volume belongs.

Otherwise, the data would go to another file system without anyone noticing, and its mount options would be changed.
"""

from __future__ import annotations

import os
from typing import Any, Collection, Mapping, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import (
    MountEntry,
    find_mount,
    unescape_path,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage.fstab import FSTAB_PATH, convert_unit
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage.volumes import AUTOMOUNT_FILESYSTEM

_NFS_FILESYSTEMS = ("nfs", "nfs4")
#: The file system type of bind mounts.
BIND_FILESYSTEM = "none"


class DesiredMount(NamedTuple):
    """A volume to be mounted. On its server, ``source`` is a directory and ``filesystem`` is BIND_FILESYSTEM."""

    volume: str
    mount_point: str
    source: str
    filesystem: str


def parse_desired_mount(mount: Mapping[str, Any]) -> DesiredMount:
    """Parse one of the module's ``mounts``."""
    source, _where, filesystem = convert_unit(mount["mount"])[1].split()[:3]
    return DesiredMount(mount["volume"], mount["mount_point"], source, filesystem)


def refuse_other_mounts(
    mount_entries: Sequence[MountEntry], desired_mounts: Sequence[DesiredMount], own_mount_points: Collection[str]
) -> None:
    """Raise HostStateError that names every foreign file system on the mount point of a volume.

    ``own_mount_points`` have a unit of ours or a line of ours in fstab. Their mounts come from an earlier run, with the
    settings of that time.
    """
    entry_by_point = {mount.mount_point: mount for mount in mount_entries if mount.filesystem != AUTOMOUNT_FILESYSTEM}
    conflicts = [
        {
            "volume": conflict.volume,
            "mount_point": conflict.mount_point,
            "mounted": _describe_mount(entry_by_point[conflict.mount_point]),
        }
        for conflict in desired_mounts
        if conflict.mount_point in entry_by_point
        and conflict.mount_point not in own_mount_points
        and not _is_desired_mount(conflict, entry_by_point, mount_entries)
    ]
    if conflicts:
        conflict_summary = "; ".join(
            f"volume {conflict['volume']} at {conflict['mount_point']}: {conflict['mounted']}" for conflict in conflicts
        )
        raise HostStateError(
            f"Another file system is mounted where a volume is to be mounted: {conflict_summary}.",
            "Unmount it and remove what mounts it, such as its line in /etc/fstab, or choose another mount_point. "
            "If it is what the volume should be, declare the volume without server and path.",
            mounts=conflicts,
        )


def refuse_other_lines(
    other_lines: Sequence[str], desired_mounts: Sequence[DesiredMount], own_mount_points: Collection[str]
) -> None:
    """Raise HostStateError for a volume whose mount point others have in fstab: mount(8) would use their line.

    ``other_lines``: the lines of others.
    """
    for desired in desired_mounts:
        for line in other_lines:
            fields = line.split("#")[0].split()
            if (
                desired.mount_point in own_mount_points
                or len(fields) < 3
                or unescape_path(fields[1]).rstrip("/") != desired.mount_point
            ):
                continue
            if unescape_path(fields[0]) != desired.source:
                raise HostStateError(
                    f"{FSTAB_PATH} already has another file system for {desired.mount_point}, "
                    f"where volume {desired.volume} is to be mounted: {' '.join(fields)}.",
                    "Remove the line, or choose another mount_point.",
                    volume=desired.volume,
                    mount_point=desired.mount_point,
                )


def _describe_mount(mount: MountEntry) -> str:
    return f"{mount.filesystem} from {mount.source}"


def _is_desired_mount(
    desired: DesiredMount, entry_by_point: Mapping[str, MountEntry], mount_entries: Sequence[MountEntry]
) -> bool:
    """Whether the mount is the volume itself, such as that of a container whose fstab was replaced."""
    current_mount = entry_by_point[desired.mount_point]
    if desired.filesystem != BIND_FILESYSTEM:
        return current_mount.source == desired.source and current_mount.filesystem in _NFS_FILESYSTEMS
    # A bind mount is shown with the file system that contains the directory, and the path there.
    containing_mount = find_mount(
        [entry for entry in mount_entries if entry.filesystem != AUTOMOUNT_FILESYSTEM], desired.source
    )
    if containing_mount is None:
        return False
    expected_root = os.path.normpath(
        os.path.join(containing_mount.root, os.path.relpath(desired.source, containing_mount.mount_point))
    )
    return (current_mount.device, current_mount.root) == (containing_mount.device, expected_root)
