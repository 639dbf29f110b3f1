# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ports that represent all: the named ones, and a sample of the ephemeral range."""

from __future__ import annotations

import random
import re
from typing import List, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError

_RANGE = re.compile(r"(\d{1,5})[-:](\d{1,5})")


class Range(NamedTuple):
    """Ports from ``first`` to ``last``, both included."""

    first: int
    last: int


def parse_range(text: str) -> Range:
    """``32768-60999``, or with a colon. Raises InputError."""
    found = _RANGE.fullmatch(text.strip())
    if found:
        first, last = int(found.group(1)), int(found.group(2))
        if 1 <= first <= last <= 65535:
            return Range(first, last)
    raise InputError(
        f"'{text}' is an invalid range of ports.",
        "Write it as FIRST-LAST within 1-65535, such as 32768-60999.",
        range=text,
    )


def check_ports(ports: Sequence[int]) -> List[int]:
    """The ports in their order, each once. Raises InputError for an invalid port."""
    for port in ports:
        if not 1 <= port <= 65535:
            raise InputError(f"{port} is an invalid port.", "Ports range from 1 to 65535.", port=port)
    return list(dict.fromkeys(ports))


def slices(ports: Range, count: int) -> List[Range]:
    """``ports`` in ``count`` parts of about equal size (fewer if there are fewer ports).

    One port is tested of each part: a firewall that opens only a part of the range is then always detected, unlike with
    ``count`` random ports.
    """
    size = ports.last - ports.first + 1
    parts = min(count, size)
    bounds = [ports.first + size * index // parts for index in range(parts + 1)] if parts > 0 else []
    return [Range(low, high - 1) for low, high in zip(bounds, bounds[1:])]


def candidates(part: Range, seed: str, number: int = 16) -> List[int]:
    """Ports of one part, to try in turn until one is free. The same ``seed`` gives the same ports."""
    size = part.last - part.first + 1
    # Not a secret: it only distributes the ports, and makes them reproducible for debugging a run.
    return random.Random(f"{seed}/{part.first}").sample(range(part.first, part.last + 1), min(number, size))
