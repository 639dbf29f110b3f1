# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect the facts of interface_info: three calls of ``ip``, and files."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Nic, Tree, read_nic
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.fabrics import detect_efa, detect_gpudirect_tcpx
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.gpus import read_gpus
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.hostname import Resolver, assess_resolution
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.iproute import (
    ADDRESS_COMMAND,
    ROUTE_COMMANDS,
    group_by_master,
    list_reachable_networks,
    parse_addresses,
    parse_default_routes,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.kernel import may_lock_memory, read_local_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.kinds import parse_speed
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import (
    HostFacts,
    IpLink,
    NetworkInterface,
    RdmaPort,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.rdma import (
    find_rdma_port,
    name_fabric,
    read_ports,
    select_usable_ports,
)


def gather_facts(
    run: Runner,
    tree: Tree,
    hostname: str,
    resolve_name: Resolver,
    can_lock_memory: Callable[[], bool] = may_lock_memory,
) -> HostFacts:
    """Gather the facts of this host. Raises CommandError and ParseError."""
    links = parse_addresses(run(ADDRESS_COMMAND).stdout)
    default_routes = [
        route
        for family, command in ROUTE_COMMANDS.items()
        # `ip -6` fails on a kernel without IPv6: there is no route then, which is not an error.
        for route in parse_default_routes(run(command, check=family == "inet").stdout, family)
    ]
    nic_by_name = {link["name"]: read_nic(tree, link["name"]) for link in links}
    rdma_ports = read_ports(tree)
    pci_devices = tree.list_pci_devices()
    gpus = read_gpus(tree, pci_devices)
    interfaces = build_interfaces(links, nic_by_name, rdma_ports)
    return {
        "interfaces": interfaces,
        "host": {
            "boot_id": tree.read("proc/sys/kernel/random/boot_id"),
            "default_routes": default_routes,
            "hostname": assess_resolution(hostname, tree.read("etc/hosts") or "", resolve_name(hostname)),
            "efa": detect_efa(tree, rdma_ports, pci_devices),
            "gpudirect_tcpx": detect_gpudirect_tcpx(tree, nic_by_name, gpus),
            "gpus": gpus,
            "local_ports": read_local_ports(tree),
            "may_lock_memory": can_lock_memory(),
            "rdma": name_fabric(
                select_usable_ports(
                    rdma_ports,
                    [interface["rdma"] for interface in interfaces if list_reachable_networks(interface)],
                )
            ),
        },
    }


def build_interfaces(
    links: List[IpLink], nic_by_name: Mapping[str, Nic], rdma_ports: List[RdmaPort]
) -> List[NetworkInterface]:
    """Combine the data of ``ip``, sysfs and the RDMA class, in the order of ``ip``."""
    members_by_master: Dict[str, List[str]] = group_by_master(links)
    interfaces: List[NetworkInterface] = []
    for link in links:
        nic = nic_by_name[link["name"]]
        rdma = find_rdma_port(link["name"], nic, rdma_ports)
        speed_mbps = parse_speed(nic.speed_text, link["kind"], nic.physical)
        if (
            speed_mbps is None
            and link["kind"] == "infiniband"
            and rdma
            and rdma["rate_gbps"]
            and rdma["state"] == "active"
        ):
            # Older IPoIB drivers leave `speed` empty. The port below reports its rate once its link is trained.
            speed_mbps = int(rdma["rate_gbps"] * 1000)
        interfaces.append(
            {
                **link,
                "physical": nic.physical,
                "speed_mbps": speed_mbps,
                "driver": nic.driver,
                "pci_address": nic.pci_address,
                "numa_node": nic.numa_node,
                "members": members_by_master.get(link["name"], []),
                "rdma": rdma,
            }
        )
    return interfaces
