# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the JSON of ``ip``. Pure; raises ParseError, which names the command, for anything unexpected.

The fields are those of ipaddress.c, iplink*.c and iproute.c in iproute2 4.13 (the first with ``-j``) to 7.2.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Dict, List, Mapping, Optional, Type, TypeVar

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_tool_json
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.kinds import classify_interface, normalise_state
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import DefaultRoute, InterfaceAddress, IpLink

#: One call returns links and addresses, so `ip link` is not needed.
ADDRESS_COMMAND = ("ip", "-j", "-d", "addr", "show")
ROUTE_COMMANDS = {
    "inet": ("ip", "-j", "-4", "route", "show", "default"),
    "inet6": ("ip", "-j", "-6", "route", "show", "default"),
}

#: The flags of an address that affect its use.
ADDRESS_FLAGS = ("dynamic", "temporary", "deprecated", "tentative", "dadfailed")

#: The names that the kernel accepts. They become parts of paths in sysfs, so no other name is accepted.
_INTERFACE_NAME = re.compile(r"^(?!\.{1,2}$)[^\s/:\x00\ud800-\udfff]{1,15}\Z")

_Value = TypeVar("_Value", str, int)


def parse_addresses(text: str) -> List[IpLink]:
    """Parse every interface with its addresses from the output of ADDRESS_COMMAND."""
    reader = _OutputReader(" ".join(ADDRESS_COMMAND))
    return [reader.read_link(link_entry) for link_entry in reader.read_objects(text)]


def parse_default_routes(ip_output: str, family: str) -> List[DefaultRoute]:
    """Parse the default routes of one family, inet or inet6, one per next hop; best metric first."""
    output_reader = _OutputReader(" ".join(ROUTE_COMMANDS[family]))
    # Some versions print nothing instead of an empty list if there is no route.
    routes = [
        route
        for route_entry in output_reader.read_objects(ip_output or "[]")
        for route in output_reader.read_routes(route_entry, family)
    ]
    return sorted(routes, key=lambda route: route["metric"] or 0)


