# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the job environment that only the host knows."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree, read_nic
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.iproute import ADDRESS_COMMAND, parse_addresses
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.kernel import may_lock_memory, read_local_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import LocalPorts
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.rdma import (
    find_rdma_port,
    read_ports,
    select_usable_ports,
)


class JobHost(NamedTuple):
    """The capabilities of the host that matter to jobs."""

    #: The ephemeral ports, None if the kernel does not report them.
    local_ports: Optional[LocalPorts]
    #: Whether the limit of locked memory can be removed.
    may_lock_memory: bool
    #: The active RDMA ports that jobs use, as NCCL and UCX name them: DEVICE:PORT.
    rdma_devices: Sequence[str]


def read_job_host(run: Runner, tree: Tree) -> JobHost:
    """Read the state of the host."""
    rdma_ports = read_ports(tree)
    interface_names = [link["name"] for link in parse_addresses(run(ADDRESS_COMMAND).stdout)] if rdma_ports else []
    job_ports = select_usable_ports(
        rdma_ports, [find_rdma_port(name, read_nic(tree, name), rdma_ports) for name in interface_names]
    )
    device_names = [f"{port['device']}:{port['port']}" for port in job_ports]
    return JobHost(read_local_ports(tree), may_lock_memory(), device_names)


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
