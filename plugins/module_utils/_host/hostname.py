# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolution of a host's own name. Debian maps it to 127.0.1.1, on which daemons and NCCL would then listen."""

from __future__ import annotations

import ipaddress
import socket
import threading
from typing import Callable, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import HostnameResolution

#: Function that returns the addresses of a name, or None if there was no response in time.
Resolver = Callable[[str], Optional[List[str]]]

#: The time limit in seconds. An unreachable name server must not delay the detection.
RESOLVE_TIMEOUT = 2.0


def parse_hosts_file(hosts_text: str, host_name: str) -> List[str]:
    """Return the addresses that /etc/hosts has for a name, in its order."""
    addresses: List[str] = []
    for line in hosts_text.splitlines():
        address, *aliases = line.partition("#")[0].split() or [""]
        if host_name.lower() in (alias.lower() for alias in aliases) and address not in addresses:
            addresses.append(address)
    return addresses


def resolve_hostname(host_name: str) -> Optional[List[str]]:
    """Query the system's resolver, for RESOLVE_TIMEOUT at most; [] if the name does not exist."""
    responses: List[List[str]] = []

    def query_resolver() -> None:
        try:
            socket_addresses = socket.getaddrinfo(host_name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            responses.append([])
            return
        responses.append(list(dict.fromkeys(str(info[4][0]) for info in socket_addresses)))

    # getaddrinfo cannot be interrupted. A daemon thread that still waits does not keep the module from ending.
    thread = threading.Thread(target=query_resolver, daemon=True)
    thread.start()
    thread.join(RESOLVE_TIMEOUT)
    return responses[0] if responses else None


def assess_resolution(host_name: str, hosts_text: str, resolved_addresses: Optional[List[str]]) -> HostnameResolution:
    """Return the resolution with its problem and remedy as messages; both None if there is no problem."""
    file_addresses = parse_hosts_file(hosts_text, host_name)
    loopback_addresses = [address for address in resolved_addresses or [] if _is_loopback(address)]
    problem: Optional[str] = None
    remedy: Optional[str] = None
    if resolved_addresses is None:
        problem = f"The host's own name {host_name} did not resolve within {RESOLVE_TIMEOUT:g} s."
        remedy = f"Add {host_name} to /etc/hosts with its cluster address."
    elif not resolved_addresses:
        problem = f"The host's own name {host_name} does not resolve."
        remedy = f"Add {host_name} to /etc/hosts with its cluster address."
    elif loopback_addresses:
        address_origin = "in /etc/hosts" if loopback_addresses[0] in file_addresses else "by the system's resolver"
        problem = (
            f"The host's own name {host_name} resolves to {loopback_addresses[0]} ({address_origin}): "
            "services would listen on an address that others cannot reach."
        )
        remedy = f"Map {host_name} to its cluster address in /etc/hosts instead of {loopback_addresses[0]}."
    return {
        "name": host_name,
        "addresses": resolved_addresses or [],
        "hosts_file": file_addresses,
        "loopback": bool(loopback_addresses),
        "problem": problem,
        "remedy": remedy,
    }


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
