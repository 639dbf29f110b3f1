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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError, RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.wireguard import join_endpoint

#: Seconds between two packets that keep a NAT's mapping alive: less than the 30 s after which the strictest drop UDP.
KEEPALIVE_SECONDS = 25

#: Bytes: fits through a path of 1500, over both IPv4 and IPv6.
DEFAULT_MTU = 1420

_IpNetwork = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


class MeshNode(NamedTuple):
    """The data of a member that the plan needs."""

    machine: str
    #: The address to which members of the same site connect; '' if it has none outside of the mesh there.
    lan_address: str
    site: str
    #: ``host:port`` to which other sites connect; None if they cannot connect to it.
    endpoint: Optional[str]
    #: The address in the mesh; '' until the mesh layer has run.
    mesh_address: str
    #: The WireGuard key; '' until the mesh layer has run there.
    public_key: str


class MeshTopology(NamedTuple):
    """The mesh of a record, with its members by machine in joining order."""

    cluster_name: str
    mesh_network: _IpNetwork
    listen_port: int
    interface_name: str
    mtu: int
    nodes_by_machine: Dict[str, MeshNode]
    #: Machines that can forward for others, in order of preference.
    relay_machines: Tuple[str, ...]


def read_mesh(cluster_record: Mapping[str, Any], requested_relays: Sequence[str] = ()) -> MeshTopology:
    """The mesh in a cluster record. The manager is the relay unless ``requested_relays`` names others.

    Raises InputError for a relay that is not among the members, and RecordError for a record without a usable mesh.
    """
    cluster_name = str(cluster_record.get("name", "?"))
    settings = cluster_record.get("mesh") or {}
    try:
        mesh_network = ipaddress.ip_network(settings["subnet"])
        listen_port, interface_name = int(settings["port"]), str(settings["interface"])
        mesh_mtu = int(settings.get("mtu") or DEFAULT_MTU)
    except (LookupError, ValueError, TypeError) as failure:
        raise RecordError(
            f"The record of cluster {cluster_name} has no usable mesh ({type(failure).__name__}: {failure}).",
            "Set mesh_subnet, mesh_port and mesh_interface, and run the mesh playbook.",
            cluster=cluster_name,
        ) from failure
    nodes_by_machine = {}
    in_mesh = _make_network_test(mesh_network)
    for member in cluster_record.get("members", []):
        member_mesh = member.get("mesh") or {}
        machine = str(member["machine"])
        nodes_by_machine[machine] = MeshNode(
            machine,
            _find_lan_address(member, in_mesh),
            str(member.get("site") or "default"),
            member.get("endpoint") or None,
            str(member_mesh.get("address") or ""),
            str(member_mesh.get("public_key") or ""),
        )
    relay_machines = tuple(requested_relays) or (str(cluster_record.get("manager")),)
    unknown_relays = [relay for relay in relay_machines if relay not in nodes_by_machine]
    if unknown_relays:
        raise InputError(
            f"{', '.join(unknown_relays)} in mesh_relays: not among the members of cluster {cluster_name}.",
            f"Choose among {', '.join(nodes_by_machine)}.",
            relays=list(unknown_relays),
        )
    return MeshTopology(
        cluster_name, mesh_network, listen_port, interface_name, mesh_mtu, nodes_by_machine, relay_machines
    )


def plan_tunnel(mesh: MeshTopology, machine: str) -> Dict[str, Any]:
    """Return the tunnel of one member: everything that the module wireguard needs. Linear in the number of members.

    Returns ``public_key`` (the member's own in the record, '' for none), ``interface``, ``address`` (CIDR),
    ``listen_port``, ``mtu`` (bytes), ``peers`` (each with machine, public_key, endpoint, allowed_ips,
    persistent_keepalive in seconds), ``relayed`` (each with machine and relay),
    ``relay`` (whether this member forwards for others) and ``pending`` (members without a key: no peers yet).
    Raises InputError, naming the pair, if two members cannot connect to each other.
    """
    if machine not in mesh.nodes_by_machine:
        raise InputError(
            f"{machine} is not among the members of cluster {mesh.cluster_name}.",
            f"Add it first (playbook join with cluster_machines={machine}).",
            machine=machine,
        )
    own_node = mesh.nodes_by_machine[machine]
    if not own_node.mesh_address:
        raise InputError(
            f"{machine} has no address in the mesh of cluster {mesh.cluster_name}.",
            "Set mesh_backend to wireguard: the record then gives every member an address.",
            machine=machine,
        )
    networks_by_peer: Dict[str, List[str]] = {}
    relayed_members: List[Dict[str, str]] = []
    pending_members: List[str] = []
    for peer_node in mesh.nodes_by_machine.values():
        if peer_node is own_node:
            continue
        if not peer_node.public_key:
            pending_members.append(peer_node.machine)
            continue
        next_hop = peer_node if is_direct(own_node, peer_node) else _find_relay(mesh, own_node, peer_node)
        if not next_hop.public_key:
            pending_members.append(peer_node.machine)
            continue
        networks_by_peer.setdefault(next_hop.machine, []).append(_to_host_network(peer_node.mesh_address))
        if next_hop is not peer_node:
            relayed_members.append({"machine": peer_node.machine, "relay": next_hop.machine})
    return {
        "public_key": own_node.public_key,
        "interface": mesh.interface_name,
        "address": f"{own_node.mesh_address}/{mesh.mesh_network.prefixlen}",
        "listen_port": mesh.listen_port,
        "mtu": mesh.mtu,
        "peers": [
            _build_peer(mesh, own_node, mesh.nodes_by_machine[next_hop], networks)
            for next_hop, networks in networks_by_peer.items()
        ],
        "relayed": relayed_members,
        "relay": machine in mesh.relay_machines and _needs_relay(mesh),
        "pending": pending_members,
    }


