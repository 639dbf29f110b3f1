# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network of a session on one node: the commands for each container's namespace, and the hosts' nftables table.

Each container has its own namespace. Its eth0 is a bridge over a VXLAN device with the container's own identifier. Each
peer is a static entry with the node, the identifier and the address of the peer, so that nothing is learned or flooded
and the containers of a node share nothing. The addresses of eth0 contain the job ID, so that the bridge drops packets
of a job that uses the identifiers of another one. The bridge has no other port. Its purpose is to drop the sender's
route, which the kernel leaves attached to a packet for a neighbour on the same node.
"""

from __future__ import annotations

import ipaddress
import re
from typing import List, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import Container, SessionSettings

#: The UDP port between the members. Other overlays may use VXLAN's standard port.
VXLAN_PORT = 8474
TABLE_NAME = "gpumesh_session"
#: The prefix of the names of our namespaces, and of the hosts' ends of uplinks.
NAME_PREFIX = "gms"
CONTAINER_INTERFACE = "eth0"
#: The sets of the table: the interfaces through which sessions reach other networks; those of them that forward only
#: for sessions; and the bridges among these, each paired with itself.
UPLINK_SET, FORWARDING_SET, BRIDGE_SET = "ways", "opened", "bridges"
_GATEWAY_ADDRESS = "169.254.1.1"
_PORT_PROTOCOLS = "{ tcp, udp, udplite, dccp, sctp }"
_UPLINK_INTERFACE = "out0"
#: The first byte of our MAC addresses: in the session, and at the two ends of an uplink.
_SESSION_BYTE, _INNER_BYTE, _OUTER_BYTE = 2, 6, 10
#: The commands that disconnect a namespace from the network, for ``ip -batch``.
REMOVAL_COMMANDS = f"link delete vx0\nlink delete {_UPLINK_INTERFACE}\n"
_ALLOWED_ENDPOINT = re.compile(r"(?P<address>[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:/[0-9]{1,2})?):(?P<port>[0-9]{1,5})")
NAMESPACE_SYSCTLS = (
    "net.ipv4.ip_unprivileged_port_start=0",
    "net.ipv4.ping_group_range=0 2147483647",
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
)


class NetworkCommands(NamedTuple):
    """Lines for ``ip -batch`` on the host and in the namespace, for ``bridge -batch`` there, and on the host at the end."""

    host_lines: List[str]
    namespace_lines: List[str]
    bridge_lines: List[str]
    final_lines: List[str]


def namespace_name(job: int, local_index: int) -> str:
    """Return the name of a container's namespace."""
    return f"{NAME_PREFIX}{job}.{local_index}"


def namespace_job(namespace: str) -> int:
    """Return the job of a namespace; 0 if it does not belong to a session."""
    match = re.fullmatch(rf"{NAME_PREFIX}([0-9]{{1,10}})\.[0-9]{{1,3}}", namespace)
    return int(match.group(1)) if match else 0


def session_mtu(underlay_mtu: int, host_address: str) -> int:
    """Return the MTU of a session, from that of the cluster's interface."""
    return underlay_mtu - (70 if ":" in host_address else 50)


def container_mac(job: int, container: Container) -> str:
    """Return the MAC of a container's eth0. Job IDs have 32 bits, and ranks are below 256: see MAX_CONTAINERS."""
    return _format_mac(bytes([_SESSION_BYTE, *job.to_bytes(4, "big"), container.rank]))


def _uplink_mac(end_byte: int, container: Container) -> str:
    """Return the MAC of an end of a container's uplink, which only its node sees."""
    return _format_mac(bytes([end_byte, 0x67, 0x6D, *container.vni.to_bytes(3, "big")]))


def _format_mac(mac_bytes: bytes) -> str:
    return ":".join(f"{byte:02x}" for byte in mac_bytes)


