# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Subnets as people write them."""

from __future__ import annotations

import ipaddress
from typing import Union

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


def normalise_subnet(subnet_text: str, option_name: str = "cluster_subnet") -> Network:
    """Return the network of ADDRESS/MASK in the form of ``ip addr``: IPv4 or IPv6, and host bits may be set.

    ``option_name`` is the name of the variable, for the error. Raises InputError.
    """
    remedy = f"Set {option_name} in the form that `ip addr` prints, such as 192.168.1.11/24."
    address, slash, _mask = subnet_text.strip().partition("/")
    if not slash:
        raise InputError(f"{option_name}: {subnet_text!r} has no prefix length.", remedy, value=subnet_text)
    try:
        network = ipaddress.ip_interface(subnet_text.strip()).network
    except ValueError as failure:
        raise InputError(
            f"{option_name}: {subnet_text!r} is an invalid subnet: {failure}.", remedy, value=subnet_text
        ) from failure
    if network.prefixlen == network.max_prefixlen:
        raise InputError(
            f"{option_name}: {subnet_text!r} contains only a single address, {address}.", remedy, value=subnet_text
        )
    if network.is_loopback or network.is_link_local or network.is_multicast:
        raise InputError(
            f"{option_name}: {subnet_text!r} is a loopback, link-local or multicast range, "
            "which other machines cannot reach.",
            remedy,
            value=subnet_text,
        )
    return network
