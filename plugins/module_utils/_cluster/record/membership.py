# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The members of a record with their names and addresses. Pure.

Small, since the modules of layers contain it, which derive their parameters on the host. So it does not import the model.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

Record = Mapping[str, Any]
Member = Mapping[str, Any]


class NamedMember(NamedTuple):
    """A member with all its names.

    ``host_names``: the inventory name, and its first label unless another member has the same. Empty if the inventory
    name is an address or localhost, which must not be redefined. ``addresses``: the cluster address first.
    """

    machine: str
    host_names: Tuple[str, ...]
    addresses: Tuple[str, ...]
    member: Member


def cluster_address(record: Record, member: Member) -> str:
    """The address to which other members connect: the mesh address if there is a mesh, or else the member's own."""
    if record["mesh"]["backend"] != "none" and member["mesh"] is not None:
        return str(member["mesh"]["address"])
    return str(member["address"])


def cluster_interface(record: Record, member: Member) -> str:
    """The interface that has the cluster address."""
    if record["mesh"]["backend"] != "none" and member["mesh"] is not None:
        return str(record["mesh"]["interface"])
    return str(member["interface"])


def cluster_addresses(record: Record) -> Dict[str, str]:
    """Return the cluster address of each member, in rank order."""
    return {str(member["machine"]): cluster_address(record, member) for member in record["members"]}


def is_slurm_node(member: Member) -> bool:
    """Whether a member runs jobs. A head node does not: it has everything of the cluster except slurmd."""
    return bool(member.get("slurm_node", True))


def slurm_nodes(record: Record) -> List[str]:
    """Return the members that run jobs, in rank order."""
    return [str(member["machine"]) for member in record["members"] if is_slurm_node(member)]


def find_member(record: Record, machine: str) -> Member:
    """Return one member. Raises InputError listing the members."""
    members: List[Member] = record["members"]
    for member in members:
        if member["machine"] == machine:
            return member
    raise InputError(
        f"'{machine}' is not among the members of cluster '{record['name']}'.",
        f"Its members are {', '.join(member['machine'] for member in record['members'])}.",
        machine=machine,
    )


def named_members(record: Record) -> List[NamedMember]:
    """All members in rank order."""
    label_counts = Counter(str(member["machine"]).split(".", 1)[0] for member in record["members"])
    return [
        NamedMember(
            str(member["machine"]),
            _member_names(str(member["machine"]), label_counts),
            tuple(dict.fromkeys((cluster_address(record, member), str(member["address"])))),
            member,
        )
        for member in record["members"]
    ]


def _member_names(machine: str, label_counts: Mapping[str, int]) -> Tuple[str, ...]:
    if machine == "localhost" or _is_address(machine):
        return ()
    label = machine.split(".", 1)[0]
    return (machine,) if label == machine or label_counts[label] > 1 else (machine, label)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
