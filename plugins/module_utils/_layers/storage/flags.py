# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount options that can change while a mount is in use: whether setuid programs and devices on it are effective."""

from __future__ import annotations

import re
from typing import List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner

#: Each option, and its opposite, which is the kernel's default.
_OPPOSITE_OPTIONS = {"nosuid": "suid", "nodev": "dev"}
_MOUNT_TIMEOUT = 100


class Remount(NamedTuple):
    """A mount point, its current options, and its desired ones."""

    mount_point: str
    options_before: Tuple[str, ...]
    options_after: Tuple[str, ...]


def parse_unit_options(text: str) -> List[str]:
    """Parse the options in the text of a mount unit."""
    match = re.search(r"(?m)^Options=(.*)$", text)
    return match.group(1).split(",") if match else []


def parse_line_options(line: str) -> List[str]:
    """Parse the options in a line of fstab."""
    fields = line.split()
    return fields[3].split(",") if len(fields) > 3 else []


def strip_unit_flags(text: str) -> str:
    """Return the text of a mount unit without these options, for comparison."""
    return re.sub(r"(?m)^Options=(.*)$", lambda match: "Options=" + _remove_flags(match.group(1)), text)


def strip_line_flags(line: str) -> List[str]:
    """Return the fields of a line of fstab without these options."""
    return [_remove_flags(field) if column == 3 else field for column, field in enumerate(line.split())]


def _remove_flags(options: str) -> str:
    flag_options = {*_OPPOSITE_OPTIONS, *_OPPOSITE_OPTIONS.values()}
    return ",".join(option for option in options.split(",") if option not in flag_options)


def plan_remounts(
    desired_options: Mapping[str, Sequence[str]], current_options: Mapping[str, Sequence[str]]
) -> Tuple[Remount, ...]:
    """Plan which mounts are remounted, from the desired and the current options by mount point."""
    planned = []
    for mount_point, options in desired_options.items():
        if mount_point not in current_options:
            continue
        options_before = tuple(current_options[mount_point])
        new_flags = [flag if flag in options else opposite for flag, opposite in _OPPOSITE_OPTIONS.items()]
        if any((flag in options_before) != (flag in options) for flag in _OPPOSITE_OPTIONS):
            unchanged_options = [option for option in options_before if option not in _OPPOSITE_OPTIONS]
            planned.append(Remount(mount_point, options_before, (*unchanged_options, *new_flags)))
    return tuple(planned)


def apply_remounts(run: Runner, planned: Sequence[Remount]) -> None:
    """Remount with bind: only the mount changes, not the file system, so its users are not affected."""
    for remount in planned:
        run(
            ["mount", "-o", ",".join(["remount", "bind", *remount.options_after]), remount.mount_point],
            timeout=_MOUNT_TIMEOUT,
        )


def format_remount_diff(planned: Sequence[Remount]) -> Tuple[str, str]:
    """Format the options before and after."""
    before = "".join(
        f"# {remount.mount_point}: mounted with {','.join(remount.options_before)}\n" for remount in planned
    )
    return before, "".join(
        f"# {remount.mount_point}: mounted with {','.join(remount.options_after)}\n" for remount in planned
    )
