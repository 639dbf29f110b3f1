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

from ansible_collections.gpumesh.cluster.plugins.module_utils import version
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, history, model, values
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Member, MemberMesh, Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.volume import check as check_volume
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.volume import check_new as check_new_volume
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.volume import check_together


class Change(NamedTuple):
    """One difference. ``kind``: create, join, update, remove, hand_over, keys, mesh, storage, tracking or version."""

    kind: str
    detail: str
    machines: Sequence[str] = ()


class Draft(NamedTuple):
    """A record that is not committed yet, and its changes. Without changes, the record is the old one."""

    record: Record
    changes: Sequence[Change]


class Stamp(NamedTuple):
    """When and by whom, for the history. ``at`` is in the form of values.now()."""

    at: str
    by: str


#: The default settings of a mesh.
DEFAULT_MESH: model.Mesh = {
    "backend": "wireguard",
    "subnet": "10.99.0.0/16",
    "port": 51820,
    "interface": "gpumesh0",
    "mtu": None,
}

#: The same for a tailnet: the range from which its control server assigns addresses by default.
DEFAULT_TAILNET: model.Mesh = {
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
    "mesh",
    "ssh_host_keys",
    "ssh_public_key",
)


def create(
    identity: str,
    name: str,
    subnet: str,
    manager: str,
    mesh: Mapping[str, Any],
    members: Sequence[Mapping[str, Any]],
    stamp: Stamp,
) -> Draft:
    """A new cluster with its first members, the manager among them, as generation 0; ``commit`` makes it 1.

    ``identity``: 32 hexadecimal digits that no other cluster has. ``mesh``: the differences from DEFAULT_MESH.
    ``members``: as for ``join``.
    """
    record: Record = {
        "schema_version": model.SCHEMA_VERSION,
        "id": identity,
        "name": _value(values.cluster_name, name),
        "generation": 0,
        "subnet": _value(values.subnet, subnet),
        "manager": _value(values.machine_name, manager),
        "collection_version": version.VERSION,
        "members": [],
        "removed": [],
        "mesh": DEFAULT_MESH,
        "storage": {"volumes": []},
        "tracking": None,
        "history": [],
    }
    record["mesh"] = _mesh(record, mesh)
    _refuse_unusable_mesh(record)
    joined = join(record, members, stamp).record
    machines = [member["machine"] for member in joined["members"]]
    if manager not in machines:
        raise InputError(
            f"Cluster '{name}' cannot be created: its manager '{manager}' is not among its members "
            f"({', '.join(machines) or 'none given'}).",
            "Add the manager to the members, or choose one of them as the manager.",
            manager=manager,
            members=machines,
        )
    detail = f"created on {joined['subnet']} with manager {manager} and {_these('member', machines)}"
    return Draft(joined, [Change("create", detail, machines)])


def join(record: Record, members: Sequence[Mapping[str, Any]], stamp: Stamp) -> Draft:
    """Add new members; update the given keys that are not None of existing ones.

    A member consists of machine, address, interface, and optionally site, lan_address and endpoint (texts; empty
    removes it), gpus, rdma, mesh {address, public_key, userspace}, ssh_host_keys, ssh_public_key. If the members share only
    the mesh (the cluster's subnet is the mesh's), address and interface are those of the mesh, whatever is given.
    """
    new = copy.deepcopy(record)
    by_machine = {member["machine"]: member for member in new["members"]}
    for wanted in members:
        _check_shape(wanted)
    given_twice = _twice([str(wanted.get("machine")) for wanted in members])
    if given_twice:
        raise InputError(f"Machine '{given_twice}' is listed twice.", "List each machine once.", machine=given_twice)
    free = _free_addresses(new)
    joined: List[str] = []
    updated: Dict[str, List[str]] = {}
    for wanted in members:
        machine = _value(values.machine_name, str(wanted.get("machine")))
        present = by_machine.get(machine)
        keys = {key: wanted[key] for key in _MEMBER_KEYS if wanted.get(key) is not None}
        if present is None:
            new["members"].append(_new_member(new, machine, keys, stamp, free))
            joined.append(machine)
            continue
        differs = _update_member(new, present, keys)
        if differs:
            updated[machine] = differs
    _refuse_clashes(new)
    _refuse_unusable_mesh(new)
    changes = []
    if joined:
        back = {machine.lower() for machine in joined}
        _refuse_untrusted(new, back)
        new["removed"] = [removed for removed in new["removed"] if removed["machine"].lower() not in back]
        changes.append(Change("join", f"{_these('machine', joined)} joined", joined))
    for machine, differs in updated.items():
        changes.append(Change("update", f"{machine}: {', '.join(differs)}", [machine]))
    return Draft(new, changes) if changes else Draft(record, [])


