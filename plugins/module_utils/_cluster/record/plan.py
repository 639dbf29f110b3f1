# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of a record: pure functions, which raise InputError before anything is changed.

Each step takes a record and returns ``Draft(record, changes)``: a new record of the same generation, and the
differences as messages. Steps of one request are chained, and ``commit`` makes one generation of them, or returns the
old record if nothing differs. This module reads no clock, disk or environment.
"""

from __future__ import annotations

import copy
import ipaddress
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import (
    derive,
    history,
    membership,
    model,
    values,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Member, MemberMesh, Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.volume import (
    check_nesting,
    check_new_volume,
    check_volume,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import version
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError


class Change(NamedTuple):
    """One difference. ``kind``: create, join, update, remove, hand_over, keys, mesh, storage, tracking or version."""

    kind: str
    detail: str
    machines: Sequence[str] = ()


class Draft(NamedTuple):
    """A record that is not committed yet, and its changes. Without changes, the record is the old one."""

    record: Record
    changes: Sequence[Change]


class ChangeStamp(NamedTuple):
    """The time and the author of a change, for the history. ``changed_at`` is in the form of values.current_time()."""

    changed_at: str
    actor_name: str


#: The default settings of a mesh.
DEFAULT_MESH: model.MeshSettings = {
    "backend": "wireguard",
    "subnet": "10.99.0.0/16",
    "port": 51820,
    "interface": "gpumesh0",
    "mtu": None,
}

#: The default settings of a tailnet, with the range from which its control server assigns addresses by default.
DEFAULT_TAILNET: model.MeshSettings = {
    "backend": "tailscale",
    "subnet": "100.64.0.0/10",
    "port": 41641,
    "interface": "tailscale0",
    "mtu": None,
}

_MEMBER_KEYS = (
    "address",
    "interface",
    "site",
    "lan_address",
    "endpoint",
    "gpus",
    "rdma",
    "slurm_node",
    "mesh",
    "ssh_host_keys",
    "ssh_public_key",
)


def create(
    cluster_id: str,
    cluster_name: str,
    subnet: str,
    manager: str,
    mesh_overrides: Mapping[str, Any],
    requested_members: Sequence[Mapping[str, Any]],
    stamp: ChangeStamp,
) -> Draft:
    """Draft a new cluster with its first members, the manager among them, as generation 0; ``commit`` makes it 1.

    ``cluster_id``: 32 hexadecimal digits that no other cluster has. ``mesh_overrides``: the differences from
    DEFAULT_MESH. ``requested_members``: as for ``join``.
    """
    record: Record = {
        "schema_version": model.SCHEMA_VERSION,
        "id": cluster_id,
        "name": _check_text(values.cluster_name, cluster_name),
        "generation": 0,
        "subnet": _check_text(values.subnet, subnet),
        "manager": _check_text(values.machine_name, manager),
        "collection_version": version.VERSION,
        "members": [],
        "removed": [],
        "mesh": DEFAULT_MESH,
        "storage": {"volumes": []},
        "tracking": None,
        "history": [],
    }
    record["mesh"] = _merge_mesh(record, mesh_overrides)
    _refuse_unusable_mesh(record)
    joined_record = join(record, requested_members, stamp).record
    member_machines = [member["machine"] for member in joined_record["members"]]
    if manager not in member_machines:
        raise InputError(
            f"Cluster '{cluster_name}' cannot be created: its manager '{manager}' is not among its members "
            f"({', '.join(member_machines) or 'none given'}).",
            "Add the manager to the members, or choose one of them as the manager.",
            manager=manager,
            members=member_machines,
        )
    detail = (
        f"created on {joined_record['subnet']} with manager {manager} and {_format_names('member', member_machines)}"
    )
    return Draft(joined_record, [Change("create", detail, member_machines)])


def join(record: Record, requested_members: Sequence[Mapping[str, Any]], stamp: ChangeStamp) -> Draft:
    """Add new members; update the given keys that are not None of existing ones.

    A member consists of machine, address, interface, and optionally site, lan_address and endpoint (texts; empty
    removes it), gpus, rdma, slurm_node, mesh {address, public_key, userspace}, ssh_host_keys, ssh_public_key. If the
    members share only the mesh (the cluster's subnet is the mesh's), address and interface are those of the mesh,
    whatever is given.
    """
    new_record = copy.deepcopy(record)
    members_by_machine = {member["machine"]: member for member in new_record["members"]}
    for requested_member in requested_members:
        _check_types(requested_member)
    duplicate_machine = _first_duplicate(
        [str(requested_member.get("machine")) for requested_member in requested_members]
    )
    if duplicate_machine:
        raise InputError(
            f"Machine '{duplicate_machine}' is listed twice.", "List each machine once.", machine=duplicate_machine
        )
    free_addresses = _free_addresses(new_record)
    joined_machines: List[str] = []
    updates_by_machine: Dict[str, List[str]] = {}
    for requested_member in requested_members:
        machine = _check_text(values.machine_name, str(requested_member.get("machine")))
        present_member = members_by_machine.get(machine)
        given_settings = {key: requested_member[key] for key in _MEMBER_KEYS if requested_member.get(key) is not None}
        if present_member is None:
            new_record["members"].append(_new_member(new_record, machine, given_settings, stamp, free_addresses))
            joined_machines.append(machine)
            continue
        differences = _update_member(new_record, present_member, given_settings)
        if differences:
            updates_by_machine[machine] = differences
    _refuse_shared_attributes(new_record)
    _refuse_unusable_mesh(new_record)
    if new_record["members"] and not membership.slurm_nodes(new_record):
        raise InputError(
            f"No member of cluster '{record['name']}' would run jobs: slurm_node is false for all of them.",
            "Set slurm_node=true for at least one of them, or add a machine that runs jobs.",
        )
    changes = []
    if joined_machines:
        rejoining_machines = {machine.lower() for machine in joined_machines}
        _refuse_untrusted(new_record, rejoining_machines)
        new_record["removed"] = [
            removed_member
            for removed_member in new_record["removed"]
            if removed_member["machine"].lower() not in rejoining_machines
        ]
        changes.append(Change("join", f"{_format_names('machine', joined_machines)} joined", joined_machines))
    for machine, differences in updates_by_machine.items():
        changes.append(Change("update", f"{machine}: {', '.join(differences)}", [machine]))
    return Draft(new_record, changes) if changes else Draft(record, [])


def _refuse_untrusted(record: Record, joining_machines: Set[str]) -> None:
    """Refuse machines whose keys still have to be changed: the record would forget that.

    ``joining_machines``: in lower case.
    """
    untrusted_machines = [
        removed_member["machine"]
        for removed_member in record["removed"]
        if removed_member["keys"] == "untrusted" and removed_member["machine"].lower() in joining_machines
    ]
    if untrusted_machines:
        raise InputError(
            f"{', '.join(untrusted_machines)} was removed from cluster '{record['name']}' as not trusted, but the keys that it "
            "had are still in use.",
            f"Replace them first: run the playbook remove with cluster_machine={','.join(untrusted_machines)} and "
            "cluster_untrusted=true again.",
            machines=untrusted_machines,
        )


def remove(
    record: Record,
    requested_machines: Sequence[str],
    stamp: ChangeStamp,
    new_manager: Optional[str] = None,
    force: bool = False,
) -> Draft:
    """Remove machines and record them; those that are not members are ignored.

    ``new_manager`` is required if the manager leaves. With ``force``, the server of a volume or of the experiments may
    leave too, and is removed from the record with it.
    """
    leaving_machines = [
        member["machine"] for member in record["members"] if member["machine"] in set(requested_machines)
    ]
    remaining_machines = [
        member["machine"] for member in record["members"] if member["machine"] not in set(requested_machines)
    ]
    if not leaving_machines and new_manager is None:
        return Draft(record, [])
    if not remaining_machines:
        raise InputError(
            f"Cluster '{record['name']}' would have no members left without {', '.join(leaving_machines)}.",
            "Delete the cluster instead (playbook delete).",
            machines=leaving_machines,
        )
    if not set(membership.slurm_nodes(record)) - set(leaving_machines):
        raise InputError(
            f"Cluster '{record['name']}' would have no node left that runs jobs without {', '.join(leaving_machines)}.",
            f"Add another one first (playbook join), set slurm_node=true for one of {', '.join(remaining_machines)} and run "
            "site, or delete the cluster (playbook delete).",
            machines=leaving_machines,
        )
    handover_draft = Draft(record, [])
    if record["manager"] in leaving_machines and new_manager is None:
        raise InputError(
            f"'{record['manager']}' is the manager of cluster '{record['name']}' and cannot be removed without a "
            "successor.",
            f"Set cluster_new_manager to one of the remaining members: {', '.join(remaining_machines)}.",
            manager=record["manager"],
            candidates=remaining_machines,
        )
    if new_manager is not None:
        if new_manager in leaving_machines:
            raise InputError(
                f"'{new_manager}' cannot be the new manager of '{record['name']}': it is removed in the same step.",
                f"Choose one of the remaining members: {', '.join(remaining_machines)}.",
                candidates=remaining_machines,
            )
        handover_draft = hand_over(record, new_manager)
    new_record = copy.deepcopy(handover_draft.record)
    orphaned_volumes = [
        volume for volume in new_record["storage"]["volumes"] if volume.get("server") in leaving_machines
    ]
    if orphaned_volumes and not force:
        volume_descriptions = "; ".join(
            f"'{volume['name']}' in {volume['server']}:{volume['path']}" for volume in orphaned_volumes
        )
        raise InputError(
            f"The data of {volume_descriptions} would be left behind.",
            "Copy it to a remaining member and set that as the volume's server in storage_volumes, or remove the "
            "volume from storage_volumes, and run the storage playbook first. If the machine is lost, set "
            "cluster_force=true: the volume is removed from the cluster, and data that still exists stays where it is.",
            volumes=orphaned_volumes,
        )
    changes = list(handover_draft.changes)
    if leaving_machines:
        new_record["members"] = [member for member in new_record["members"] if member["machine"] in remaining_machines]
        new_record["removed"] += [
            {"machine": machine, "at": stamp.changed_at, "keys": "kept"} for machine in leaving_machines
        ]
        changes.append(Change("remove", f"{_format_names('machine', leaving_machines)} left", leaving_machines))
    if orphaned_volumes:
        new_record["storage"]["volumes"] = [
            volume for volume in new_record["storage"]["volumes"] if volume not in orphaned_volumes
        ]
        changes.append(
            Change("storage", f"{_format_names('volume', [volume['name'] for volume in orphaned_volumes])} left")
        )
    tracking_draft = _remove_tracking_server(
        new_record, leaving_machines, remaining_machines, [volume["name"] for volume in orphaned_volumes], force
    )
    new_record, changes = tracking_draft.record, [*changes, *tracking_draft.changes]
    return Draft(new_record, changes) if changes else Draft(record, [])


def _remove_tracking_server(
    record: Record,
    leaving_machines: Sequence[str],
    remaining_machines: Sequence[str],
    lost_volumes: Sequence[str],
    force: bool,
) -> Draft:
    """Stop tracking experiments if the server or the volume of the artifacts is removed, which requires ``force``."""
    tracking = record["tracking"]
    if tracking is None or not (tracking["server"] in leaving_machines or tracking["volume"] in lost_volumes):
        return Draft(record, [])
    if not force:
        raise InputError(
            f"The database of the experiments on {tracking['server']} would be left behind.",
            f"Move it first, with the playbook tracking and tracking_server set to one of {', '.join(remaining_machines)}. If the "
            "machine is lost, set cluster_force=true: the tracking server is removed from the cluster, and data that "
            "still exists stays where it is.",
            server=tracking["server"],
            candidates=list(remaining_machines),
        )
    return set_tracking(record, {"enabled": False})


def distrust(record: Record, removed_machines: Sequence[str]) -> Draft:
    """Record that the keys of these removed machines have to be changed, unless they already were."""
    new_record = copy.deepcopy(record)
    untrusted_members = [
        removed_member
        for removed_member in new_record["removed"]
        if removed_member["machine"] in set(removed_machines) and removed_member["keys"] == "kept"
    ]
    for untrusted_member in untrusted_members:
        untrusted_member["keys"] = "untrusted"
    untrusted_machines = [untrusted_member["machine"] for untrusted_member in untrusted_members]
    return (
        Draft(new_record, [Change("keys", f"{', '.join(untrusted_machines)} not trusted", untrusted_machines)])
        if untrusted_machines
        else Draft(record, [])
    )


def mark_keys_changed(record: Record) -> Draft:
    """Record that no key of a removed machine is in use any more."""
    unchanged_machines = [
        removed_member["machine"] for removed_member in record["removed"] if removed_member["keys"] != "changed"
    ]
    if not unchanged_machines:
        return Draft(record, [])
    new_record = copy.deepcopy(record)
    for removed_member in new_record["removed"]:
        removed_member["keys"] = "changed"
    return Draft(
        new_record, [Change("keys", f"other keys than {', '.join(unchanged_machines)} had", unchanged_machines)]
    )


def hand_over(record: Record, new_manager: str) -> Draft:
    """Make another member the manager."""
    member_machines = [member["machine"] for member in record["members"]]
    if new_manager not in member_machines:
        raise InputError(
            f"'{new_manager}' cannot be the manager of '{record['name']}': it is not among the members.",
            f"Choose one of its members: {', '.join(member_machines)}.",
            candidates=member_machines,
        )
    if new_manager == record["manager"]:
        return Draft(record, [])
    new_record = copy.deepcopy(record)
    new_record["manager"] = new_manager
    detail = f"the manager is {new_manager}, it was {record['manager']}"
    return Draft(new_record, [Change("hand_over", detail, [record["manager"], new_manager])])


def set_mesh(record: Record, mesh_overrides: Mapping[str, Any]) -> Draft:
    """Change the keys of the mesh that are given and not None.

    A new backend or subnet means new mesh addresses for all members; with a new subnet, the keys stay.
    """
    new_mesh = _merge_mesh(record, mesh_overrides)
    old_mesh = record["mesh"]
    if new_mesh == old_mesh:
        return Draft(record, [])
    has_only_mesh = shares_only_mesh(record)
    if has_only_mesh and (new_mesh["backend"] == "none" or new_mesh["subnet"] != old_mesh["subnet"]):
        raise InputError(
            f"The members of '{record['name']}' share no network except the mesh ({old_mesh['backend']} on "
            f"{old_mesh['subnet']}), so it cannot be changed to {new_mesh['backend']} on {new_mesh['subnet']}.",
            "Keep mesh_backend and mesh_subnet, or delete the cluster and create it again.",
        )
    new_record = copy.deepcopy(record)
    new_record["mesh"] = new_mesh
    _refuse_unusable_mesh(new_record)
    addresses_change = new_mesh["backend"] != old_mesh["backend"] or new_mesh["subnet"] != old_mesh["subnet"]
    mesh_by_machine = {member["machine"]: member["mesh"] for member in new_record["members"]}
    if addresses_change:
        for member in new_record["members"]:
            member["mesh"] = None
        free_addresses = _free_addresses(new_record)
        for member in new_record["members"]:
            old_member_mesh = mesh_by_machine[member["machine"]]
            kept_key = (
                old_member_mesh["public_key"]
                if old_member_mesh and new_mesh["backend"] == old_mesh["backend"]
                else None
            )
            member["mesh"] = _allocate_mesh_address(new_record, free_addresses, kept_key)
    if has_only_mesh:
        for member in new_record["members"]:
            member["interface"] = new_mesh["interface"]
    changed_settings = ", ".join(
        f"{key} {_format_setting(new_setting)} (was {_format_setting(dict(old_mesh)[key])})"
        for key, new_setting in new_mesh.items()
        if new_setting != dict(old_mesh)[key]
    )
    return Draft(
        new_record,
        [Change("mesh", f"mesh: {changed_settings}", [member["machine"] for member in new_record["members"]])],
    )


def set_storage(record: Record, requested_volumes: Sequence[Mapping[str, Any]]) -> Draft:
    """Set the volumes of the cluster. Each server must be a member; names and mount points must be distinct.

    A volume without server and path is an external file system.
    """
    member_machines = {member["machine"] for member in record["members"]}
    new_volumes: List[Dict[str, Any]] = []
    for volume in requested_volumes:
        if not isinstance(volume, Mapping):
            raise InputError(f"{volume!r} is not a storage volume.", "Give each volume a name and a mount_point.")
        # Fields of a form may be empty.
        normalized_volume = {key: copy.deepcopy(value) for key, value in volume.items() if value is not None}
        served_keys = {"server", "path"} & set(normalized_volume)
        required_keys = ("name", *(("server", "path") if served_keys else ()), "mount_point")
        missing_keys = [key for key in required_keys if not isinstance(normalized_volume.get(key), str)]
        if missing_keys:
            raise InputError(
                f"A storage volume has no {' and no '.join(missing_keys)}: {dict(volume)}.",
                "Give each volume name, server, path and mount_point, or only name and mount_point for an existing "
                "file system.",
            )
        normalized_volume["name"] = _check_text(values.volume_name, normalized_volume["name"])
        for key, normalize in (("mount_point", values.mount_point), ("path", values.absolute_path))[
            : 2 if served_keys else 1
        ]:
            try:
                normalized_volume[key] = normalize(normalized_volume[key])
            except ValueError as failure:
                raise InputError(
                    f"Volume '{normalized_volume['name']}', {key}: {failure}.",
                    "Correct it in storage_volumes.",
                    value=normalized_volume[key],
                ) from failure
        if served_keys and normalized_volume["server"] not in member_machines:
            raise InputError(
                f"The server '{normalized_volume['server']}' of volume '{normalized_volume['name']}' is not among the members of "
                f"'{record['name']}'.",
                f"Choose one of its members: {', '.join(sorted(member_machines))}.",
                volume=normalized_volume["name"],
            )
        try:
            check_volume(normalized_volume)
        except ValueError as failure:
            raise _invalid_volume_error(normalized_volume["name"], failure) from failure
        new_volumes.append(normalized_volume)
    _check_volume_set(new_volumes)
    old_volumes = {volume["name"]: volume for volume in record["storage"]["volumes"]}
    if new_volumes == record["storage"]["volumes"]:
        return Draft(record, [])
    _check_new_volumes(record, new_volumes)
    volume_names = {volume["name"] for volume in new_volumes}
    tracking = record["tracking"]
    if tracking is not None and tracking["volume"] not in volume_names:
        raise InputError(
            f"Volume '{tracking['volume']}' has the artifacts of the experiments, and is not among the volumes.",
            "Keep it in storage_volumes, or switch the tracking off first, with the playbook tracking and "
            "tracking_state=absent.",
            volume=tracking["volume"],
        )
    new_record = copy.deepcopy(record)
    new_record["storage"]["volumes"] = new_volumes
    volume_changes = [f"{volume['name']} set" for volume in new_volumes if old_volumes.get(volume["name"]) != volume]
    volume_changes += [f"{volume_name} removed" for volume_name in old_volumes if volume_name not in volume_names]
    return Draft(new_record, [Change("storage", f"volumes: {', '.join(volume_changes) or 'new order'}")])


#: The defaults of a tracking server. The port is MLflow's own.
TRACKING_PORT = 5000


def set_tracking(record: Record, requested_tracking: Mapping[str, Any]) -> Draft:
    """Change the keys of the tracking server that are given and not None: server, port, volume, tls and certificates.

    With ``enabled`` false, it is removed. By default, it runs on the manager, with the artifacts on the first writable
    volume.
    """
    old_tracking = record["tracking"]
    new_tracking = _merge_tracking(record, requested_tracking) if requested_tracking.get("enabled", True) else None
    if new_tracking == old_tracking:
        return Draft(record, [])
    new_record = copy.deepcopy(record)
    new_record["tracking"] = new_tracking
    if new_tracking is None:
        return Draft(new_record, [Change("tracking", "experiments are no longer tracked")])
    old_settings: Dict[str, Any] = dict(old_tracking) if old_tracking is not None else {}
    printable_settings = {**new_tracking, "certificates": len(new_tracking["certificates"])}
    changed_settings = [
        f"{key} {_format_setting(printable_settings[key])}"
        for key, value in new_tracking.items()
        if old_settings.get(key, []) != value
    ]
    affected_machines = (
        [new_tracking["server"]] if old_tracking is None else sorted({old_tracking["server"], new_tracking["server"]})
    )
    return Draft(new_record, [Change("tracking", f"tracking: {', '.join(changed_settings)}", affected_machines)])


def _merge_tracking(record: Record, requested_tracking: Mapping[str, Any]) -> model.TrackingSettings:
    writable_volumes = [volume["name"] for volume in record["storage"]["volumes"] if not volume.get("read_only")]
    base_settings: Dict[str, Any] = {
        "server": record["manager"],
        "port": TRACKING_PORT,
        "volume": writable_volumes[0] if writable_volumes else None,
        "tls": False,
        "certificates": [],
        **(record["tracking"] or {}),
    }
    given_settings = {
        key: value for key, value in requested_tracking.items() if key in base_settings and value is not None
    }
    merged_settings = {**base_settings, **given_settings}
    member_machines = [member["machine"] for member in record["members"]]
    if merged_settings["server"] not in member_machines:
        raise InputError(
            f"tracking_server '{merged_settings['server']}' is not among the members of '{record['name']}'.",
            f"Choose one of its members: {', '.join(member_machines)}.",
            candidates=member_machines,
        )
    if derive.is_pod(record, merged_settings["server"]):
        mounting_machines = [machine for machine in member_machines if not derive.is_pod(record, machine)]
        raise InputError(
            f"tracking_server '{merged_settings['server']}' is a container without TUN, which has no volume for the artifacts.",
            f"Choose one of {', '.join(mounting_machines)}.",
            candidates=mounting_machines,
        )
    if merged_settings["volume"] not in writable_volumes:
        raise InputError(
            f"tracking_volume '{merged_settings['volume']}' is not a volume that the members of '{record['name']}' can write to."
            if merged_settings["volume"]
            else f"Cluster '{record['name']}' has no volume for the artifacts of experiments.",
            f"Choose one of {', '.join(writable_volumes)}."
            if writable_volumes
            else "Set storage_volumes, and run the playbook storage.",
            volumes=writable_volumes,
        )
    current_tracking = record["tracking"]
    if current_tracking is not None and merged_settings["volume"] != current_tracking["volume"]:
        raise InputError(
            f"The artifacts of the experiments are on volume '{current_tracking['volume']}', not on '{merged_settings['volume']}'.",
            f"Set tracking_volume to {current_tracking['volume']}, or leave it out.",
            volume=current_tracking["volume"],
        )
    return {
        "server": merged_settings["server"],
        "port": _check_number("tracking port", merged_settings["port"], 1024, 65535),
        "volume": merged_settings["volume"],
        "tls": bool(merged_settings["tls"]),
        "certificates": list(merged_settings["certificates"]) if merged_settings["tls"] else [],
    }


def _check_new_volumes(record: Record, new_volumes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what only records of earlier versions may have, so that they stay usable until their volumes change."""
    mounting_machines = [
        member["machine"] for member in record["members"] if not derive.is_pod(record, member["machine"])
    ]
    for volume in new_volumes:
        if "server" in volume and volume["server"] not in mounting_machines:
            raise InputError(
                f"The server '{volume['server']}' of volume '{volume['name']}' is a container without TUN, which cannot "
                "serve volumes.",
                f"Choose one of {', '.join(mounting_machines)}.",
                volume=volume["name"],
                candidates=mounting_machines,
            )
        try:
            check_new_volume(volume, new_volumes)
        except ValueError as failure:
            raise _invalid_volume_error(volume["name"], failure) from failure


