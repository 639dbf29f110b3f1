# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a path really carries: echo requests that may not be fragmented, to all endpoints at once.

An interface's own MTU says nothing about the path behind it, and the message that says so (ICMP "fragmentation
needed") is dropped by many firewalls: small packets pass and transfers die. So packets of the size are sent.
"""

from __future__ import annotations

import ipaddress
import os
import select
import socket
import struct
import time
from typing import Callable, Dict, Iterable, Mapping, Optional, Set, Tuple

#: Bytes that WireGuard (32), UDP (8) and the outer header (20 or 40) add to a packet.
_OVERHEAD = {4: 60, 6: 80}
#: An endpoint that does not even answer to this does not answer to echo requests at all.
_SMALLEST = 576
#: Bytes: the search ends when it knows the MTU this exactly. WireGuard pads to 16 anyway.
_STEP = 8
#: Seconds to wait for answers, and how often a packet is sent: one loss is no small MTU.
_TIMEOUT = 1.0
_TRIES = 2

# <linux/in.h> and <linux/in6.h>; Python names them only since 3.12 or not at all. PROBE sets DF and ignores what the
# kernel remembers of the path.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
_ECHO_REQUEST = {4: 8, 6: 128}
_ECHO_REPLY = {4: 0, 6: 129}
_HEADER = {4: 20, 6: 40}
_ICMP = struct.Struct("!BBHHH")

#: Sends one packet of the given size in bytes to each address, and returns the addresses that answered.
Probe = Callable[[Mapping[str, int]], Set[str]]


def tunnel_mtu(path_mtu: int, address: str) -> int:
    """The largest packet inside a tunnel whose outer path carries ``path_mtu`` bytes to ``address``."""
    return path_mtu - _OVERHEAD[ipaddress.ip_address(address).version]


def unchanged(known: Mapping[str, int], wanted: int, probe: Probe) -> Set[str]:
    """The addresses whose path carries what is known of it and, where that is not all that a tunnel of ``wanted`` bytes
    needs, no more than that.

    Full size is confirmed by one packet. On a narrow path a step more is tried first, so that growth is seen.
    """
    more = {
        address: min(size + _STEP, wanted + _OVERHEAD[ipaddress.ip_address(address).version])
        for address, size in known.items()
    }
    narrow = {address for address, size in known.items() if size < more[address]}
    passed = probe({address: more[address] if address in narrow else size for address, size in known.items()})
    same = {address: known[address] for address in narrow - passed}
    return (passed - narrow) | (probe(same) if same else set())


def path_mtus(addresses: Iterable[str], wanted: int, probe: Probe) -> Dict[str, Optional[int]]:
    """For each address the size that its path carries, in bytes, up to what a tunnel of ``wanted`` bytes needs.

    None where the address does not answer to echo requests, so that nothing is known.
    """
    full = {address: wanted + _OVERHEAD[ipaddress.ip_address(address).version] for address in addresses}
    answered = probe(full) if full else set()
    found: Dict[str, Optional[int]] = {address: full[address] for address in answered}
    silent = {address: _SMALLEST for address in full if address not in answered}
    answered = probe(silent) if silent else set()
    found.update({address: None for address in silent if address not in answered})
    # Each with the largest size that passed and the smallest that did not.
    bounds: Dict[str, Tuple[int, int]] = {address: (_SMALLEST, full[address]) for address in answered}
    while bounds:
        sizes = {address: (low + high) // 2 for address, (low, high) in bounds.items()}
        answered = probe(sizes)
        for address, size in sizes.items():
            low, high = bounds[address]
            low, high = (size, high) if address in answered else (low, size)
            if high - low > _STEP:
                bounds[address] = (low, high)
            else:
                del bounds[address]
                found[address] = low
    return found


def echo(sizes: Mapping[str, int]) -> Set[str]:
    """The Probe of a real host. Without the right to open raw sockets nobody answers."""
    by_version: Dict[int, Dict[str, int]] = {4: {}, 6: {}}
    for address, size in sizes.items():
        by_version[ipaddress.ip_address(address).version][address] = size
    return {address for version, part in by_version.items() if part for address in _echo(version, part)}


def _echo(version: int, sizes: Mapping[str, int]) -> Set[str]:
    try:
        raw = (
            socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            if version == 4
            else socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        )
    except OSError:
        return set()
    answered: Set[str] = set()
    with raw:
        if version == 4:
            raw.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            raw.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        # Random, so that no answer to somebody else's echo request is taken for ours.
        identity = int.from_bytes(os.urandom(2), "big")
        for _try in range(_TRIES):
            waiting = {address: size for address, size in sizes.items() if address not in answered}
            for address, size in waiting.items():
                try:
                    raw.sendto(_request(version, identity, size), (address, 0))
                except OSError:
                    # Too large for the interface itself, or no route: no answer either way.
                    continue
            answered |= _answers(raw, version, identity, waiting)
            if len(answered) == len(sizes):
                break
    return answered


def _request(version: int, identity: int, size: int) -> bytes:
    payload = bytes(size - _HEADER[version] - _ICMP.size)
    header = _ICMP.pack(_ECHO_REQUEST[version], 0, 0, identity, 1)
    # The kernel fills in the checksum of ICMPv6, which covers addresses that only it knows.
    checksum = _checksum(header + payload) if version == 4 else 0
    return _ICMP.pack(_ECHO_REQUEST[version], 0, checksum, identity, 1) + payload


def _answers(raw: socket.socket, version: int, identity: int, waiting: Mapping[str, int]) -> Set[str]:
    answered: Set[str] = set()
    deadline = time.monotonic() + _TIMEOUT
    while len(answered) < len(waiting):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([raw], [], [], left)[0]:
            break
        packet, sender = raw.recvfrom(65535)
        # An IPv4 raw socket hands over the IP header too.
        start = (packet[0] & 0x0F) * 4 if version == 4 else 0
        if len(packet) < start + _ICMP.size:
            continue
        kind, _code, _checksum_seen, their_identity, _sequence = _ICMP.unpack_from(packet, start)
        address = str(sender[0])
        if kind == _ECHO_REPLY[version] and their_identity == identity and address in waiting:
            answered.add(address)
    return answered


def _checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    padded = data + b"\x00" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
