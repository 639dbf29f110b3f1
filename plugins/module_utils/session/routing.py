# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forwarding between the sessions of a host and other networks, and nothing else.

The kernel forwards an IPv4 packet if the interface that received it does, so the interfaces of answers have to forward as
well, and would make the host a router. So the table drops everything from them except answers, before they are set. The
global setting is never written: it resets every interface, and other programs rely on it. If one of them enables it, all
interfaces belong to that program, whose packets are then left alone. The former settings are in a file until the last
session has ended.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import select
import socket
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import network
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Settings

#: What becomes of the global setting is up to others.
_GLOBAL = "net/ipv4/ip_forward"
#: Whether packets between the ports of a bridge pass the table.
_BRIDGES = "net/bridge/bridge-nf-call-iptables"
_RESOLVERS = "/etc/resolv.conf"
_TUNNEL = "/etc/wireguard/{}.conf"
_OUTLET = re.compile(rf"{network.PREFIX}[0-9a-f]{{6}}")
#: Names that a set of nftables can contain as they are.
_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
#: The kernel's notices about IPv4 routes, and about what forwards: RTNLGRP_IPV4_ROUTE and RTNLGRP_IPV4_NETCONF.
_NOTICES = 1 << (7 - 1) | 1 << (24 - 1)
#: Seconds after a notice, in which others may follow.
_CALM = 0.5


class Opened(NamedTuple):
    """The interfaces through which sessions reach other networks (``ways``), the former settings of those that forward only
    for sessions, and which of these are bridges whose own traffic passes the table."""

    former: Dict[str, str]
    ways: List[str]
    bridges: List[str]


_NOTHING = Opened({}, [], [])


def read(path: str) -> Opened:
    """What is in the file, which root alone can write. A damaged one counts as missing."""
    try:
        document = json.loads(read_text(path) or "{}")
        return Opened(dict(document["former"]), list(document["ways"]), list(document["bridges"]))
    except (ValueError, LookupError, TypeError):
        return _NOTHING


def elements(opened: Opened) -> str:
    """The lines that put the interfaces into the sets of the table."""
    given = {
        network.WAYS: [f'"{name}"' for name in opened.ways],
        network.OPENED: [f'"{name}"' for name in opened.former],
        network.BRIDGES: [f'"{name}" . "{name}"' for name in opened.bridges],
    }
    lines = []
    for name, members in given.items():
        lines.append(f"flush set inet {network.TABLE} {name}")
        if members:
            lines.append(f"add element inet {network.TABLE} {name} {{ {', '.join(members)} }}")
    return "".join(f"{line}\n" for line in lines)


def load(run: Runner, text: str, path: str) -> None:
    """Load the table, which replaces the existing one, together with what it has to know of the interfaces."""
    run(["nft", "--file", "-"], stdin=text + elements(read(path)))


def settle(run: Runner, settings: Settings, text: str, path: str) -> None:
    """Have the kernel forward what the sessions that are here need; nothing if there are none. Whoever calls this has the
    lock of the node. ``text``: the table, if it is missing."""
    routes = _json(run, "-4", "route", "show", "table", "all")
    outlets = sorted(name for name in _interfaces(routes) if _OUTLET.fullmatch(name))
    before = read(path)
    if not outlets:
        _close(run, before, path)
        return
    open_to_all = _value(run, _GLOBAL) == "1"
    ways = ways_out(routes, settings, read_text(_RESOLVERS) or "")
    former = {}
    for name in ways:
        value = before.former.get(name) or _value(run, _setting(name))
        if value == "0" and not open_to_all and not _relays(name):
            former[name] = value
    bridges = sorted(former.keys() & _bridges(run)) if former else []
    wanted = Opened(former, ways, bridges)
    _restore(run, {name: value for name, value in before.former.items() if name not in former})
    if wanted != before:
        write_atomic(path, json.dumps(wanted._asdict()) + "\n", 0o600)
    if run(["nft", "--file", "-"], stdin=elements(wanted), check=False).rc:
        load(run, text, path)
    # Only now is there something that limits it.
    _write(run, dict.fromkeys((*former, *outlets), "1"))


