# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data that the layers derive from a record: pure functions, for hosts, the controller and filters."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils import version
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError, RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import history
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Member, Record


class MemberView(TypedDict):
    """A member as the layers above the mesh see it. ``rank`` from 0, in joining order."""

    machine: str
    rank: int
    address: str
    interface: str
    site: str
    endpoint: Optional[str]
    gpus: int
    manager: bool


class Tenure(NamedTuple):
    """The period in which one machine has managed the cluster, from this generation of the record on."""

    generation: int
    machine: str


class OlderVersionError(RecordError):
    """A newer version of this collection has applied the record."""

    def __init__(self, name: str, noted: str) -> None:
        super().__init__(
            f"Cluster '{name}' was last changed by gpumesh.cluster {noted}, and this is {version.VERSION}, which would "
            "undo what the newer version has set up.",
            f"Use gpumesh.cluster {noted} or newer. To go back to {version.VERSION}, set cluster_older_version=true.",
            collection_version=noted,
        )


#: The entry of plan.hand_over in the history; other changes in the same generation may follow it.
_HANDED_OVER = re.compile(r"the manager is ([^\s;]+), it was ([^\s;]+)(?:;|$)")


def cluster_address(record: Record, member: Member) -> str:
    """The address to which other members connect: the mesh address if there is a mesh, or else the member's own."""
    if record["mesh"]["backend"] != "none" and member["mesh"] is not None:
        return member["mesh"]["address"]
    return member["address"]


def cluster_interface(record: Record, member: Member) -> str:
    """The interface that has the cluster address."""
    if record["mesh"]["backend"] != "none" and member["mesh"] is not None:
        return record["mesh"]["interface"]
    return member["interface"]


def mesh_unit(record: Record) -> Optional[str]:
    """The systemd unit that provides the interface of the mesh; None without a mesh."""
    units = {"wireguard": f"wg-quick@{record['mesh']['interface']}.service", "tailscale": "tailscaled.service"}
    return units.get(record["mesh"]["backend"])


def member_views(record: Record) -> Dict[str, MemberView]:
    """Every member by its machine name, in rank order."""
    return {
        member["machine"]: {
            "machine": member["machine"],
            "rank": rank,
            "address": cluster_address(record, member),
            "interface": cluster_interface(record, member),
            "site": member["site"],
            "endpoint": member["endpoint"],
            "gpus": member["gpus"],
            "manager": member["machine"] == record["manager"],
        }
        for rank, member in enumerate(record["members"])
    }


def is_pod(record: Record, machine: str) -> bool:
    """Whether this machine is a node without an interface of its tailnet."""
    return machine in pods(record)


def pods(record: Record) -> List[str]:
    """The members that are nodes without an interface of their tailnet: their programs use the mesh through a library."""
    return [one["machine"] for one in record["members"] if one["mesh"] is not None and one["mesh"].get("userspace")]


def volumes_of(record: Record, machine: str) -> List[Dict[str, Any]]:
    """The volumes that a member mounts: none on a pod, which cannot mount."""
    return [] if is_pod(record, machine) else record["storage"]["volumes"]


def node_needs(record: Record, machine: str) -> Dict[str, Any]:
    """What the checks of a node expect of one member, by the names of their options. Raises InputError."""
    member, volumes = member_of(record, machine), volumes_of(record, machine)
    return {
        "gpus": member["gpus"],
        "rdma": member["rdma"],
        "cluster_address": cluster_address(record, member),
        # The server of a volume has the directory itself, not a mount.
        "mounts": [volume["mount_point"] for volume in volumes if volume.get("server", machine) != machine],
        "external_mounts": [volume["mount_point"] for volume in volumes if "server" not in volume],
        "read_only_mounts": [volume["mount_point"] for volume in volumes if volume.get("read_only")],
    }


def member_of(record: Record, machine: str) -> Member:
    """One member. Raises InputError listing the members."""
    for member in record["members"]:
        if member["machine"] == machine:
            return member
    raise InputError(
        f"'{machine}' is not among the members of cluster '{record['name']}'.",
        f"Its members are {', '.join(member['machine'] for member in record['members'])}.",
        machine=machine,
    )


def digest(record: Record) -> str:
    """A digest to send instead of the record. Only equal records have equal digests."""
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def tenures(record: Record) -> List[Tenure]:
    """The managers according to the history, each with its first generation, oldest first.

    The last one is the current one.
    """
    found: List[Tenure] = []
    for entry in record["history"]:
        match = _HANDED_OVER.match(entry["detail"]) if entry["change"] == "hand_over" else None
        if match:
            found = found or [Tenure(1, match.group(2))]
            found.append(Tenure(entry["generation"], match.group(1)))
    if found and found[-1].machine == record["manager"]:
        return found
    return [Tenure(1, record["manager"])]


class Relation(NamedTuple):
    """The relation of a copy to another.

    ``kind``: same, behind, ahead, diverged or other_cluster; ``reason`` is a message.
    """

    kind: str
    reason: str


