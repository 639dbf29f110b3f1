# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mounts of the kernel. Pure."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Sequence


class Mounted(NamedTuple):
    """One line of /proc/self/mountinfo.

    ``options`` are those of its file system, ``own`` those of the mount itself, such as nosuid. ``device`` has the form
    ``major:minor``; that of a network file system is the same for all of its mounts. ``root`` is the directory of the
    file system that is mounted; for NFS, it is part of the source.
    """

    point: str
    filesystem: str
    source: str
    read_only: bool
    options: List[str]
    own: List[str]
    device: str
    root: str = "/"


def parse_mountinfo(text: str) -> List[Mounted]:
    """Every mount, later ones over earlier ones; see proc(5)."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, more = left.split(), right.split()
        if separator and len(fields) >= 6 and len(more) >= 2:
            options, own = more[2].split(",") if len(more) > 2 else [], fields[5].split(",")
            point, source = unescaped(fields[4]), unescaped(more[1])
            found.append(
                Mounted(point, more[0], source, "ro" in [*own, *options], options, own, fields[2], unescaped(fields[3]))
            )
    return found


def holding(mounted: Sequence[Mounted], path: str) -> Optional[Mounted]:
    """The mount that contains ``path``; None if the list does not even have a root."""
    found = [mount for mount in mounted if mount.point in ("/", path) or path.startswith(mount.point + "/")]
    # Of several mounts on one point, the last one is visible.
    return max(enumerate(found), key=lambda entry: (len(entry[1].point), entry[0]))[1] if found else None


def options_by_point(text: str) -> Dict[str, List[str]]:
    """The options of each mount itself. An automount alone does not count."""
    return {mount.point: mount.own for mount in parse_mountinfo(text) if mount.filesystem != "autofs"}


def unescaped(text: str) -> str:
    """A path of a mount table, with its octal escapes decoded."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), text)
