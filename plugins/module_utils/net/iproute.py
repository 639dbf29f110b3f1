# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the JSON of ``ip``. Pure; raises ParseError, which names the command, for anything unexpected.

The fields are those of ipaddress.c, iplink*.c and iproute.c in iproute2 4.13 (the first with ``-j``) to 6.15.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Dict, List, Mapping, Optional, Type, TypeVar

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.kinds import kind_of, state_of
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.shapes import Address, Link, Route
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

#: One call returns links and addresses, so `ip link` is not needed.
ADDRESS_COMMAND = ("ip", "-j", "-d", "addr", "show")
ROUTE_COMMANDS = {
    "inet": ("ip", "-j", "-4", "route", "show", "default"),
    "inet6": ("ip", "-j", "-6", "route", "show", "default"),
}

#: The flags of an address that affect its use.
ADDRESS_FLAGS = ("dynamic", "temporary", "deprecated", "tentative", "dadfailed")

#: What the kernel accepts as a name. Names become parts of paths in sysfs, so nothing else may pass.
_INTERFACE_NAME = re.compile(r"^(?!\.{1,2}$)[^\s/:\x00\ud800-\udfff]{1,15}\Z")

_Value = TypeVar("_Value", str, int)


def parse_addresses(text: str) -> List[Link]:
    """Every interface with its addresses, from the output of ADDRESS_COMMAND."""
    reader = _Reader(" ".join(ADDRESS_COMMAND))
    return [reader.link(item) for item in reader.objects(text)]


def parse_default_routes(text: str, family: str) -> List[Route]:
    """The default routes of one family, inet or inet6, one per next hop; best metric first."""
    reader = _Reader(" ".join(ROUTE_COMMANDS[family]))
    # Without a route, some versions print nothing instead of an empty list.
    routes = [route for item in reader.objects(text or "[]") for route in reader.routes(item, family)]
    return sorted(routes, key=lambda route: route["metric"] or 0)


class _Reader:
    """Extracts typed values from the JSON of one command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def fail(self, reason: str) -> ParseError:
        return ParseError(
            self.command, reason, "Run the command on the host; iproute2 4.13 or later prints JSON with -j."
        )

    def objects(self, text: str) -> List[Mapping[str, Any]]:
        """The top-level list. Old versions leave empty objects in it for filtered entries."""
        try:
            items = from_json(text)
        except ValueError as failure:
            raise self.fail(f"it is not JSON ({failure}); it starts with {text[:60]!r}") from failure
        return [item for item in self.mappings(items, "the output") if item]

    def mappings(self, items: Any, what: str) -> List[Mapping[str, Any]]:
        if items is None:
            return []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise self.fail(f"{what} is not a list of objects")
        return items

    def optional(self, item: Mapping[str, Any], key: str, kind: Type[_Value]) -> Optional[_Value]:
        value = item.get(key)
        if value is None:
            return None
        # To Python, a boolean is an int; here it is not a number.
        if isinstance(value, kind) and not isinstance(value, bool):
            return value
        raise self.fail(f"{key} is {str(value)[:60]!r}, which is not {'a string' if kind is str else 'an integer'}")

    def required(self, item: Mapping[str, Any], key: str, kind: Type[_Value]) -> _Value:
        value = self.optional(item, key, kind)
        if value is None:
            raise self.fail(f"an entry has no {key}: it starts with {str(dict(item))[:80]!r}")
        return value

    def texts(self, item: Mapping[str, Any], key: str) -> List[str]:
        values = item.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.fail(f"{key} is {str(values)[:60]!r}, which is not a list of strings")
        return values

    def mapping(self, item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = item.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.fail(f"{key} is {str(value)[:60]!r}, which is not an object")
        return value

    def link(self, item: Mapping[str, Any]) -> Link:
        linkinfo = self.mapping(item, "linkinfo")
        link_kind = self.optional(linkinfo, "info_kind", str)
        kind = kind_of(self.required(item, "link_type", str), link_kind)
        flags = self.texts(item, "flags")
        vlan = self.mapping(linkinfo, "info_data") if kind == "vlan" else {}
        name = self.required(item, "ifname", str)
        if not _INTERFACE_NAME.match(name):
            raise self.fail(f"{name[:60]!r} is an invalid interface name")
        return {
            "name": name,
            "alternative_names": self.texts(item, "altnames"),
            "kind": kind,
            "link_kind": link_kind,
            "state": state_of(
                self.optional(item, "operstate", str) or "UNKNOWN",
                up="UP" in flags,
                carrier="NO-CARRIER" not in flags,
            ),
            "mtu": self.required(item, "mtu", int),
            # A tunnel without a link layer has none; the loopback's is all zeros.
            "mac": self.optional(item, "address", str) if kind not in ("loopback", "tun", "wireguard") else None,
            "master": self.optional(item, "master", str),
            # `link` names the underlying device, except for a veth, where it is the other end.
            "parent": self.optional(item, "link", str) if kind != "veth" else None,
            "vlan_id": self.optional(vlan, "id", int),
            "addresses": [self.address(entry) for entry in self.mappings(item.get("addr_info"), "addr_info") if entry],
        }

    def address(self, entry: Mapping[str, Any]) -> Address:
        local = self.required(entry, "local", str)
        length = self.required(entry, "prefixlen", int)
        try:
            address = ipaddress.ip_interface(f"{local}/{length}")
        except ValueError as failure:
            raise self.fail(
                f"{local[:60]!r} with prefix length {length} is an invalid address ({failure})"
            ) from failure
        flags = [flag for flag in ADDRESS_FLAGS if entry.get(flag) is True]
        return {
            "address": str(address.ip),
            "prefix_length": length,
            "subnet": str(address.network),
            "family": "inet" if address.version == 4 else "inet6",
            "scope": self.optional(entry, "scope", str) or "global",
            "secondary": entry.get("secondary") is True or "temporary" in flags,
            "flags": flags,
        }

    def routes(self, item: Mapping[str, Any], family: str) -> List[Route]:
        """One route for each next hop, since a multipath route has several."""
        hops = self.mappings(item.get("nexthops"), "nexthops") or [item]
        return [
            {
                "family": family,
                # A next hop of the other family (RFC 5549) is in `via`.
                "gateway": self.optional(hop, "gateway", str) or self.optional(self.mapping(hop, "via"), "host", str),
                "interface": self.optional(hop, "dev", str),
                "metric": self.optional(item, "metric", int),
                "source": self.optional(item, "prefsrc", str),
            }
            for hop in hops
        ]


def members_of(links: List[Link]) -> Dict[str, List[str]]:
    """The ports of each bond and bridge, sorted by name, from the master that each port reports."""
    members: Dict[str, List[str]] = {}
    for link in links:
        if link["master"] is not None:
            members.setdefault(link["master"], []).append(link["name"])
    return {master: sorted(names) for master, names in members.items()}
