# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the layers need of a host, and cannot bring about themselves: found before the record is written.

The layers refuse the same things when it is their turn. By then, the layers before them have been set up.
"""

from __future__ import annotations

import os
import pwd
import re
from functools import partial
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust.host import without_account
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import quota, volumes

_LISTS = "var/lib/apt/lists"
_SOURCES = "etc/apt/sources.list"
#: A paragraph of ``apt-cache policy``; it has none for a package of which apt knows nothing.
_CANDIDATE = re.compile(r"^(?P<package>\S+):\n(?:[ ].*\n)*?  Candidate: (?P<version>.+)$", re.MULTILINE)


class Needs(NamedTuple):
    """What a host must have. ``programs``: the packages with each program or file that an option asks for.

    ``external``: volumes without a server, and ``quotas``: the volumes with a quota that this host serves.
    """

    cluster: str
    users: Sequence[str]
    external: Sequence[Mapping[str, Any]]
    quotas: Sequence[Mapping[str, str]]
    programs: Mapping[str, Sequence[str]]


def refuse(run: Runner, tree: Tree, needs: Needs) -> None:
    """Raise HostStateError with all that the layers would refuse on this host, and the remedies."""
    reasons = []
    unknown = [user for user in needs.users if not _exists(user)]
    if unknown:
        reasons.append(f"ssh_trust_users: {without_account(unknown)}")
    for refuse_volumes in (partial(volumes.refuse_missing, needs.external), partial(_refuse_quotas, run, needs)):
        try:
            refuse_volumes()
        except HostStateError as error:
            reasons.append(str(error))
    absent = _unavailable(run, tree, needs.programs)
    if absent:
        them = "it" if len(absent) == 1 else "them"
        reasons.append(
            f"No package source of this host has {', '.join(absent)}. Add a source with {them} to /etc/apt and run "
            f"apt-get update, or leave out the option that needs {them}."
        )
    if reasons:
        raise HostStateError(f"Nothing has been changed. {' '.join(reasons)}", refusals=reasons)


def parse_candidates(text: str) -> Dict[str, str]:
    """The version that apt would install of each package, from ``apt-cache policy``."""
    found = {match["package"]: match["version"] for match in _CANDIDATE.finditer(text)}
    return {package: version for package, version in found.items() if version != "(none)"}


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _refuse_quotas(run: Runner, needs: Needs) -> None:
    present = quota.read_files()
    found = [
        quota.look(run, one["name"], one["path"], one["quota"], quota.number_for(needs.cluster, one["name"], present))
        for one in needs.quotas
    ]
    quota.make_plan(needs.cluster, found, present)


def _unavailable(run: Runner, tree: Tree, programs: Mapping[str, Sequence[str]]) -> List[str]:
    """The packages of missing programs that no source has. Unknown, and so none, before apt has lists of its sources."""
    wanted = sorted({name for program, names in programs.items() if not _is_there(program) for name in names})
    if not wanted or not _lists_are_current(tree):
        return []
    candidates = parse_candidates(run(["apt-cache", "policy", *wanted]).stdout)
    return [package for package in wanted if package not in candidates]


def _is_there(program: str) -> bool:
    return os.path.exists(program) if program.startswith("/") else find(program) is not None


def _lists_are_current(tree: Tree) -> bool:
    """Whether apt has read its sources since they were changed. The layers have it read them before they install."""
    lists = [name for name in tree.names(_LISTS) if name.endswith(("_Packages", "_Packages.lz4", "_Packages.gz"))]
    if not lists:
        return False
    sources = [_SOURCES, f"{_SOURCES}.d", *(f"{_SOURCES}.d/{name}" for name in tree.names(f"{_SOURCES}.d"))]
    changed = [os.stat(tree.path(path)).st_mtime for path in sources if tree.exists(path)]
    # apt gives a list the time of its server; that of the folder is the time of the last update.
    return os.stat(tree.path(_LISTS)).st_mtime >= max(changed, default=0)
