# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA devices from /sys/class/infiniband, and the interfaces on their ports."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from typing import Container, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Nic, Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import Gid, InterfaceRdma, RdmaPort

_RDMA_CLASS = "sys/class/infiniband"
_EMPTY_GID = re.compile(r"^[0:]*$")
#: An identifier that consists only of the prefix fe80::, without an interface part, is unset, too.
_BARE_PREFIX = "fe80:0000:0000:0000:0000:0000:0000:0000"
#: The smallest number of ports that count as rails: machines with four GPUs or more have them.
_MIN_RAILS = 4

#: The marker in the product data of a card that connects the host to the NVSwitches of its own board.
_SWITCH_MARKER = "SW_MNG"

#: The link layers of ports that NCCL and UCX use without a plugin.
NATIVE_LAYERS = ("InfiniBand", "Ethernet")

#: A device and the number of its port.
PortKey = Tuple[str, int]


def parse_state(text: Optional[str]) -> str:
    """Parse a state: ``4: ACTIVE`` is active; None is unknown."""
    return (text or "unknown").rpartition(":")[2].strip().lower()


def parse_rate(text: Optional[str]) -> Optional[float]:
    """Parse Gbit/s from ``200 Gb/sec (4X HDR)``."""
    match = re.match(r"^(\d+(?:\.\d+)?) Gb/sec", text or "")
    return float(match.group(1)) if match else None


def read_ports(tree: Tree) -> List[RdmaPort]:
    """Read every port of every RDMA device that leads to a network, in the order of their names."""
    return split_ports(tree)[0]


def split_ports(tree: Tree) -> Tuple[List[RdmaPort], List[RdmaPort]]:
    """Read every port: those that lead to a network, and those that lead to the NVSwitches of this host's board.

    Boards of the Blackwell generation have ConnectX bridges, whose active InfiniBand ports only manage the NVSwitches.
    NCCL would use them: https://github.com/siderolabs/extensions/issues/893 shows four on an HGX B200. Only one function
    of such a card may have the marker.
    """
    rdma_ports = _read_all_ports(tree)
    boards = read_board_ids(tree, rdma_ports)
    bridge_cards = {
        (card_address(port), boards[port["device"]])
        for port in rdma_ports
        if _is_infiniband(port) and _SWITCH_MARKER in (tree.read(_RDMA_CLASS, port["device"], "device/vpd") or "")
    }
    network_ports: List[RdmaPort] = []
    bridge_ports: List[RdmaPort] = []
    for port in rdma_ports:
        is_bridge = (card_address(port), boards[port["device"]]) in bridge_cards
        (bridge_ports if is_bridge else network_ports).append(port)
    return network_ports, bridge_ports


def card_address(port: RdmaPort) -> str:
    """Return the PCI address of the card: its ports are functions of one PCI device, or ports of one function."""
    return (port["pci_address"] or "").rpartition(".")[0]


def _read_all_ports(tree: Tree) -> List[RdmaPort]:
    return [
        _read_port(tree, device, int(port))
        for device in tree.list_names(_RDMA_CLASS)
        for port in sorted(tree.list_names(_RDMA_CLASS, device, "ports"), key=lambda name: (len(name), name))
        if port.isdecimal()
    ]


def _read_port(tree: Tree, device: str, port_number: int) -> RdmaPort:
    port_directory = f"{_RDMA_CLASS}/{device}/ports/{port_number}"
    physical_state = tree.read(port_directory, "phys_state")
    return {
        "device": device,
        "port": port_number,
        "state": parse_state(tree.read(port_directory, "state")),
        "physical_state": parse_state(physical_state) if physical_state else None,
        "link_layer": tree.read(port_directory, "link_layer") or None,
        "rate_gbps": parse_rate(tree.read(port_directory, "rate")),
        "driver": tree.link_target_name(_RDMA_CLASS, device, "device/driver"),
        "pci_address": tree.find_pci_address(_RDMA_CLASS, device, "device"),
        "gids": _read_gids(tree, port_directory),
    }


def _read_gids(tree: Tree, port_directory: str) -> List[Gid]:
    """Read the identifiers in use. A port has up to 256 entries, nearly all of them empty."""
    gids: List[Gid] = []
    for index in sorted(int(name) for name in tree.list_names(port_directory, "gids") if name.isdecimal()):
        gid = tree.read(port_directory, "gids", str(index)) or ""
        if not _EMPTY_GID.match(gid) and gid != _BARE_PREFIX:
            gids.append(
                {
                    "index": index,
                    "gid": gid,
                    "type": tree.read(port_directory, "gid_attrs/types", str(index)) or None,
                    "interface": tree.read(port_directory, "gid_attrs/ndevs", str(index)) or None,
                }
            )
    return gids


def select_usable_ports(
    rdma_ports: Sequence[RdmaPort], addressed_ports: Sequence[Optional[InterfaceRdma]]
) -> List[RdmaPort]:
    """Return the active ports that jobs can use, each once.

    ``addressed_ports``: those behind interfaces that other machines can reach, by an address that is not link-local; a
    bond and its members share a device. RoCE needs such an address, InfiniBand does not: its ports often have none,
    without IPoIB. Ports of the two cannot connect to each other, so only those of the fabric with the fastest port count.
    """
    addressed_keys = {(port["device"], port["port"]) for port in addressed_ports if port}
    active_ports = [
        port
        for port in rdma_ports
        if port["state"] == "active" and (_is_infiniband(port) or (port["device"], port["port"]) in addressed_keys)
    ]
    fastest_port = max(active_ports, key=lambda port: (port["rate_gbps"] or 0, _is_infiniband(port)), default=None)
    if fastest_port is None:
        return []
    return [port for port in active_ports if _is_infiniband(port) == _is_infiniband(fastest_port)]


