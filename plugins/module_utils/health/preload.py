# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the programs of a pod use its tailnet, and which cannot. See module_utils/mesh/preload.py."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils.health.shapes import SLURMD, Judgement, failed, passed
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.preload import NAME
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import is_roots, program_of, sockets

#: tailscaled is the mesh itself.
_DAEMON = "tailscaled"


class Program(NamedTuple):
    """A program that has a network socket, but not the library.

    ``name``: that of its executable; ``static``: it cannot load any library; ``root``: whether root runs it.
    """

    name: str
    static: bool
    root: bool


def parse_inodes(table: str) -> Set[str]:
    """The inodes of the sockets in a table such as /proc/net/tcp."""
    rows = (line.split() for line in table.splitlines()[1:])
    return {row[9] for row in rows if len(row) > 9} - {"0"}


def programs(tree: Tree) -> List[Program]:
    """The running programs. Processes that end meanwhile are skipped."""
    inodes: Set[str] = set()
    for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "icmp", "icmp6"):
        inodes |= parse_inodes(tree.read("proc", "net", table) or "")
    found: Set[Program] = set()
    for pid in tree.names("proc"):
        maps = tree.read("proc", pid, "maps") if pid.isdecimal() else None
        if not maps or NAME in maps or not sockets(tree.path("proc"), int(pid)) & inodes:
            continue
        name = program_of(tree.path("proc"), int(pid))
        found.add(Program(name or pid, "/ld-" not in maps, is_roots(tree.path("proc"), int(pid), [name])))
    return sorted(found)


def judge(listed: str, running: Sequence[Program]) -> Judgement:
    """Judge whether the library is active, and slurmd uses it.

    Others that cannot are named. ``listed``: /etc/ld.so.preload.
    """
    remedy = "Run the playbook site for this member."
    if NAME not in listed:
        return failed("not active", "active", "The library is not in /etc/ld.so.preload.", remedy)
    # No job can run if it lacks the library.
    late = [program.name for program in running if program.root and program.name in SLURMD]
    if late:
        return failed("not loaded", "active", f"{', '.join(late)} runs without the library.", remedy)
    static = [program.name for program in running if program.static and not (program.root and program.name == _DAEMON)]
    return passed(f"active; not for {', '.join(static)} (static)" if static else "active", "active")
