# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The peers of each member and who connects to whom, derived only from the cluster record.

Two members connect directly if they are at the same site, or if one of them has an endpoint to which the other can
connect. For two members behind different NATs, a relay to which both can connect forwards packets.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError, RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.wireguard import join_endpoint

#: Seconds between two packets that keep a NAT's mapping alive: less than the 30 s after which the strictest drop UDP.
KEEPALIVE_SECONDS = 25

#: Bytes: fits through a path of 1500, over both IPv4 and IPv6.
DEFAULT_MTU = 1420

_Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


class Node(NamedTuple):
    """The data of a member that the plan needs."""

    machine: str
    #: The address to which members of the same site connect; '' if it has none outside of the mesh there.
    lan_address: str
    site: str
    #: ``host:port`` to which other sites connect; None if they cannot connect to it.
    endpoint: Optional[str]
    #: In the mesh; '' until the mesh layer has run.
    mesh_address: str
    #: '' until the mesh layer has run there.
    public_key: str


class Mesh(NamedTuple):
    """The mesh of a record, with its members by machine in joining order."""

    cluster: str
    network: _Network
    port: int
    interface: str
    mtu: int
    nodes: Dict[str, Node]
    #: Machines that can forward for others, in order of preference.
    relays: Tuple[str, ...]


def read_mesh(record: Mapping[str, Any], relays: Sequence[str] = ()) -> Mesh:
    """The mesh in a cluster record. The manager is the relay unless ``relays`` names others.

    Raises InputError for a relay that is not among the members, and RecordError for a record without a usable mesh.
    """
    name = str(record.get("name", "?"))
    settings = record.get("mesh") or {}
    try:
        network = ipaddress.ip_network(settings["subnet"])
        port, interface = int(settings["port"]), str(settings["interface"])
        mtu = int(settings.get("mtu") or DEFAULT_MTU)
    except (LookupError, ValueError, TypeError) as failure:
        raise RecordError(
            f"The record of cluster {name} has no usable mesh ({type(failure).__name__}: {failure}).",
            "Set mesh_subnet, mesh_port and mesh_interface, and run the mesh playbook.",
            cluster=name,
        ) from failure
    nodes = {}
    in_mesh = _membership(network)
    for member in record.get("members", []):
        own = member.get("mesh") or {}
        machine = str(member["machine"])
        nodes[machine] = Node(
            machine,
            _lan_address(member, in_mesh),
            str(member.get("site") or "default"),
            member.get("endpoint") or None,
            str(own.get("address") or ""),
            str(own.get("public_key") or ""),
        )
    chosen = tuple(relays) or (str(record.get("manager")),)
    unknown = [relay for relay in chosen if relay not in nodes]
    if unknown:
        raise InputError(
            f"{', '.join(unknown)} in mesh_relays: not among the members of cluster {name}.",
            f"Choose among {', '.join(nodes)}.",
            relays=list(unknown),
        )
    return Mesh(name, network, port, interface, mtu, nodes, chosen)


def plan_for(mesh: Mesh, machine: str) -> Dict[str, Any]:
    """The tunnel of one member: everything that the module wireguard needs. Linear in the number of members.

    Returns ``public_key`` (the member's own in the record, '' for none), ``interface``, ``address`` (CIDR),
    ``listen_port``, ``mtu`` (bytes), ``peers`` (each with machine, public_key, endpoint, allowed_ips,
    persistent_keepalive in seconds), ``relayed`` (each with machine and relay),
    ``relay`` (whether this member forwards for others) and ``pending`` (members without a key: no peers yet).
    Raises InputError, naming the pair, if two members cannot connect to each other.
    """
    if machine not in mesh.nodes:
        raise InputError(
            f"{machine} is not among the members of cluster {mesh.cluster}.",
            f"Add it first (playbook join with cluster_machines={machine}).",
            machine=machine,
        )
    own = mesh.nodes[machine]
    if not own.mesh_address:
        raise InputError(
            f"{machine} has no address in the mesh of cluster {mesh.cluster}.",
            "Set mesh_backend to wireguard: the record then gives every member an address.",
            machine=machine,
        )
    allowed: Dict[str, List[str]] = {}
    relayed: List[Dict[str, str]] = []
    pending: List[str] = []
    for node in mesh.nodes.values():
        if node is own:
            continue
        if not node.public_key:
            pending.append(node.machine)
            continue
        via = node if is_direct(own, node) else _relay_between(mesh, own, node)
        if not via.public_key:
            pending.append(node.machine)
            continue
        allowed.setdefault(via.machine, []).append(_host_network(node.mesh_address))
        if via is not node:
            relayed.append({"machine": node.machine, "relay": via.machine})
    return {
        "public_key": own.public_key,
        "interface": mesh.interface,
        "address": f"{own.mesh_address}/{mesh.network.prefixlen}",
        "listen_port": mesh.port,
        "mtu": mesh.mtu,
        "peers": [_peer(mesh, own, mesh.nodes[via], networks) for via, networks in allowed.items()],
        "relayed": relayed,
        "relay": machine in mesh.relays and _must_relay(mesh),
        "pending": pending,
    }