def _invalid_volume_error(volume_name: str, failure: ValueError) -> InputError:
    return InputError(f"Volume '{volume_name}': {failure}.", "Correct it in storage_volumes.", volume=volume_name)


def _check_volume_set(new_volumes: Sequence[Mapping[str, Any]]) -> None:
    for key in ("name", "mount_point"):
        duplicate_text = _first_duplicate([volume[key] for volume in new_volumes])
        if duplicate_text:
            raise InputError(f"Two storage volumes have the {key} '{duplicate_text}'.", "Give each volume its own.")
    try:
        check_nesting(new_volumes)
    except ValueError as failure:
        raise InputError(
            f"{str(failure)[:1].upper()}{str(failure)[1:]}.",
            "Choose a mount point outside of that one, and create a symbolic link where it is expected.",
        ) from failure


def note_version(record: Record) -> Draft:
    """Record that this version of the collection applies the record, unless it says so already."""
    if derive.is_applied_by_this_version(record):
        return Draft(record, [])
    new_record = copy.deepcopy(record)
    new_record["collection_version"] = version.VERSION
    detail = f"gpumesh.cluster {version.VERSION} (was {record['collection_version'] or 'not noted'})"
    return Draft(new_record, [Change("version", detail)])


def commit(draft: Draft, stamp: ChangeStamp) -> Record:
    """Return the drafted record as the next generation, with its changes in the history.

    Returns the old record if nothing changed. The older entries of a long history are folded.
    """
    if not draft.changes:
        return draft.record
    new_record = copy.deepcopy(draft.record)
    new_record["generation"] += 1
    new_record["history"].append(
        {
            "generation": new_record["generation"],
            "at": stamp.changed_at,
            "by": "".join(character if character.isprintable() else " " for character in stamp.actor_name).strip(),
            "change": draft.changes[0].kind,
            "detail": "; ".join(change.detail for change in draft.changes),
        }
    )
    return history.fold_history(new_record)


