# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mounts of the kernel. Pure."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple


class Mounted(NamedTuple):
    """One line of /proc/self/mountinfo. ``options`` are those of its file system."""

    point: str
    filesystem: str
    source: str
    read_only: bool
    options: List[str]


def parse_mountinfo(text: str) -> List[Mounted]:
    """Every mount, the later ones over the earlier ones; proc(5)."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, more = left.split(), right.split()
        if separator and len(fields) >= 6 and len(more) >= 2:
            options = more[2].split(",") if len(more) > 2 else []
            read_only = "ro" in [*fields[5].split(","), *options]
            found.append(Mounted(unescaped(fields[4]), more[0], unescaped(more[1]), read_only, options))
    return found


def options_by_point(text: str) -> Dict[str, List[str]]:
    """The options of each mount itself, as nosuid, and not those of its file system. An automount alone is none."""
    found = {}
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, more = left.split(), right.split()
        if separator and len(fields) >= 6 and more and more[0] != "autofs":
            found[unescaped(fields[4])] = fields[5].split(",")
    return found


def devices_by_point(text: str) -> Dict[str, str]:
    """The device of each mount, as ``major:minor``: that of a network's file system is the same wherever it is seen."""
    lines = (line.split() for line in text.splitlines())
    return {unescaped(fields[4]): fields[2] for fields in lines if len(fields) >= 6}


def unescaped(text: str) -> str:
    """A path of a mount table, where blanks stand in octal."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), text)
