# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How this host is reached by SSH, so that a firewall does not lock out whoever sets it up."""

from __future__ import annotations

from typing import NamedTuple, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils.holders import LOGIN


class Connection(NamedTuple):
    """The connection over which this process is reached: the port of this host, and from where."""

    port: int
    peer: str


class Reached(NamedTuple):
    """``ports``: on which sshd listens, and over which this process is reached."""

    ports: Tuple[int, ...]
    own: Tuple[Connection, ...] = ()


NOT_REACHED = Reached(())


def reached(proc: str, pid: int) -> Reached:
    """How the host and this process are reached.

    A process is reached over a connection to a port on which the host listens, which the nearest ancestor with any such
    connection holds: this does not depend on the name of the SSH server. Those of PID 1 are not for this process, as it
    holds the connections of services that it starts for each. A host that is reached from itself needs no port for it.
    """
    sockets = processes.tcp_sockets(proc)
    listening = {one.port for one in sockets.values() if one.state == processes.LISTENING}
    accepted = {
        inode: one
        for inode, one in sockets.items()
        if one.state == processes.ESTABLISHED and one.port in listening and one.remote != one.local
    }
    own: Set[Connection] = set()
    for ancestor in processes.ancestors(proc, pid):
        if ancestor == 1 or own:
            break
        held = processes.sockets(proc, ancestor)
        own = {Connection(one.port, one.remote) for inode, one in accepted.items() if inode in held}
    daemons = _of_daemons(proc)
    serving = {one.port for inode, one in sockets.items() if inode in daemons and one.state == processes.LISTENING}
    return Reached(tuple(sorted(serving | {one.port for one in own})), tuple(sorted(own)))


def _of_daemons(proc: str) -> Set[str]:
    """The sockets of root's sshd. Users may run one of their own, and a login's process listens for its forwardings."""
    found: Set[str] = set()
    for pid in processes.pids(proc):
        if processes.is_roots(proc, pid, ("sshd",)) and not LOGIN.match(processes.title(proc, pid)):
            found |= processes.sockets(proc, pid)
    return found
