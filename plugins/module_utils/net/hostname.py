# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's own name resolves to. Debian maps it to 127.0.1.1, on which daemons and NCCL would then listen."""

from __future__ import annotations

import ipaddress
import socket
import threading
from typing import Callable, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.net.shapes import HostnameResolution

#: Returns the addresses of a name, or None if there was no answer in time.
Resolver = Callable[[str], Optional[List[str]]]

#: Seconds. An unreachable name server must not delay the detection.
RESOLVE_TIMEOUT = 2.0


def parse_hosts(text: str, name: str) -> List[str]:
    """The addresses that /etc/hosts has for ``name``, in its order."""
    found: List[str] = []
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if name.lower() in (alias.lower() for alias in names) and address not in found:
            found.append(address)
    return found


def resolve(name: str) -> Optional[List[str]]:
    """Query the system's resolver, for RESOLVE_TIMEOUT at most; [] if the name does not exist."""
    answers: List[List[str]] = []

    def ask() -> None:
        try:
            infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            answers.append([])
            return
        answers.append(list(dict.fromkeys(str(info[4][0]) for info in infos)))

    # getaddrinfo cannot be interrupted. A daemon thread that still waits does not keep the module from ending.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(RESOLVE_TIMEOUT)
    return answers[0] if answers else None


def judge(name: str, hosts_text: str, resolved: Optional[List[str]]) -> HostnameResolution:
    """The resolution with its problem and remedy as messages; both None if there is no problem."""
    in_file = parse_hosts(hosts_text, name)
    loopback = [address for address in resolved or [] if _is_loopback(address)]
    problem: Optional[str] = None
    remedy: Optional[str] = None
    if resolved is None:
        problem = f"The host's own name {name} did not resolve within {RESOLVE_TIMEOUT:g} s."
        remedy = f"Add {name} to /etc/hosts with its cluster address."
    elif not resolved:
        problem = f"The host's own name {name} does not resolve."
        remedy = f"Add {name} to /etc/hosts with its cluster address."
    elif loopback:
        where = "in /etc/hosts" if loopback[0] in in_file else "by the system's resolver"
        problem = (
            f"The host's own name {name} resolves to {loopback[0]} ({where}): services would listen on an address that "
            "others cannot reach."
        )
        remedy = f"Map {name} to its cluster address in /etc/hosts instead of {loopback[0]}."
    return {
        "name": name,
        "addresses": resolved or [],
        "hosts_file": in_file,
        "loopback": bool(loopback),
        "problem": problem,
        "remedy": remedy,
    }


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
