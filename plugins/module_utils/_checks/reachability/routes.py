# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's route to each peer, with one `ip` command for all of them."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any, Callable, Dict, List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import PeerRoute
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import lower_names

#: ``-force`` continues after an address without a route. Each answer is JSON on a separate line.
ROUTE_COMMAND = ("ip", "-j", "-force", "-batch", "-")

_COMMAND_TEXT = " ".join(ROUTE_COMMAND) + " (route get)"
_FAILED_LINE = re.compile(r"Command failed -:([0-9]{1,9})\b")


def parse_routes(addresses: Sequence[str], stdout: str, stderr: str) -> Dict[str, PeerRoute]:
    """Parse the output of ROUTE_COMMAND with one ``route get`` per address, in this order.

    Raises ParseError.
    """
    error_by_address = _parse_errors(addresses, stderr)
    routes = {}
    for item in _parse_objects(stdout):
        peer_address = _normalize_address(_read_text(item, "dst"))
        if peer_address is not None:
            routes[peer_address] = _parse_route(item)
    route_by_address: Dict[str, PeerRoute] = {}
    for peer_address in addresses:
        peer_route = routes.get(_normalize_address(peer_address) or peer_address)
        if peer_route is None:
            error = error_by_address.get(peer_address, "ip printed nothing")
            peer_route = {"dev": None, "prefsrc": None, "gateway": None, "error": error}
        route_by_address[peer_address] = peer_route
    return route_by_address


def query_routes(
    run: Callable[..., CommandResult], addresses: Sequence[str], timeout: float = 10.0
) -> Dict[str, PeerRoute]:
    """Query the route to each address. Raises ParseError or CommandError."""
    if not addresses:
        return {}
    lines = "".join(f"route get {address}\n" for address in addresses)
    # ip exits 1 if any address has no route.
    batch_result = run(ROUTE_COMMAND, stdin=lines, timeout=timeout, check=False)
    return parse_routes(addresses, batch_result.stdout, batch_result.stderr)


def _parse_errors(addresses: Sequence[str], stderr: str) -> Dict[str, str]:
    """The kernel's messages by address. Each consists of the message, and a line that identifies the command."""
    error_by_address = {}
    message_parts: List[str] = []
    for line in stderr.splitlines():
        failed = _FAILED_LINE.match(line)
        if failed is None:
            message_parts.append(line.strip().replace("RTNETLINK answers: ", ""))
            continue
        number = int(failed.group(1))
        if 1 <= number <= len(addresses):
            error_by_address[addresses[number - 1]] = " ".join(message_parts) or "no route"
        message_parts = []
    return error_by_address


def _parse_objects(stdout: str) -> List[Dict[str, Any]]:
    decoder = json.JSONDecoder(object_pairs_hook=lower_names)
    json_objects: List[Dict[str, Any]] = []
    remaining_text = stdout.strip()
    while remaining_text:
        try:
            json_array, array_end = decoder.raw_decode(remaining_text)
        except (ValueError, RecursionError) as failure:
            raise ParseError(_COMMAND_TEXT, f"it is not JSON; it starts with {remaining_text[:60]!r}") from failure
        if not isinstance(json_array, list) or not all(isinstance(item, dict) for item in json_array):
            raise ParseError(_COMMAND_TEXT, f"{str(json_array)[:60]!r} is not a list of objects")
        json_objects += json_array
        remaining_text = remaining_text[array_end:].lstrip()
    return json_objects


def _parse_route(item: Dict[str, Any]) -> PeerRoute:
    gateway = _read_text(item, "gateway")
    via = item.get("via")
    if gateway is None and isinstance(via, dict):
        # A gateway of the other family of addresses.
        gateway = _read_text(via, "host")
    return {"dev": _read_text(item, "dev"), "prefsrc": _read_text(item, "prefsrc"), "gateway": gateway, "error": None}


def _read_text(item: Dict[str, Any], key: str) -> Optional[str]:
    field_text = item.get(key)
    if field_text is None or isinstance(field_text, str):
        return field_text
    raise ParseError(_COMMAND_TEXT, f"{key} is {str(field_text)[:60]!r}, which is not a string")


def _normalize_address(address: Optional[str]) -> Optional[str]:
    try:
        return str(ipaddress.ip_address(address or ""))
    except ValueError:
        return None
