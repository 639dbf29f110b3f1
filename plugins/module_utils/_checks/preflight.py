# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check what the layers need from a host and cannot set up themselves, before the record is written.

The layers refuse the same later themselves, but by then, the layers before them have been set up.
"""

from __future__ import annotations

import os
import pwd
import re
from functools import partial
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import releases
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import release as slurm_release
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust.host import explain_missing_accounts
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import quota, volumes

_APT_LISTS = "var/lib/apt/lists"
_APT_SOURCES = "etc/apt/sources.list"
#: This pattern matches a paragraph of ``apt-cache policy``, which has none for an unknown package.
_APT_CANDIDATE = re.compile(r"^(?P<package>\S+):\n(?:[ ].*\n)*?  Candidate: (?P<version>.+)$", re.MULTILINE)


class HostRequirements(NamedTuple):
    """The requirements for a host. ``packages_by_program``: the packages with each program or file that options need.

    ``external_volumes``: volumes without a server; ``quota_volumes``: volumes with a quota that this host serves.
    ``runs_slurm``: whether it gets Slurm's daemons. ``unsupported_release``: whether its release may be any.
    """

    cluster: str
    users: Sequence[str]
    external_volumes: Sequence[Mapping[str, Any]]
    quota_volumes: Sequence[Mapping[str, str]]
    packages_by_program: Mapping[str, Sequence[str]]
    runs_slurm: bool
    unsupported_release: bool


def refuse_unmet(run: Runner, tree: Tree, requirements: HostRequirements) -> None:
    """Raise HostStateError with everything that the layers would refuse on this host, and the remedies."""
    reasons: List[str] = []
    if not requirements.unsupported_release:
        reasons += filter(None, [releases.explain_unsupported(releases.read_release(tree))])
    unknown_users = [user for user in requirements.users if not _user_exists(user)]
    if unknown_users:
        reasons.append(f"ssh_trust_users: {explain_missing_accounts(unknown_users)}")
    for refuse_volumes in (
        partial(volumes.refuse_missing_volumes, requirements.external_volumes),
        partial(_refuse_quotas, run, requirements),
    ):
        try:
            refuse_volumes()
        except HostStateError as error:
            reasons.append(str(error))
    if requirements.runs_slurm:
        reasons += filter(None, [_explain_old_slurm(run)])
    unavailable_packages = _find_unavailable_packages(run, tree, requirements.packages_by_program)
    if unavailable_packages:
        pronoun = "it" if len(unavailable_packages) == 1 else "them"
        reasons.append(
            f"No package source of this host has {', '.join(unavailable_packages)}. Add a source with {pronoun} to /etc/apt and run "
            f"apt-get update, or leave out the option that needs {pronoun}."
        )
    if reasons:
        raise HostStateError(f"Nothing has been changed. {' '.join(reasons)}", refusals=reasons)


def parse_candidates(policy_output: str) -> Dict[str, str]:
    """Parse the version that apt would install of each package, from ``apt-cache policy``."""
    versions_by_package = {match["package"]: match["version"] for match in _APT_CANDIDATE.finditer(policy_output)}
    return {package: version for package, version in versions_by_package.items() if version != "(none)"}


def _user_exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _refuse_quotas(run: Runner, requirements: HostRequirements) -> None:
    project_files = quota.read_project_files()
    quota_states = [
        quota.read_volume_quota(
            run,
            quota_volume["name"],
            quota_volume["path"],
            quota_volume["quota"],
            quota.choose_number(requirements.cluster, quota_volume["name"], project_files),
        )
        for quota_volume in requirements.quota_volumes
    ]
    quota.plan_quotas(requirements.cluster, quota_states, project_files)


def _explain_old_slurm(run: Runner) -> str:
    """Explain why the Slurm that the host has, or would get, is too old; empty if it is not, or is unknown."""
    installed_version = slurm_release.installed_version(run, "slurmd")
    version = installed_version or slurm_release.available_version(run)
    return slurm_release.explain_too_old(version, installed_version is not None) if version else ""


def _find_unavailable_packages(run: Runner, tree: Tree, packages_by_program: Mapping[str, Sequence[str]]) -> List[str]:
    """Return the packages of missing programs that no source has; none before apt has the lists of its sources."""
    missing_packages = sorted(
        {
            package_name
            for program, package_names in packages_by_program.items()
            if not _program_exists(program)
            for package_name in package_names
        }
    )
    if not missing_packages or not _lists_are_current(tree):
        return []
    versions_by_package = parse_candidates(run(["apt-cache", "policy", *missing_packages]).stdout)
    return [package for package in missing_packages if package not in versions_by_package]


def _program_exists(program: str) -> bool:
    return os.path.exists(program) if program.startswith("/") else find_program(program) is not None


def _lists_are_current(tree: Tree) -> bool:
    """Whether apt has read its sources since they were changed. The layers have it read them before they install."""
    package_lists = [
        name for name in tree.list_names(_APT_LISTS) if name.endswith(("_Packages", "_Packages.lz4", "_Packages.gz"))
    ]
    if not package_lists:
        return False
    source_paths = [
        _APT_SOURCES,
        f"{_APT_SOURCES}.d",
        *(f"{_APT_SOURCES}.d/{name}" for name in tree.list_names(f"{_APT_SOURCES}.d")),
    ]
    modification_times = [os.stat(tree.path(path)).st_mtime for path in source_paths if tree.exists(path)]
    # apt gives a list the time of its server, but the directory has the time of the last update.
    return os.stat(tree.path(_APT_LISTS)).st_mtime >= max(modification_times, default=0)
