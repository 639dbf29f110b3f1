# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send a packet to each peer, so that its tunnel makes a handshake now, and not at first use."""

from __future__ import annotations

import socket
from typing import Iterable

#: RFC 863: whatever arrives at this port is discarded.
_DISCARD = 9


def knock(addresses: Iterable[str]) -> None:
    """Send one empty datagram to each address."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            try:
                sender.sendto(b"", (address, _DISCARD))
            except OSError:
                # No route or endpoint yet, or a firewall on this host: the first real packet triggers the handshake.
                continue