def _refuse_untrusted(record: Record, joining: Set[str]) -> None:
    """Refuse machines whose keys still have to be changed: the record would forget that. ``joining``: in lower case."""
    untrusted = [
        removed["machine"]
        for removed in record["removed"]
        if removed["keys"] == "untrusted" and removed["machine"].lower() in joining
    ]
    if untrusted:
        raise InputError(
            f"{', '.join(untrusted)} was removed from cluster '{record['name']}' as not trusted, but the keys that it "
            "had are still in use.",
            f"Replace them first: run the playbook remove with cluster_machine={','.join(untrusted)} and "
            "cluster_untrusted=true again.",
            machines=untrusted,
        )


def remove(
    record: Record,
    machines: Sequence[str],
    stamp: Stamp,
    new_manager: Optional[str] = None,
    force: bool = False,
) -> Draft:
    """Remove machines and record them; those that are not members are ignored.

    ``new_manager`` is required if the manager leaves. With ``force``, the server of a volume or of the experiments may
    leave too, and is removed from the record with it.
    """
    leaving = [member["machine"] for member in record["members"] if member["machine"] in set(machines)]
    staying = [member["machine"] for member in record["members"] if member["machine"] not in set(machines)]
    if not leaving and new_manager is None:
        return Draft(record, [])
    if not staying:
        raise InputError(
            f"Cluster '{record['name']}' would have no members left without {', '.join(leaving)}.",
            "Delete the cluster instead (playbook delete).",
            machines=leaving,
        )
    handed = Draft(record, [])
    if record["manager"] in leaving and new_manager is None:
        raise InputError(
            f"'{record['manager']}' is the manager of cluster '{record['name']}' and cannot be removed without a "
            "successor.",
            f"Set cluster_new_manager to one of the remaining members: {', '.join(staying)}.",
            manager=record["manager"],
            candidates=staying,
        )
    if new_manager is not None:
        if new_manager in leaving:
            raise InputError(
                f"'{new_manager}' cannot be the new manager of '{record['name']}': it is removed in the same step.",
                f"Choose one of the remaining members: {', '.join(staying)}.",
                candidates=staying,
            )
        handed = hand_over(record, new_manager)
    new = copy.deepcopy(handed.record)
    held = [volume for volume in new["storage"]["volumes"] if volume.get("server") in leaving]
    if held and not force:
        listed = "; ".join(f"'{volume['name']}' in {volume['server']}:{volume['path']}" for volume in held)
        raise InputError(
            f"The data of {listed} would be left behind.",
            "Copy it to a remaining member and set that as the volume's server in storage_volumes, or remove the "
            "volume from storage_volumes, and run the storage playbook first. If the machine is lost, set "
            "cluster_force=true: the volume is removed from the cluster, and data that still exists stays where it is.",
            volumes=held,
        )
    changes = list(handed.changes)
    if leaving:
        new["members"] = [member for member in new["members"] if member["machine"] in staying]
        new["removed"] += [{"machine": machine, "at": stamp.at, "keys": "kept"} for machine in leaving]
        changes.append(Change("remove", f"{_these('machine', leaving)} left", leaving))
    if held:
        new["storage"]["volumes"] = [volume for volume in new["storage"]["volumes"] if volume not in held]
        changes.append(Change("storage", f"{_these('volume', [volume['name'] for volume in held])} left"))
    tracked = _without_server(new, leaving, staying, [volume["name"] for volume in held], force)
    new, changes = tracked.record, [*changes, *tracked.changes]
    return Draft(new, changes) if changes else Draft(record, [])


def _without_server(
    record: Record, leaving: Sequence[str], staying: Sequence[str], lost: Sequence[str], force: bool
) -> Draft:
    """Stop tracking experiments if the server or the volume of the artifacts is removed, which requires ``force``."""
    tracking = record["tracking"]
    if tracking is None or not (tracking["server"] in leaving or tracking["volume"] in lost):
        return Draft(record, [])
    if not force:
        raise InputError(
            f"The database of the experiments on {tracking['server']} would be left behind.",
            f"Move it first, with the playbook tracking and tracking_server set to one of {', '.join(staying)}. If the "
            "machine is lost, set cluster_force=true: the tracking server is removed from the cluster, and data that "
            "still exists stays where it is.",
            server=tracking["server"],
            candidates=list(staying),
        )
    return set_tracking(record, {"enabled": False})


