# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the programs of a pod use its tailnet, and which cannot. See module_utils/_layers/mesh/preload.py."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    SLURMD_NAMES,
    Judgement,
    failed,
    passed,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import (
    executable_name,
    find_socket_inodes,
    runs_as_root,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.preload import LIBRARY_PREFIX

#: tailscaled is the mesh itself.
_MESH_DAEMON = "tailscaled"


class UncoveredProgram(NamedTuple):
    """A program that has a network socket, but not the library.

    ``is_static``: it cannot load any library.
    """

    executable_name: str
    is_static: bool
    runs_as_root: bool


def parse_socket_inodes(table: str) -> Set[str]:
    """The inodes of the sockets in a table such as /proc/net/tcp."""
    rows = (line.split() for line in table.splitlines()[1:])
    return {row[9] for row in rows if len(row) > 9} - {"0"}


def find_uncovered_programs(host_tree: Tree) -> List[UncoveredProgram]:
    """The running programs. Processes that end meanwhile are skipped."""
    inodes: Set[str] = set()
    for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "icmp", "icmp6"):
        inodes |= parse_socket_inodes(host_tree.read("proc", "net", table) or "")
    uncovered_programs: Set[UncoveredProgram] = set()
    for pid in host_tree.list_names("proc"):
        maps = host_tree.read("proc", pid, "maps") if pid.isdecimal() else None
        if not maps or LIBRARY_PREFIX in maps or not find_socket_inodes(host_tree.path("proc"), int(pid)) & inodes:
            continue
        name = executable_name(host_tree.path("proc"), int(pid))
        uncovered_programs.add(
            UncoveredProgram(name or pid, "/ld-" not in maps, runs_as_root(host_tree.path("proc"), int(pid), [name]))
        )
    return sorted(uncovered_programs)


def judge_preload(preload_list: str, uncovered_programs: Sequence[UncoveredProgram]) -> Judgement:
    """Judge whether the library is active, and slurmd uses it.

    Others that cannot are named. ``preload_list``: /etc/ld.so.preload.
    """
    remedy = "Run the playbook site for this member."
    if LIBRARY_PREFIX not in preload_list:
        return failed("not active", "active", "The library is not in /etc/ld.so.preload.", remedy)
    # No job can run if it lacks the library.
    uncovered_daemons = [
        program.executable_name
        for program in uncovered_programs
        if program.runs_as_root and program.executable_name in SLURMD_NAMES
    ]
    if uncovered_daemons:
        return failed("not loaded", "active", f"{', '.join(uncovered_daemons)} runs without the library.", remedy)
    static = [
        program.executable_name
        for program in uncovered_programs
        if program.is_static and not (program.runs_as_root and program.executable_name == _MESH_DAEMON)
    ]
    return passed(f"active; not for {', '.join(static)} (static)" if static else "active", "active")
