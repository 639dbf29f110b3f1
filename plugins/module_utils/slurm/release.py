# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a controller works with the slurmd of another release.

Source: Slurm's guide to upgrades. slurmctld accepts slurmd of its own major release and of the two before it, from 24.11
on of the three before it, and never of a later one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.host import parse_version

Version = Tuple[int, int, int]

#: The major releases. After the last one here, there is one each November and May.
_RELEASES = ((20, 2), (20, 11), (21, 8), (22, 5), (23, 2), (23, 11), (24, 5))
_LAST = len(_RELEASES) - 1
_THREE_SINCE = (24, 11)


def text(version: Version) -> str:
    """A version as Slurm writes it: 22.05.8."""
    return "{:02d}.{:02d}.{:d}".format(*version)


def works_with(controller: Version, node: Version) -> bool:
    """Whether a slurmctld of one version works with a slurmd of the other."""
    return 0 <= _number(controller) - _number(node) <= _window(controller)


def oldest(controller: Version) -> str:
    """The oldest major release of slurmd that works with a slurmctld of this version."""
    year, month = _release(max(_number(controller) - _window(controller), 0))
    return f"{year:02d}.{month:02d}"


def _window(controller: Version) -> int:
    return 3 if controller[:2] >= _THREE_SINCE else 2


def _number(version: Version) -> int:
    """The number of the major release; -1 for any that is older than those in the list."""
    year, month = version[:2]
    if (year, month) < _RELEASES[-1]:
        return bisect_right(_RELEASES, (year, month)) - 1
    since_year, since_month = _RELEASES[-1]
    return _LAST + 2 * (year - since_year) + (1 if month >= 11 else 0) - (1 if month < since_month else 0)


def _release(number: int) -> Tuple[int, int]:
    if number <= _LAST:
        return _RELEASES[number]
    years, november = divmod(number - _LAST, 2)
    return _RELEASES[-1][0] + years, 11 if november else 5


def refuse(machine: str, verb: str, node: Optional[Version], manager: str, controller: str) -> None:
    """Raise HostStateError if the controller does not work with the node. An unknown version is not judged.

    ``verb``: whether it is, or would be installed.
    """
    if node is None or not controller:
        return
    serving = parse_version(controller)
    if works_with(serving, node):
        return
    newer = node[:2] > serving[:2]
    raise HostStateError(
        f"Slurm {text(node)} {verb} installed, but the controller on {manager} has Slurm {text(serving)}, which works "
        f"with nodes of {oldest(serving)} to {serving[0]:02d}.{serving[1]:02d}.",
        f"Upgrade {manager} first, or use the release of its distribution on {machine} as well."
        if newer
        else f"Upgrade {machine} to the release of the distribution that {manager} has.",
    )


def installed(run: Runner, daemon: str) -> Optional[Version]:
    """The version of a daemon on this host; None if it is not installed, or cannot be run."""
    if find(daemon) is None:
        return None
    done = run([daemon, "-V"], check=False)
    return None if done.rc else parse_version(done.stdout)


def parse_offered(shown: str) -> Optional[Version]:
    """The version in the output of `apt-cache policy slurmd`, such as ``22.05.8-4+deb12u3``; None if it offers none."""
    found = re.search(r"^ *Candidate: (?:\d+:)?(\d+\.\d+\.\d+)", shown, re.MULTILINE)
    return parse_version(found[1]) if found else None


def offered(run: Runner) -> Optional[Version]:
    """The version of slurmd that would be installed on this host; None if that is not known."""
    return parse_offered(run(["apt-cache", "policy", "slurmd"], check=False).stdout) if find("apt-cache") else None
