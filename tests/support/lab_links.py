# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A slow link between two hosts of a lab."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lab_hosts import Lab


@contextmanager
def limit_link(lab: Lab, address_by_end: Mapping[str, str], rate: str) -> Iterator[None]:
    """Limit the rate between two hosts in both directions; all other links stay as they are."""
    first, second = address_by_end
    ends = ((first, second), (second, first))
    try:
        for host, peer in ends:
            for arguments in (
                "qdisc add dev eth0 root handle 1: htb default 10",
                "class add dev eth0 parent 1: classid 1:10 htb rate 10gbit",
                f"class add dev eth0 parent 1: classid 1:20 htb rate {rate}",
                f"filter add dev eth0 parent 1: protocol ip u32 match ip dst {address_by_end[peer]} flowid 1:20",
            ):
                lab.run(host, "tc", *arguments.split())
        yield
    finally:
        for host, _peer in ends:
            lab.run(host, "tc", "qdisc", "del", "dev", "eth0", "root", check=False)