def chain_steps(record: Record, *steps: Callable[[Record], Draft]) -> Draft:
    """Apply all steps to a record, one after the other."""
    changes: List[Change] = []
    for step in steps:
        draft = step(record)
        record = draft.record
        changes.extend(draft.changes)
    return Draft(record, changes)


def shares_only_mesh(record: Record) -> bool:
    """Whether the machines have no common network: then the cluster's subnet is the mesh's."""
    return record["mesh"]["backend"] != "none" and record["subnet"] == record["mesh"]["subnet"]


def check_subnet(record: Record, subnet: Optional[str]) -> None:
    """Refuse a subnet that is not the cluster's: a cluster cannot be moved, only created again."""
    if subnet is not None and _check_text(values.subnet, subnet) != record["subnet"]:
        raise InputError(
            f"Cluster '{record['name']}' is on {record['subnet']}, not on {_check_text(values.subnet, subnet)}.",
            f"Omit cluster_subnet or set it to {record['subnet']}; to move the cluster, delete it and create it again.",
            subnet=record["subnet"],
        )


def _new_member(
    record: Record, machine: str, given_settings: Mapping[str, Any], stamp: ChangeStamp, free_addresses: Iterator[str]
) -> Member:
    member: Member = {
        "machine": machine,
        "address": "",
        "interface": "",
        "site": _check_text(values.site_name, given_settings.get("site", model.DEFAULT_SITE)),
        "lan_address": _check_lan_address(record, given_settings.get("lan_address", "")),
        "endpoint": _check_endpoint(record, given_settings.get("endpoint", "")),
        "joined_at": stamp.changed_at,
        "gpus": _check_gpu_count(machine, given_settings.get("gpus", 0)),
        "rdma": _check_rdma(machine, given_settings.get("rdma")),
        "mesh": None,
        "ssh_host_keys": [_check_text(values.ssh_key, key) for key in given_settings.get("ssh_host_keys", [])],
        "ssh_public_key": _check_text(values.ssh_key, given_settings["ssh_public_key"])
        if given_settings.get("ssh_public_key")
        else None,
    }
    _set_slurm_node(member, given_settings.get("slurm_node", True))
    given_mesh = given_settings.get("mesh") or {}
    if given_mesh.get("address"):
        member["mesh"] = _merge_member_mesh(record, machine, given_mesh, None)
    else:
        member["mesh"] = _allocate_mesh_address(
            record, free_addresses, _check_mesh_key(record, given_mesh.get("public_key"))
        )
    if shares_only_mesh(record):
        allocated_mesh = member["mesh"]
        if allocated_mesh is None:
            raise InputError(
                f"{machine} has no mesh address yet, and cluster '{record['name']}' has no other network.",
                f"Set mesh.address to its address in the {record['mesh']['backend']} network.",
                machine=machine,
            )
        member["address"], member["interface"] = allocated_mesh["address"], record["mesh"]["interface"]
        return member
    if "address" not in given_settings or "interface" not in given_settings:
        raise InputError(
            f"{machine} cannot join '{record['name']}': its address in {record['subnet']} and its interface are "
            "required.",
            "Set address and interface.",
            machine=machine,
        )
    member["address"] = _check_address(record, machine, given_settings["address"])
    member["interface"] = _check_text(values.interface_name, given_settings["interface"])
    return member