class _OutputReader:
    """Reader of typed values from the JSON of one command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def parse_error(self, reason: str) -> ParseError:
        return ParseError(
            self.command, reason, "Run the command on the host; iproute2 4.13 or later prints JSON with -j."
        )

    def read_objects(self, json_text: str) -> List[Mapping[str, Any]]:
        """Read the top-level list. Old versions leave empty objects in it for filtered entries."""
        try:
            entries = parse_tool_json(json_text)
        except ValueError as failure:
            raise self.parse_error(f"it is not JSON ({failure}); it starts with {json_text[:60]!r}") from failure
        return [entry for entry in self.require_mappings(entries, "the output") if entry]

    def require_mappings(self, entries: Any, description: str) -> List[Mapping[str, Any]]:
        if entries is None:
            return []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self.parse_error(f"{description} is not a list of objects")
        return entries

    def optional_field(self, entry: Mapping[str, Any], key: str, expected_type: Type[_Value]) -> Optional[_Value]:
        value = entry.get(key)
        if value is None:
            return None
        # A boolean is an int in Python, but not a number here.
        if isinstance(value, expected_type) and not isinstance(value, bool):
            return value
        raise self.parse_error(
            f"{key} is {str(value)[:60]!r}, which is not {'a string' if expected_type is str else 'an integer'}"
        )

    def required_field(self, entry: Mapping[str, Any], key: str, expected_type: Type[_Value]) -> _Value:
        value = self.optional_field(entry, key, expected_type)
        if value is None:
            raise self.parse_error(f"an entry has no {key}: it starts with {str(dict(entry))[:80]!r}")
        return value

    def read_strings(self, entry: Mapping[str, Any], key: str) -> List[str]:
        strings = entry.get(key)
        if strings is None:
            return []
        if not isinstance(strings, list) or not all(isinstance(string, str) for string in strings):
            raise self.parse_error(f"{key} is {str(strings)[:60]!r}, which is not a list of strings")
        return strings

    def read_mapping(self, entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = entry.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.parse_error(f"{key} is {str(value)[:60]!r}, which is not an object")
        return value

    def read_link(self, link_entry: Mapping[str, Any]) -> IpLink:
        link_details = self.read_mapping(link_entry, "linkinfo")
        link_kind = self.optional_field(link_details, "info_kind", str)
        interface_kind = classify_interface(self.required_field(link_entry, "link_type", str), link_kind)
        link_flags = self.read_strings(link_entry, "flags")
        vlan_details = self.read_mapping(link_details, "info_data") if interface_kind == "vlan" else {}
        interface_name = self.required_field(link_entry, "ifname", str)
        if not _INTERFACE_NAME.match(interface_name):
            raise self.parse_error(f"{interface_name[:60]!r} is an invalid interface name")
        return {
            "name": interface_name,
            "alternative_names": self.read_strings(link_entry, "altnames"),
            "kind": interface_kind,
            "link_kind": link_kind,
            "state": normalise_state(
                self.optional_field(link_entry, "operstate", str) or "UNKNOWN",
                is_up="UP" in link_flags,
                has_carrier="NO-CARRIER" not in link_flags,
            ),
            "mtu": self.required_field(link_entry, "mtu", int),
            # A tunnel without a link layer has none; the loopback's is all zeros.
            "mac": self.optional_field(link_entry, "address", str)
            if interface_kind not in ("loopback", "tun", "wireguard")
            else None,
            "master": self.optional_field(link_entry, "master", str),
            # `link` names the underlying device, except for a veth, where it is the other end.
            "parent": self.optional_field(link_entry, "link", str) if interface_kind != "veth" else None,
            "vlan_id": self.optional_field(vlan_details, "id", int),
            "addresses": [
                self.read_address(entry)
                for entry in self.require_mappings(link_entry.get("addr_info"), "addr_info")
                if entry
            ],
        }

    def read_address(self, address_entry: Mapping[str, Any]) -> InterfaceAddress:
        local_address = self.required_field(address_entry, "local", str)
        prefix_length = self.required_field(address_entry, "prefixlen", int)
        try:
            interface_address = ipaddress.ip_interface(f"{local_address}/{prefix_length}")
        except ValueError as failure:
            raise self.parse_error(
                f"{local_address[:60]!r} with prefix length {prefix_length} is an invalid address ({failure})"
            ) from failure
        flags = [flag for flag in ADDRESS_FLAGS if address_entry.get(flag) is True]
        return {
            "address": str(interface_address.ip),
            "prefix_length": prefix_length,
            "subnet": str(interface_address.network),
            "family": "inet" if interface_address.version == 4 else "inet6",
            "scope": self.optional_field(address_entry, "scope", str) or "global",
            "secondary": address_entry.get("secondary") is True or "temporary" in flags,
            "flags": flags,
        }

    def read_routes(self, route_entry: Mapping[str, Any], family: str) -> List[DefaultRoute]:
        """Read one route for each next hop, since a multipath route has several."""
        next_hops = self.require_mappings(route_entry.get("nexthops"), "nexthops") or [route_entry]
        return [
            {
                "family": family,
                # A next hop of the other family (RFC 5549) is in `via`.
                "gateway": self.optional_field(hop, "gateway", str)
                or self.optional_field(self.read_mapping(hop, "via"), "host", str),
                "interface": self.optional_field(hop, "dev", str),
                "metric": self.optional_field(route_entry, "metric", int),
                "source": self.optional_field(route_entry, "prefsrc", str),
            }
            for hop in next_hops
        ]


def list_reachable_networks(link: IpLink) -> List[str]:
    """Return the subnets of the addresses that other machines can reach: those that are not link-local."""
    return [
        address["subnet"]
        for address in link["addresses"]
        if address["scope"] == "global" and not ipaddress.ip_address(address["address"]).is_link_local
    ]


def group_by_master(links: List[IpLink]) -> Dict[str, List[str]]:
    """Return the ports of each bond and bridge, sorted by name, from the master that each port reports."""
    members_by_master: Dict[str, List[str]] = {}
    for link in links:
        if link["master"] is not None:
            members_by_master.setdefault(link["master"], []).append(link["name"])
    return {master: sorted(names) for master, names in members_by_master.items()}
