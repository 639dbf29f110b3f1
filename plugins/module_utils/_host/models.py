# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The structures that interface_info returns. Names contain units; None means unknown, values are never guessed."""

from __future__ import annotations

from typing import List, Optional, TypedDict


class InterfaceAddress(TypedDict):
    """One address of an interface. ``secondary`` is also true of temporary IPv6 addresses."""

    address: str
    prefix_length: int
    subnet: str
    family: str  # inet or inet6
    scope: str
    secondary: bool
    flags: List[str]  # of ADDRESS_FLAGS in iproute.py


class IpLink(TypedDict):
    """The output of ``ip`` for an interface."""

    name: str
    alternative_names: List[str]
    kind: str
    link_kind: Optional[str]  # the kernel's own term, such as macvlan
    state: str
    mtu: int
    mac: Optional[str]
    master: Optional[str]
    parent: Optional[str]
    vlan_id: Optional[int]
    addresses: List[InterfaceAddress]


class Gid(TypedDict):
    """One entry of a port's table of global identifiers."""

    index: int
    gid: str
    type: Optional[str]  # such as RoCE v2
    interface: Optional[str]


class RdmaPort(TypedDict):
    """One port of an RDMA device."""

    device: str
    port: int
    state: str
    physical_state: Optional[str]
    link_layer: Optional[str]
    rate_gbps: Optional[float]
    driver: Optional[str]
    pci_address: Optional[str]
    gids: List[Gid]


class InterfaceRdma(TypedDict):
    """The RDMA port behind an interface, with those of its identifiers that belong to the interface."""

    device: str
    port: int
    state: str
    link_layer: Optional[str]
    rate_gbps: Optional[float]
    gids: List[Gid]


class NetworkInterface(IpLink):
    """One interface, with what sysfs adds."""

    physical: bool
    speed_mbps: Optional[int]
    driver: Optional[str]
    pci_address: Optional[str]
    numa_node: Optional[int]
    members: List[str]
    rdma: Optional[InterfaceRdma]


class DefaultRoute(TypedDict):
    """A default route."""

    family: str
    gateway: Optional[str]
    interface: Optional[str]
    metric: Optional[int]
    source: Optional[str]


class HostnameResolution(TypedDict):
    """The addresses to which the host's own name resolves on it."""

    name: str
    addresses: List[str]
    hosts_file: List[str]
    loopback: bool
    problem: Optional[str]
    remedy: Optional[str]


class FabricHint(TypedDict):
    """Whether the host seems to have a fabric, the evidence, and its devices."""

    present: bool
    devices: List[str]
    reasons: List[str]


class PciDevice(TypedDict):
    """One device on the PCI bus; the three numbers are lower-case hexadecimal without a prefix."""

    address: str
    vendor: str
    device: str
    device_class: str


class HostGpus(TypedDict):
    """The GPUs that jobs can open. ``problem`` describes those that they cannot."""

    count: int
    vendor: Optional[str]
    type: Optional[str]
    files: List[str]
    pci_addresses: List[str]
    problem: Optional[str]


class LocalPorts(TypedDict):
    """The ephemeral ports of the kernel. ``reserved`` are the ports and ranges that it does not assign."""

    first: int
    last: int
    reserved: List[str]


class HostProperties(TypedDict):
    """The facts of the host that do not belong to an interface. ``boot_id`` differs for each start of a kernel."""

    boot_id: Optional[str]
    default_routes: List[DefaultRoute]
    hostname: HostnameResolution
    efa: FabricHint
    gpudirect_tcpx: FabricHint
    gpus: HostGpus
    local_ports: Optional[LocalPorts]
    may_lock_memory: bool
    rdma: str


class HostFacts(TypedDict):
    """The result of interface_info."""

    interfaces: List[NetworkInterface]
    host: HostProperties