def _check_types(requested_member: object) -> None:
    """Refuse members with values of the wrong type."""
    if not isinstance(requested_member, Mapping):
        raise InputError(f"{requested_member!r} is not a member.", "Give each a machine, an address and an interface.")
    given_mesh, host_keys = requested_member.get("mesh"), requested_member.get("ssh_host_keys")
    runs_jobs = requested_member.get("slurm_node")
    if runs_jobs is not None and not isinstance(runs_jobs, bool):
        raise InputError(f"{runs_jobs!r} is not a boolean.", "Set slurm_node to true or false.")
    if given_mesh is not None and not isinstance(given_mesh, Mapping):
        raise InputError(f"{given_mesh!r} is not the mesh data of a member.", "Give mesh as address and public_key.")
    if host_keys is not None and not isinstance(host_keys, (list, tuple)):
        raise InputError(f"{host_keys!r} is not a list of keys.", "Give ssh_host_keys as a list.")


def _update_member(record: Record, member: Member, given_settings: Mapping[str, Any]) -> List[str]:
    """Merge the given keys into the member. Returns the differences as messages."""
    machine = member["machine"]
    member_before = copy.deepcopy(member)
    if shares_only_mesh(record):
        given_settings = {key: value for key, value in given_settings.items() if key not in ("address", "interface")}
    member["address"] = _check_address(record, machine, given_settings.get("address", member["address"]))
    member["interface"] = _check_text(values.interface_name, given_settings.get("interface", member["interface"]))
    member["site"] = _check_text(values.site_name, given_settings.get("site", member["site"]))
    member["lan_address"] = _check_lan_address(record, given_settings.get("lan_address", member["lan_address"] or ""))
    member["endpoint"] = _check_endpoint(record, given_settings.get("endpoint", member["endpoint"] or ""))
    member["gpus"] = _check_gpu_count(machine, given_settings.get("gpus", member["gpus"]))
    member["rdma"] = _check_rdma(machine, given_settings.get("rdma", member["rdma"]))
    _set_slurm_node(member, given_settings.get("slurm_node", membership.is_slurm_node(member)))
    member["ssh_host_keys"] = [
        _check_text(values.ssh_key, key) for key in given_settings.get("ssh_host_keys", member["ssh_host_keys"])
    ]
    public_key = given_settings.get("ssh_public_key", member["ssh_public_key"])
    member["ssh_public_key"] = _check_text(values.ssh_key, public_key) if public_key else None
    if "mesh" in given_settings:
        merged_mesh = _merge_member_mesh(record, machine, given_settings["mesh"], member["mesh"])
        member["mesh"] = merged_mesh
        if shares_only_mesh(record):
            member["address"] = merged_mesh["address"]
    old_settings, new_settings = (
        {**entry, "slurm_node": membership.is_slurm_node(entry)} for entry in (member_before, member)
    )
    # Keys are long and mean nothing to a reader of the history; that they have changed does.
    undisclosed_keys = ("ssh_host_keys", "ssh_public_key", "mesh")
    return [
        f"new {key}"
        if key in undisclosed_keys
        else f"{key} {_format_setting(new_settings[key])} (was {_format_setting(old_settings[key])})"
        for key in _MEMBER_KEYS
        if new_settings[key] != old_settings[key]
    ]