def distrust(record: Record, machines: Sequence[str]) -> Draft:
    """Record that the keys of these removed machines have to be changed, unless they already were."""
    new = copy.deepcopy(record)
    known = [one for one in new["removed"] if one["machine"] in set(machines) and one["keys"] == "kept"]
    for removed in known:
        removed["keys"] = "untrusted"
    names = [removed["machine"] for removed in known]
    return Draft(new, [Change("keys", f"{', '.join(names)} not trusted", names)]) if names else Draft(record, [])


def keys_changed(record: Record) -> Draft:
    """Record that no key of a removed machine is in use any more."""
    left = [removed["machine"] for removed in record["removed"] if removed["keys"] != "changed"]
    if not left:
        return Draft(record, [])
    new = copy.deepcopy(record)
    for removed in new["removed"]:
        removed["keys"] = "changed"
    return Draft(new, [Change("keys", f"other keys than {', '.join(left)} had", left)])


def hand_over(record: Record, new_manager: str) -> Draft:
    """Make another member the manager."""
    machines = [member["machine"] for member in record["members"]]
    if new_manager not in machines:
        raise InputError(
            f"'{new_manager}' cannot be the manager of '{record['name']}': it is not among the members.",
            f"Choose one of its members: {', '.join(machines)}.",
            candidates=machines,
        )
    if new_manager == record["manager"]:
        return Draft(record, [])
    new = copy.deepcopy(record)
    new["manager"] = new_manager
    detail = f"the manager is {new_manager}, it was {record['manager']}"
    return Draft(new, [Change("hand_over", detail, [record["manager"], new_manager])])


def set_mesh(record: Record, mesh: Mapping[str, Any]) -> Draft:
    """Change the keys of the mesh that are given and not None.

    A new backend or subnet means new mesh addresses for all members; with a new subnet, the keys stay.
    """
    wanted = _mesh(record, mesh)
    was = record["mesh"]
    if wanted == was:
        return Draft(record, [])
    only_mesh = shares_only_the_mesh(record)
    if only_mesh and (wanted["backend"] == "none" or wanted["subnet"] != was["subnet"]):
        raise InputError(
            f"The members of '{record['name']}' share no network except the mesh ({was['backend']} on "
            f"{was['subnet']}), so it cannot be changed to {wanted['backend']} on {wanted['subnet']}.",
            "Keep mesh_backend and mesh_subnet, or delete the cluster and create it again.",
        )
    new = copy.deepcopy(record)
    new["mesh"] = wanted
    _refuse_unusable_mesh(new)
    readdressed = wanted["backend"] != was["backend"] or wanted["subnet"] != was["subnet"]
    keys = {member["machine"]: member["mesh"] for member in new["members"]}
    if readdressed:
        for member in new["members"]:
            member["mesh"] = None
        free = _free_addresses(new)
        for member in new["members"]:
            old = keys[member["machine"]]
            kept = old["public_key"] if old and wanted["backend"] == was["backend"] else None
            member["mesh"] = _allocated(new, free, kept)
    if only_mesh:
        for member in new["members"]:
            member["interface"] = wanted["interface"]
    changed = ", ".join(
        f"{key} {_shown(value)} (was {_shown(dict(was)[key])})"
        for key, value in wanted.items()
        if value != dict(was)[key]
    )
    return Draft(new, [Change("mesh", f"mesh: {changed}", [member["machine"] for member in new["members"]])])


