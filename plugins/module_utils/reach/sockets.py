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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import ports as port_ranges
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import Port

# <linux/in.h> and <linux/in6.h>: Python has names for them only since 3.12, or not at all. PROBE sets DF, and sends
# whatever fits the interface, regardless of the path MTU that the kernel has cached.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
_IP_MTU, _IPV6_MTU = 14, 24

#: The offsets in struct tcp_info of <linux/tcp.h> of tcpi_retransmits, a byte, and tcpi_min_rtt, in microseconds.
_RETRANSMITS_OFFSET, _MIN_RTT_OFFSET = 2, 148

#: Connections that wait to be accepted: all other members may connect at the same moment.
_BACKLOG = 1024


def family_of(address: str) -> socket.AddressFamily:
    """AF_INET or AF_INET6."""
    return socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET


def raise_file_limit() -> int:
    """Raise the limit of open files to its maximum: the usual 1,024 are too few for a thousand peers. Returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def dont_fragment(udp: socket.socket) -> None:
    """Disable fragmentation for ``udp``."""
    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
    else:
        udp.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)


def known_path_mtu(address: str) -> Optional[int]:
    """The path MTU that the kernel has cached, in bytes: the interface's MTU unless a router has reported less."""
    try:
        with socket.socket(family_of(address), socket.SOCK_DGRAM) as udp:
            # Connecting a UDP socket sends nothing, but looks up the route.
            udp.connect((address, 9))
            if udp.family == socket.AF_INET6:
                return udp.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
            return udp.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    except OSError:
        return None


def kernel_rtt_ms(tcp: socket.socket) -> Optional[float]:
    """The shortest round trip of a connection as measured by the kernel, without the delays of this program."""
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return None
    if len(info) < _MIN_RTT_OFFSET + 4:
        return None
    (microseconds,) = struct.unpack_from("=I", info, _MIN_RTT_OFFSET)
    # All ones: nothing has been measured yet.
    return None if microseconds in (0, 0xFFFFFFFF) else microseconds / 1000


def is_retransmitting(tcp: socket.socket) -> bool:
    """Whether the kernel has retransmitted data without an answer: then the network loses it, not the peer."""
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return False
    return len(info) > _RETRANSMITS_OFFSET and info[_RETRANSMITS_OFFSET] > 0


def open_ports(
    address: str, named: Sequence[int], ephemeral: port_ranges.Range, count: int, seed: str
) -> Tuple[List[Port], List[socket.socket]]:
    """Open the free ports, on ``address`` only.

    Returns the state of each port, and the listening sockets (non-blocking), one for each that is ``listening``, in the
    same order. Raises HostStateError if the address is not this host's.
    """
    opened: List[Port] = []
    sockets: List[socket.socket] = []
    for number in named:
        state, tcp = _open(address, number, socket.SOCK_STREAM)
        opened.append({"port": number, "role": "named", "protocol": "tcp", "state": state})
        sockets += [tcp] if tcp else []
    for part in port_ranges.slices(ephemeral, count):
        for number in port_ranges.candidates(part, seed):
            if number in named:
                continue
            state, tcp = _open(address, number, socket.SOCK_STREAM)
            if tcp is None:
                continue
            opened.append({"port": number, "role": "ephemeral", "protocol": "tcp", "state": state})
            sockets.append(tcp)
            state, udp = _open(address, number, socket.SOCK_DGRAM)
            if udp is not None:
                opened.append({"port": number, "role": "ephemeral", "protocol": "udp", "state": state})
                sockets.append(udp)
            break
    return opened, sockets


def _open(address: str, number: int, kind: socket.SocketKind) -> Tuple[str, Optional[socket.socket]]:
    one = socket.socket(family_of(address), kind)
    try:
        one.setblocking(False)
        if kind == socket.SOCK_STREAM:
            # Otherwise, lingering connections of an earlier run would occupy the port.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            dont_fragment(one)
        one.bind((address, number))
        if kind == socket.SOCK_STREAM:
            one.listen(_BACKLOG)
    except OSError as failure:
        one.close()
        if failure.errno == errno.EADDRINUSE:
            return "service", None
        if failure.errno in (errno.EACCES, errno.EPERM):
            return "forbidden", None
        raise HostStateError(
            f"Cannot listen on {address}: {failure.strerror}.",
            f"See `ip addr`: this host should have {address}. Bring up its interface, or correct the record.",
            address=address,
        ) from failure
    return "listening", one