def _set_slurm_node(member: Member, runs_jobs: bool) -> None:
    """Set whether the member runs jobs. The record only says so of a member that does not."""
    member.pop("slurm_node", None)
    if not runs_jobs:
        member["slurm_node"] = False


def _merge_member_mesh(
    record: Record, machine: str, given_mesh: Mapping[str, Any], present_mesh: Optional[MemberMesh]
) -> MemberMesh:
    if record["mesh"]["backend"] == "none":
        raise InputError(
            f"{machine} has mesh data, but cluster '{record['name']}' has no mesh.",
            "Set mesh_backend to wireguard or tailscale first.",
            machine=machine,
        )
    address = given_mesh.get("address") or (present_mesh["address"] if present_mesh else None)
    if address is None:
        raise InputError(f"{machine} has a mesh key, but no mesh address.", "Give mesh.address.", machine=machine)
    address = _check_text(values.address, address)
    mesh_network = ipaddress.ip_network(record["mesh"]["subnet"])
    if record["mesh"]["backend"] == "wireguard" and not values.is_host_of(address, mesh_network):
        raise InputError(
            f"{machine}: the mesh address {address} is not a host address of the mesh's subnet {mesh_network}.",
            "Omit it to have a free one chosen.",
            machine=machine,
            address=address,
        )
    given_key = given_mesh.get("public_key")
    merged_mesh: MemberMesh = {
        "address": address,
        "public_key": _check_mesh_key(record, given_key)
        if given_key
        else (present_mesh["public_key"] if present_mesh else None),
    }
    given_userspace = given_mesh.get("userspace")
    if given_userspace or (given_userspace is None and present_mesh is not None and present_mesh.get("userspace")):
        merged_mesh["userspace"] = True
    return merged_mesh