def close(run: Runner, path: str) -> None:
    """Restore the former settings if no session needs others."""
    if not os.path.exists(path):
        return
    routes = _json(run, "-4", "route", "show", "table", "all")
    if not any(_OUTLET.fullmatch(name) for name in _interfaces(routes)):
        _close(run, read(path), path)


def _close(run: Runner, opened: Opened, path: str) -> None:
    if not os.path.exists(path):
        return
    _restore(run, opened.former)
    run(["nft", "--file", "-"], stdin=elements(_NOTHING), check=False)
    remove_file(path)


def _restore(run: Runner, former: Dict[str, str]) -> None:
    """Unless somebody else lets all interfaces forward, or this one, meanwhile."""
    if former and _value(run, _GLOBAL) != "1":
        _write(run, {name: value for name, value in former.items() if not _relays(name)})


def _write(run: Runner, values: Dict[str, str]) -> None:
    """Interfaces that are gone have no setting."""
    if values:
        words = [f"{_setting(name)}={value}" for name, value in values.items()]
        run(["sysctl", "--ignore", "--quiet", "--write", *words])


def _setting(interface: str) -> str:
    """With slashes, since names of interfaces may have dots."""
    return f"net/ipv4/conf/{interface}/forwarding"


def _value(run: Runner, name: str) -> str:
    return run(["sysctl", "--ignore", "--values", name], check=False).stdout.strip()


def _relays(interface: str) -> bool:
    """Whether this is a tunnel that forwards between its peers, by its own configuration."""
    try:
        return "/forwarding" in (read_text(_TUNNEL.format(interface)) or "")
    except OSError:
        return False


def _bridges(run: Runner) -> Set[str]:
    if _value(run, _BRIDGES) != "1":
        return set()
    return {str(link.get("ifname")) for link in _json(run, "link", "show", "type", "bridge")}


def _json(run: Runner, *words: str) -> List[Dict[str, Any]]:
    try:
        found = json.loads(run(["ip", "-json", *words]).stdout or "[]")
    except ValueError as failure:
        raise ParseError(f"ip -json {' '.join(words)}", str(failure)) from failure
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _interfaces(routes: Sequence[Dict[str, Any]]) -> List[str]:
    """Of routes, some of which have several next hops."""
    found = set()
    for route in routes:
        for hop in (route, *route.get("nexthops", ())):
            if hop.get("dev"):
                found.add(str(hop["dev"]))
    return sorted(found)


def ways_out(routes: Sequence[Dict[str, Any]], settings: Settings, resolvers: str) -> List[str]:
    """The interfaces through which sessions may reach something: those with routes to other networks than the closed ones,
    to what is allowed, or to a name server."""
    closed = [ipaddress.IPv4Network(text) for text in network.closed_networks(settings)]
    texts = [address for address, _port in network.parse_allowed(settings.allow)]
    texts += re.findall(r"^nameserver\s+([0-9.]+)\s*$", resolvers, re.MULTILINE)
    reachable = [one for one in map(_network, texts) if one is not None and not one.is_loopback]
    found: Set[str] = set()
    for route in routes:
        target = _network("0.0.0.0/0" if route.get("dst") == "default" else str(route.get("dst")))
        if target is None or route.get("type", "unicast") != "unicast":
            continue
        if not any(target.subnet_of(one) for one in closed) or any(target.overlaps(one) for one in reachable):
            found.update(_interfaces([route]))
    return sorted(name for name in found if name != "lo" and not _OUTLET.fullmatch(name) and _NAME.fullmatch(name))


def _network(text: str) -> Optional[ipaddress.IPv4Network]:
    try:
        return ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        return None


class Notices:
    """Those of the kernel about routes and forwarding, from its creation on."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.bind((0, _NOTICES))
        self._socket.setblocking(False)

    def wait(self, seconds: float) -> None:
        """Until there is one, or the time is over."""
        if not select.select([self._socket], [], [], max(0.0, seconds))[0]:
            return
        time.sleep(_CALM)
        # It has been read empty, or there were more notices than fit.
        with contextlib.suppress(OSError):
            while self._socket.recv(1 << 16):
                pass

    def close(self) -> None:
        """Release the socket."""
        self._socket.close()
