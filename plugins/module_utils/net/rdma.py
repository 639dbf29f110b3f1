# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA devices from /sys/class/infiniband, and the interfaces on their ports."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.net.shapes import Gid, Rdma, RdmaPort
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Nic, Tree

_CLASS = "sys/class/infiniband"
_NO_GID = re.compile(r"^[0:]*$")
#: An identifier that consists only of the prefix fe80::, without an interface part, is unset, too.
_BARE_PREFIX = "fe80:0000:0000:0000:0000:0000:0000:0000"


def parse_state(text: Optional[str]) -> str:
    """``4: ACTIVE`` is active; None is unknown."""
    return (text or "unknown").rpartition(":")[2].strip().lower()


def parse_rate(text: Optional[str]) -> Optional[float]:
    """Gbit/s from ``200 Gb/sec (4X HDR)``."""
    match = re.match(r"^(\d+(?:\.\d+)?) Gb/sec", text or "")
    return float(match.group(1)) if match else None


def read_ports(tree: Tree) -> List[RdmaPort]:
    """Every port of every RDMA device, in the order of their names."""
    return [
        _read_port(tree, device, int(port))
        for device in tree.names(_CLASS)
        for port in sorted(tree.names(_CLASS, device, "ports"), key=lambda name: (len(name), name))
        if port.isdecimal()
    ]


def _read_port(tree: Tree, device: str, port: int) -> RdmaPort:
    base = f"{_CLASS}/{device}/ports/{port}"
    physical_state = tree.read(base, "phys_state")
    return {
        "device": device,
        "port": port,
        "state": parse_state(tree.read(base, "state")),
        "physical_state": parse_state(physical_state) if physical_state else None,
        "link_layer": tree.read(base, "link_layer") or None,
        "rate_gbps": parse_rate(tree.read(base, "rate")),
        "driver": tree.target_name(_CLASS, device, "device/driver"),
        "pci_address": tree.pci_address(_CLASS, device, "device"),
        "gids": _read_gids(tree, base),
    }


def _read_gids(tree: Tree, base: str) -> List[Gid]:
    """The identifiers in use. A port has up to 256 entries, nearly all of them empty."""
    gids: List[Gid] = []
    for index in sorted(int(name) for name in tree.names(base, "gids") if name.isdecimal()):
        gid = tree.read(base, "gids", str(index)) or ""
        if not _NO_GID.match(gid) and gid != _BARE_PREFIX:
            gids.append(
                {
                    "index": index,
                    "gid": gid,
                    "type": tree.read(base, "gid_attrs/types", str(index)) or None,
                    "interface": tree.read(base, "gid_attrs/ndevs", str(index)) or None,
                }
            )
    return gids


def usable_ports(ports: Sequence[RdmaPort], behind: Sequence[Optional[Rdma]]) -> List[RdmaPort]:
    """The active ports that jobs can use, each once.

    ``behind``: those behind interfaces; a bond and its members share a device. RoCE needs the addresses of an
    interface, InfiniBand does not: ports often have none, without IPoIB. Ports of the two cannot connect to each other,
    so only those of the one with the fastest port count.
    """
    addressed = {(port["device"], port["port"]) for port in behind if port}
    usable = [
        port
        for port in ports
        if port["state"] == "active" and (_is_infiniband(port) or (port["device"], port["port"]) in addressed)
    ]
    fastest = max(usable, key=lambda port: (port["rate_gbps"] or 0, _is_infiniband(port)), default=None)
    if fastest is None:
        return []
    return [port for port in usable if _is_infiniband(port) == _is_infiniband(fastest)]


def fabric_of(usable: Sequence[RdmaPort]) -> str:
    """The fabric of usable ports: infiniband, roce or, without any, none."""
    if not usable:
        return "none"
    return "infiniband" if _is_infiniband(usable[0]) else "roce"


def _is_infiniband(port: RdmaPort) -> bool:
    return port["link_layer"] == "InfiniBand"


def rdma_of(name: str, nic: Nic, ports: List[RdmaPort]) -> Optional[Rdma]:
    """The RDMA port behind an interface, or None.

    The identifiers of RoCE show the interfaces (also VLANs and bonds) to which they belong; IPoIB shares the device.
    """
    for port in ports:
        own = [gid for gid in port["gids"] if gid["interface"] == name]
        same_card = port["device"] in nic.rdma_devices and (
            port["port"] == nic.port + 1 or sum(other["device"] == port["device"] for other in ports) == 1
        )
        if own or same_card:
            return {
                "device": port["device"],
                "port": port["port"],
                "state": port["state"],
                "link_layer": port["link_layer"],
                "rate_gbps": port["rate_gbps"],
                "gids": own or [gid for gid in port["gids"] if gid["interface"] is None],
            }
    return None