def _check_mesh_key(record: Record, public_key: Optional[str]) -> Optional[str]:
    if public_key is None or record["mesh"]["backend"] != "wireguard":
        return _check_text(values.printable_line, public_key) if public_key is not None else None
    return _check_text(values.wireguard_key, public_key)


def _allocate_mesh_address(
    record: Record, free_addresses: Iterator[str], public_key: Optional[str]
) -> Optional[MemberMesh]:
    """Return a mesh address for a member: the next free one.

    The control server of a tailnet assigns its addresses, so a member has none until it has joined.
    """
    if record["mesh"]["backend"] != "wireguard":
        return None
    address = next(free_addresses, None)
    if address is None:
        raise InputError(
            f"The mesh's subnet {record['mesh']['subnet']} has no free address left for another member of "
            f"'{record['name']}'.",
            "Choose a larger mesh_subnet.",
            subnet=record["mesh"]["subnet"],
        )
    return {"address": address, "public_key": public_key}


def _free_addresses(record: Record) -> Iterator[str]:
    """Yield the free host addresses of the mesh's subnet, lowest first, each once."""
    used_addresses: Set[str] = {member["mesh"]["address"] for member in record["members"] if member["mesh"]}
    for host_address in ipaddress.ip_network(record["mesh"]["subnet"]).hosts():
        if str(host_address) not in used_addresses:
            yield str(host_address)