def read_board_ids(tree: Tree, rdma_ports: Sequence[RdmaPort]) -> Dict[str, str]:
    """Read the identifier of the card's model by device. Drivers other than Mellanox's may not have one."""
    return {
        port["device"]: tree.read(_RDMA_CLASS, port["device"], "board_id") or port["driver"] or ""
        for port in rdma_ports
    }


def select_cluster_ports(
    usable_ports: Sequence[RdmaPort],
    cluster_ports: Container[PortKey],
    gpu_count: int,
    board_by_device: Mapping[str, str],
) -> List[RdmaPort]:
    """Return the ports of the cluster's own fabric among the usable ones of a host.

    ``cluster_ports``: those on the cluster's network. ``board_by_device``: of all devices, also those that are down. Ports
    that are slower than the fastest are for management or storage, and so are other cards beside rails. Rails are networks
    of their own, one for each GPU, for each two or for half of one; fewer or more RoCE ports outside of the cluster's
    network are in other ones, such as on a cable to another machine.
    """
    fastest_rate = max((port["rate_gbps"] or 0 for port in usable_ports), default=0)
    fastest_ports = [port for port in usable_ports if (port["rate_gbps"] or 0) == fastest_rate]
    rail_board = _find_rail_board(fastest_ports, gpu_count, board_by_device)
    if rail_board is not None:
        fastest_ports = [port for port in fastest_ports if board_by_device.get(port["device"]) == rail_board]
    own_ports = [
        port for port in fastest_ports if not _is_infiniband(port) and (port["device"], port["port"]) in cluster_ports
    ]
    has_rails = _MIN_RAILS <= len(fastest_ports) <= 2 * gpu_count
    return own_ports if own_ports and not has_rails else fastest_ports


def _find_rail_board(
    fastest_ports: Sequence[RdmaPort], gpu_count: int, board_by_device: Mapping[str, str]
) -> Optional[str]:
    """Return the only model of card of which there are as many as rails, if there is one."""
    fast_boards = {board_by_device.get(port["device"]) for port in fastest_ports}
    card_counts = Counter(board for board in board_by_device.values() if board in fast_boards)
    for rail_count in (gpu_count, 2 * gpu_count, gpu_count // 2):
        rail_boards = [board for board, card_count in card_counts.items() if card_count == rail_count >= _MIN_RAILS]
        if len(rail_boards) == 1:
            return rail_boards[0]
    return None


def have_ipv6_only(rdma_ports: Sequence[RdmaPort]) -> bool:
    """Whether these are RoCE ports whose identifiers of routable addresses are all IPv6.

    NCCL looks for IPv4 only, and would take a link-local one: https://github.com/uccl-project/uccl/pull/803.
    """
    addresses_by_port = [
        list(filter(None, (_parse_routable(gid["gid"]) for gid in port["gids"]))) for port in rdma_ports
    ]
    return bool(rdma_ports) and all(
        _is_roce(port) and addresses and not any(address.ipv4_mapped for address in addresses)
        for port, addresses in zip(rdma_ports, addresses_by_port)
    )


def _parse_routable(gid: str) -> Optional[ipaddress.IPv6Address]:
    """Parse an identifier, in which IPv4 addresses are mapped; None for one that is link-local, or no address."""
    try:
        address = ipaddress.IPv6Address(gid)
    except ValueError:
        return None
    return None if address.is_link_local else address


def _is_roce(port: RdmaPort) -> bool:
    """Whether the port is RoCE: not InfiniBand, and not EFA, which needs a plugin of NCCL."""
    return port["link_layer"] == "Ethernet"


def name_fabric(usable: Sequence[RdmaPort]) -> str:
    """Return the fabric of usable ports: infiniband, roce or, without any, none."""
    if not usable:
        return "none"
    return "infiniband" if _is_infiniband(usable[0]) else "roce"


def _is_infiniband(port: RdmaPort) -> bool:
    return port["link_layer"] == "InfiniBand"


def find_rdma_port(interface_name: str, nic: Nic, rdma_ports: List[RdmaPort]) -> Optional[InterfaceRdma]:
    """Return the RDMA port behind an interface, or None.

    The identifiers of RoCE show the interfaces (also VLANs and bonds) to which they belong; IPoIB shares the device.
    """
    for port in rdma_ports:
        own_gids = [gid for gid in port["gids"] if gid["interface"] == interface_name]
        same_card = port["device"] in nic.rdma_devices and (
            port["port"] == nic.port_index + 1
            or sum(other_port["device"] == port["device"] for other_port in rdma_ports) == 1
        )
        if own_gids or same_card:
            return {
                "device": port["device"],
                "port": port["port"],
                "state": port["state"],
                "link_layer": port["link_layer"],
                "rate_gbps": port["rate_gbps"],
                "gids": own_gids or [gid for gid in port["gids"] if gid["interface"] is None],
            }
    return None