def network_commands(
    job: int, container: Container, containers: Sequence[Container], settings: SessionSettings, underlay_mtu: int
) -> NetworkCommands:
    """Return the commands that set up the network of a container on this node. ``underlay_mtu``: the node's own MTU."""
    namespace, host_address = namespace_name(job, container.local), settings.members[settings.machine]
    container_mtu = session_mtu(underlay_mtu, host_address)
    host_lines = [
        f"link add vx0 netns {namespace} type vxlan id {container.vni} dstport {VXLAN_PORT} local {host_address} nolearning ttl 64"
    ]
    namespace_lines = [
        "link set lo up",
        f"link add {CONTAINER_INTERFACE} address {container_mac(job, container)} type bridge mcast_snooping 0",
        f"link set vx0 mtu {container_mtu} master {CONTAINER_INTERFACE} up",
        f"link set {CONTAINER_INTERFACE} mtu {container_mtu} up",
        f"address add {container.address}/24 dev {CONTAINER_INTERFACE}",
    ]
    peers = [peer for peer in containers if peer.name != container.name]
    namespace_lines += [
        f"neighbour add {peer.address} lladdr {container_mac(job, peer)} dev {CONTAINER_INTERFACE} nud permanent"
        for peer in peers
    ]
    bridge_lines = ["link set dev vx0 learning off"]
    bridge_lines += [
        f"fdb add {container_mac(job, peer)} dev vx0 dst {settings.members[peer.node]} vni {peer.vni} self permanent"
        for peer in peers
    ]
    final_lines: List[str] = []
    if settings.nat:
        uplink_name, inner_mac, outer_mac = (
            uplink_interface(container),
            _uplink_mac(_INNER_BYTE, container),
            _uplink_mac(_OUTER_BYTE, container),
        )
        host_lines.append(
            f"link add {uplink_name} address {outer_mac} type veth peer name {_UPLINK_INTERFACE} address {inner_mac} netns {namespace}"
        )
        namespace_lines += [
            f"link set {_UPLINK_INTERFACE} up",
            f"route add {_GATEWAY_ADDRESS} dev {_UPLINK_INTERFACE} src {container.address}",
            f"neighbour add {_GATEWAY_ADDRESS} lladdr {outer_mac} dev {_UPLINK_INTERFACE} nud permanent",
            f"route add default via {_GATEWAY_ADDRESS} dev {_UPLINK_INTERFACE} src {container.address}",
        ]
        final_lines = [
            f"address add {_GATEWAY_ADDRESS}/32 dev {uplink_name}",
            f"link set {uplink_name} up",
            f"neighbour add {container.address} lladdr {inner_mac} dev {uplink_name} nud permanent",
            f"route add {container.address}/32 dev {uplink_name}",
        ]
    return NetworkCommands(host_lines, namespace_lines, bridge_lines, final_lines)


def uplink_interface(container: Container) -> str:
    """Return the name of the host's end of a container's uplink."""
    return f"{NAME_PREFIX}{container.vni:06x}"


def parse_allowed_endpoints(endpoint_texts: Sequence[str]) -> List[Tuple[str, int]]:
    """Parse the addresses and TCP ports of the cluster that sessions may reach. Raises InputError."""
    endpoints = []
    for endpoint_text in endpoint_texts:
        match = _ALLOWED_ENDPOINT.fullmatch(endpoint_text)
        if match is None or not _is_network(match.group("address")) or not 0 < int(match.group("port")) < 65536:
            raise InputError(
                f"session_allow: '{endpoint_text}' cannot be read.", "Give an address and a port: 10.0.0.5:5000."
            )
        endpoints.append((match.group("address"), int(match.group("port"))))
    return endpoints


def _is_network(text: str) -> bool:
    try:
        ipaddress.IPv4Interface(text)
    except ValueError:
        return False
    return True