def base_mesh(present_mesh: model.MeshSettings, backend: Optional[str]) -> model.MeshSettings:
    """Return the base of a mesh's settings.

    Returns ``present_mesh``, or the backend's defaults if the cluster moves to or from a tailnet.
    """
    if backend in (None, present_mesh["backend"]) or "tailscale" not in (backend, present_mesh["backend"]):
        return present_mesh
    return DEFAULT_TAILNET if backend == "tailscale" else DEFAULT_MESH


def _merge_mesh(record: Record, mesh_overrides: Mapping[str, Any]) -> model.MeshSettings:
    merged_settings = {
        **base_mesh(record["mesh"], mesh_overrides.get("backend")),
        **{key: value for key, value in mesh_overrides.items() if value is not None},
    }
    unknown_settings = sorted(set(merged_settings) - set(DEFAULT_MESH))
    if unknown_settings:
        raise InputError(
            f"'{unknown_settings[0]}' is not a setting of the mesh.", f"Valid settings are {', '.join(DEFAULT_MESH)}."
        )
    if merged_settings["backend"] not in model.BACKENDS:
        raise InputError(
            f"'{merged_settings['backend']}' is not a mesh backend.", f"Choose one of {', '.join(model.BACKENDS)}."
        )
    subnet = _check_text(values.subnet, merged_settings["subnet"])
    mtu = None if merged_settings["mtu"] is None else _check_number("mesh MTU", merged_settings["mtu"], 576, 65535)
    if mtu is not None and mtu < values.SMALLEST_IPV6_MTU and ":" in subnet:
        raise InputError(
            f"An MTU of {mtu} is too small for the mesh's subnet {subnet}: IPv6 needs at least "
            f"{values.SMALLEST_IPV6_MTU} bytes.",
            f"Set mesh_mtu to at least {values.SMALLEST_IPV6_MTU}, or choose an IPv4 mesh_subnet.",
            mtu=mtu,
            subnet=subnet,
        )
    return {
        "backend": merged_settings["backend"],
        "subnet": subnet,
        "port": _check_number("mesh port", merged_settings["port"], 1, 65535),
        "interface": _check_text(values.mesh_interface_name, merged_settings["interface"]),
        "mtu": mtu,
    }


