# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How this host is reached by SSH, so that a firewall does not lock out whoever sets it up."""

from __future__ import annotations

import re
from typing import NamedTuple, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils.holders import LOGIN


class Reached(NamedTuple):
    """``ports``: on which sshd listens, and on which this process is reached. ``peers``: from where it is reached."""

    ports: Tuple[int, ...]
    peers: Tuple[str, ...]


NOT_REACHED = Reached((), ())


def reached(proc: str, pid: int) -> Reached:
    """How the host and this process are reached.

    A process is reached over a connection that it or an ancestor holds, to a port on which the host listens: so this
    does not depend on the name of the SSH server, and connections that an ancestor has opened do not count.
    """
    sockets = processes.tcp_sockets(proc)
    listening = {one.port for one in sockets.values() if one.state == processes.LISTENING}
    held = {inode for ancestor in processes.ancestors(proc, pid) for inode in processes.sockets(proc, ancestor)}
    own = [one for inode, one in sockets.items() if inode in held and one.state == processes.ESTABLISHED]
    daemons = _of_daemons(proc)
    arrived = [one for one in own if one.port in listening]
    serving = {one.port for inode, one in sockets.items() if inode in daemons and one.state == processes.LISTENING}
    return Reached(
        tuple(sorted(serving | {one.port for one in arrived})),
        tuple(sorted({one.remote for one in arrived})),
    )


def _of_daemons(proc: str) -> Set[str]:
    """The sockets of root's sshd. Users may run one of their own, and a login's process listens for its forwardings."""
    found: Set[str] = set()
    for pid in processes.pids(proc):
        named = processes.text(proc, str(pid), "comm").strip() == "sshd"
        if named and _is_root(proc, pid) and not LOGIN.match(processes.title(proc, pid)):
            found |= processes.sockets(proc, pid)
    return found


def _is_root(proc: str, pid: int) -> bool:
    """Whether the effective user is root. The owner of the folder in /proc is root for other processes, too."""
    return re.search(r"^Uid:\t\d+\t0\t", processes.text(proc, str(pid), "status"), re.MULTILINE) is not None