def format_table(settings: SessionSettings) -> str:
    """Return the rules of a host, which do not depend on its sessions. Loading them replaces the existing rules."""
    ipv4_addresses = sorted(address for address in settings.members.values() if ":" not in address)
    ipv6_addresses = sorted(address for address in settings.members.values() if ":" in address)
    vxlan_guards = []
    if settings.mesh:
        vxlan_guards.append(f'udp dport {VXLAN_PORT} iifname != {{ "lo", "{settings.mesh}" }} drop')
    for family, addresses in (("ip", ipv4_addresses), ("ip6", ipv6_addresses)):
        source_match = f" {family} saddr != {{ {', '.join(addresses)} }}" if addresses else ""
        vxlan_guards.append(
            f"meta nfproto {'ipv4' if family == 'ip' else 'ipv6'} udp dport {VXLAN_PORT}{source_match} drop"
        )
    allowed_rules = [
        f"ip daddr {address} tcp dport {port} accept" for address, port in parse_allowed_endpoints(settings.allow)
    ]
    closed_subnets = closed_networks(settings)
    pool_set = f"{{ {', '.join(settings.pools)} }}"
    reply_rule = "ct state established,related accept"
    mesh_rules = (
        [f'oifname "{settings.mesh}" iifname != "{settings.mesh}" iifname @{UPLINK_SET} drop'] if settings.mesh else []
    )
    dns_rules = ["meta l4proto { tcp, udp } th dport 53 accept"]
    table_lines = [
        f"table inet {TABLE_NAME}",
        f"delete table inet {TABLE_NAME}",
        f"table inet {TABLE_NAME} {{",
        f"  set {UPLINK_SET} {{ type ifname; }}",
        f"  set {FORWARDING_SET} {{ type ifname; }}",
        f"  set {BRIDGE_SET} {{ type ifname . ifname; }}",
        # Sessions have no other addresses.
        *_chain(
            "from_anywhere",
            "filter hook prerouting priority raw",
            [f'iifname "{NAME_PREFIX}*" ip saddr != {pool_set} drop'],
        ),
        *_chain(
            "to_host",
            "filter hook input priority filter - 10",
            [
                f'iifname "{NAME_PREFIX}*" {reply_rule}',
                *(f'iifname "{NAME_PREFIX}*" {rule}' for rule in (*dns_rules, *allowed_rules)),
                f'iifname "{NAME_PREFIX}*" reject with icmpx admin-prohibited',
                *vxlan_guards,
            ],
        ),
        # Only the kernel may use the VXLAN port: a packet from a namespace belongs to no user of the host.
        *_chain(
            "from_host",
            "filter hook output priority filter - 10",
            [
                f'oifname "{NAME_PREFIX}*" ct state new reject with icmpx admin-prohibited',
                f"udp dport {VXLAN_PORT} meta skuid != 0 reject with icmpx admin-prohibited",
            ],
        ),
        *_chain(
            "through",
            "filter hook forward priority filter - 10",
            [
                # A packet that this host masquerades would have the address of a member.
                *vxlan_guards,
                # No other packet with these addresses may pass through this host, or it would leave with the host's own
                # address. The host itself may still talk to resolvers and clients with addresses in these networks.
                f'ip saddr {pool_set} iifname != "{NAME_PREFIX}*" drop',
                # A packet that conntrack cannot classify would leave with the address and port of the container.
                f'iifname "{NAME_PREFIX}*" ct state invalid drop',
                f'iifname "{NAME_PREFIX}*" oifname "{NAME_PREFIX}*" reject with icmpx admin-prohibited',
                *(f'iifname "{NAME_PREFIX}*" {rule}' for rule in (*dns_rules, *allowed_rules)),
                f'iifname "{NAME_PREFIX}*" ip daddr {{ {", ".join(closed_subnets)} }} reject with icmpx admin-prohibited',
                f'oifname "{NAME_PREFIX}*" {reply_rule}',
                f'oifname "{NAME_PREFIX}*" drop',
                f"iifname @{UPLINK_SET} {reply_rule}",
                *mesh_rules,
                f"iifname . oifname @{BRIDGE_SET} accept",
                f"iifname @{FORWARDING_SET} meta nfproto ipv4 drop",
            ],
        ),
        *_chain(
            "outwards",
            "nat hook postrouting priority srcnat",
            [
                # NFS servers trust ports below 1024 as root's, but any user of a container can bind them.
                f'ip saddr {pool_set} oifname != "{NAME_PREFIX}*" meta l4proto {_PORT_PROTOCOLS} masquerade to :1024-65535',
                f'ip saddr {pool_set} oifname != "{NAME_PREFIX}*" masquerade',
            ],
        ),
        "}",
    ]
    return "".join(f"{line}\n" for line in table_lines)


def closed_networks(settings: SessionSettings) -> List[str]:
    """Return the IPv4 networks that sessions cannot reach, except for the allowed endpoints."""
    member_addresses = [address for address in settings.members.values() if ":" not in address]
    return collapse_networks([*settings.closed, *member_addresses, *settings.pools])


def collapse_networks(network_texts: Sequence[str]) -> List[str]:
    """Return the IPv4 networks without those that are inside others, which an nftables set refuses."""
    parsed_networks = [ipaddress.ip_network(text, strict=False) for text in network_texts]
    ipv4_networks = [network for network in parsed_networks if isinstance(network, ipaddress.IPv4Network)]
    return [str(network) for network in ipaddress.collapse_addresses(ipv4_networks)]


def _chain(chain_name: str, hook_type: str, rules: Sequence[str]) -> List[str]:
    return [
        f"  chain {chain_name} {{",
        f"    type {hook_type}; policy accept;",
        *(f"    {rule}" for rule in rules),
        "  }",
    ]
