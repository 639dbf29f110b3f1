# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ports that represent all: the named ones, and a sample of the ephemeral range."""

from __future__ import annotations

import random
import re
from typing import List, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

_RANGE_PATTERN = re.compile(r"(\d{1,5})[-:](\d{1,5})")


class PortRange(NamedTuple):
    """Ports from ``first_port`` to ``last_port``, both included."""

    first_port: int
    last_port: int


def parse_range(range_text: str) -> PortRange:
    """Parse ``32768-60999``, or the same with a colon. Raises InputError."""
    range_match = _RANGE_PATTERN.fullmatch(range_text.strip())
    if range_match:
        first, last = int(range_match.group(1)), int(range_match.group(2))
        if 1 <= first <= last <= 65535:
            return PortRange(first, last)
    raise InputError(
        f"'{range_text}' is an invalid range of ports.",
        "Write it as FIRST-LAST within 1-65535, such as 32768-60999.",
        range=range_text,
    )


def check_ports(ports: Sequence[int]) -> List[int]:
    """The ports in their order, each once. Raises InputError for an invalid port."""
    for port in ports:
        if not 1 <= port <= 65535:
            raise InputError(f"{port} is an invalid port.", "Ports range from 1 to 65535.", port=port)
    return list(dict.fromkeys(ports))


def split_range(port_range: PortRange, part_count: int) -> List[PortRange]:
    """Split the range into ``part_count`` parts of about equal size (fewer if there are fewer ports).

    One port is tested of each part: a firewall that opens only a part of the range is then always detected, unlike with
    as many random ports.
    """
    size = port_range.last_port - port_range.first_port + 1
    parts = min(part_count, size)
    bounds = [port_range.first_port + size * index // parts for index in range(parts + 1)] if parts > 0 else []
    return [PortRange(low, high - 1) for low, high in zip(bounds, bounds[1:])]


def list_candidates(part: PortRange, seed: str, number: int = 16) -> List[int]:
    """Ports of one part, to try in turn until one is free. The same ``seed`` gives the same ports."""
    size = part.last_port - part.first_port + 1
    # The seed is not a secret: it only distributes the ports, and makes them reproducible for debugging a run.
    return random.Random(f"{seed}/{part.first_port}").sample(
        range(part.first_port, part.last_port + 1), min(number, size)
    )
