# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Members of a tailnet that accept connections, but whose programs cannot connect to others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model

WHY_USERSPACE_ONLY = (
    "Without /dev/net/tun (or with mesh_userspace=always) Tailscale has no interface: others can connect to the "
    "machine, but it can connect to them only through a SOCKS proxy, which Slurm, NFS and NCCL cannot use. Start the "
    "container with --device /dev/net/tun --cap-add NET_ADMIN, or ask its provider for that."
)


#: The options of the role mesh, each with the prefix mesh_, that determine the function of a host without TUN.
OPTIONS = ("mesh_userspace", "mesh_userspace_nodes")


def without_interface(held: Mapping[str, Mapping[str, Any]], options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The members without an interface in the tailnet, sorted.

    ``held``: the results of cluster_info; a host that was not queried counts as having an interface. ``options``:
    OPTIONS of each host, None for those that are not set. Raises InputError.
    """
    return sorted(
        machine
        for machine, result in held.items()
        if not result.get("tun", True) or options[machine]["mesh_userspace"] == "always"
    )


def userspace_only(held: Mapping[str, Mapping[str, Any]], options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Those that are not nodes either. Parameters as in ``without_interface``."""
    return [machine for machine in without_interface(held, options) if not _is_wanted(machine, options[machine])]


def _is_wanted(machine: str, options: Mapping[str, Any]) -> bool:
    """Whether the host should be a node in spite of that. Raises InputError."""
    given = options["mesh_userspace_nodes"]
    try:
        return bool(boolean(given or False))
    except TypeError as failure:
        raise InputError(f"{machine}: mesh_userspace_nodes is {given!r}.", "Set it to true or false.") from failure


def refuse_userspace_only(machines: Collection[str], needed: Collection[str]) -> None:
    """Refuse a manager or a server of volumes that cannot connect to the members. Raises InputError."""
    refused = sorted(set(machines) & set(needed))
    if refused:
        raise InputError(
            f"{', '.join(refused)} cannot be the manager or serve a volume. Nothing has been changed. "
            f"{WHY_USERSPACE_ONLY} With mesh_userspace_nodes=true it can be a Slurm node, but nothing else.",
            "Or choose another machine for it.",
            machines=refused,
        )


def refuse_to_demote(record: model.Record, confined: Collection[str], leaving: Collection[str] = ()) -> None:
    """Refuse to remove the library from a pod that is a node, whose slurmd would run without it. Raises InputError.

    ``confined``: machines that should not be nodes; ``leaving``: machines that are being removed, and will not be
    nodes.
    """
    refused = sorted(set(derive.pods(record)) & set(confined) - set(leaving))
    if refused:
        raise InputError(
            f"{', '.join(refused)} in cluster {record['name']}: Slurm nodes without an interface of their tailnet, which "
            "mesh_userspace_nodes=false would cut off from Slurm. Nothing has been changed.",
            "Set mesh_userspace_nodes=true for them. Or remove each with the playbook remove, set the option to false, and "
            "add it again with the playbook join: it is then a member, but not a node.",
            machines=refused,
        )