def check_connectivity(mesh: MeshTopology) -> None:
    """Raise InputError for a pair of members that cannot communicate.

    Only pairs that may have this problem are examined.
    """
    if not any(mesh.nodes_by_machine[relay].endpoint for relay in mesh.relay_machines):
        list_relayed_pairs(mesh)


def list_relayed_pairs(mesh: MeshTopology) -> List[Dict[str, str]]:
    """Return every relayed pair, as ``a``, ``b`` and ``relay``. Raises InputError for a pair that cannot communicate.

    Only members without an endpoint are considered: all others can be reached directly.
    """
    hidden_nodes = [node for node in mesh.nodes_by_machine.values() if node.endpoint is None]
    return [
        {"a": first_node.machine, "b": second_node.machine, "relay": _find_relay(mesh, first_node, second_node).machine}
        for index, first_node in enumerate(hidden_nodes)
        for second_node in hidden_nodes[index + 1 :]
        if not is_direct(first_node, second_node)
    ]


def shares_lan(first_node: MeshNode, second_node: MeshNode) -> bool:
    """Whether the two are on the LAN of the same site."""
    return first_node.site == second_node.site and first_node.lan_address != "" and second_node.lan_address != ""


def is_direct(first_node: MeshNode, second_node: MeshNode) -> bool:
    """Whether the two need no relay: one of them can connect to the other."""
    return first_node.endpoint is not None or second_node.endpoint is not None or shares_lan(first_node, second_node)


def replace_public_keys(record: Mapping[str, Any], public_keys: Mapping[str, str]) -> Dict[str, Any]:
    """A copy of the record in which these machines have these public keys. A member without a mesh address has none."""
    members = [
        {**member, "mesh": {**member["mesh"], "public_key": public_keys[member["machine"]]}}
        if member.get("mesh") and public_keys.get(member["machine"])
        else member
        for member in record["members"]
    ]
    return {**record, "members": members}


def _find_lan_address(member: Mapping[str, Any], in_mesh: Callable[[str], bool]) -> str:
    """The address on the LAN of the site. An address inside the mesh would send the tunnel through itself.

    Members that share only the mesh have another address for their site, or none.
    """
    address = str(member.get("address") or "")
    if address and not in_mesh(address):
        return address
    return str(member.get("lan_address") or "")


def _make_network_test(network: _IpNetwork) -> Callable[[str], bool]:
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


def _build_peer(mesh: MeshTopology, own_node: MeshNode, node: MeshNode, networks: List[str]) -> Dict[str, Any]:
    on_same_lan = shares_lan(own_node, node)
    return {
        "machine": node.machine,
        "public_key": node.public_key,
        "endpoint": join_endpoint(node.lan_address, mesh.listen_port) if on_same_lan else node.endpoint,
        "allowed_ips": sorted(networks),
        # A member without an endpoint keeps its tunnel open, so the other side can always reach it.
        "persistent_keepalive": 0 if on_same_lan or own_node.endpoint is not None else KEEPALIVE_SECONDS,
    }


def _find_relay(mesh: MeshTopology, first_node: MeshNode, second_node: MeshNode) -> MeshNode:
    """The first relay that both reach directly, the same for both members. Raises InputError."""
    for machine in mesh.relay_machines:
        relay = mesh.nodes_by_machine[machine]
        if (
            machine not in (first_node.machine, second_node.machine)
            and is_direct(first_node, relay)
            and is_direct(second_node, relay)
        ):
            return relay
    raise InputError(
        f"{first_node.machine} (site {first_node.site}) and {second_node.machine} (site {second_node.site}) cannot connect to each other: neither has an "
        f"endpoint, and none of {', '.join(mesh.relay_machines)} can relay, because they have no endpoint either.",
        "Set cluster_endpoint for one of the two, or name a member that both can connect to in mesh_relays.",
        pair=[first_node.machine, second_node.machine],
        relays=list(mesh.relay_machines),
    )


def _needs_relay(mesh: MeshTopology) -> bool:
    """Whether any pair needs a relay: two members without endpoints, at two sites or not both on the LAN of one."""
    hidden_nodes = [node for node in mesh.nodes_by_machine.values() if node.endpoint is None]
    return len(hidden_nodes) > 1 and (
        len({node.site for node in hidden_nodes}) > 1 or not all(node.lan_address for node in hidden_nodes)
    )


def _to_host_network(address: str) -> str:
    return f"{address}/{128 if ':' in address else 32}"