def _refuse_unusable_mesh(record: Record) -> None:
    """Refuse a mesh that overlaps the members' own network: it would route the tunnels' packets into the tunnels."""
    if record["mesh"]["backend"] == "none" or shares_only_mesh(record):
        return
    conflicting_machines = [
        member["machine"] for member in record["members"] if member["interface"] == record["mesh"]["interface"]
    ]
    if conflicting_machines:
        raise InputError(
            f"The mesh's interface {record['mesh']['interface']} is the interface of {', '.join(conflicting_machines)} in the "
            f"subnet of cluster '{record['name']}'.",
            "Choose another mesh_interface.",
            mesh_interface=record["mesh"]["interface"],
        )
    cluster_network = ipaddress.ip_network(record["subnet"])
    mesh_network = ipaddress.ip_network(record["mesh"]["subnet"])
    if cluster_network.version == mesh_network.version and cluster_network.overlaps(mesh_network):
        raise InputError(
            f"The mesh's subnet {mesh_network} overlaps the subnet {cluster_network} of cluster '{record['name']}'.",
            "Choose another mesh_subnet, or set the same cluster_subnet if the machines share no network at all.",
            mesh_subnet=str(mesh_network),
            subnet=str(cluster_network),
        )


def _refuse_shared_attributes(record: Record) -> None:
    """Refuse values that two members must not share."""
    members = record["members"]
    unique_attributes: Sequence[tuple[str, Callable[[Member], Optional[str]], str]] = (
        ("name", lambda member: member["machine"].lower(), "Give the machines names that differ in more than case."),
        (
            "address",
            lambda member: member["address"],
            "Give each machine its own address in the subnet; a cloned machine keeps the address of its original.",
        ),
        (
            "address at one site,",
            lambda member: f"{member['lan_address']} at {member['site']}" if member["lan_address"] else None,
            "Two locations with the same private network are two sites: set a different cluster_site for each.",
        ),
        (
            "endpoint",
            lambda member: member["endpoint"],
            "Machines behind one public address each need their own forwarded port: set it in cluster_endpoint.",
        ),
        ("mesh address", lambda member: member["mesh"]["address"] if member["mesh"] else None, "Leave it out."),
        (
            "mesh key",
            lambda member: member["mesh"]["public_key"] if member["mesh"] else None,
            "One is a clone of the other: generate a new key on one of them.",
        ),
    )
    for attribute_name, read_attribute, remedy in unique_attributes:
        machine_by_attribute: Dict[str, str] = {}
        for member in members:
            value = read_attribute(member)
            if value is None:
                continue
            if value in machine_by_attribute:
                raise InputError(
                    f"{machine_by_attribute[value]} and {member['machine']} have the same {attribute_name} {value}.",
                    remedy,
                    machines=[machine_by_attribute[value], member["machine"]],
                )
            machine_by_attribute[value] = member["machine"]


def _check_address(record: Record, machine: str, value: str) -> str:
    address = _check_text(values.address, value)
    if not values.is_host_of(address, ipaddress.ip_network(record["subnet"])):
        raise InputError(
            f"{machine}: {address} is not a host address of {record['subnet']}, the subnet of '{record['name']}'.",
            f"Connect {machine} to the cluster's network, or create a cluster on a subnet that all machines share.",
            machine=machine,
            address=address,
            subnet=record["subnet"],
        )
    return address


def _check_lan_address(record: Record, value: str) -> Optional[str]:
    if not value:
        return None
    address = _check_text(values.address, value)
    if ipaddress.ip_address(address) in ipaddress.ip_network(record["mesh"]["subnet"]):
        raise InputError(
            f"{address} is in {record['mesh']['subnet']}, the mesh itself, so it is not on a LAN.",
            "Set the machine's own address at its site.",
            lan_address=address,
        )
    return address


def _check_endpoint(record: Record, value: str) -> Optional[str]:
    return _check_text(lambda text: values.endpoint(text, record["mesh"]["port"]), value) if value else None


def _check_gpu_count(machine: str, value: Any) -> int:
    return _check_number(f"number of GPUs of {machine}", value, 0, 1024)


def _check_rdma(machine: str, value: Any) -> Optional[str]:
    if value is None or value in model.FABRICS:
        fabric: Optional[str] = value
        return fabric
    raise InputError(f"{value!r} is not a valid RDMA fabric of {machine}.", f"Give one of {', '.join(model.FABRICS)}.")


def _check_number(setting_name: str, value: Any, minimum: int, maximum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise InputError(f"{value!r} cannot be the {setting_name}.", f"Give an integer from {minimum} to {maximum}.")
    return value


def _check_text(normalize: Callable[[str], str], value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"{value!r} is not a string.", "Write it in quotes.")
    try:
        return normalize(value)
    except ValueError as failure:
        raise InputError(f"{str(failure)[:1].upper()}{str(failure)[1:]}.", value=value) from failure


def _first_duplicate(candidates: Sequence[str]) -> Optional[str]:
    return next((value for index, value in enumerate(candidates) if value in candidates[:index]), None)


def _format_names(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'s' if len(names) != 1 else ''} {', '.join(names)}"


def _format_setting(value: Any) -> str:
    return "none" if value is None else str(value)
