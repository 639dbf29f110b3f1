# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Members of a tailnet that accept connections, but whose programs cannot connect to others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, membership, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

USERSPACE_ONLY_REASON = (
    "Without /dev/net/tun (or with mesh_userspace=always) Tailscale has no interface: others can connect to the "
    "machine, but it can connect to them only through a SOCKS proxy, which Slurm, NFS and NCCL cannot use. Start the "
    "container with --device /dev/net/tun --cap-add NET_ADMIN, or ask its provider for that."
)


#: The options of the role mesh, each with the prefix mesh_, that determine the function of a host without TUN.
MESH_OPTIONS = ("mesh_userspace", "mesh_userspace_nodes")


def machines_without_interface(
    results_by_machine: Mapping[str, Mapping[str, Any]], options_by_machine: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the members without an interface in the tailnet, sorted.

    ``results_by_machine``: the results of cluster_info; a host that was not queried counts as having an interface.
    ``options_by_machine``: MESH_OPTIONS of each host.
    """
    return sorted(
        machine
        for machine, result in results_by_machine.items()
        if not result.get("tun", True) or options_by_machine[machine]["mesh_userspace"] == "always"
    )


def userspace_only_machines(
    results_by_machine: Mapping[str, Mapping[str, Any]], options_by_machine: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the members without an interface that are not nodes either.

    The parameters are those of ``machines_without_interface``.
    """
    return [
        machine
        for machine in machines_without_interface(results_by_machine, options_by_machine)
        if not options_by_machine[machine]["mesh_userspace_nodes"]
    ]


def refuse_userspace_only(machines: Collection[str], required_machines: Collection[str]) -> None:
    """Refuse a manager or a server of volumes that cannot connect to the members. Raises InputError."""
    refused_machines = sorted(set(machines) & set(required_machines))
    if refused_machines:
        raise InputError(
            f"{', '.join(refused_machines)} cannot be the manager or serve a volume. Nothing has been changed. "
            f"{USERSPACE_ONLY_REASON} With mesh_userspace_nodes=true it can be a Slurm node, but nothing else.",
            "Or choose another machine for it.",
            machines=refused_machines,
        )


def refuse_to_demote(
    record: model.Record, userspace_machines: Collection[str], leaving_machines: Collection[str] = ()
) -> None:
    """Refuse to remove the library from a pod that is a node, whose slurmd would run without it. Raises InputError.

    ``userspace_machines``: machines that should not be nodes; ``leaving_machines``: machines that are being removed,
    and will not be nodes.
    """
    refused_machines = sorted(set(derive.find_pods(record)) & set(userspace_machines) - set(leaving_machines))
    if refused_machines:
        raise InputError(
            f"{', '.join(refused_machines)} in cluster {record['name']}: Slurm nodes without an interface of their tailnet, which "
            "mesh_userspace_nodes=false would cut off from Slurm. Nothing has been changed.",
            "Set mesh_userspace_nodes=true for them. Or remove each with the playbook remove, set the option to false, and "
            "add it again with the playbook join: it is then a member, but not a node.",
            machines=refused_machines,
        )


def refuse_without_nodes(record: model.Record, userspace_machines: Collection[str]) -> None:
    """Refuse a cluster in which only machines that should not be nodes would run jobs. Raises InputError."""
    if not set(membership.slurm_nodes(record)) - set(userspace_machines):
        raise InputError(
            f"No member of cluster '{record['name']}' would run jobs: slurm_node is false, or it has no interface of its tailnet.",
            "Set slurm_node=true for the manager or another member, or mesh_userspace_nodes=true for pods that are to run jobs.",
        )
