# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The valid values of a record: each check returns the value in its normal form.

The values end up in file names, slurm.conf, /etc/hosts, shell environments and firewall rules of every member, so only
values that are harmless in all of them are allowed. A check raises ValueError with only the reason; the caller adds
where the value came from.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import ipaddress
import re
import socket
from typing import Optional, Union

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

#: The limit in bytes (RFC 8200). The kernel does not run IPv6 on an interface with a smaller MTU.
SMALLEST_IPV6_MTU = 1280

#: Slurm's ClusterName: lower case, at most 40 characters.
_CLUSTER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
#: An inventory hostname; 64 is HOST_NAME_MAX. Underscores are not allowed in DNS names but common in inventories.
_MACHINE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
#: IFNAMSIZ leaves 15 characters. The kernel allows nearly all of them, wg-quick(8) only these; a leading '-' would be
#: an option, a leading '.' a hidden file.
_INTERFACE_NAME = re.compile(r"[A-Za-z0-9_=+][A-Za-z0-9_=+.-]{0,14}")
#: Interfaces that every machine has, and directories of sysctl(8) that apply to all of them.
_RESERVED_INTERFACES = ("lo", "all", "default")
_VOLUME_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
#: A label of a DNS name; underscores are not allowed in host names, but common.
_DNS_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_DECIMAL_NUMBER = re.compile(r"[0-9]{1,5}")
#: Addresses that machines share, or that no single machine has: this host, loopback, multicast, and addresses that are
#: meaningless without an interface.
_UNSHARED_NETWORKS = tuple(
    ipaddress.ip_network(text)
    for text in ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "::/127", "fe80::/10", "ff00::/8")
)
#: The first octets of the IPv4 networks above, which all span whole first octets.
_UNSHARED_FIRST_OCTETS = frozenset(
    octet
    for network in _UNSHARED_NETWORKS
    if network.version == 4
    for octet in range(network.network_address.packed[0], network.broadcast_address.packed[0] + 1)
)
#: Directories of the system, which a volume would hide: some only themselves, and some with everything below them.
_SYSTEM_DIRECTORY = re.compile(
    r"/(?:(?:bin|boot|dev|etc|lib(?:32|64|x32)?|proc|sbin|sys|root/\.ssh|usr/(?:bin|lib(?:64|exec)?|sbin)|var/lib/gpumesh"
    r"|var/spool/cron)(?:/.*)?|root|run|tmp|usr|var)?"
)
_PEM_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\n(?:[A-Za-z0-9+/=]{1,76}\n)+-----END CERTIFICATE-----\n")
_MAX_CERTIFICATE_LENGTH = 8192
_SSH_KEY = re.compile(r"[a-z][a-z0-9@.-]{2,63} [A-Za-z0-9+/]{16,}={0,3}")
#: Names that every machine resolves to itself, and groups that Ansible creates in every inventory.
_LOOPBACK_NAMES = ("localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback", "loopback")
_IMPLICIT_GROUPS = ("all", "ungrouped")
_TIME_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def cluster_name(value: str) -> str:
    """A cluster's name: also a file name, an inventory group and Slurm's ClusterName."""
    if not _CLUSTER_NAME.fullmatch(value):
        raise ValueError(
            f"'{value}' is not a valid cluster name: a lower-case letter, then at most 39 lower-case letters, digits, "
            "'-' or '_'"
        )
    return _unambiguous(value, "a cluster")


def machine_name(value: str) -> str:
    """A machine: its inventory hostname."""
    if not _MACHINE_NAME.fullmatch(value):
        raise ValueError(
            f"'{value}' is not a valid machine name: 1 to 64 letters, digits, '.', '-' or '_', starting and ending "
            "with a letter or digit"
        )
    return _unambiguous(value, "a machine")


def is_loopback(host_text: str) -> bool:
    """Whether every machine resolves this host name or address to itself, in any form that a resolver accepts."""
    host_name = host_text.strip().strip("[]").rstrip(".").lower()
    if (
        host_name in _LOOPBACK_NAMES
        or host_name.partition(".")[0] in _LOOPBACK_NAMES[:3]
        or host_name.endswith(".localhost")
    ):
        return True
    try:
        ip_address = ipaddress.ip_address(host_name)
    except ValueError:
        pass
    else:
        ipv4_address = getattr(ip_address, "ipv4_mapped", None) or ip_address
        return ipv4_address.is_loopback or ipv4_address.is_unspecified
    try:
        # 127.1, 0x7f000001 and 2130706433 are accepted forms, too.
        packed_address = socket.inet_aton(host_name)
    except (OSError, ValueError):
        return False
    return packed_address[0] == 127 or packed_address == bytes(4)


