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

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import history, membership
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import version
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError, RecordError


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
    slurm_node: bool


class ManagerTerm(NamedTuple):
    """The term of one machine as the manager, from this generation of the record on."""

    generation: int
    machine: str


class OlderVersionError(RecordError):
    """A newer version of this collection has applied the record."""

    def __init__(self, cluster_name: str, applied_version: str) -> None:
        super().__init__(
            f"Cluster '{cluster_name}' was last changed by gpumesh.cluster {applied_version}, and this is {version.VERSION}, which would "
            "undo what the newer version has set up.",
            f"Use gpumesh.cluster {applied_version} or newer. To go back to {version.VERSION}, set cluster_older_version=true, in AWX in "
            "the inventory.",
            collection_version=applied_version,
        )


#: The entry of plan.hand_over in the history; other changes in the same generation may follow it.
_HANDOVER_DETAIL = re.compile(r"the manager is ([^\s;]+), it was ([^\s;]+)(?:;|$)")


def mesh_unit(record: Record) -> Optional[str]:
    """The systemd unit that provides the interface of the mesh; None without a mesh."""
    unit_by_backend = {
        "wireguard": f"wg-quick@{record['mesh']['interface']}.service",
        "tailscale": "tailscaled.service",
    }
    return unit_by_backend.get(record["mesh"]["backend"])


def member_views(record: Record) -> Dict[str, MemberView]:
    """Every member by its machine name, in rank order."""
    return {
        member["machine"]: {
            "machine": member["machine"],
            "rank": rank,
            "address": membership.cluster_address(record, member),
            "interface": membership.cluster_interface(record, member),
            "site": member["site"],
            "endpoint": member["endpoint"],
            "gpus": member["gpus"],
            "manager": member["machine"] == record["manager"],
            "slurm_node": membership.is_slurm_node(member),
        }
        for rank, member in enumerate(record["members"])
    }


def is_pod(record: Record, machine: str) -> bool:
    """Whether this machine is a node without an interface of its tailnet."""
    return machine in find_pods(record)


def find_pods(record: Record) -> List[str]:
    """Return the members that are nodes without an interface of their tailnet.

    Their programs use the mesh through a library.
    """
    return [
        member["machine"]
        for member in record["members"]
        if member["mesh"] is not None and member["mesh"].get("userspace")
    ]


def mounted_volumes(record: Record, machine: str) -> List[Dict[str, Any]]:
    """The volumes that a member mounts: none on a pod, which cannot mount."""
    return [] if is_pod(record, machine) else record["storage"]["volumes"]


def node_requirements(record: Record, machine: str) -> Dict[str, Any]:
    """Return what the checks of a node expect of one member, by the names of their options. Raises InputError."""
    member, mounts = membership.find_member(record, machine), mounted_volumes(record, machine)
    return {
        "gpus": member["gpus"],
        "rdma": member["rdma"],
        "cluster_address": membership.cluster_address(record, member),
        # The server of a volume has the directory itself, not a mount.
        "mounts": [volume["mount_point"] for volume in mounts if volume.get("server", machine) != machine],
        "external_mounts": [volume["mount_point"] for volume in mounts if "server" not in volume],
        "read_only_mounts": [volume["mount_point"] for volume in mounts if volume.get("read_only")],
    }


def record_digest(record: Record) -> str:
    """A digest to send instead of the record. Only equal records have equal digests."""
    canonical_json = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical_json.encode("ascii")).hexdigest()


def manager_terms(record: Record) -> List[ManagerTerm]:
    """The managers according to the history, each with its first generation, oldest first.

    The last one is the current one.
    """
    manager_terms: List[ManagerTerm] = []
    for entry in record["history"]:
        handover_match = _HANDOVER_DETAIL.match(entry["detail"]) if entry["change"] == "hand_over" else None
        if handover_match:
            manager_terms = manager_terms or [ManagerTerm(1, handover_match.group(2))]
            manager_terms.append(ManagerTerm(entry["generation"], handover_match.group(1)))
    if manager_terms and manager_terms[-1].machine == record["manager"]:
        return manager_terms
    return [ManagerTerm(1, record["manager"])]


class Relation(NamedTuple):
    """The relation of a copy to another.

    ``kind``: same, behind, ahead, diverged or other_cluster; ``reason`` is a message.
    """

    kind: str
    reason: str


def compare_copies(copy: Record, reference_record: Record) -> Relation:
    """Compare ``copy`` with ``reference_record``.

    The identity comes first, then the history, since equal generations prove nothing: two managers that changed the
    record without knowing of each other both reach generation N + 1.
    """
    if copy["id"] != reference_record["id"]:
        return Relation(
            "other_cluster",
            f"it is another cluster with the name '{copy['name']}', created {copy['history'][0]['at']}, "
            f"while this one was created {reference_record['history'][0]['at']}",
        )
    if copy == reference_record:
        return Relation("same", f"generation {copy['generation']}")
    history_difference = history.find_difference(copy, reference_record)
    if history_difference:
        return Relation("diverged", history_difference)
    if copy["generation"] < reference_record["generation"]:
        return Relation("behind", f"generation {copy['generation']} of {reference_record['generation']}")
    if copy["generation"] > reference_record["generation"]:
        return Relation(
            "ahead", f"generation {copy['generation']}, while {reference_record['generation']} was expected"
        )
    return Relation("diverged", f"generation {copy['generation']} with the same history, but different content")


