# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forwarding between the sessions of a host and other networks, and nothing else.

The kernel forwards an IPv4 packet if forwarding is enabled on the interface that received it. It must therefore also be
enabled on the interfaces that receive replies, which would make the host a router. So before it is enabled, the table
drops everything from these interfaces except replies. The global setting is never written: it resets every interface,
and other programs rely on it. If another program enables it, all interfaces belong to that program, and its packets are
not touched. The former settings are stored in a file until the last session has ended.
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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import network
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings

#: The global setting, which only other programs change.
_GLOBAL_FORWARDING = "net/ipv4/ip_forward"
#: The setting whether packets between the ports of a bridge pass the table.
_BRIDGE_FILTERING = "net/bridge/bridge-nf-call-iptables"
_RESOLVER_FILE = "/etc/resolv.conf"
_TUNNEL_CONFIG = "/etc/wireguard/{}.conf"
_UPLINK_NAME = re.compile(rf"{network.NAME_PREFIX}[0-9a-f]{{6}}")
#: The names that an nftables set can contain without quoting.
_INTERFACE_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
#: The kernel's notices about IPv4 routes and forwarding: RTNLGRP_IPV4_ROUTE and RTNLGRP_IPV4_NETCONF.
_NOTICE_GROUPS = 1 << (7 - 1) | 1 << (24 - 1)
#: The time, in seconds, to wait for further notices after a first one.
_SETTLE_DELAY = 0.5


class ForwardingState(NamedTuple):
    """The interfaces through which sessions reach other networks (``ways``), the former settings of those that forward only
    for sessions, and which of these are bridges whose own traffic passes the table."""

    former: Dict[str, str]
    ways: List[str]
    bridges: List[str]


_NO_FORWARDING = ForwardingState({}, [], [])


def read_state(path: str) -> ForwardingState:
    """Read the state from its file, which only root can write. A damaged file counts as missing."""
    try:
        state_document = json.loads(read_text(path) or "{}")
        return ForwardingState(
            dict(state_document["former"]), list(state_document["ways"]), list(state_document["bridges"])
        )
    except (ValueError, LookupError, TypeError):
        return _NO_FORWARDING


def format_elements(forwarding_state: ForwardingState) -> str:
    """Return the lines that put the interfaces into the sets of the table."""
    elements_by_set = {
        network.UPLINK_SET: [f'"{name}"' for name in forwarding_state.ways],
        network.FORWARDING_SET: [f'"{name}"' for name in forwarding_state.former],
        network.BRIDGE_SET: [f'"{name}" . "{name}"' for name in forwarding_state.bridges],
    }
    nft_lines = []
    for name, set_elements in elements_by_set.items():
        nft_lines.append(f"flush set inet {network.TABLE_NAME} {name}")
        if set_elements:
            nft_lines.append(f"add element inet {network.TABLE_NAME} {name} {{ {', '.join(set_elements)} }}")
    return "".join(f"{line}\n" for line in nft_lines)


def load_table(run: Runner, table_text: str, state_path: str) -> None:
    """Load the table, which replaces the existing one, together with the elements of its sets."""
    run(["nft", "--file", "-"], stdin=table_text + format_elements(read_state(state_path)))


def ensure_forwarding(run: Runner, settings: SessionSettings, table_text: str, state_path: str) -> None:
    """Let the kernel forward what the sessions on this node need; nothing if there are none.

    The caller must have the lock of the node. ``table_text``: the table to load if it is missing.
    """
    routes = _query_ip(run, "-4", "route", "show", "table", "all")
    uplink_names = sorted(interface for interface in _route_interfaces(routes) if _UPLINK_NAME.fullmatch(interface))
    previous_state = read_state(state_path)
    if not uplink_names:
        _discard_state(run, previous_state, state_path)
        return
    open_to_all = _read_setting(run, _GLOBAL_FORWARDING) == "1"
    outward_interfaces = find_uplinks(routes, settings, read_text(_RESOLVER_FILE) or "")
    former_settings = {}
    for interface in outward_interfaces:
        setting = previous_state.former.get(interface) or _read_setting(run, _setting_key(interface))
        if setting == "0" and not open_to_all and not _relays_between_peers(interface):
            former_settings[interface] = setting
    bridge_names = sorted(former_settings.keys() & _list_bridges(run)) if former_settings else []
    desired_state = ForwardingState(former_settings, outward_interfaces, bridge_names)
    _restore_settings(
        run,
        {
            interface: setting
            for interface, setting in previous_state.former.items()
            if interface not in former_settings
        },
    )
    if desired_state != previous_state:
        write_atomic(state_path, json.dumps(desired_state._asdict()) + "\n", 0o600)
    if run(["nft", "--file", "-"], stdin=format_elements(desired_state), check=False).rc:
        load_table(run, table_text, state_path)
    # Forwarding is enabled last, when the table limits it.
    _write_settings(run, dict.fromkeys((*former_settings, *uplink_names), "1"))


def restore_forwarding(run: Runner, state_path: str) -> None:
    """Restore the former settings if no session needs others."""
    if not os.path.exists(state_path):
        return
    routes = _query_ip(run, "-4", "route", "show", "table", "all")
    if not any(_UPLINK_NAME.fullmatch(interface) for interface in _route_interfaces(routes)):
        _discard_state(run, read_state(state_path), state_path)


