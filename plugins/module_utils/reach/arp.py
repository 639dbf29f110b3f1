# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts answer for an address: direct ARP requests, since two hosts with one address otherwise look like one.

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

from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import Nic

_ETHERNET = struct.Struct("!6s6sH")
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_ETHERTYPE = 0x0806
_REQUEST, _REPLY = 1, 2
#: sysfs' number for links that use ARP in this form.
_ARPHRD_ETHER = "1"
_TRIES = 2
#: Requests that are sent before the replies are read, and the seconds for which these are awaited. All replies to a
#: thousand requests at once would not fit the socket's buffer, in which the kernel counts 768 bytes for each.
_BATCH = 64
_BATCH_SECONDS = 0.01
_BUFFER = 1 << 20
#: <linux/if_packet.h>: the packets received and dropped since the last query.
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_STATISTICS = struct.Struct("II")
#: The sender address of a host that does not have one yet.
NOBODY = str(ipaddress.IPv4Address(0))


class Reply(NamedTuple):
    """``mac`` answers for ``address``."""

    address: str
    mac: str


def request(own_mac: str, sender: str, target: str) -> bytes:
    """The frame that asks who has ``target``.

    With the sender NOBODY, it is the probe of RFC 5227, which queries one's own address without claiming it.
    """
    mac = bytes.fromhex(own_mac.replace(":", ""))
    body = _ARP.pack(1, 0x0800, 6, 4, _REQUEST, mac, _packed(sender), bytes(6), _packed(target))
    # Short frames are padded to Ethernet's minimum.
    return (_ETHERNET.pack(b"\xff" * 6, mac, _ETHERTYPE) + body).ljust(60, b"\0")


def parse_reply(data: bytes) -> Optional[Reply]:
    """The reply in a frame; None for anything else."""
    if len(data) < _ETHERNET.size + _ARP.size:
        return None
    kind = _ETHERNET.unpack_from(data)[2]
    hardware, protocol, hardware_size, protocol_size, operation, mac, address, _target_mac, _target = _ARP.unpack_from(
        data, _ETHERNET.size
    )
    if (kind, hardware, protocol, hardware_size, protocol_size, operation) != (_ETHERTYPE, 1, 0x0800, 6, 4, _REPLY):
        return None
    return Reply(str(ipaddress.IPv4Address(address)), ":".join(f"{byte:02x}" for byte in mac))


def ask(nic: Nic, senders: Dict[str, str], seconds: float) -> Dict[str, Optional[List[str]]]:
    """The MACs that answer for each key of ``senders``, each requested with its value as the sender.

    None if none was heard, but replies were lost on this host. Raises PermissionError if raw sockets are not allowed,
    and OSError if the interface cannot be used.
    """
    found: Dict[str, Set[str]] = {address: set() for address in senders}
    if nic["mac"] is None or not senders:
        return {address: [] for address in senders}
    requests = [request(nic["mac"], sender, address) for address, sender in senders.items()]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETHERTYPE)) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        raw.bind((nic["name"], _ETHERTYPE))
        for _try in range(_TRIES):
            for first in range(0, len(requests), _BATCH):
                for frame in requests[first : first + _BATCH]:
                    raw.send(frame)
                _hear(raw, found, _BATCH_SECONDS)
            _hear(raw, found, seconds / _TRIES)
        _received, dropped = _STATISTICS.unpack(raw.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size))
    return {address: sorted(macs) if macs or not dropped else None for address, macs in found.items()}


def _hear(raw: socket.socket, found: Dict[str, Set[str]], seconds: float) -> None:
    """Add the replies of these seconds. Not ended by the first one for an address, since the second one matters."""
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([raw], [], [], left)[0]:
            return
        reply = parse_reply(raw.recv(2048))
        if reply is not None and reply.address in found:
            found[reply.address].add(reply.mac)


def read_nic(name: str, root: str = "/sys/class/net") -> Nic:
    """This host's interface, from sysfs. It may vanish while it is read."""
    tree = Tree(root)
    mtu = tree.read(name, "mtu") or ""
    mac = tree.read(name, "address") or None
    return {
        "name": name,
        "mtu": int(mtu) if mtu.isdecimal() else None,
        "mac": mac if tree.read(name, "type") == _ARPHRD_ETHER else None,
    }


def own_macs(root: str = "/sys/class/net") -> List[str]:
    """The MACs of all of this host's interfaces: if two of them are on one network, both may answer for one address.

    The folder also has plain files, such as the bonding driver's list of bonds.
    """
    return sorted({mac for mac in (read_nic(name, root)["mac"] for name in Tree(root).names()) if mac})


def _packed(address: str) -> bytes:
    return ipaddress.IPv4Address(address).packed
