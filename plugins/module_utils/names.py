# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of a cluster's members in this host's /etc/hosts.

A container engine rewrites that file at each start. If supervisord runs in the container, a program of ours restores
the names: this module with the parameters of its last run.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.program import say

_PATH = "/etc/hosts"
#: The lines of any cluster.
_CLUSTERS = re.compile(r"(?ms)^# BEGIN (gpumesh cluster [^\n]+)\n.*?^# END \1(?:\n|\Z)")


def files(params: Mapping[str, Any], node: str, hosts: str) -> List[Dict[str, Any]]:
    """The wanted lines in /etc/hosts, for host_files. ``params``: the module's; ``node``: the host's own name;
    ``hosts``: the current content of the file.

    Debian maps that name to 127.0.1.1, which other members cannot use, and a container engine to an address outside of
    the mesh. The resolver merges all lines of a name, so being first is not enough: those lines are hidden, and
    restored when the last cluster leaves. An engine writes its line with a tab, which lines of other clusters do not
    have.
    """
    block: Dict[str, Any] = {"path": _PATH, "marker": host_files.marker(params["cluster"])}
    rest = host_files.without_block(_PATH, hosts, block["marker"])
    others = _CLUSTERS.sub("", rest)
    if params["state"] == "absent":
        # Other clusters of this host still need the lines to be hidden.
        return [{**block, "state": "absent", "hide": ".*" if others == rest else ""}]
    label = node.split(".", 1)[0]
    hide = _contradicting(params["address"], label)
    # Not those of other clusters, which may be removed: each names this host completely.
    lost = lost_names(others, hide)
    content = "\n".join(lines(params["members"], params["address"], label, lost))
    wanted = {"state": "block", "content": content, "at_start": True, "hide": hide}
    return [{**block, **wanted, "mode": "0644", "owner": "root"}]


def _contradicting(address: str, label: str) -> str:
    """Matches the lines that map ``label`` to another address than the cluster address; '' if no line may be hidden."""
    if label in ("localhost", ""):
        return ""
    loopback = rf"127\.0\.1\.1\s(?:.*\s)?{re.escape(label)}(?:\s.*)?"
    engines = rf"(?!{re.escape(address)}\t)[0-9A-Fa-f.:]+\t{re.escape(label)}(?:[ \t].*)?"
    return f"{loopback}|{engines}"


def lost_names(text: str, hide: str) -> List[str]:
    """The names that are only in lines that match ``hide``, whether or not they are hidden already.

    They are the host's other names, such as the full one, which has to resolve as before.
    """
    lost: List[str] = []
    kept = set()
    for line in text.splitlines():
        bare = line[len(host_files.HIDDEN) :] if line.startswith(host_files.HIDDEN) else line
        names = bare.partition("#")[0].split()[1:]
        if hide and re.fullmatch(hide, bare):
            lost += names
        elif bare == line:
            kept.update(names)
    return [name for name in dict.fromkeys(lost) if name not in kept and name.split(".", 1)[0] != "localhost"]


def differences(_run: Runner, params: Mapping[str, Any]) -> host_files.Differences:
    """How this host differs from the module's parameters."""
    return host_files.differences(wanted_here(params))


def wanted_here(params: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """The same as ``files`` for this host. Raises GpumeshError."""
    return files(params, os.uname().nodename, host_files.read(_PATH).text)


def lines(members: Sequence[Mapping[str, Any]], address: str, label: str, others: Sequence[str] = ()) -> List[str]:
    """One line for each member that has a name.

    The member at ``address``, this host, also has ``label`` and ``others``, except those that are a member's already.
    """
    taken = {name for member in members for name in member["names"]} | {"localhost", ""}
    own = [name for name in dict.fromkeys([label, *others]) if name not in taken]
    named = [
        (member["address"], [*member["names"], *(own if member["address"] == address else [])]) for member in members
    ]
    return [f"{where} {' '.join(names)}" for where, names in named if names]


def program_text(name: str, path: str) -> str:
    """The supervisord section of the program at ``path``, which runs once at each start."""
    lines = [
        "# Written by the Ansible collection gpumesh.cluster; changes here are lost.",
        f"[program:{name}]",
        f"command={path}",
        "autostart=true",
        "autorestart=false",
        "startsecs=0",
        "redirect_stderr=true",
        f"stdout_logfile=/var/log/{name}.log",
        "stdout_logfile_maxbytes=1MB",
        "stdout_logfile_backups=0",
    ]
    return "\n".join(lines) + "\n"


def main(given: Mapping[str, Any], _arguments: Sequence[str] = ()) -> int:
    """The entry point of the program. ``given``: the module's parameters."""
    try:
        host_files.see_to(wanted_here(given), False)
    except GpumeshError as failure:
        say(str(failure))
        return 1
    return 0