def refuse_newer_generation(local_records: Sequence[Record], generation: int) -> None:
    """Refuse ``generation`` if this host has received a newer one meanwhile. Raises RecordError."""
    for record in local_records:
        if record["generation"] > generation:
            raise RecordError(
                f"This run uses generation {generation} of cluster '{record['name']}', but this host already has "
                f"generation {record['generation']}: {record['history'][-1]['detail']}.",
                "The cluster has been changed meanwhile. Run it again.",
                generation=record["generation"],
            )


def is_applied_by_newer(record: Record) -> bool:
    """Whether a newer version of this collection has applied the record."""
    applied_version = record["collection_version"]
    return applied_version is not None and version.is_older(version.VERSION, applied_version)


def is_applied_by_this_version(record: Record) -> bool:
    """Whether the record names this version of the collection, or an equivalent one."""
    applied_version = record["collection_version"]
    return applied_version is not None and version.version_precedence(applied_version) == version.version_precedence(
        version.VERSION
    )


def refuse_older_version(record: Record) -> None:
    """Refuse to change a record that a newer version of this collection has applied. Raises OlderVersionError.

    This version would revert what it knows, and leave behind what it does not know.
    """
    if is_applied_by_newer(record):
        raise OlderVersionError(record["name"], str(record["collection_version"]))


def find_conflicts(local_records: Sequence[Record], machine: str, new_record: Record) -> List[str]:
    """Return the reasons why ``machine``, which has ``local_records``, cannot be in ``new_record``, as sentences.

    A host may be in several clusters, but in only one per subnet. Each mesh needs an interface, a port and a range of
    its own, and each volume a mount point. There is only one Tailscale daemon, and only one inventory group for names
    that differ by ``-`` and ``_``.
    """
    reasons = []
    for local_record in local_records:
        member_machines = [member["machine"] for member in local_record["members"]]
        if local_record["name"] == new_record["name"] or machine not in member_machines:
            continue
        own_mesh, other_mesh = new_record["mesh"], local_record["mesh"]
        conflict_subject = f"{machine} is in cluster '{local_record['name']}'"
        if inventory_group(local_record["name"]) == inventory_group(new_record["name"]):
            reasons.append(
                f"{conflict_subject}, which would be the same inventory group {inventory_group(new_record['name'])}."
            )
        if local_record["subnet"] == new_record["subnet"]:
            reasons.append(f"{conflict_subject} on the same subnet {local_record['subnet']}.")
        elif own_mesh["backend"] == other_mesh["backend"] == "tailscale":
            reasons.append(f"{conflict_subject}, and a host can be in only one tailnet.")
        elif "none" not in (own_mesh["backend"], other_mesh["backend"]):
            equal_settings = [key for key in ("interface", "port") if dict(own_mesh)[key] == dict(other_mesh)[key]]
            reasons += [
                f"{conflict_subject}, whose mesh has the same {key} {dict(own_mesh)[key]}." for key in equal_settings
            ]
            if ipaddress.ip_network(own_mesh["subnet"]).overlaps(ipaddress.ip_network(other_mesh["subnet"])):
                reasons.append(f"{conflict_subject}, whose mesh has the overlapping subnet {other_mesh['subnet']}.")
        reasons += [
            f"{conflict_subject}, which also has a volume at {mount_point}."
            for mount_point in _shared_mount_points(local_record, new_record, machine)
        ]
    return reasons


def _shared_mount_points(first_record: Record, second_record: Record, machine: str) -> List[str]:
    """Mount points that two clusters have on ``machine``. External file systems may be volumes of both."""
    server_by_mount_point = [
        {volume["mount_point"]: "server" in volume for volume in mounted_volumes(record, machine)}
        for record in (first_record, second_record)
    ]
    return sorted(
        mount_point
        for mount_point in server_by_mount_point[0].keys() & server_by_mount_point[1].keys()
        if server_by_mount_point[0][mount_point] or server_by_mount_point[1][mount_point]
    )


def inventory_group(cluster_name: str) -> str:
    """The inventory group that represents a cluster."""
    return cluster_name.replace("-", "_")


def refuse_conflicts(
    local_records: Sequence[Record], machine: str, record_before: Optional[Record], record_after: Record
) -> None:
    """Refuse conflicts of ``record_after`` with other records on ``machine`` that ``record_before`` did not have.

    Raises InputError.
    """
    previous_reasons = find_conflicts(local_records, machine, record_before) if record_before is not None else []
    new_reasons = [
        reason for reason in find_conflicts(local_records, machine, record_after) if reason not in previous_reasons
    ]
    if new_reasons:
        raise InputError(
            f"Cluster '{record_after['name']}' conflicts with another cluster on this host: {' '.join(new_reasons)}",
            "Remove the machine from one of them (playbook remove), or choose another mesh_interface, mesh_port, "
            "mesh_subnet and mount_point.",
            machine=machine,
        )
