# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detection of the SSH connection to this host, so that a firewall does not lock out whoever sets it up."""

from __future__ import annotations

from typing import NamedTuple, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.volume_users import LOGIN_TITLE


class SshConnection(NamedTuple):
    """The connection over which this process is reached: the port of this host, and the address of the peer."""

    port: int
    peer_address: str


class SshAccess(NamedTuple):
    """The ports on which sshd listens or this process is reached, and the connections of this process."""

    listening_ports: Tuple[int, ...]
    own_connections: Tuple[SshConnection, ...] = ()


NO_SSH_ACCESS = SshAccess(())


def read_ssh_access(proc_directory: str, pid: int) -> SshAccess:
    """Find out how the host and this process are reached.

    A process is reached over a connection to a port on which the host listens, which the nearest ancestor with any such
    connection has open: this does not depend on the name of the SSH server. Connections of PID 1 do not count, since it
    has those of services that it starts for each connection. A host that is reached from itself needs no port for it.
    """
    socket_by_inode = processes.read_tcp_sockets(proc_directory)
    listening_ports = {
        tcp_socket.local_port for tcp_socket in socket_by_inode.values() if tcp_socket.state == processes.LISTENING
    }
    accepted_sockets = {
        inode: tcp_socket
        for inode, tcp_socket in socket_by_inode.items()
        if tcp_socket.state == processes.ESTABLISHED
        and tcp_socket.local_port in listening_ports
        and tcp_socket.remote_address != tcp_socket.local_address
    }
    own_connections: Set[SshConnection] = set()
    for ancestor in processes.find_ancestors(proc_directory, pid):
        if ancestor == 1 or own_connections:
            break
        open_inodes = processes.find_socket_inodes(proc_directory, ancestor)
        own_connections = {
            SshConnection(tcp_socket.local_port, tcp_socket.remote_address)
            for inode, tcp_socket in accepted_sockets.items()
            if inode in open_inodes
        }
    sshd_inodes = _find_sshd_sockets(proc_directory)
    serving_ports = {
        tcp_socket.local_port
        for inode, tcp_socket in socket_by_inode.items()
        if inode in sshd_inodes and tcp_socket.state == processes.LISTENING
    }
    return SshAccess(
        tuple(sorted(serving_ports | {tcp_socket.port for tcp_socket in own_connections})),
        tuple(sorted(own_connections)),
    )


def _find_sshd_sockets(proc_directory: str) -> Set[str]:
    """Find the sockets of root's sshd. Users may run another one, and a login's process listens for its forwardings."""
    sshd_inodes: Set[str] = set()
    for pid in processes.list_pids(proc_directory):
        if processes.runs_as_root(proc_directory, pid, ("sshd",)) and not LOGIN_TITLE.match(
            processes.process_title(proc_directory, pid)
        ):
            sshd_inodes |= processes.find_socket_inodes(proc_directory, pid)
    return sshd_inodes