def refuse_without_way(mesh: Mesh) -> None:
    """Raise InputError for a pair of members that cannot communicate.

    Only pairs that may have this problem are examined.
    """
    if not any(mesh.nodes[relay].endpoint for relay in mesh.relays):
        relayed_pairs(mesh)


def relayed_pairs(mesh: Mesh) -> List[Dict[str, str]]:
    """Every relayed pair, as ``a``, ``b`` and ``relay``. Raises InputError for a pair that cannot communicate.

    Only members without an endpoint are considered: all others can be reached directly.
    """
    hidden = [node for node in mesh.nodes.values() if node.endpoint is None]
    return [
        {"a": a.machine, "b": b.machine, "relay": _relay_between(mesh, a, b).machine}
        for index, a in enumerate(hidden)
        for b in hidden[index + 1 :]
        if not is_direct(a, b)
    ]


def share_lan(a: Node, b: Node) -> bool:
    """Whether the two are on the LAN of the same site."""
    return a.site == b.site and a.lan_address != "" and b.lan_address != ""


def is_direct(a: Node, b: Node) -> bool:
    """Whether the two need no relay: one of them can connect to the other."""
    return a.endpoint is not None or b.endpoint is not None or share_lan(a, b)


def with_keys(record: Mapping[str, Any], public_keys: Mapping[str, str]) -> Dict[str, Any]:
    """A copy of the record in which these machines have these public keys. A member without a mesh address has none."""
    members = [
        {**member, "mesh": {**member["mesh"], "public_key": public_keys[member["machine"]]}}
        if member.get("mesh") and public_keys.get(member["machine"])
        else member
        for member in record["members"]
    ]
    return {**record, "members": members}


def _lan_address(member: Mapping[str, Any], in_mesh: Callable[[str], bool]) -> str:
    """The address on the LAN of the site. An address inside the mesh would send the tunnel through itself.

    Members that share only the mesh have another address for their site, or none.
    """
    address = str(member.get("address") or "")
    if address and not in_mesh(address):
        return address
    return str(member.get("lan_address") or "")


def _membership(network: _Network) -> Callable[[str], bool]:
    """Whether an address is in ``network``.

    Computed with numbers: creating a thousand address objects would dominate.
    """
    first, mask = int(network.network_address), int(network.netmask)
    six = network.version == 6

    def is_inside(address: str) -> bool:
        if (":" in address) != six:
            return False
        packed = socket.inet_pton(socket.AF_INET6 if six else socket.AF_INET, address)
        return int.from_bytes(packed, "big") & mask == first

    return is_inside


def _peer(mesh: Mesh, own: Node, node: Node, networks: List[str]) -> Dict[str, Any]:
    near = share_lan(own, node)
    return {
        "machine": node.machine,
        "public_key": node.public_key,
        "endpoint": join_endpoint(node.lan_address, mesh.port) if near else node.endpoint,
        "allowed_ips": sorted(networks),
        # A member without an endpoint keeps its tunnel open, so the other side can always reach it.
        "persistent_keepalive": 0 if near or own.endpoint is not None else KEEPALIVE_SECONDS,
    }


def _relay_between(mesh: Mesh, a: Node, b: Node) -> Node:
    """The first relay that both reach directly, the same for both members. Raises InputError."""
    for machine in mesh.relays:
        relay = mesh.nodes[machine]
        if machine not in (a.machine, b.machine) and is_direct(a, relay) and is_direct(b, relay):
            return relay
    raise InputError(
        f"{a.machine} (site {a.site}) and {b.machine} (site {b.site}) cannot connect to each other: neither has an "
        f"endpoint, and none of {', '.join(mesh.relays)} can relay, because they have no endpoint either.",
        "Set cluster_endpoint for one of the two, or name a member that both can connect to in mesh_relays.",
        pair=[a.machine, b.machine],
        relays=list(mesh.relays),
    )


def _must_relay(mesh: Mesh) -> bool:
    """Whether any pair needs a relay: two members without endpoints, at two sites or not both on the LAN of one."""
    hidden = [node for node in mesh.nodes.values() if node.endpoint is None]
    return len(hidden) > 1 and (len({node.site for node in hidden}) > 1 or not all(node.lan_address for node in hidden))


def _host_network(address: str) -> str:
    return f"{address}/{128 if ':' in address else 32}"
