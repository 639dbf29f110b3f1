# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a controller works with the slurmd of another release.

Source: Slurm's guide to upgrades. slurmctld accepts slurmd of its own major release and of the two before it, of
the three before it since 24.11, and never of a later one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import parse_version

Version = Tuple[int, int, int]

#: The major releases. After the last one here, there is one each November and May.
_MAJOR_RELEASES = ((20, 2), (20, 11), (21, 8), (22, 5), (23, 2), (23, 11), (24, 5))
_LAST_LISTED = len(_MAJOR_RELEASES) - 1
_WIDER_WINDOW_SINCE = (24, 11)
#: The first release with dynamic nodes, which join a controller that runs.
OLDEST_SUPPORTED = (22, 5)


def format_version(version: Version) -> str:
    """Format a version as Slurm does: 22.05.8."""
    return "{:02d}.{:02d}.{:d}".format(*version)


def is_compatible(controller_version: Version, node_version: Version) -> bool:
    """Whether a slurmctld of one version works with a slurmd of the other."""
    return (
        0
        <= _release_number(controller_version) - _release_number(node_version)
        <= _compatibility_window(controller_version)
    )


def oldest_compatible(controller_version: Version) -> str:
    """Return the oldest major release of slurmd that works with a slurmctld of this version."""
    year, month = _release_from_number(
        max(_release_number(controller_version) - _compatibility_window(controller_version), 0)
    )
    return f"{year:02d}.{month:02d}"


def _compatibility_window(controller_version: Version) -> int:
    return 3 if controller_version[:2] >= _WIDER_WINDOW_SINCE else 2


def _release_number(version: Version) -> int:
    """Return the number of the major release; -1 for any that is older than those in the list."""
    year, month = version[:2]
    if (year, month) < _MAJOR_RELEASES[-1]:
        return bisect_right(_MAJOR_RELEASES, (year, month)) - 1
    since_year, since_month = _MAJOR_RELEASES[-1]
    return _LAST_LISTED + 2 * (year - since_year) + (1 if month >= 11 else 0) - (1 if month < since_month else 0)


def _release_from_number(release_number: int) -> Tuple[int, int]:
    if release_number <= _LAST_LISTED:
        return _MAJOR_RELEASES[release_number]
    years_later, november = divmod(release_number - _LAST_LISTED, 2)
    return _MAJOR_RELEASES[-1][0] + years_later, 11 if november else 5


def refuse_incompatible(
    machine: str, verb: str, node_version: Optional[Version], manager: str, controller_version: str
) -> None:
    """Raise HostStateError if the controller does not work with the node. An unknown version is not judged.

    ``verb`` says whether the version is or would be installed.
    """
    if node_version is None or not controller_version:
        return
    parsed_version = parse_version(controller_version)
    if is_compatible(parsed_version, node_version):
        return
    node_is_newer = node_version[:2] > parsed_version[:2]
    raise HostStateError(
        f"Slurm {format_version(node_version)} {verb} installed, "
        f"but the controller on {manager} has Slurm {format_version(parsed_version)}, which works "
        f"with nodes of {oldest_compatible(parsed_version)} to {parsed_version[0]:02d}.{parsed_version[1]:02d}.",
        f"Upgrade {manager} first, or use the release of its distribution on {machine} as well."
        if node_is_newer
        else f"Upgrade {machine} to the release of the distribution that {manager} has.",
    )


def explain_too_old(version: Version, is_installed: bool) -> str:
    """Explain why a version of Slurm is too old, and what to do; empty if it is not."""
    if version[:2] >= OLDEST_SUPPORTED:
        return ""
    return (
        f"Slurm {format_version(version)} {'is installed' if is_installed else 'is what apt would install'}, but nodes can "
        f"join a running cluster only from {OLDEST_SUPPORTED[0]:02d}.{OLDEST_SUPPORTED[1]:02d} on. Add a package source "
        "with a newer Slurm, the same on all members, or use a newer release of the distribution."
    )


def installed_version(run: Runner, daemon_name: str) -> Optional[Version]:
    """Return the version of a daemon on this host; None if it is not installed, or cannot be run."""
    if find_program(daemon_name) is None:
        return None
    version_result = run([daemon_name, "-V"], check=False)
    return None if version_result.rc else parse_version(version_result.stdout)


def parse_candidate_version(policy_output: str) -> Optional[Version]:
    """Parse the candidate of `apt-cache policy` for a package of Slurm, such as ``22.05.8-4+deb12u3``; None if there is none."""
    match = re.search(r"^ *Candidate: (?:\d+:)?(\d+\.\d+\.\d+)", policy_output, re.MULTILINE)
    return parse_version(match[1]) if match else None


def available_version(run: Runner, package_name: str = "slurmd") -> Optional[Version]:
    """Return the version of slurmd, or of another package, that would be installed on this host; None if it is unknown."""
    return (
        parse_candidate_version(run(["apt-cache", "policy", package_name], check=False).stdout)
        if find_program("apt-cache")
        else None
    )
