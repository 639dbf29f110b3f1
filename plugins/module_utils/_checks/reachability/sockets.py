# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sockets that the listener and the prober set up in the same way."""

from __future__ import annotations

import errno
import ipaddress
import resource
import socket
import struct
from typing import List, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import ports as port_ranges
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import ListenerPort
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError

# <linux/in.h> and <linux/in6.h>: Python has names for them only since 3.12, or not at all. PROBE sets DF, and sends
# whatever fits the interface, regardless of the path MTU that the kernel has cached.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
_IP_MTU, _IPV6_MTU = 14, 24

#: The offsets in struct tcp_info of <linux/tcp.h> of tcpi_retransmits, a byte, and tcpi_min_rtt, in microseconds.
_RETRANSMITS_OFFSET, _MIN_RTT_OFFSET = 2, 148

#: Connections that wait to be accepted: all other members may connect at the same moment.
_LISTEN_BACKLOG = 1024


def address_family(address: str) -> socket.AddressFamily:
    """Return AF_INET or AF_INET6."""
    return socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET


def raise_file_limit() -> int:
    """Raise the limit of open files to its maximum: the usual 1,024 are too few for a thousand peers. Returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def disable_fragmentation(udp: socket.socket) -> None:
    """Disable fragmentation for ``udp``."""
    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
    else:
        udp.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)


def read_path_mtu(address: str) -> Optional[int]:
    """The path MTU that the kernel has cached, in bytes: the interface's MTU unless a router has reported less."""
    try:
        with socket.socket(address_family(address), socket.SOCK_DGRAM) as udp:
            # Connecting a UDP socket sends nothing, but looks up the route.
            udp.connect((address, 9))
            if udp.family == socket.AF_INET6:
                return udp.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
            return udp.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    except OSError:
        return None


def read_kernel_rtt_ms(tcp: socket.socket) -> Optional[float]:
    """The shortest round trip of a connection as measured by the kernel, without the delays of this program."""
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return None
    if len(info) < _MIN_RTT_OFFSET + 4:
        return None
    (microseconds,) = struct.unpack_from("=I", info, _MIN_RTT_OFFSET)
    # The kernel shows all ones if nothing has been measured yet.
    return None if microseconds in (0, 0xFFFFFFFF) else microseconds / 1000


def is_retransmitting(tcp: socket.socket) -> bool:
    """Whether the kernel has retransmitted data without an answer: then the network loses it, not the peer."""
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return False
    return len(info) > _RETRANSMITS_OFFSET and info[_RETRANSMITS_OFFSET] > 0


def open_ports(
    listen_address: str,
    named_ports: Sequence[int],
    ephemeral_range: port_ranges.PortRange,
    sample_count: int,
    random_seed: str,
) -> Tuple[List[ListenerPort], List[socket.socket]]:
    """Open the free ports, on ``listen_address`` only.

    Returns the state of each port, and the listening sockets (non-blocking), one for each that is ``listening``, in the
    same order. Raises HostStateError if the address is not this host's.
    """
    port_states: List[ListenerPort] = []
    listening_sockets: List[socket.socket] = []
    for port_number in named_ports:
        port_state, tcp_socket = _open_port(listen_address, port_number, socket.SOCK_STREAM)
        port_states.append({"port": port_number, "role": "named", "protocol": "tcp", "state": port_state})
        listening_sockets += [tcp_socket] if tcp_socket else []
    for part in port_ranges.split_range(ephemeral_range, sample_count):
        for port_number in port_ranges.list_candidates(part, random_seed):
            if port_number in named_ports:
                continue
            port_state, tcp_socket = _open_port(listen_address, port_number, socket.SOCK_STREAM)
            if tcp_socket is None:
                continue
            port_states.append({"port": port_number, "role": "ephemeral", "protocol": "tcp", "state": port_state})
            listening_sockets.append(tcp_socket)
            port_state, udp = _open_port(listen_address, port_number, socket.SOCK_DGRAM)
            if udp is not None:
                port_states.append({"port": port_number, "role": "ephemeral", "protocol": "udp", "state": port_state})
                listening_sockets.append(udp)
            break
    return port_states, listening_sockets


def _open_port(
    listen_address: str, port_number: int, socket_kind: socket.SocketKind
) -> Tuple[str, Optional[socket.socket]]:
    new_socket = socket.socket(address_family(listen_address), socket_kind)
    try:
        new_socket.setblocking(False)
        if socket_kind == socket.SOCK_STREAM:
            # Lingering connections of an earlier run would otherwise occupy the port.
            new_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            disable_fragmentation(new_socket)
        new_socket.bind((listen_address, port_number))
        if socket_kind == socket.SOCK_STREAM:
            new_socket.listen(_LISTEN_BACKLOG)
    except OSError as failure:
        new_socket.close()
        if failure.errno == errno.EADDRINUSE:
            return "service", None
        if failure.errno in (errno.EACCES, errno.EPERM):
            return "forbidden", None
        raise HostStateError(
            f"Cannot listen on {listen_address}: {failure.strerror}.",
            f"See `ip addr`: this host should have {listen_address}. Bring up its interface, or correct the record.",
            address=listen_address,
        ) from failure
    return "listening", new_socket