def _discard_state(run: Runner, forwarding_state: ForwardingState, state_path: str) -> None:
    if not os.path.exists(state_path):
        return
    _restore_settings(run, forwarding_state.former)
    run(["nft", "--file", "-"], stdin=format_elements(_NO_FORWARDING), check=False)
    remove_file(state_path)


def _restore_settings(run: Runner, former_settings: Dict[str, str]) -> None:
    """Restore settings, unless another program has meanwhile enabled forwarding on all interfaces, or on this one."""
    if former_settings and _read_setting(run, _GLOBAL_FORWARDING) != "1":
        _write_settings(
            run,
            {interface: value for interface, value in former_settings.items() if not _relays_between_peers(interface)},
        )


def _write_settings(run: Runner, settings_by_interface: Dict[str, str]) -> None:
    """Write the settings of interfaces, except those that do not exist any more."""
    if settings_by_interface:
        assignments = [f"{_setting_key(interface)}={setting}" for interface, setting in settings_by_interface.items()]
        run(["sysctl", "--ignore", "--quiet", "--write", *assignments])


def _setting_key(interface: str) -> str:
    """Return the key of an interface's setting, with slashes, since names of interfaces may contain dots."""
    return f"net/ipv4/conf/{interface}/forwarding"


def _read_setting(run: Runner, setting_key: str) -> str:
    return run(["sysctl", "--ignore", "--values", setting_key], check=False).stdout.strip()


def _relays_between_peers(interface: str) -> bool:
    """Return whether this is a tunnel whose own configuration lets it forward between its peers."""
    try:
        return "/forwarding" in (read_text(_TUNNEL_CONFIG.format(interface)) or "")
    except OSError:
        return False


def _list_bridges(run: Runner) -> Set[str]:
    if _read_setting(run, _BRIDGE_FILTERING) != "1":
        return set()
    return {str(link.get("ifname")) for link in _query_ip(run, "link", "show", "type", "bridge")}


def _query_ip(run: Runner, *arguments: str) -> List[Dict[str, Any]]:
    try:
        ip_output = json.loads(run(["ip", "-json", *arguments]).stdout or "[]")
    except ValueError as failure:
        raise ParseError(f"ip -json {' '.join(arguments)}", str(failure)) from failure
    return [entry for entry in ip_output if isinstance(entry, dict)] if isinstance(ip_output, list) else []


def _route_interfaces(routes: Sequence[Dict[str, Any]]) -> List[str]:
    """Return the interfaces of routes, some of which have several next hops."""
    interface_names = set()
    for route in routes:
        for next_hop in (route, *route.get("nexthops", ())):
            if next_hop.get("dev"):
                interface_names.add(str(next_hop["dev"]))
    return sorted(interface_names)


def find_uplinks(routes: Sequence[Dict[str, Any]], settings: SessionSettings, resolver_config: str) -> List[str]:
    """Return the interfaces through which sessions may reach something.

    These are the interfaces with routes to networks that are not closed, to allowed endpoints, or to a name server.
    """
    closed = [ipaddress.IPv4Network(text) for text in network.closed_networks(settings)]
    reachable_texts = [address for address, _port in network.parse_allowed_endpoints(settings.allow)]
    reachable_texts += re.findall(r"^nameserver\s+([0-9.]+)\s*$", resolver_config, re.MULTILINE)
    reachable = [
        subnet for subnet in map(_parse_network, reachable_texts) if subnet is not None and not subnet.is_loopback
    ]
    interfaces: Set[str] = set()
    for route in routes:
        destination = _parse_network("0.0.0.0/0" if route.get("dst") == "default" else str(route.get("dst")))
        if destination is None or route.get("type", "unicast") != "unicast":
            continue
        if not any(destination.subnet_of(subnet) for subnet in closed) or any(
            destination.overlaps(subnet) for subnet in reachable
        ):
            interfaces.update(_route_interfaces([route]))
    return sorted(
        name
        for name in interfaces
        if name != "lo" and not _UPLINK_NAME.fullmatch(name) and _INTERFACE_NAME.fullmatch(name)
    )


def _parse_network(text: str) -> Optional[ipaddress.IPv4Network]:
    try:
        return ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        return None


class RouteNotices:
    """The kernel's notices about routes and forwarding, from the creation of this object on."""

    def __init__(self) -> None:
        self._netlink_socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        )
        self._netlink_socket.bind((0, _NOTICE_GROUPS))
        self._netlink_socket.setblocking(False)

    def wait(self, timeout_seconds: float) -> None:
        """Wait for a notice, or until the time is over."""
        if not select.select([self._netlink_socket], [], [], max(0.0, timeout_seconds))[0]:
            return
        time.sleep(_SETTLE_DELAY)
        # The error means that all notices have been read, or that there were more than fit.
        with contextlib.suppress(OSError):
            while self._netlink_socket.recv(1 << 16):
                pass

    def close(self) -> None:
        """Release the socket."""
        self._netlink_socket.close()
