# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster needs from the firewall that the administrator of a host has set up. Pure."""

from __future__ import annotations

import ipaddress
from typing import Any, Mapping, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import values
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError


class HostRule(NamedTuple):
    """Something that a firewall must accept: from a network on an interface, to a port, or forwarded.

    ``interface``: a trailing + stands for any end of the name. ``mesh``: the interface belongs to the cluster alone.
    """

    interface: str = ""
    source: str = ""
    port: int = 0
    protocol: str = ""
    forward: bool = False
    out_interface: str = ""
    mesh: bool = False


def parse_rule(fields: Mapping[str, Any]) -> HostRule:
    """Return a rule whose fields are checked, since they become part of commands. Raises InputError."""
    rule = HostRule(**{name: value for name, value in fields.items() if value is not None})
    try:
        for interface in filter(None, (rule.interface, rule.out_interface)):
            values.interface_name(interface)
        if rule.source:
            ipaddress.ip_network(rule.source)
    except ValueError as failure:
        raise InputError(f"A rule for the firewall of the host is invalid: {failure}.") from failure
    return rule


def is_part_of(source: str, network: str) -> bool:
    """Whether all senders of a rule are in a network of a firewall, which also has other texts in place of networks."""
    try:
        outer, inner = (ipaddress.ip_network(text, strict=False) for text in (network, source))
    except ValueError:
        return False
    return outer.overlaps(inner) and outer.prefixlen <= inner.prefixlen