def _unambiguous(value: str, described_kind: str) -> str:
    """Refuse names with a special meaning in Ansible, with which a record could redefine the controller."""
    if is_loopback(value) or value.lower() in _IMPLICIT_GROUPS:
        raise ValueError(f"'{value}' cannot be the name of {described_kind}: it has a special meaning in Ansible")
    return value


def site_name(value: str) -> str:
    """The name of a site: a group of members that reach each other's addresses directly."""
    if not _SITE_NAME.fullmatch(value):
        raise ValueError(f"'{value}' is not a valid site name: 1 to 63 letters, digits, '.', '-' or '_'")
    return value


def interface_name(value: str) -> str:
    """The name of a network interface."""
    if not _INTERFACE_NAME.fullmatch(value):
        raise ValueError(f"'{value}' is not a valid interface name: 1 to 15 letters, digits, '.', '-', '_', '=' or '+'")
    return value


def mesh_interface_name(value: str) -> str:
    """The name of the mesh's own interface, which wg-quick and tailscaled create."""
    if interface_name(value) in _RESERVED_INTERFACES:
        raise ValueError(
            f"'{value}' cannot be the interface of the mesh: every machine already has an interface of that name"
        )
    return value


def volume_name(value: str) -> str:
    """The name of a storage volume."""
    if not _VOLUME_NAME.fullmatch(value):
        raise ValueError(f"'{value}' is not a valid volume name: 1 to 63 lower-case letters, digits, '-' or '_'")
    return value


def parse_network(value: str) -> Network:
    """Convert ADDRESS/MASK as printed by `ip addr`, host bits allowed, to its network.

    A single address is not a network.
    """
    address, slash, prefix_length = value.strip().partition("/")
    if not slash or not _DECIMAL_NUMBER.fullmatch(prefix_length) or "%" in address:
        raise ValueError(f"'{value}' is an invalid subnet: write it as ADDRESS/MASK, such as 10.0.0.7/24")
    try:
        parsed_network = ipaddress.ip_network((address, int(prefix_length)), strict=False)
    except ValueError as failure:
        raise ValueError(f"'{value}' is an invalid subnet: {failure}") from failure
    if parsed_network.num_addresses < 2:
        raise ValueError(
            f"'{value}' is an invalid subnet: the mask must be shorter than /{parsed_network.max_prefixlen}"
        )
    if any(
        parsed_network.version == unshared_network.version and parsed_network.overlaps(unshared_network)
        for unshared_network in _UNSHARED_NETWORKS
    ):
        raise ValueError(
            f"'{value}' is an invalid subnet: it contains loopback, link-local, multicast or reserved addresses"
        )
    return parsed_network


def subnet(value: str) -> str:
    """Return the text of `parse_network(value)`: 10.0.0.7/24 becomes 10.0.0.0/24."""
    return str(parse_network(value))


def address(value: str) -> str:
    """An IP address of one machine, without mask or zone, in its shortest form."""
    address_text = value.strip()
    # A record has one or two for each member; ipaddress, which takes ten times as long, checks the rest.
    if _is_shared_ipv4(address_text):
        return address_text
    try:
        # The zone of an address, as in fe80::1%eth0, may be any text.
        parsed_address = ipaddress.ip_address(address_text if "%" not in address_text else "")
    except ValueError as failure:
        raise ValueError(f"'{value}' is not an IP address") from failure
    if is_loopback(str(parsed_address)) or any(
        parsed_address in unshared_network for unshared_network in _UNSHARED_NETWORKS
    ):
        raise ValueError(
            f"'{value}' is not an address that other machines can reach: it is loopback, multicast or reserved"
        )
    return str(parsed_address)


def _is_shared_ipv4(text: str) -> bool:
    """Whether this is an IPv4 address that a single machine can have."""
    try:
        return socket.inet_pton(socket.AF_INET, text)[0] not in _UNSHARED_FIRST_OCTETS
    except (OSError, ValueError):
        return False


def host_name(value: str) -> str:
    """A name that a resolver accepts, or an IPv4 address, with which other machines reach a machine."""
    if _is_shared_ipv4(value):
        return value
    labels = value.split(".")
    if len(value) > 253 or not all(_DNS_LABEL.fullmatch(label) for label in labels):
        raise ValueError(
            f"'{value}' is not a valid host name: labels of letters, digits, '-' and '_', separated by single dots"
        )
    if re.fullmatch(r"[0-9]+|0[xX][0-9A-Fa-f]*", labels[-1]):
        return address(value)
    if is_loopback(value):
        raise ValueError(
            f"'{value}' is not a name by which other machines can be reached: every machine resolves it to itself"
        )
    return value


