# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount options that can be changed while a mount is in use: whether setuid programs and devices on it are effective."""

from __future__ import annotations

import re
from typing import List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner

#: Each option, and its opposite, which is the kernel's default.
_OPPOSITES = {"nosuid": "suid", "nodev": "dev"}
_SECONDS = 100


class Remount(NamedTuple):
    """A mount point, its wanted options, and its current ones."""

    point: str
    before: Tuple[str, ...]
    after: Tuple[str, ...]


def of_unit(text: str) -> List[str]:
    """The options in the text of a mount unit."""
    match = re.search(r"(?m)^Options=(.*)$", text)
    return match.group(1).split(",") if match else []


def of_line(line: str) -> List[str]:
    """The options in a line of fstab."""
    fields = line.split()
    return fields[3].split(",") if len(fields) > 3 else []


def unit_without(text: str) -> str:
    """The text of a mount unit without these options, for comparison."""
    return re.sub(r"(?m)^Options=(.*)$", lambda found: "Options=" + _without(found.group(1)), text)


def line_without(line: str) -> List[str]:
    """The fields of a line of fstab without these options."""
    return [_without(field) if place == 3 else field for place, field in enumerate(line.split())]


def _without(options: str) -> str:
    known = {*_OPPOSITES, *_OPPOSITES.values()}
    return ",".join(option for option in options.split(",") if option not in known)


def remounts(wanted: Mapping[str, Sequence[str]], present: Mapping[str, Sequence[str]]) -> Tuple[Remount, ...]:
    """The mounts to remount. ``wanted`` are the options by mount point, ``present`` those of the current mounts."""
    found = []
    for point, options in wanted.items():
        if point not in present:
            continue
        before = tuple(present[point])
        flags = [flag if flag in options else opposite for flag, opposite in _OPPOSITES.items()]
        if any((flag in before) != (flag in options) for flag in _OPPOSITES):
            kept = [option for option in before if option not in _OPPOSITES]
            found.append(Remount(point, before, (*kept, *flags)))
    return tuple(found)


def apply(run: Runner, planned: Sequence[Remount]) -> None:
    """Remount. With bind, only the mount changes, and not the file system, so its users are not affected."""
    for remount in planned:
        run(["mount", "-o", ",".join(["remount", "bind", *remount.after]), remount.point], timeout=_SECONDS)


def as_diff(planned: Sequence[Remount]) -> Tuple[str, str]:
    """The options before and after."""
    before = "".join(f"# {each.point}: mounted with {','.join(each.before)}\n" for each in planned)
    return before, "".join(f"# {each.point}: mounted with {','.join(each.after)}\n" for each in planned)
