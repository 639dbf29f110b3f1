# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse the mount table of the kernel. Pure."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Sequence


class MountEntry(NamedTuple):
    """One line of /proc/self/mountinfo.

    ``filesystem_options`` are those of its file system, ``mount_options`` those of the mount itself, such as nosuid.
    ``device`` has the form ``major:minor``; all mounts of a network file system have the same one. ``root`` is the
    directory of the file system that is mounted; for NFS, it is part of the source.
    """

    mount_point: str
    filesystem: str
    source: str
    read_only: bool
    filesystem_options: List[str]
    mount_options: List[str]
    device: str
    root: str = "/"


def parse_mountinfo(mountinfo_text: str) -> List[MountEntry]:
    """Parse all mounts, later ones over earlier ones; see proc(5)."""
    mount_entries = []
    for line in mountinfo_text.splitlines():
        mount_part, separator, filesystem_part = line.partition(" - ")
        mount_fields, filesystem_fields = mount_part.split(), filesystem_part.split()
        if separator and len(mount_fields) >= 6 and len(filesystem_fields) >= 2:
            filesystem_options, mount_options = (
                filesystem_fields[2].split(",") if len(filesystem_fields) > 2 else [],
                mount_fields[5].split(","),
            )
            mount_point, source = unescape_path(mount_fields[4]), unescape_path(filesystem_fields[1])
            mount_entries.append(
                MountEntry(
                    mount_point,
                    filesystem_fields[0],
                    source,
                    "ro" in [*mount_options, *filesystem_options],
                    filesystem_options,
                    mount_options,
                    mount_fields[2],
                    unescape_path(mount_fields[3]),
                )
            )
    return mount_entries


def find_mount(mount_entries: Sequence[MountEntry], path: str) -> Optional[MountEntry]:
    """Find the mount that contains ``path``; None if the list does not even have a root."""
    containing_mounts = [
        mount for mount in mount_entries if mount.mount_point in ("/", path) or path.startswith(mount.mount_point + "/")
    ]
    # The last of several mounts on one point is visible.
    return (
        max(
            enumerate(containing_mounts),
            key=lambda indexed_mount: (len(indexed_mount[1].mount_point), indexed_mount[0]),
        )[1]
        if containing_mounts
        else None
    )


def parse_mount_options(text: str) -> Dict[str, List[str]]:
    """Return the options of each mount itself by mount point. An automount alone does not count."""
    return {mount.mount_point: mount.mount_options for mount in parse_mountinfo(text) if mount.filesystem != "autofs"}


def unescape_path(text: str) -> str:
    """Decode the octal escapes in a path of a mount table."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), text)
