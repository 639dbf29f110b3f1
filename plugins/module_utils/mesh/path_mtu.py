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
_OVERHEAD = {4: 60, 6: 80}
#: Every supported path carries this size. An endpoint that does not answer even this does not answer echo requests.
_SMALLEST = 576
#: Bytes: the search ends when it knows the MTU this precisely. WireGuard pads to 16 anyway.
_STEP = 8
#: How often a pair of packets is sent, and the interval in seconds.
_TRIES, _INTERVAL = 4, 0.25
#: How many small packets must be answered, and none of their large ones, before the path counts as narrow.
_EVIDENCE = 2
#: Seconds to wait at the end for endpoints that answered too little.
_PATIENCE = 0.75

# <linux/in.h>, <linux/in6.h> and <linux/icmp.h>; Python has names for them only since 3.12, or not at all. PROBE sets
# DF, and ignores the path MTU that the kernel has cached.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
_SO_RCVBUFFORCE = 33
_ECHO_REQUEST = {4: 8, 6: 128}
_ECHO_REPLY = {4: 0, 6: 129}
_HEADER = {4: 20, 6: 40}
_ICMP = struct.Struct("!BBHHH")
#: Bytes of replies that can be buffered while this program is not running: the kernel's default holds those of about 90
#: endpoints.
_BUFFER = 8 << 20

#: Sends packets of the given size in bytes to each address. True: they are answered. False: they are not, although
#: small ones sent with them are. An address that answers neither is omitted.
Probe = Callable[[Mapping[str, int]], Dict[str, bool]]


def tunnel_mtu(path_mtu: int, address: str) -> int:
    """The largest packet inside a tunnel whose outer path carries ``path_mtu`` bytes to ``address``."""
    return path_mtu - _OVERHEAD[ipaddress.ip_address(address).version]


def path_mtus(known: Mapping[str, int], wanted: int, probe: Probe) -> Dict[str, Optional[int]]:
    """For each address the size that its path carries, in bytes, up to what a tunnel of ``wanted`` bytes needs.

    ``known``: earlier results, 0 for unknown. Full size is confirmed by one answer. On a narrow path, one step more is
    tried first, so that an increase is noticed. None if the address does not answer, so that nothing new is known.
    """
    full = {address: wanted + _OVERHEAD[ipaddress.ip_address(address).version] for address in known}
    found: Dict[str, Optional[int]] = {}
    # For each, the largest size that passed and the smallest that did not.
    bounds = {address: (_SMALLEST, full[address] + 1) for address in known}
    while bounds:
        sizes = {address: _next_size(*bounds[address], full[address], known[address]) for address in bounds}
        answers = probe(sizes)
        for address, size in sizes.items():
            low, high = bounds.pop(address)
            if address not in answers:
                found[address] = None
                continue
            low, high = (size, high) if answers[address] else (low, size)
            if low == full[address] or high - low <= _STEP:
                found[address] = low
            else:
                bounds[address] = (low, high)
    return found


