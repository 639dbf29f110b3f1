# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the names of the members of a cluster to /etc/hosts.

A container engine rewrites that file at each start. If supervisord runs in the container, a boot program restores the
names: this module with the parameters of its last run.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import print_line
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError

#: The boot program; the name of a cluster follows.
PROGRAM_NAME = "gpumesh-names"
_HOSTS_PATH = "/etc/hosts"
#: This pattern matches the block of any cluster.
_CLUSTER_BLOCKS = re.compile(r"(?ms)^# BEGIN (gpumesh cluster [^\n]+)\n.*?^# END \1(?:\n|\Z)")


def build_file_entries(params: Mapping[str, Any], host_name: str, hosts_text: str) -> List[Dict[str, Any]]:
    """Return the entries of /etc/hosts for managed_files.

    ``params``: the parameters of the module; ``host_name``: the name of this host; ``hosts_text``: the current content.

    Debian maps the name to 127.0.1.1, which other members cannot use, and a container engine to an address outside of
    the mesh. The resolver merges all lines of a name, so being first is not enough: those lines are hidden, and
    restored when the last cluster leaves. An engine writes its line with a tab, which lines of other clusters do not
    have.
    """
    block_entry: Dict[str, Any] = {"path": _HOSTS_PATH, "marker": managed_files.block_marker(params["cluster"])}
    text_without_block = managed_files.remove_block(_HOSTS_PATH, hosts_text, block_entry["marker"])
    text_without_clusters = _CLUSTER_BLOCKS.sub("", text_without_block)
    if params["state"] == "absent":
        # Other clusters of this host still need the lines to be hidden.
        return [{**block_entry, "state": "absent", "hide": ".*" if text_without_clusters == text_without_block else ""}]
    host_label = host_name.split(".", 1)[0]
    hide_pattern = _conflict_pattern(params["address"], host_label)
    # Names in blocks of other clusters do not count, since these may be removed: each block names this host completely.
    hidden_names = find_hidden_names(text_without_clusters, hide_pattern)
    block_content = "\n".join(build_host_lines(params["members"], params["address"], host_label, hidden_names))
    desired_block = {"state": "block", "content": block_content, "at_start": True, "hide": hide_pattern}
    return [{**block_entry, **desired_block, "mode": "0644", "owner": "root"}]


def _conflict_pattern(address: str, host_label: str) -> str:
    """Return a pattern for the lines that map ``host_label`` to another address; empty if none may be hidden."""
    if host_label in ("localhost", ""):
        return ""
    loopback_pattern = rf"127\.0\.1\.1\s(?:.*\s)?{re.escape(host_label)}(?:\s.*)?"
    engine_pattern = rf"(?!{re.escape(address)}\t)[0-9A-Fa-f.:]+\t{re.escape(host_label)}(?:[ \t].*)?"
    return f"{loopback_pattern}|{engine_pattern}"


def find_hidden_names(text: str, hide_pattern: str) -> List[str]:
    """Find the names that are only in lines that match ``hide_pattern``, whether or not these are hidden already.

    They are the other names of the host, such as the full one, which has to resolve as before.
    """
    hidden_names: List[str] = []
    visible_names = set()
    for line in text.splitlines():
        unhidden_line = (
            line[len(managed_files.HIDDEN_PREFIX) :] if line.startswith(managed_files.HIDDEN_PREFIX) else line
        )
        line_names = unhidden_line.partition("#")[0].split()[1:]
        if hide_pattern and re.fullmatch(hide_pattern, unhidden_line):
            hidden_names += line_names
        elif unhidden_line == line:
            visible_names.update(line_names)
    return [
        name
        for name in dict.fromkeys(hidden_names)
        if name not in visible_names and name.split(".", 1)[0] != "localhost"
    ]


def differences(_run: Runner, params: Mapping[str, Any]) -> managed_files.LayerDifferences:
    """Compare this host with the parameters of the module."""
    return managed_files.differences(build_local_entries(params))


def build_local_entries(params: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return the entries of /etc/hosts for this host. Raises GpumeshError."""
    return build_file_entries(params, os.uname().nodename, managed_files.read_current(_HOSTS_PATH).text)


def build_host_lines(
    members: Sequence[Mapping[str, Any]], address: str, host_label: str, extra_names: Sequence[str] = ()
) -> List[str]:
    """Return one line for each member that has a name.

    The member at ``address``, this host, also has ``host_label`` and ``extra_names``, except names of a member.
    """
    reserved_names = {name for member in members for name in member["names"]} | {"localhost", ""}
    own_names = [name for name in dict.fromkeys([host_label, *extra_names]) if name not in reserved_names]
    names_by_address = [
        (member["address"], [*member["names"], *(own_names if member["address"] == address else [])])
        for member in members
    ]
    return [f"{line_address} {' '.join(line_names)}" for line_address, line_names in names_by_address if line_names]


def render_boot_program(name: str, path: str) -> str:
    """Return the supervisord section of the program at ``path``, which runs once at each start."""
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


def main(module_params: Mapping[str, Any], _arguments: Sequence[str] = ()) -> int:
    """Run the boot program. ``module_params``: the parameters of the module."""
    try:
        managed_files.ensure_files(build_local_entries(module_params), False)
    except GpumeshError as failure:
        print_line(str(failure))
        return 1
    return 0
