# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect what interface_info returns: three calls of ``ip``, the rest from files."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.fabrics import efa_hint, gpudirect_tcpx_hint
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.gpus import read_gpus
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.hostname import Resolver, judge
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.iproute import (
    ADDRESS_COMMAND,
    ROUTE_COMMANDS,
    members_of,
    parse_addresses,
    parse_default_routes,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.kernel import may_lock_memory, read_local_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.kinds import speed_of
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.rdma import (
    fabric_of,
    rdma_of,
    read_ports,
    usable_ports,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.shapes import (
    HostFacts,
    Interface,
    Link,
    RdmaPort,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Nic, Tree, read_nic


def gather(
    run: Runner, tree: Tree, hostname: str, resolve: Resolver, lockable: Callable[[], bool] = may_lock_memory
) -> HostFacts:
    """The facts of this host. Raises CommandError and ParseError."""
    links = parse_addresses(run(ADDRESS_COMMAND).stdout)
    routes = [
        route
        for family, command in ROUTE_COMMANDS.items()
        # On a kernel without IPv6, `ip -6` fails: this means that there is no route, and is not an error.
        for route in parse_default_routes(run(command, check=family == "inet").stdout, family)
    ]
    nics = {link["name"]: read_nic(tree, link["name"]) for link in links}
    ports = read_ports(tree)
    pci_devices = tree.pci_devices()
    gpus = read_gpus(tree, pci_devices)
    interfaces = build_interfaces(links, nics, ports)
    return {
        "interfaces": interfaces,
        "host": {
            "boot_id": tree.read("proc/sys/kernel/random/boot_id"),
            "default_routes": routes,
            "hostname": judge(hostname, tree.read("etc/hosts") or "", resolve(hostname)),
            "efa": efa_hint(tree, ports, pci_devices),
            "gpudirect_tcpx": gpudirect_tcpx_hint(tree, nics, gpus),
            "gpus": gpus,
            "local_ports": read_local_ports(tree),
            "may_lock_memory": lockable(),
            "rdma": fabric_of(usable_ports(ports, [interface["rdma"] for interface in interfaces])),
        },
    }


def build_interfaces(links: List[Link], nics: Mapping[str, Nic], ports: List[RdmaPort]) -> List[Interface]:
    """Combine the data of ``ip``, sysfs and the RDMA class, in the order of ``ip``."""
    members: Dict[str, List[str]] = members_of(links)
    interfaces: List[Interface] = []
    for link in links:
        nic = nics[link["name"]]
        rdma = rdma_of(link["name"], nic, ports)
        speed = speed_of(nic.speed, link["kind"], nic.physical)
        if speed is None and link["kind"] == "infiniband" and rdma and rdma["rate_gbps"] and rdma["state"] == "active":
            # Older IPoIB drivers leave `speed` empty. The port below reports its rate once its link is trained.
            speed = int(rdma["rate_gbps"] * 1000)
        interfaces.append(
            {
                **link,
                "physical": nic.physical,
                "speed_mbps": speed,
                "driver": nic.driver,
                "pci_address": nic.pci_address,
                "numa_node": nic.numa_node,
                "members": members.get(link["name"], []),
                "rdma": rdma,
            }
        )
    return interfaces