def set_storage(record: Record, volumes: Sequence[Mapping[str, Any]]) -> Draft:
    """Set the volumes of the cluster. Each server must be a member; names and mount points must be distinct.

    A volume without server and path is an external file system.
    """
    machines = {member["machine"] for member in record["members"]}
    wanted: List[Dict[str, Any]] = []
    for volume in volumes:
        if not isinstance(volume, Mapping):
            raise InputError(f"{volume!r} is not a storage volume.", "Give each volume a name and a mount_point.")
        # Fields of a form may be empty.
        normal = {key: copy.deepcopy(value) for key, value in volume.items() if value is not None}
        served = {"server", "path"} & set(normal)
        keys = ("name", *(("server", "path") if served else ()), "mount_point")
        missing = [key for key in keys if not isinstance(normal.get(key), str)]
        if missing:
            raise InputError(
                f"A storage volume has no {' and no '.join(missing)}: {dict(volume)}.",
                "Give each volume name, server, path and mount_point, or only name and mount_point for an existing "
                "file system.",
            )
        normal["name"] = _value(values.volume_name, normal["name"])
        for key, check in (("mount_point", values.mount_point), ("path", values.absolute_path))[: 2 if served else 1]:
            try:
                normal[key] = check(normal[key])
            except ValueError as failure:
                raise InputError(
                    f"Volume '{normal['name']}', {key}: {failure}.", "Correct it in storage_volumes.", value=normal[key]
                ) from failure
        if served and normal["server"] not in machines:
            raise InputError(
                f"The server '{normal['server']}' of volume '{normal['name']}' is not among the members of "
                f"'{record['name']}'.",
                f"Choose one of its members: {', '.join(sorted(machines))}.",
                volume=normal["name"],
            )
        try:
            check_volume(normal)
        except ValueError as failure:
            raise _bad_volume(normal["name"], failure) from failure
        wanted.append(normal)
    _check_together(wanted)
    old = {volume["name"]: volume for volume in record["storage"]["volumes"]}
    if wanted == record["storage"]["volumes"]:
        return Draft(record, [])
    _check_new(record, wanted)
    names = {volume["name"] for volume in wanted}
    tracking = record["tracking"]
    if tracking is not None and tracking["volume"] not in names:
        raise InputError(
            f"Volume '{tracking['volume']}' has the artifacts of the experiments, and is not among the volumes.",
            "Keep it in storage_volumes, or switch the tracking off first, with the playbook tracking and "
            "tracking_state=absent.",
            volume=tracking["volume"],
        )
    new = copy.deepcopy(record)
    new["storage"]["volumes"] = wanted
    words = [f"{volume['name']} set" for volume in wanted if old.get(volume["name"]) != volume]
    words += [f"{name} taken out" for name in old if name not in names]
    return Draft(new, [Change("storage", f"volumes: {', '.join(words) or 'new order'}")])


#: The defaults of a tracking server. The port is MLflow's own.
TRACKING_PORT = 5000


def set_tracking(record: Record, wanted: Mapping[str, Any]) -> Draft:
    """Change the keys of the tracking server that are given and not None: server, port, volume, tls and certificates.

    With ``enabled`` false, it is removed. By default, it runs on the manager, with the artifacts on the first writable
    volume.
    """
    was = record["tracking"]
    now = _tracking(record, wanted) if wanted.get("enabled", True) else None
    if now == was:
        return Draft(record, [])
    new = copy.deepcopy(record)
    new["tracking"] = now
    if now is None:
        return Draft(new, [Change("tracking", "experiments are no longer tracked")])
    present: Dict[str, Any] = dict(was) if was is not None else {}
    shown = {**now, "certificates": len(now["certificates"])}
    changed = [f"{key} {_shown(shown[key])}" for key, value in now.items() if present.get(key, []) != value]
    machines = [now["server"]] if was is None else sorted({was["server"], now["server"]})
    return Draft(new, [Change("tracking", f"tracking: {', '.join(changed)}", machines)])


