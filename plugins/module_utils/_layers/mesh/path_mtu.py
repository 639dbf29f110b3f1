# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The MTU of a path, measured by echo requests that must not be fragmented, to all endpoints at once.

An interface's MTU says nothing about the path behind it, and many firewalls drop the message that would (ICMP
"fragmentation needed"): small packets pass, and transfers hang. So packets of the size in question are sent, each
together with a small one: if that is lost as well, a host was busy, and nothing is known about the path.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import select
import socket
import struct
import time
from typing import Callable, Dict, Mapping, Optional, Set

#: Bytes that WireGuard (32), UDP (8) and the outer header (20 or 40) add to a packet.
_TUNNEL_OVERHEAD = {4: 60, 6: 80}
#: Every supported path carries this size. An endpoint that does not answer even this does not answer echo requests.
_SMALLEST_PACKET = 576
#: Bytes: the search ends when it knows the MTU this precisely. WireGuard pads to 16 anyway.
_SEARCH_STEP = 8
#: The number of pairs of packets that are sent, and the interval in seconds.
_PAIR_COUNT, _PAIR_INTERVAL = 4, 0.25
#: The number of small packets that must be answered, and none of their large ones, before the path counts as narrow.
_MIN_SMALL_REPLIES = 2
#: Seconds to wait at the end for endpoints that answered too little.
_FINAL_WAIT = 0.75

# <linux/in.h>, <linux/in6.h> and <linux/icmp.h>; Python has names for them only since 3.12, or not at all. PROBE sets
# DF, and ignores the path MTU that the kernel has cached.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
_SO_RCVBUFFORCE = 33
_ECHO_REQUEST = {4: 8, 6: 128}
_ECHO_REPLY = {4: 0, 6: 129}
_IP_HEADER_SIZE = {4: 20, 6: 40}
_ICMP_HEADER = struct.Struct("!BBHHH")
#: Bytes of replies that can be buffered while this program is not running: the kernel's default holds those of about 90
#: endpoints.
_RECEIVE_BUFFER = 8 << 20

#: A function that sends packets of the given size in bytes to each address. True: they are answered. False: they are
#: not, although small ones sent with them are. An address that answers neither is omitted.
MtuProbe = Callable[[Mapping[str, int]], Dict[str, bool]]


def tunnel_mtu(path_mtu: int, address: str) -> int:
    """The largest packet inside a tunnel whose outer path carries ``path_mtu`` bytes to ``address``."""
    return path_mtu - _TUNNEL_OVERHEAD[ipaddress.ip_address(address).version]


def find_path_mtus(known_mtus: Mapping[str, int], tunnel_size: int, probe: MtuProbe) -> Dict[str, Optional[int]]:
    """Return the size that the path to each address carries, in bytes, up to what a tunnel of ``tunnel_size`` needs.

    ``known_mtus``: earlier results, 0 for unknown. Full size is confirmed by one reply. On a narrow path, one step more
    is tried first, so that an increase is noticed. None if the address does not reply, so that nothing new is known.
    """
    full_sizes = {
        address: tunnel_size + _TUNNEL_OVERHEAD[ipaddress.ip_address(address).version] for address in known_mtus
    }
    mtu_by_address: Dict[str, Optional[int]] = {}
    # The bounds of an address are the largest size that passed and the smallest that did not.
    search_bounds = {address: (_SMALLEST_PACKET, full_sizes[address] + 1) for address in known_mtus}
    while search_bounds:
        sizes = {
            address: _next_size(*search_bounds[address], full_sizes[address], known_mtus[address])
            for address in search_bounds
        }
        probe_results = probe(sizes)
        for address, size in sizes.items():
            lower_bound, upper_bound = search_bounds.pop(address)
            if address not in probe_results:
                mtu_by_address[address] = None
                continue
            lower_bound, upper_bound = (size, upper_bound) if probe_results[address] else (lower_bound, size)
            if lower_bound == full_sizes[address] or upper_bound - lower_bound <= _SEARCH_STEP:
                mtu_by_address[address] = lower_bound
            else:
                search_bounds[address] = (lower_bound, upper_bound)
    return mtu_by_address


