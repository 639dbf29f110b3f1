# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send a packet to each peer, so that its tunnel makes a handshake now instead of at first use."""

from __future__ import annotations

import socket
from typing import Iterable

#: RFC 863: whatever arrives at this port is discarded.
_DISCARD_PORT = 9


def trigger_handshake(peer_addresses: Iterable[str]) -> None:
    """Send one empty datagram to each address."""
    for peer_address in peer_addresses:
        address_family = socket.AF_INET6 if ":" in peer_address else socket.AF_INET
        with socket.socket(address_family, socket.SOCK_DGRAM) as udp_socket:
            try:
                udp_socket.sendto(b"", (peer_address, _DISCARD_PORT))
            except OSError:
                # No route or endpoint yet, or a firewall on this host: the first real packet triggers the handshake.
                continue
