# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the job environment that only the host knows."""

from __future__ import annotations

import ipaddress
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree, read_nic
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.fabrics import detect_gpudirect_tcpx
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.gpus import read_gpus
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.iproute import (
    ADDRESS_COMMAND,
    list_reachable_networks,
    parse_addresses,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.kernel import may_lock_memory, read_local_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import InterfaceRdma, LocalPorts, RdmaPort
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.rdma import (
    NATIVE_LAYERS,
    PortKey,
    find_rdma_port,
    have_ipv6_only,
    read_board_ids,
    select_cluster_ports,
    select_usable_ports,
    split_ports,
)

#: What the jobs on this host get, as files.py writes it.
SETTINGS_PATH = "/etc/gpumesh/job_environment.json"


class JobHost(NamedTuple):
    """The capabilities of the host that matter to jobs."""

    #: The ephemeral ports, None if the kernel does not report them.
    local_ports: Optional[LocalPorts]
    #: Whether the limit of locked memory can be removed.
    may_lock_memory: bool
    #: The active RDMA ports that jobs use, as NCCL and UCX name them: DEVICE:PORT.
    rdma_devices: Sequence[str]
    #: The ports that NCCL would choose, but that do not lead to the cluster's network. Those that are inactive may become
    #: active later, such as those of NVSwitches when the fabric manager starts.
    other_rdma_devices: Sequence[str] = ()
    #: The cloud's fabric that NCCL only uses with a plugin, which ignores NCCL_IB_DISABLE: efa, tcpx or empty.
    plugin_fabric: str = ""
    #: The active ports of that fabric.
    plugin_devices: Sequence[str] = ()
    #: Whether the ports that jobs use are RoCE with IPv6 addresses only.
    rdma_by_ipv6: bool = False


class JobPorts(NamedTuple):
    """The RDMA ports of the host. ``usable``: those by which other hosts can be reached at all."""

    job: Sequence[RdmaPort]
    usable: Sequence[RdmaPort]
    network: Sequence[RdmaPort]
    bridge: Sequence[RdmaPort]


def read_job_host(run: Runner, tree: Tree, settings: Mapping[str, Any]) -> JobHost:
    """Read the state of the host. ``settings`` has the cluster's interface, and the addresses of its members."""
    job_ports = read_job_ports(run, tree, settings, split_ports(tree))
    other_ports = [
        port for port in job_ports.network if port["link_layer"] in NATIVE_LAYERS and port not in job_ports.job
    ]
    efa_ports = [port for port in job_ports.network if port["driver"] == "efa"]
    return JobHost(
        read_local_ports(tree),
        may_lock_memory(),
        list(map(name_port, job_ports.job)),
        list(map(name_port, [*other_ports, *job_ports.bridge])),
        detect_plugin_fabric(tree, efa_ports),
        [name_port(port) for port in efa_ports if port["state"] == "active"],
        have_ipv6_only(job_ports.job),
    )


def read_job_ports(
    run: Runner, tree: Tree, settings: Mapping[str, Any], ports: Tuple[List[RdmaPort], List[RdmaPort]]
) -> JobPorts:
    """Select the RDMA ports of the cluster's own fabric. ``settings``: those of the jobs. ``ports``: of split_ports()."""
    network_ports, bridge_ports = ports
    if not network_ports:
        return JobPorts([], [], network_ports, bridge_ports)
    links = parse_addresses(run(ADDRESS_COMMAND).stdout)
    member_addresses = [ipaddress.ip_address(address) for address in settings["members"].values()]
    addressed_ports: List[InterfaceRdma] = []
    cluster_ports: Set[PortKey] = set()
    for link in links:
        port = find_rdma_port(link["name"], read_nic(tree, link["name"]), network_ports)
        networks = list_reachable_networks(link)
        if port is None or not networks:
            continue
        addressed_ports.append(port)
        if link["name"] == settings["interface"] or any(
            address in network for network in map(ipaddress.ip_network, networks) for address in member_addresses
        ):
            cluster_ports.add((port["device"], port["port"]))
    usable_ports = select_usable_ports(network_ports, addressed_ports)
    gpus = read_gpus(tree, tree.list_pci_devices())
    # Without the driver, GPUs are seen on the bus only.
    gpu_count = max(gpus["count"], len(gpus["pci_addresses"]))
    job_ports = select_cluster_ports(usable_ports, cluster_ports, gpu_count, read_board_ids(tree, network_ports))
    return JobPorts(job_ports, usable_ports, network_ports, bridge_ports)


def detect_plugin_fabric(tree: Tree, efa_ports: Sequence[RdmaPort]) -> str:
    """Detect the fabric for which this host has a network plugin of NCCL, or may have one in its containers."""
    if efa_ports:
        return "efa"
    interface_names = tree.list_names("sys/class/net")
    # Most hosts have no card of Google's, and need no more than this.
    if not any(tree.link_target_name("sys/class/net", name, "device/driver") == "gve" for name in interface_names):
        return ""
    nic_by_name = {name: read_nic(tree, name) for name in interface_names}
    gpus = read_gpus(tree, tree.list_pci_devices())
    return "tcpx" if detect_gpudirect_tcpx(tree, nic_by_name, gpus)["present"] else ""


def name_port(port: RdmaPort) -> str:
    """Return the name of a port as NCCL and UCX write it."""
    return f"{port['device']}:{port['port']}"


def refuse_ephemeral_ports(settings: Mapping[str, Any], local_ports: Optional[LocalPorts]) -> None:
    """Refuse a range that overlaps the ephemeral ports, one of which may be in use. Raises HostStateError."""
    first_port, last_port = settings["port_range"]
    port_range = f"{first_port}-{last_port}"
    if local_ports is None or not _assignable_ports(
        range(max(first_port, local_ports["first"]), min(last_port, local_ports["last"]) + 1), local_ports["reserved"]
    ):
        return
    raise HostStateError(
        f"job_environment_port_range {port_range} overlaps the kernel's ephemeral ports "
        f"{local_ports['first']}-{local_ports['last']}, so "
        "a job's MASTER_PORT may already be in use.",
        f"Choose another range, or reserve this one with the sysctl net.ipv4.ip_local_reserved_ports={port_range}.",
    )


def _assignable_ports(port_numbers: Iterable[int], reserved_ranges: Sequence[str]) -> Set[int]:
    """Return the ports that are not reserved. The kernel shows adjacent ranges as one, whoever has reserved them."""
    assignable_ports = set(port_numbers)
    for reserved_range in reserved_ranges:
        first, _dash, last = reserved_range.partition("-")
        assignable_ports.difference_update(range(int(first), int(last or first) + 1))
    return assignable_ports