def _tracking(record: Record, wanted: Mapping[str, Any]) -> model.Tracking:
    volumes = [volume["name"] for volume in record["storage"]["volumes"] if not volume.get("read_only")]
    base: Dict[str, Any] = {
        "server": record["manager"],
        "port": TRACKING_PORT,
        "volume": volumes[0] if volumes else None,
        "tls": False,
        "certificates": [],
        **(record["tracking"] or {}),
    }
    given = {key: value for key, value in wanted.items() if key in base and value is not None}
    merged = {**base, **given}
    machines = [member["machine"] for member in record["members"]]
    if merged["server"] not in machines:
        raise InputError(
            f"tracking_server '{merged['server']}' is not among the members of '{record['name']}'.",
            f"Choose one of its members: {', '.join(machines)}.",
            candidates=machines,
        )
    if derive.is_pod(record, merged["server"]):
        mounting = [machine for machine in machines if not derive.is_pod(record, machine)]
        raise InputError(
            f"tracking_server '{merged['server']}' is a container without TUN, which has no volume for the artifacts.",
            f"Choose one of {', '.join(mounting)}.",
            candidates=mounting,
        )
    if merged["volume"] not in volumes:
        raise InputError(
            f"tracking_volume '{merged['volume']}' is not a volume that the members of '{record['name']}' can write to."
            if merged["volume"]
            else f"Cluster '{record['name']}' has no volume for the artifacts of experiments.",
            f"Choose one of {', '.join(volumes)}." if volumes else "Set storage_volumes, and run the playbook storage.",
            volumes=volumes,
        )
    before = record["tracking"]
    if before is not None and merged["volume"] != before["volume"]:
        raise InputError(
            f"The artifacts of the experiments are on volume '{before['volume']}', not on '{merged['volume']}'.",
            f"Set tracking_volume to {before['volume']}, or leave it out.",
            volume=before["volume"],
        )
    return {
        "server": merged["server"],
        "port": _number("tracking port", merged["port"], 1024, 65535),
        "volume": merged["volume"],
        "tls": bool(merged["tls"]),
        "certificates": list(merged["certificates"]) if merged["tls"] else [],
    }