def _next_size(low: int, high: int, full: int, known_mtu: int) -> int:
    """The next size to try, between one that passed and one that did not: likely sizes first, then the middle."""
    guesses = [min(known_mtu + _SEARCH_STEP, full), min(known_mtu, full), full] if known_mtu else [full]
    return next((guess for guess in guesses if low < guess < high), (low + high) // 2)


def probe_by_echo(packet_sizes: Mapping[str, int]) -> Dict[str, bool]:
    """Probe from a real host (see MtuProbe). Without permission to open raw sockets, there are no replies."""
    by_version: Dict[int, Dict[str, int]] = {4: {}, 6: {}}
    for address, size in packet_sizes.items():
        by_version[ipaddress.ip_address(address).version][address] = size
    probe_results: Dict[str, bool] = {}
    for ip_version, part in by_version.items():
        if part:
            probe_results.update(_probe_version(ip_version, part))
    return probe_results


def _probe_version(ip_version: int, packet_sizes: Mapping[str, int]) -> Dict[str, bool]:
    try:
        raw_socket = _open_raw_socket(ip_version)
    except OSError:
        return {}
    with raw_socket:
        talk = _EchoExchange(raw_socket, ip_version, packet_sizes)
        for _try in range(_PAIR_COUNT):
            talk.send_pairs()
            talk.receive_replies(_PAIR_INTERVAL, talk.undecided_addresses)
        talk.receive_replies(_FINAL_WAIT, talk.silent_addresses)
    return talk.collect_verdicts()


def _open_raw_socket(ip_version: int) -> socket.socket:
    """A raw socket that sends with DF set. Raises OSError if that is not allowed."""
    if ip_version == 4:
        raw_socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        raw_socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
    else:
        raw_socket = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        raw_socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
    try:
        raw_socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
    except OSError:
        # The limit applies in some containers; then the buffer is as large as it allows.
        raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    return raw_socket


class _EchoExchange:
    """Pairs of a packet of the size in question and a small one, and the replies to them.

    The sequence numbers of the former are even. A reply may still show that the size passes to an address in
    ``undecided_addresses``; those in ``silent_addresses`` have replied too little to decide.
    """

    def __init__(self, raw_socket: socket.socket, ip_version: int, packet_sizes: Mapping[str, int]) -> None:
        self._raw_socket, self._ip_version, self._packet_sizes = raw_socket, ip_version, packet_sizes
        # Random, so that a reply to another program's echo request is not taken for ours.
        self._echo_identifier = int.from_bytes(os.urandom(2), "big")
        self._next_sequence = 0
        self._passed_addresses: Set[str] = set()
        self._small_replies: Dict[str, Set[int]] = {address: set() for address in packet_sizes}
        #: Addresses for which the size does not fit even through this host's own interface.
        self._oversized_addresses: Set[str] = set()
        self.undecided_addresses, self.silent_addresses = set(packet_sizes), set(packet_sizes)

    def collect_verdicts(self) -> Dict[str, bool]:
        """Return the result of an MtuProbe."""
        return {
            address: address in self._passed_addresses
            for address in self._packet_sizes
            if address not in self.silent_addresses
        }

    def send_pairs(self) -> None:
        """Send one more pair to each undecided address, and process the replies that arrive meanwhile."""
        for address in sorted(self.undecided_addresses):
            for sequence, size in (
                (self._next_sequence, self._packet_sizes[address]),
                (self._next_sequence + 1, _SMALLEST_PACKET),
            ):
                try:
                    self._raw_socket.sendto(
                        _build_echo_request(self._ip_version, self._echo_identifier, sequence, size), (address, 0)
                    )
                except OSError as failure:
                    # Neither packet is answered without a route.
                    if failure.errno == errno.EMSGSIZE:
                        self._oversized_addresses.add(address)
            self._receive_packet(0)
        self._next_sequence += 2

    def receive_replies(self, seconds: float, waiting_for: Set[str]) -> None:
        """Receive replies until none is missing, or the time is over."""
        deadline = time.monotonic() + seconds
        # Replies that have arrived are processed even after the time is over, since this host may have been busy.
        while waiting_for and self._receive_packet(max(deadline - time.monotonic(), 0)):
            continue

    def _receive_packet(self, seconds: float) -> bool:
        """Process one packet that arrives within the time. Returns whether one did."""
        if not select.select([self._raw_socket], [], [], seconds)[0]:
            return False
        packet, sender = self._raw_socket.recvfrom(65535)
        # An IPv4 raw socket also returns the IP header.
        start = (packet[0] & 0x0F) * 4 if self._ip_version == 4 else 0
        if len(packet) >= start + _ICMP_HEADER.size:
            kind, _code, _checksum_seen, identity, sequence = _ICMP_HEADER.unpack_from(packet, start)
            if (
                kind == _ECHO_REPLY[self._ip_version]
                and identity == self._echo_identifier
                and sender[0] in self._packet_sizes
            ):
                self._count_reply(str(sender[0]), sequence)
        return True

    def _count_reply(self, peer_address: str, sequence: int) -> None:
        """Process a reply."""
        small_replies = self._small_replies[peer_address]
        if sequence % 2 == 0:
            self._passed_addresses.add(peer_address)
        else:
            small_replies.add(sequence)
        decided = peer_address in self._passed_addresses or (
            small_replies and peer_address in self._oversized_addresses
        )
        if decided:
            self.undecided_addresses.discard(peer_address)
        if decided or len(small_replies) >= _MIN_SMALL_REPLIES:
            self.silent_addresses.discard(peer_address)


def _build_echo_request(ip_version: int, identity: int, sequence: int, size: int) -> bytes:
    payload = bytes(size - _IP_HEADER_SIZE[ip_version] - _ICMP_HEADER.size)
    header = _ICMP_HEADER.pack(_ECHO_REQUEST[ip_version], 0, 0, identity, sequence)
    # The kernel computes the checksum of ICMPv6, which covers addresses that only it knows.
    checksum = _checksum(header + payload) if ip_version == 4 else 0
    return _ICMP_HEADER.pack(_ECHO_REQUEST[ip_version], 0, checksum, identity, sequence) + payload


def _checksum(packet_bytes: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    padded = packet_bytes + b"\x00" * (len(packet_bytes) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
