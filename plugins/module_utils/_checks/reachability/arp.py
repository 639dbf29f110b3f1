# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the hosts that answer for an address with ARP requests: two hosts with one address otherwise look like one.

The kernel keeps the first reply and drops the others; only a socket of our own sees all of them. No tool is needed,
only the permission to open such a socket.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import struct
import time
from typing import Dict, List, NamedTuple, Optional, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import ProbeNic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

_ETHERNET = struct.Struct("!6s6sH")
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_ETHERTYPE = 0x0806
_REQUEST_OPERATION, _REPLY_OPERATION = 1, 2
#: sysfs' number for links that use ARP in this form.
_ARPHRD_ETHER = "1"
_ATTEMPT_COUNT = 2
#: Requests that are sent before the replies are read, and the seconds for which these are awaited. All replies to a
#: thousand requests at once would not fit the socket's buffer, in which the kernel counts 768 bytes for each.
_BATCH_SIZE = 64
_BATCH_SECONDS = 0.01
_RECEIVE_BUFFER = 1 << 20
#: <linux/if_packet.h>: the packets received and dropped since the last query.
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_STATISTICS_FORMAT = struct.Struct("II")
#: The sender address of a host that does not have one yet.
UNSPECIFIED_SENDER = str(ipaddress.IPv4Address(0))


class ArpReply(NamedTuple):
    """A reply: ``mac`` answers for ``address``."""

    address: str
    mac: str


def build_request(own_mac: str, sender: str, target: str) -> bytes:
    """Return the frame that asks who has ``target``.

    UNSPECIFIED_SENDER makes it the probe of RFC 5227, which queries one's own address without claiming it.
    """
    mac = bytes.fromhex(own_mac.replace(":", ""))
    body = _ARP.pack(1, 0x0800, 6, 4, _REQUEST_OPERATION, mac, _pack_address(sender), bytes(6), _pack_address(target))
    # Short frames are padded to Ethernet's minimum.
    return (_ETHERNET.pack(b"\xff" * 6, mac, _ETHERTYPE) + body).ljust(60, b"\0")


def parse_reply(frame_bytes: bytes) -> Optional[ArpReply]:
    """The reply in a frame; None for anything else."""
    if len(frame_bytes) < _ETHERNET.size + _ARP.size:
        return None
    kind = _ETHERNET.unpack_from(frame_bytes)[2]
    hardware, protocol, hardware_size, protocol_size, operation, mac, address, _target_mac, _target = _ARP.unpack_from(
        frame_bytes, _ETHERNET.size
    )
    if (kind, hardware, protocol, hardware_size, protocol_size, operation) != (
        _ETHERTYPE,
        1,
        0x0800,
        6,
        4,
        _REPLY_OPERATION,
    ):
        return None
    return ArpReply(str(ipaddress.IPv4Address(address)), ":".join(f"{byte:02x}" for byte in mac))


def query_macs(
    nic: ProbeNic, sender_by_address: Dict[str, str], reply_seconds: float
) -> Dict[str, Optional[List[str]]]:
    """The MACs that answer for each key of ``sender_by_address``, each requested with its value as the sender.

    None if no reply was received, but some were lost on this host. Raises PermissionError if raw sockets are not
    allowed, and OSError if the interface cannot be used.
    """
    macs_by_address: Dict[str, Set[str]] = {address: set() for address in sender_by_address}
    if nic["mac"] is None or not sender_by_address:
        return {address: [] for address in sender_by_address}
    requests = [build_request(nic["mac"], sender, address) for address, sender in sender_by_address.items()]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETHERTYPE)) as packet_socket:
        packet_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        packet_socket.bind((nic["name"], _ETHERTYPE))
        for _try in range(_ATTEMPT_COUNT):
            for first in range(0, len(requests), _BATCH_SIZE):
                for frame in requests[first : first + _BATCH_SIZE]:
                    packet_socket.send(frame)
                _collect_replies(packet_socket, macs_by_address, _BATCH_SECONDS)
            _collect_replies(packet_socket, macs_by_address, reply_seconds / _ATTEMPT_COUNT)
        _received, dropped = _STATISTICS_FORMAT.unpack(
            packet_socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS_FORMAT.size)
        )
    return {address: sorted(macs) if macs or not dropped else None for address, macs in macs_by_address.items()}


def _collect_replies(raw: socket.socket, macs_by_address: Dict[str, Set[str]], seconds: float) -> None:
    """Add the replies of these seconds. The first one for an address does not end it, since the second one matters."""
    until = time.monotonic() + seconds
    while True:
        remaining_seconds = until - time.monotonic()
        if remaining_seconds <= 0 or not select.select([raw], [], [], remaining_seconds)[0]:
            return
        reply = parse_reply(raw.recv(2048))
        if reply is not None and reply.address in macs_by_address:
            macs_by_address[reply.address].add(reply.mac)


def read_nic(name: str, root: str = "/sys/class/net") -> ProbeNic:
    """Read this host's interface from sysfs. It may vanish meanwhile."""
    tree = Tree(root)
    mtu = tree.read(name, "mtu") or ""
    mac = tree.read(name, "address") or None
    return {
        "name": name,
        "mtu": int(mtu) if mtu.isdecimal() else None,
        "mac": mac if tree.read(name, "type") == _ARPHRD_ETHER else None,
    }


def read_own_macs(root: str = "/sys/class/net") -> List[str]:
    """The MACs of all of this host's interfaces: if two of them are on one network, both may answer for one address.

    The folder also has plain files, such as the bonding driver's list of bonds.
    """
    return sorted({mac for mac in (read_nic(name, root)["mac"] for name in Tree(root).list_names()) if mac})


def _pack_address(address: str) -> bytes:
    return ipaddress.IPv4Address(address).packed