def relation(copy: Record, reference: Record) -> Relation:
    """Compare ``copy`` with ``reference``: by identity, then by history, since equal generations prove nothing.

    Two managers that changed the record without knowing of each other both reach generation N + 1; only the history
    distinguishes them.
    """
    if copy["id"] != reference["id"]:
        return Relation(
            "other_cluster",
            f"it is another cluster with the name '{copy['name']}', created {copy['history'][0]['at']}, "
            f"while this one was created {reference['history'][0]['at']}",
        )
    if copy == reference:
        return Relation("same", f"generation {copy['generation']}")
    differ = history.difference(copy, reference)
    if differ:
        return Relation("diverged", differ)
    if copy["generation"] < reference["generation"]:
        return Relation("behind", f"generation {copy['generation']} of {reference['generation']}")
    if copy["generation"] > reference["generation"]:
        return Relation("ahead", f"generation {copy['generation']}, while {reference['generation']} was expected")
    return Relation("diverged", f"generation {copy['generation']} with the same history, but different content")


def refuse_newer(held: Sequence[Record], generation: int) -> None:
    """Refuse ``generation`` if this host has received a newer one meanwhile. Raises RecordError."""
    for record in held:
        if record["generation"] > generation:
            raise RecordError(
                f"This run uses generation {generation} of cluster '{record['name']}', but this host already has "
                f"generation {record['generation']}: {record['history'][-1]['detail']}.",
                "The cluster has been changed meanwhile. Run it again.",
                generation=record["generation"],
            )


def is_noted_newer(record: Record) -> bool:
    """Whether a newer version of this collection has applied the record."""
    noted = record["collection_version"]
    return noted is not None and version.is_older(version.VERSION, noted)


def notes_version(record: Record) -> bool:
    """Whether the record names this version of the collection, or an equivalent one."""
    noted = record["collection_version"]
    return noted is not None and version.precedence(noted) == version.precedence(version.VERSION)


def refuse_older_version(record: Record) -> None:
    """Refuse to change what a newer version of this collection has applied. Raises OlderVersionError.

    This one would set back what it knows, and leave behind what it does not know.
    """
    if is_noted_newer(record):
        raise OlderVersionError(record["name"], str(record["collection_version"]))


def conflicts(held: Sequence[Record], machine: str, wanted: Record) -> List[str]:
    """Why ``machine``, which has the records ``held``, cannot be in ``wanted``, one sentence for each reason.

    A host may be in several clusters, but in only one per subnet. Each mesh needs an interface, a port and a range of
    its own, and each volume a mount point. There is only one Tailscale daemon, and only one inventory group for names
    that differ by ``-`` and ``_``.
    """
    reasons = []
    for record in held:
        machines = [member["machine"] for member in record["members"]]
        if record["name"] == wanted["name"] or machine not in machines:
            continue
        ours, theirs = wanted["mesh"], record["mesh"]
        cluster = f"{machine} is in cluster '{record['name']}'"
        if group(record["name"]) == group(wanted["name"]):
            reasons.append(f"{cluster}, which would be the same inventory group {group(wanted['name'])}.")
        if record["subnet"] == wanted["subnet"]:
            reasons.append(f"{cluster} on the same subnet {record['subnet']}.")
        elif ours["backend"] == theirs["backend"] == "tailscale":
            reasons.append(f"{cluster}, and a host can be in only one tailnet.")
        elif "none" not in (ours["backend"], theirs["backend"]):
            same = [key for key in ("interface", "port") if dict(ours)[key] == dict(theirs)[key]]
            reasons += [f"{cluster}, whose mesh has the same {key} {dict(ours)[key]}." for key in same]
            if ipaddress.ip_network(ours["subnet"]).overlaps(ipaddress.ip_network(theirs["subnet"])):
                reasons.append(f"{cluster}, whose mesh has the overlapping subnet {theirs['subnet']}.")
        reasons += [f"{cluster}, which also has a volume at {point}." for point in _contested(record, wanted, machine)]
    return reasons


def _contested(one: Record, other: Record, machine: str) -> List[str]:
    """Mount points that two clusters have on ``machine``. External file systems may be volumes of both."""
    points = [
        {volume["mount_point"]: "server" in volume for volume in volumes_of(record, machine)} for record in (one, other)
    ]
    return sorted(point for point in points[0].keys() & points[1].keys() if points[0][point] or points[1][point])


def group(name: str) -> str:
    """The inventory group that represents a cluster."""
    return name.replace("-", "_")


def refuse_conflicts(held: Sequence[Record], machine: str, before: Optional[Record], wanted: Record) -> None:
    """Refuse conflicts of ``wanted`` with the other records on ``machine`` that ``before`` did not have.

    Raises InputError.
    """
    known = conflicts(held, machine, before) if before is not None else []
    reasons = [reason for reason in conflicts(held, machine, wanted) if reason not in known]
    if reasons:
        raise InputError(
            f"Cluster '{wanted['name']}' conflicts with another cluster on this host: {' '.join(reasons)}",
            "Remove the machine from one of them (playbook remove), or choose another mesh_interface, mesh_port, "
            "mesh_subnet and mount_point.",
            machine=machine,
        )
