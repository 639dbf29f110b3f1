# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's route to each peer, with one `ip` command for all of them."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any, Callable, Dict, List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import Route

#: ``-force`` continues after an address without a route. Each answer is JSON on a separate line.
COMMAND = ("ip", "-j", "-force", "-batch", "-")

_SHOWN = " ".join(COMMAND) + " (route get)"
_FAILED_LINE = re.compile(r"Command failed -:([0-9]{1,9})\b")


def parse(addresses: Sequence[str], stdout: str, stderr: str) -> Dict[str, Route]:
    """The route to each address, from the output of COMMAND with one ``route get`` per address, in this order.

    Raises ParseError.
    """
    errors = _errors(addresses, stderr)
    routes = {}
    for item in _objects(stdout):
        address = _canonical(_text(item, "dst"))
        if address is not None:
            routes[address] = _route(item)
    found: Dict[str, Route] = {}
    for address in addresses:
        known = routes.get(_canonical(address) or address)
        if known is None:
            error = errors.get(address, "ip printed nothing")
            known = {"dev": None, "prefsrc": None, "gateway": None, "error": error}
        found[address] = known
    return found


def ask(run: Callable[..., Completed], addresses: Sequence[str], timeout: float = 10.0) -> Dict[str, Route]:
    """Query the route to each address. Raises ParseError or CommandError."""
    if not addresses:
        return {}
    lines = "".join(f"route get {address}\n" for address in addresses)
    # It exits 1 if any address has no route.
    done = run(COMMAND, stdin=lines, timeout=timeout, check=False)
    return parse(addresses, done.stdout, done.stderr)


def _errors(addresses: Sequence[str], stderr: str) -> Dict[str, str]:
    """The kernel's messages by address. Each consists of the message, and a line that identifies the command."""
    errors = {}
    words: List[str] = []
    for line in stderr.splitlines():
        failed = _FAILED_LINE.match(line)
        if failed is None:
            words.append(line.strip().replace("RTNETLINK answers: ", ""))
            continue
        number = int(failed.group(1))
        if 1 <= number <= len(addresses):
            errors[addresses[number - 1]] = " ".join(words) or "no route"
        words = []
    return errors


def _objects(stdout: str) -> List[Dict[str, Any]]:
    decoder = json.JSONDecoder()
    found: List[Dict[str, Any]] = []
    text = stdout.strip()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except (ValueError, RecursionError) as failure:
            raise ParseError(_SHOWN, f"it is not JSON; it starts with {text[:60]!r}") from failure
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise ParseError(_SHOWN, f"{str(value)[:60]!r} is not a list of objects")
        found += value
        text = text[end:].lstrip()
    return found


def _route(item: Dict[str, Any]) -> Route:
    gateway = _text(item, "gateway")
    via = item.get("via")
    if gateway is None and isinstance(via, dict):
        # A gateway of the other family of addresses.
        gateway = _text(via, "host")
    return {"dev": _text(item, "dev"), "prefsrc": _text(item, "prefsrc"), "gateway": gateway, "error": None}


def _text(item: Dict[str, Any], key: str) -> Optional[str]:
    value = item.get(key)
    if value is None or isinstance(value, str):
        return value
    raise ParseError(_SHOWN, f"{key} is {str(value)[:60]!r}, which is not a string")


def _canonical(address: Optional[str]) -> Optional[str]:
    try:
        return str(ipaddress.ip_address(address or ""))
    except ValueError:
        return None