def is_host_of(value: str, host_network: Network) -> bool:
    """Whether the address is one that a host of the network can have."""
    parsed_address = ipaddress.ip_address(value)
    if parsed_address.version != host_network.version or parsed_address not in host_network:
        return False
    # A /31 and a /127 have two hosts and neither a network nor a broadcast address (RFC 3021, RFC 6164).
    if host_network.num_addresses == 2:
        return True
    if parsed_address.version == 4:
        return parsed_address not in (host_network.network_address, host_network.broadcast_address)
    return parsed_address != host_network.network_address


def endpoint(value: str, default_port: Optional[int] = None) -> str:
    """HOST:PORT or [IPV6]:PORT; with a ``default_port``, also HOST, to which the port is added."""
    endpoint_text = value.strip()
    if endpoint_text.startswith("["):
        host, _bracket, port_suffix = endpoint_text[1:].partition("]")
        port_text = port_suffix[1:] if port_suffix.startswith(":") else ("" if not port_suffix else "?")
    elif endpoint_text.count(":") > 1:
        host, port_text = endpoint_text, ""
    else:
        host, _colon, port_text = endpoint_text.partition(":")
    port_text = port_text or ("" if default_port is None else str(default_port))
    if not _DECIMAL_NUMBER.fullmatch(port_text) or not 0 < int(port_text) < 65536:
        raise ValueError(f"'{value}' is not a valid endpoint: the port must be a number from 1 to 65535")
    port = int(port_text)
    if not host:
        raise ValueError(f"'{value}' is not a valid endpoint: write it as HOST:PORT, such as 203.0.113.10:51820")
    try:
        return f"[{address(host)}]:{port}" if ":" in host else f"{host_name(host)}:{port}"
    except ValueError as failure:
        raise ValueError(f"'{value}' is not a valid endpoint: {failure}") from failure


def wireguard_key(value: str) -> str:
    """A WireGuard key: 32 bytes in base64."""
    try:
        key_bytes = base64.b64decode(value.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as failure:
        raise ValueError("a WireGuard public key is 32 bytes in base64") from failure
    # Two encodings of the same bytes would be two peers to us, but one to wg(8).
    if len(key_bytes) != 32 or base64.b64encode(key_bytes).decode("ascii") != value:
        raise ValueError("a WireGuard public key is 32 bytes in base64")
    return value


def ssh_key(value: str) -> str:
    """A public SSH key, ``TYPE BASE64``. A comment is dropped, since tools write different ones."""
    key_parts = value.split()
    if "\n" in value.strip() or len(key_parts) < 2 or not _SSH_KEY.fullmatch(" ".join(key_parts[:2])):
        raise ValueError(f"'{value[:60]}' is not a public SSH key: write it as TYPE BASE64 on one line")
    return " ".join(key_parts[:2])


def certificate(value: str) -> str:
    """A certificate in PEM format, and nothing else."""
    if len(value) > _MAX_CERTIFICATE_LENGTH or not _PEM_CERTIFICATE.fullmatch(value):
        raise ValueError("this is not one certificate in PEM format")
    return value


def absolute_path(value: str) -> str:
    """An absolute path without '..' and without characters that have a meaning in /etc/exports or in units."""
    if not value.startswith("/") or not re.fullmatch(r"[A-Za-z0-9_./@+-]+", value) or ".." in value.split("/"):
        raise ValueError(
            f"'{value}' is not an absolute path that consists of letters, digits and the characters _ . / @ + -"
        )
    return "/" + "/".join(part for part in value.split("/") if part not in ("", "."))


def mount_point(value: str) -> str:
    """The path at which members mount a volume."""
    path = absolute_path(value)
    if _SYSTEM_DIRECTORY.fullmatch(path):
        raise ValueError(f"'{value}' cannot be a mount point: it contains files of the system")
    return path


def printable_line(value: str) -> str:
    """Check a text for people: one line, without terminal control characters."""
    if not value.isprintable():
        raise ValueError(f"{value[:60]!r} contains characters that cannot be printed")
    return value


def timestamp(value: str) -> str:
    """A time in UTC, to the second: 2026-11-20T20:31:00Z."""
    try:
        # Python accepts the digits of any script, and fewer of them.
        datetime.datetime.strptime(value + "+0000" if _TIME_PATTERN.fullmatch(value) else "", "%Y-%m-%dT%H:%M:%SZ%z")
    except ValueError as failure:
        raise ValueError(f"'{value}' is not a time in UTC such as 2026-11-20T20:31:00Z") from failure
    return value


def current_time() -> str:
    """Return the current time in the record's form."""
    return datetime.datetime.now(datetime.timezone.utc).strftime(_TIME_FORMAT)