def _next_size(low: int, high: int, full: int, known: int) -> int:
    """The next size to try, between one that passed and one that did not: likely sizes first, then the middle."""
    guesses = [min(known + _STEP, full), min(known, full), full] if known else [full]
    return next((guess for guess in guesses if low < guess < high), (low + high) // 2)


def echo(sizes: Mapping[str, int]) -> Dict[str, bool]:
    """The Probe of a real host. Without permission to open raw sockets, there are no answers."""
    by_version: Dict[int, Dict[str, int]] = {4: {}, 6: {}}
    for address, size in sizes.items():
        by_version[ipaddress.ip_address(address).version][address] = size
    answers: Dict[str, bool] = {}
    for version, part in by_version.items():
        if part:
            answers.update(_echo(version, part))
    return answers


def _echo(version: int, sizes: Mapping[str, int]) -> Dict[str, bool]:
    try:
        raw = _open(version)
    except OSError:
        return {}
    with raw:
        talk = _Talk(raw, version, sizes)
        for _try in range(_TRIES):
            talk.send()
            talk.listen(_INTERVAL, talk.undecided)
        talk.listen(_PATIENCE, talk.unheard)
    return talk.verdicts()


def _open(version: int) -> socket.socket:
    """A raw socket that sends with DF set. Raises OSError if that is not allowed."""
    if version == 4:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        raw.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
    else:
        raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        raw.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
    try:
        raw.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    except OSError:
        # Some containers may not exceed the limit; then the buffer is as large as it allows.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    return raw


class _Talk:
    """Pairs of a packet of the size in question and a small one, and the replies to them.

    The sequence numbers of the former are even. For addresses in ``undecided``, a reply may still show that the size
    passes; those in ``unheard`` have answered too little to decide.
    """

    def __init__(self, raw: socket.socket, version: int, sizes: Mapping[str, int]) -> None:
        self._raw, self._version, self._sizes = raw, version, sizes
        # Random, so that a reply to another program's echo request is not taken for ours.
        self._identity = int.from_bytes(os.urandom(2), "big")
        self._sequence = 0
        self._passed: Set[str] = set()
        self._small: Dict[str, Set[int]] = {address: set() for address in sizes}
        #: Addresses for which the size does not fit even through this host's own interface.
        self._refused: Set[str] = set()
        self.undecided, self.unheard = set(sizes), set(sizes)

    def verdicts(self) -> Dict[str, bool]:
        """The result of a Probe."""
        return {address: address in self._passed for address in self._sizes if address not in self.unheard}

    def send(self) -> None:
        """Send one more pair to each undecided address, and process the replies that arrive meanwhile."""
        for address in sorted(self.undecided):
            for sequence, size in ((self._sequence, self._sizes[address]), (self._sequence + 1, _SMALLEST)):
                try:
                    self._raw.sendto(_request(self._version, self._identity, sequence, size), (address, 0))
                except OSError as failure:
                    # Without a route, neither packet is answered.
                    if failure.errno == errno.EMSGSIZE:
                        self._refused.add(address)
            self._take(0)
        self._sequence += 2

    def listen(self, seconds: float, waiting_for: Set[str]) -> None:
        """Receive replies until none is missing, or the time is over."""
        deadline = time.monotonic() + seconds
        # Replies that have arrived are processed even after the time is over, since this host may have been busy.
        while waiting_for and self._take(max(deadline - time.monotonic(), 0)):
            continue

    def _take(self, seconds: float) -> bool:
        """Process one packet that arrives within the time. Returns whether one did."""
        if not select.select([self._raw], [], [], seconds)[0]:
            return False
        packet, sender = self._raw.recvfrom(65535)
        # An IPv4 raw socket also returns the IP header.
        start = (packet[0] & 0x0F) * 4 if self._version == 4 else 0
        if len(packet) >= start + _ICMP.size:
            kind, _code, _checksum_seen, identity, sequence = _ICMP.unpack_from(packet, start)
            if kind == _ECHO_REPLY[self._version] and identity == self._identity and sender[0] in self._sizes:
                self._count(str(sender[0]), sequence)
        return True

    def _count(self, address: str, sequence: int) -> None:
        """Process a reply."""
        small = self._small[address]
        if sequence % 2 == 0:
            self._passed.add(address)
        else:
            small.add(sequence)
        decided = address in self._passed or (small and address in self._refused)
        if decided:
            self.undecided.discard(address)
        if decided or len(small) >= _EVIDENCE:
            self.unheard.discard(address)


def _request(version: int, identity: int, sequence: int, size: int) -> bytes:
    payload = bytes(size - _HEADER[version] - _ICMP.size)
    header = _ICMP.pack(_ECHO_REQUEST[version], 0, 0, identity, sequence)
    # The kernel computes the checksum of ICMPv6, which covers addresses that only it knows.
    checksum = _checksum(header + payload) if version == 4 else 0
    return _ICMP.pack(_ECHO_REQUEST[version], 0, checksum, identity, sequence) + payload


def _checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    padded = data + b"\x00" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