def _check_new(record: Record, wanted: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what only records of earlier versions may have, so that they stay usable until their volumes change."""
    mounting = [member["machine"] for member in record["members"] if not derive.is_pod(record, member["machine"])]
    for volume in wanted:
        if "server" in volume and volume["server"] not in mounting:
            raise InputError(
                f"The server '{volume['server']}' of volume '{volume['name']}' is a container without TUN, which cannot "
                "serve volumes.",
                f"Choose one of {', '.join(mounting)}.",
                volume=volume["name"],
                candidates=mounting,
            )
        try:
            check_new_volume(volume, wanted)
        except ValueError as failure:
            raise _bad_volume(volume["name"], failure) from failure


def _bad_volume(name: str, failure: ValueError) -> InputError:
    return InputError(f"Volume '{name}': {failure}.", "Correct it in storage_volumes.", volume=name)


def _check_together(wanted: Sequence[Mapping[str, Any]]) -> None:
    for key in ("name", "mount_point"):
        twice = _twice([volume[key] for volume in wanted])
        if twice:
            raise InputError(f"Two storage volumes have the {key} '{twice}'.", "Give each volume its own.")
    try:
        check_together(wanted)
    except ValueError as failure:
        raise InputError(
            f"{str(failure)[:1].upper()}{str(failure)[1:]}.",
            "Choose a mount point outside of that one, and create a symbolic link where it is expected.",
        ) from failure


def note_version(record: Record) -> Draft:
    """Record that this version of the collection applies the record, unless it says so already."""
    if derive.notes_version(record):
        return Draft(record, [])
    new = copy.deepcopy(record)
    new["collection_version"] = version.VERSION
    detail = f"gpumesh.cluster {version.VERSION} (was {record['collection_version'] or 'not noted'})"
    return Draft(new, [Change("version", detail)])


def commit(draft: Draft, stamp: Stamp) -> Record:
    """The drafted record as the next generation, with its changes in the history; the old record if nothing changed.

    The older entries of a long history are folded.
    """
    if not draft.changes:
        return draft.record
    new = copy.deepcopy(draft.record)
    new["generation"] += 1
    new["history"].append(
        {
            "generation": new["generation"],
            "at": stamp.at,
            "by": "".join(sign if sign.isprintable() else " " for sign in stamp.by).strip(),
            "change": draft.changes[0].kind,
            "detail": "; ".join(change.detail for change in draft.changes),
        }
    )
    return history.fold(new)


def chain(record: Record, *steps: Callable[[Record], Draft]) -> Draft:
    """Apply all steps to a record, one after the other."""
    changes: List[Change] = []
    for step in steps:
        draft = step(record)
        record = draft.record
        changes.extend(draft.changes)
    return Draft(record, changes)


def shares_only_the_mesh(record: Record) -> bool:
    """Whether the machines have no common network: then the cluster's subnet is the mesh's."""
    return record["mesh"]["backend"] != "none" and record["subnet"] == record["mesh"]["subnet"]


def check_subnet(record: Record, subnet: Optional[str]) -> None:
    """Refuse a subnet that is not the cluster's: a cluster cannot be moved, only created again."""
    if subnet is not None and _value(values.subnet, subnet) != record["subnet"]:
        raise InputError(
            f"Cluster '{record['name']}' is on {record['subnet']}, not on {_value(values.subnet, subnet)}.",
            f"Omit cluster_subnet or set it to {record['subnet']}; to move the cluster, delete it and create it again.",
            subnet=record["subnet"],
        )


def _new_member(record: Record, machine: str, keys: Mapping[str, Any], stamp: Stamp, free: Iterator[str]) -> Member:
    member: Member = {
        "machine": machine,
        "address": "",
        "interface": "",
        "site": _value(values.site_name, keys.get("site", model.DEFAULT_SITE)),
        "lan_address": _lan_address(record, keys.get("lan_address", "")),
        "endpoint": _endpoint(record, keys.get("endpoint", "")),
        "joined_at": stamp.at,
        "gpus": _gpus(machine, keys.get("gpus", 0)),
        "rdma": _rdma(machine, keys.get("rdma")),
        "mesh": None,
        "ssh_host_keys": [_value(values.ssh_key, key) for key in keys.get("ssh_host_keys", [])],
        "ssh_public_key": _value(values.ssh_key, keys["ssh_public_key"]) if keys.get("ssh_public_key") else None,
    }
    given = keys.get("mesh") or {}
    if given.get("address"):
        member["mesh"] = _given_mesh(record, machine, given, None)
    else:
        member["mesh"] = _allocated(record, free, _mesh_key(record, given.get("public_key")))
    if shares_only_the_mesh(record):
        end = member["mesh"]
        if end is None:
            raise InputError(
                f"{machine} has no mesh address yet, and cluster '{record['name']}' has no other network.",
                f"Set mesh.address to its address in the {record['mesh']['backend']} network.",
                machine=machine,
            )
        member["address"], member["interface"] = end["address"], record["mesh"]["interface"]
        return member
    if "address" not in keys or "interface" not in keys:
        raise InputError(
            f"{machine} cannot join '{record['name']}': its address in {record['subnet']} and its interface are "
            "required.",
            "Set address and interface.",
            machine=machine,
        )
    member["address"] = _address(record, machine, keys["address"])
    member["interface"] = _value(values.interface_name, keys["interface"])
    return member


def _check_shape(wanted: object) -> None:
    """Refuse a value that has the wrong type."""
    if not isinstance(wanted, Mapping):
        raise InputError(f"{wanted!r} is not a member.", "Give each a machine, an address and an interface.")
    mesh, keys = wanted.get("mesh"), wanted.get("ssh_host_keys")
    if mesh is not None and not isinstance(mesh, Mapping):
        raise InputError(f"{mesh!r} is not the mesh data of a member.", "Give mesh as address and public_key.")
    if keys is not None and not isinstance(keys, (list, tuple)):
        raise InputError(f"{keys!r} is not a list of keys.", "Give ssh_host_keys as a list.")


def _update_member(record: Record, member: Member, keys: Mapping[str, Any]) -> List[str]:
    """Merge the given keys into the member. Returns the differences as messages."""
    machine = member["machine"]
    before = copy.deepcopy(member)
    if shares_only_the_mesh(record):
        keys = {key: value for key, value in keys.items() if key not in ("address", "interface")}
    member["address"] = _address(record, machine, keys.get("address", member["address"]))
    member["interface"] = _value(values.interface_name, keys.get("interface", member["interface"]))
    member["site"] = _value(values.site_name, keys.get("site", member["site"]))
    member["lan_address"] = _lan_address(record, keys.get("lan_address", member["lan_address"] or ""))
    member["endpoint"] = _endpoint(record, keys.get("endpoint", member["endpoint"] or ""))
    member["gpus"] = _gpus(machine, keys.get("gpus", member["gpus"]))
    member["rdma"] = _rdma(machine, keys.get("rdma", member["rdma"]))
    member["ssh_host_keys"] = [
        _value(values.ssh_key, key) for key in keys.get("ssh_host_keys", member["ssh_host_keys"])
    ]
    public_key = keys.get("ssh_public_key", member["ssh_public_key"])
    member["ssh_public_key"] = _value(values.ssh_key, public_key) if public_key else None
    if "mesh" in keys:
        end = _given_mesh(record, machine, keys["mesh"], member["mesh"])
        member["mesh"] = end
        if shares_only_the_mesh(record):
            member["address"] = end["address"]
    was, now = dict(before), dict(member)
    # Keys are long and mean nothing to a reader of the history; that they have changed does.
    silent = ("ssh_host_keys", "ssh_public_key", "mesh")
    return [
        f"new {key}" if key in silent else f"{key} {_shown(now[key])} (was {_shown(was[key])})"
        for key in _MEMBER_KEYS
        if now[key] != was[key]
    ]


def _given_mesh(record: Record, machine: str, given: Mapping[str, Any], present: Optional[MemberMesh]) -> MemberMesh:
    if record["mesh"]["backend"] == "none":
        raise InputError(
            f"{machine} has mesh data, but cluster '{record['name']}' has no mesh.",
            "Set mesh_backend to wireguard or tailscale first.",
            machine=machine,
        )
    address = given.get("address") or (present["address"] if present else None)
    if address is None:
        raise InputError(f"{machine} has a mesh key, but no mesh address.", "Give mesh.address.", machine=machine)
    address = _value(values.address, address)
    tunnels = ipaddress.ip_network(record["mesh"]["subnet"])
    if record["mesh"]["backend"] == "wireguard" and not values.host_in(address, tunnels):
        raise InputError(
            f"{machine}: the mesh address {address} is not a host address of the mesh's subnet {tunnels}.",
            "Omit it to have a free one chosen.",
            machine=machine,
            address=address,
        )
    key = given.get("public_key")
    end: MemberMesh = {
        "address": address,
        "public_key": _mesh_key(record, key) if key else (present["public_key"] if present else None),
    }
    pod = given.get("userspace")
    if pod or (pod is None and present is not None and present.get("userspace")):
        end["userspace"] = True
    return end


def _mesh_key(record: Record, key: Optional[str]) -> Optional[str]:
    if key is None or record["mesh"]["backend"] != "wireguard":
        return _value(values.line, key) if key is not None else None
    return _value(values.wireguard_key, key)


def _allocated(record: Record, free: Iterator[str], public_key: Optional[str]) -> Optional[MemberMesh]:
    """The next free address.

    In a tailnet, its control server assigns them, so a member has none until it has joined.
    """
    if record["mesh"]["backend"] != "wireguard":
        return None
    address = next(free, None)
    if address is None:
        raise InputError(
            f"The mesh's subnet {record['mesh']['subnet']} has no free address left for another member of "
            f"'{record['name']}'.",
            "Choose a larger mesh_subnet.",
            subnet=record["mesh"]["subnet"],
        )
    return {"address": address, "public_key": public_key}


def _free_addresses(record: Record) -> Iterator[str]:
    """The free host addresses of the mesh's subnet, lowest first, each once."""
    used: Set[str] = {member["mesh"]["address"] for member in record["members"] if member["mesh"]}
    for host in ipaddress.ip_network(record["mesh"]["subnet"]).hosts():
        if str(host) not in used:
            yield str(host)


def mesh_base(present: model.Mesh, backend: Optional[str]) -> model.Mesh:
    """The base of a mesh's settings: ``present``, or the backend's defaults if the cluster moves to or from a tailnet."""
    if backend in (None, present["backend"]) or "tailscale" not in (backend, present["backend"]):
        return present
    return DEFAULT_TAILNET if backend == "tailscale" else DEFAULT_MESH


def _mesh(record: Record, mesh: Mapping[str, Any]) -> model.Mesh:
    merged = {
        **mesh_base(record["mesh"], mesh.get("backend")),
        **{key: value for key, value in mesh.items() if value is not None},
    }
    unknown = sorted(set(merged) - set(DEFAULT_MESH))
    if unknown:
        raise InputError(
            f"'{unknown[0]}' is not a setting of the mesh.", f"Valid settings are {', '.join(DEFAULT_MESH)}."
        )
    if merged["backend"] not in model.BACKENDS:
        raise InputError(f"'{merged['backend']}' is not a mesh backend.", f"Choose one of {', '.join(model.BACKENDS)}.")
    subnet = _value(values.subnet, merged["subnet"])
    mtu = None if merged["mtu"] is None else _number("mesh MTU", merged["mtu"], 576, 65535)
    if mtu is not None and mtu < values.SMALLEST_IPV6_MTU and ":" in subnet:
        raise InputError(
            f"An MTU of {mtu} is too small for the mesh's subnet {subnet}: IPv6 needs at least "
            f"{values.SMALLEST_IPV6_MTU} bytes.",
            f"Set mesh_mtu to at least {values.SMALLEST_IPV6_MTU}, or choose an IPv4 mesh_subnet.",
            mtu=mtu,
            subnet=subnet,
        )
    return {
        "backend": merged["backend"],
        "subnet": subnet,
        "port": _number("mesh port", merged["port"], 1, 65535),
        "interface": _value(values.mesh_interface_name, merged["interface"]),
        "mtu": mtu,
    }


def _refuse_unusable_mesh(record: Record) -> None:
    """Refuse a mesh that overlaps the members' own network: it would route the tunnels' packets into the tunnels."""
    if record["mesh"]["backend"] == "none" or shares_only_the_mesh(record):
        return
    named_alike = [one["machine"] for one in record["members"] if one["interface"] == record["mesh"]["interface"]]
    if named_alike:
        raise InputError(
            f"The mesh's interface {record['mesh']['interface']} is the interface of {', '.join(named_alike)} in the "
            f"subnet of cluster '{record['name']}'.",
            "Choose another mesh_interface.",
            mesh_interface=record["mesh"]["interface"],
        )
    lan = ipaddress.ip_network(record["subnet"])
    tunnels = ipaddress.ip_network(record["mesh"]["subnet"])
    if lan.version == tunnels.version and lan.overlaps(tunnels):
        raise InputError(
            f"The mesh's subnet {tunnels} overlaps the subnet {lan} of cluster '{record['name']}'.",
            "Choose another mesh_subnet, or set the same cluster_subnet if the machines share no network at all.",
            mesh_subnet=str(tunnels),
            subnet=str(lan),
        )


def _refuse_clashes(record: Record) -> None:
    """Refuse values that two members must not share."""
    members = record["members"]
    shared: Sequence[tuple[str, Callable[[Member], Optional[str]], str]] = (
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
    for what, take, remedy in shared:
        owners: Dict[str, str] = {}
        for member in members:
            value = take(member)
            if value is None:
                continue
            if value in owners:
                raise InputError(
                    f"{owners[value]} and {member['machine']} have the same {what} {value}.",
                    remedy,
                    machines=[owners[value], member["machine"]],
                )
            owners[value] = member["machine"]


def _address(record: Record, machine: str, value: str) -> str:
    address = _value(values.address, value)
    if not values.host_in(address, ipaddress.ip_network(record["subnet"])):
        raise InputError(
            f"{machine}: {address} is not a host address of {record['subnet']}, the subnet of '{record['name']}'.",
            f"Connect {machine} to the cluster's network, or create a cluster on a subnet that all machines share.",
            machine=machine,
            address=address,
            subnet=record["subnet"],
        )
    return address


def _lan_address(record: Record, value: str) -> Optional[str]:
    if not value:
        return None
    address = _value(values.address, value)
    if ipaddress.ip_address(address) in ipaddress.ip_network(record["mesh"]["subnet"]):
        raise InputError(
            f"{address} is in {record['mesh']['subnet']}, the mesh itself, so it is not on a LAN.",
            "Set the machine's own address at its site.",
            lan_address=address,
        )
    return address


def _endpoint(record: Record, value: str) -> Optional[str]:
    return _value(lambda text: values.endpoint(text, record["mesh"]["port"]), value) if value else None


def _gpus(machine: str, value: Any) -> int:
    return _number(f"number of GPUs of {machine}", value, 0, 1024)


def _rdma(machine: str, value: Any) -> Optional[str]:
    if value is None or value in model.FABRICS:
        fabric: Optional[str] = value
        return fabric
    raise InputError(f"{value!r} cannot be the RDMA of {machine}.", f"Give one of {', '.join(model.FABRICS)}.")


def _number(what: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{value!r} cannot be the {what}.", f"Give an integer from {low} to {high}.")
    return value


def _value(check: Callable[[str], str], value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"{value!r} is not a string.", "Write it in quotes.")
    try:
        return check(value)
    except ValueError as failure:
        raise InputError(f"{str(failure)[:1].upper()}{str(failure)[1:]}.", value=value) from failure


def _twice(found: Sequence[str]) -> Optional[str]:
    return next((value for index, value in enumerate(found) if value in found[:index]), None)


def _these(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'s' if len(names) != 1 else ''} {', '.join(names)}"


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
