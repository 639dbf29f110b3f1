# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the job environment that only the host knows."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.iproute import ADDRESS_COMMAND, parse_addresses
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.kernel import may_lock_memory, read_local_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.rdma import rdma_of, read_ports, usable_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.shapes import LocalPorts
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree, read_nic


class Host(NamedTuple):
    """What the host has."""

    #: The ephemeral ports, None if the kernel does not report them.
    local_ports: Optional[LocalPorts]
    #: Whether the limit of locked memory can be removed.
    may_lock_memory: bool
    #: The active RDMA ports that jobs use, as NCCL and UCX name them: DEVICE:PORT.
    rdma_devices: Sequence[str]


def look(run: Runner, tree: Tree) -> Host:
    """Read the state of the host."""
    ports = read_ports(tree)
    names = [link["name"] for link in parse_addresses(run(ADDRESS_COMMAND).stdout)] if ports else []
    usable = usable_ports(ports, [rdma_of(name, read_nic(tree, name), ports) for name in names])
    devices = [f"{port['device']}:{port['port']}" for port in usable]
    return Host(read_local_ports(tree), may_lock_memory(), devices)


def refuse_ports(settings: Mapping[str, Any], ports: Optional[LocalPorts]) -> None:
    """Refuse a range that overlaps the ephemeral ports, one of which may be in use. Raises HostStateError."""
    low, high = settings["port_range"]
    wanted = f"{low}-{high}"
    if ports is None or not _assigned(range(max(low, ports["first"]), min(high, ports["last"]) + 1), ports["reserved"]):
        return
    raise HostStateError(
        f"job_environment_port_range {wanted} overlaps the kernel's ephemeral ports {ports['first']}-{ports['last']}, so "
        "a job's MASTER_PORT may already be in use.",
        f"Choose another range, or reserve this one with the sysctl net.ipv4.ip_local_reserved_ports={wanted}.",
    )


def _assigned(ports: Iterable[int], reserved: Sequence[str]) -> Set[int]:
    """Those of the ports that are not reserved. The kernel shows adjacent ranges as one, whoever has reserved them."""
    left = set(ports)
    for part in reserved:
        first, _dash, last = part.partition("-")
        left.difference_update(range(int(first), int(last or first) + 1))
    return left
