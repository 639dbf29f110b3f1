# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster record: its structure, and the validation of untrusted JSON documents.

The record is the single source of truth, so nothing that has not passed ``parse`` is called a record, whether it was
read from a disk or sent by another host.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Callable, Dict, List, Optional, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import values
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.volume import check as check_volume
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.volume import check_together
from ansible_collections.gpumesh.cluster.plugins.module_utils.version import valid

#: The version that this code writes. It reads this version, and through MIGRATIONS, all older ones.
SCHEMA_VERSION = 6

BACKENDS = ("none", "wireguard", "tailscale")

#: The fabric of a member's RDMA ports.
FABRICS = ("infiniband", "roce", "none")

#: The state of the keys of removed machines: still in use, to be changed since the machine is not trusted, or changed
#: after it left.
KEYS = ("kept", "untrusted", "changed")
#: By default, all members share one site, so that nothing is tunnelled unnecessarily.
DEFAULT_SITE = "default"

Document = Dict[str, Any]


class _MemberMesh(TypedDict):
    address: str
    public_key: Optional[str]


class MemberMesh(_MemberMesh, total=False):
    """A member's end of the mesh. ``public_key`` is null until the member has generated its key.

    ``userspace`` is true for a node without an interface of the mesh, whose programs reach it through a library. Other
    records do not have this field, so that earlier versions can read them; they refuse records with it.
    """

    userspace: bool


class Member(TypedDict):
    """One machine of the cluster."""

    machine: str
    address: str
    interface: str
    site: str
    #: The address to which members of its site connect if the members of the cluster share only the mesh.
    lan_address: Optional[str]
    endpoint: Optional[str]
    joined_at: str
    gpus: int
    #: The fabric of its RDMA ports, one of FABRICS. Null if it is unknown: it joined with an earlier version.
    rdma: Optional[str]
    mesh: Optional[MemberMesh]
    ssh_host_keys: List[str]
    ssh_public_key: Optional[str]


class Removed(TypedDict):
    """A machine that was removed. It does not rejoin just by being in the inventory. ``keys``: one of KEYS."""

    machine: str
    at: str
    keys: str


class Mesh(TypedDict):
    """The network between the members. ``mtu`` null: determined by the mesh layer."""

    backend: str
    subnet: str
    port: int
    interface: str
    mtu: Optional[int]


class Storage(TypedDict):
    """Volumes: name, mount_point, and the options in ``record.volume``.

    ``server`` and ``path`` name the member that has the data, and where. Without both, it is an external file system.
    """

    volumes: List[Dict[str, Any]]


class Tracking(TypedDict):
    """MLflow: the member that runs its server, the TCP port, the volume of the artifacts, and whether TLS is used.

    ``certificates``: those that the server has made for itself, the current one and possibly the next one.
    """

    server: str
    port: int
    volume: str
    tls: bool
    certificates: List[str]


class HistoryEntry(TypedDict):
    """One change, with the generation that it created."""

    generation: int
    at: str
    by: str
    change: str
    detail: str


class Folded(TypedDict):
    """The older entries of the history that are folded: how many of those up to ``through``, and when they were made.

    ``digest``: of the whole history up to there.
    """

    through: int
    count: int
    first: str
    last: str
    digest: str


class _Record(TypedDict):
    schema_version: int
    id: str
    name: str
    generation: int
    subnet: str
    manager: str
    #: The version of this collection that applied the record last. Null if it was one that did not note its version.
    collection_version: Optional[str]
    members: List[Member]
    removed: List[Removed]
    mesh: Mesh
    storage: Storage
    #: Null if no experiments are tracked.
    tracking: Optional[Tracking]
    history: List[HistoryEntry]


class Record(_Record, total=False):
    """The whole record. ``members`` are in joining order, which is the rank order of jobs.

    ``folded``: records with a short history do not have it.
    """

    folded: Folded


class InvalidRecordError(RecordError):
    """A document is not a valid record. The message contains the place and the reason."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where or 'the document'}: {reason}", where=where, reason=reason)


class FutureSchemaError(RecordError):
    """The record was written by a newer version of this collection."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"it has schema version {version}, but this version of gpumesh.cluster supports only {SCHEMA_VERSION}",
            "Use the version of gpumesh.cluster that wrote it, or a newer one.",
            schema_version=version,
        )


def _with_lan_addresses(document: Document) -> Document:
    """Schema 2: a member may have an address on the LAN of its site. An invalid record is refused later."""
    return _with_member_field(document, "lan_address")


def _with_member_field(document: Document, name: str) -> Document:
    members = document.get("members")
    if not isinstance(members, list):
        return document
    return {**document, "members": [{name: None, **one} if isinstance(one, dict) else one for one in members]}


def _with_removed(document: Document) -> Document:
    """Schema 3: removed machines are recorded. Earlier ones are only mentioned in the history."""
    return {"removed": [], **document}


def _with_tracking(document: Document) -> Document:
    """Schema 4: a member may run the tracking server."""
    return {"tracking": None, **document}


def _with_rdma(document: Document) -> Document:
    """Schema 5: members have RDMA ports of a known fabric."""
    return _with_member_field(document, "rdma")


def _with_collection_version(document: Document) -> Document:
    """Schema 6: the record names the version of this collection that applied it last."""
    return {"collection_version": None, **document}


#: The steps from schema N to schema N + 1. A released version never changes its meaning: to change the record, increase
#: SCHEMA_VERSION, and add the step here.
MIGRATIONS: Dict[int, Callable[[Document], Document]] = {
    1: _with_lan_addresses,
    2: _with_removed,
    3: _with_tracking,
    4: _with_rdma,
    5: _with_collection_version,
}

_MOST_CERTIFICATES = 2
_ID = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_VOLUME_KEYS = {"name", "server", "path", "mount_point"}


def migrate(document: Document) -> Document:
    """Convert a document to the current schema, without modifying the given one."""
    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InvalidRecordError("schema_version", f"{version!r} is not a schema version")
    if version > SCHEMA_VERSION:
        raise FutureSchemaError(version)
    while version < SCHEMA_VERSION:
        document = {**MIGRATIONS[version](document), "schema_version": version + 1}
        version += 1
    return document


def parse(document: object) -> Record:
    """Validate an untrusted document, and return the record in the current schema.

    Raises InvalidRecordError naming the place, or FutureSchemaError.
    """
    if not isinstance(document, dict):
        raise InvalidRecordError("", f"expected a JSON object, not {_type_name(document)}")
    fields = _Fields(migrate(document), "")
    record: Record = {
        "schema_version": SCHEMA_VERSION,
        "id": fields.matched("id", _ID, "32 hexadecimal digits"),
        "name": fields.checked("name", values.cluster_name),
        "generation": fields.integer("generation", 1, None),
        "subnet": fields.checked("subnet", values.subnet),
        "manager": fields.checked("manager", values.machine_name),
        "collection_version": fields.optional("collection_version", valid),
        "members": [_member(item) for item in fields.objects("members")],
        "removed": [_removed(item) for item in fields.objects("removed")],
        "mesh": _mesh(fields.object("mesh")),
        "storage": _storage(fields.object("storage")),
        "tracking": _tracking(fields.optional_object("tracking")),
        "history": [_history_entry(item) for item in fields.objects("history")],
    }
    if "folded" in fields.names():
        record["folded"] = _folded(fields.object("folded"))
    fields.nothing_else({"schema_version"})
    _check_whole(record)
    _check_history(record)
    return record


def _member(fields: _Fields) -> Member:
    mesh = fields.optional_object("mesh")
    member: Member = {
        "machine": fields.checked("machine", values.machine_name),
        "address": fields.checked("address", values.address),
        "interface": fields.checked("interface", values.interface_name),
        "site": fields.checked("site", values.site_name),
        "lan_address": fields.optional("lan_address", values.address),
        "endpoint": fields.optional("endpoint", values.endpoint),
        "joined_at": fields.checked("joined_at", values.timestamp),
        "gpus": fields.integer("gpus", 0, 1024),
        "rdma": None if fields.is_null("rdma") else fields.choice("rdma", FABRICS),
        "mesh": None if mesh is None else _member_mesh(mesh),
        "ssh_host_keys": fields.texts("ssh_host_keys", values.ssh_key),
        "ssh_public_key": fields.optional("ssh_public_key", values.ssh_key),
    }
    fields.nothing_else()
    return member


def _removed(fields: _Fields) -> Removed:
    removed: Removed = {
        "machine": fields.checked("machine", values.machine_name),
        "at": fields.checked("at", values.timestamp),
        "keys": fields.choice("keys", KEYS),
    }
    fields.nothing_else()
    return removed


def _member_mesh(fields: _Fields) -> MemberMesh:
    mesh: MemberMesh = {
        "address": fields.checked("address", values.address),
        "public_key": fields.optional("public_key", values.line),
    }
    if fields.flag("userspace"):
        mesh["userspace"] = True
    fields.nothing_else()
    return mesh


def _mesh(fields: _Fields) -> Mesh:
    mesh: Mesh = {
        "backend": fields.choice("backend", BACKENDS),
        "subnet": fields.checked("subnet", values.subnet),
        "port": fields.integer("port", 1, 65535),
        "interface": fields.checked("interface", values.mesh_interface_name),
        "mtu": None if fields.is_null("mtu") else fields.integer("mtu", 576, 65535),
    }
    fields.nothing_else()
    return mesh


def _storage(fields: _Fields) -> Storage:
    volumes = [_volume(item, f"storage.volumes[{index}]") for index, item in enumerate(fields.objects("volumes"))]
    fields.nothing_else()
    return {"volumes": volumes}


def _volume(fields: _Fields, where: str) -> Dict[str, Any]:
    found: Dict[str, Any] = {"name": fields.checked("name", values.volume_name)}
    if {"server", "path"} & set(fields.names()):
        found["server"] = fields.checked("server", values.machine_name)
        found["path"] = fields.checked("path", values.absolute_path)
    found["mount_point"] = fields.checked("mount_point", values.mount_point)
    found.update({key: fields.any(key) for key in fields.names() if key not in _VOLUME_KEYS})
    try:
        check_volume(found)
    except ValueError as failure:
        raise InvalidRecordError(where, str(failure)) from failure
    return found


def _tracking(fields: Optional[_Fields]) -> Optional[Tracking]:
    if fields is None:
        return None
    found: Tracking = {
        "server": fields.checked("server", values.machine_name),
        "port": fields.integer("port", 1024, 65535),
        "volume": fields.checked("volume", values.volume_name),
        "tls": fields.boolean("tls"),
        "certificates": fields.texts("certificates", values.certificate) if "certificates" in fields.names() else [],
    }
    if len(found["certificates"]) > _MOST_CERTIFICATES or (found["certificates"] and not found["tls"]):
        raise InvalidRecordError(
            "tracking.certificates", f"expected at most {_MOST_CERTIFICATES}, and none without TLS"
        )
    fields.nothing_else()
    return found


def _history_entry(fields: _Fields) -> HistoryEntry:
    entry: HistoryEntry = {
        "generation": fields.integer("generation", 1, None),
        "at": fields.checked("at", values.timestamp),
        "by": fields.checked("by", values.line),
        "change": fields.checked("change", values.line),
        "detail": fields.checked("detail", values.line),
    }
    fields.nothing_else()
    return entry


def _folded(fields: _Fields) -> Folded:
    folded: Folded = {
        "through": fields.integer("through", 2, None),
        "count": fields.integer("count", 1, None),
        "first": fields.checked("first", values.timestamp),
        "last": fields.checked("last", values.timestamp),
        "digest": fields.matched("digest", _DIGEST, "64 hexadecimal digits"),
    }
    fields.nothing_else()
    return folded


def _check_history(record: Record) -> None:
    """Refuse a history that does not have each generation once, in the list or folded."""
    folded = record.get("folded")
    through, count = (folded["through"], folded["count"]) if folded else (0, 0)
    generations = [entry["generation"] for entry in record["history"]]
    kept = through - count
    # Compared by count first, since a damaged record may claim billions of generations.
    whole = (
        0 <= kept <= len(generations) == record["generation"] - count
        and generations[:1] == [1]
        and generations[kept:] == list(range(through + 1, record["generation"] + 1))
        and all(before < after <= through for before, after in zip(generations[: kept - 1], generations[1:kept]))
    )
    if not whole:
        raise InvalidRecordError(
            "history", f"it does not contain each generation from 1 to {record['generation']} once"
        )


def _check_whole(record: Record) -> None:
    """The rules that involve several fields."""
    members = record["members"]
    machines = [member["machine"] for member in members]
    gone = [removed["machine"] for removed in record["removed"]]
    _distinct("machine", [machine.lower() for machine in [*machines, *gone]])
    _distinct("address", [member["address"] for member in members])
    lans = [f"{one['lan_address']} at site {one['site']}" if one["lan_address"] else None for one in members]
    _distinct("lan_address", lans)
    _distinct("endpoint", [member["endpoint"] for member in members])
    _distinct("mesh.address", [member["mesh"]["address"] if member["mesh"] else None for member in members])
    _distinct("mesh.public_key", [member["mesh"]["public_key"] if member["mesh"] else None for member in members])
    if record["manager"] not in machines:
        raise InvalidRecordError("manager", f"'{record['manager']}' is not among the members")
    within = ipaddress.ip_network(record["subnet"])
    for index, member in enumerate(members):
        if not values.host_in(member["address"], within):
            raise InvalidRecordError(
                f"members[{index}].address", f"{member['address']} is not a host address of {within}"
            )
    _check_ends(record)
    _check_mesh(record)
    _check_servers(record)
    volumes = record["storage"]["volumes"]
    _distinct("storage.volumes.name", [volume["name"] for volume in volumes])
    _distinct("storage.volumes.mount_point", [volume["mount_point"] for volume in volumes])


def _check_ends(record: Record) -> None:
    """Check the members' ends of the mesh."""
    mesh = record["mesh"]
    tunnels = ipaddress.ip_network(mesh["subnet"])
    for index, member in enumerate(record["members"]):
        end = member["mesh"]
        if end is None:
            continue
        where = f"members[{index}].mesh"
        if end.get("userspace") and mesh["backend"] != "tailscale":
            raise InvalidRecordError(f"{where}.userspace", f"the mesh is '{mesh['backend']}', not a tailnet")
        # A tailnet assigns the addresses, from a range that its control server chooses.
        if mesh["backend"] == "wireguard":
            if not values.host_in(end["address"], tunnels):
                raise InvalidRecordError(f"{where}.address", f"{end['address']} is not a host address of {tunnels}")
            if end["public_key"] is not None:
                _checked(f"{where}.public_key", values.wireguard_key, end["public_key"])


def _check_servers(record: Record) -> None:
    machines = [member["machine"] for member in record["members"]]
    for index, volume in enumerate(record["storage"]["volumes"]):
        if "server" in volume and volume["server"] not in machines:
            where = f"storage.volumes[{index}].server"
            raise InvalidRecordError(where, f"'{volume['server']}' is not among the members")
    try:
        check_together(record["storage"]["volumes"])
    except ValueError as failure:
        raise InvalidRecordError("storage.volumes", str(failure)) from failure
    tracking = record["tracking"]
    if tracking is not None and tracking["server"] not in machines:
        raise InvalidRecordError("tracking.server", f"'{tracking['server']}' is not among the members")
    names = [volume["name"] for volume in record["storage"]["volumes"]]
    if tracking is not None and tracking["volume"] not in names:
        raise InvalidRecordError("tracking.volume", f"'{tracking['volume']}' is not among the volumes")


def _check_mesh(record: Record) -> None:
    """Refuse a mesh that would route other traffic into the tunnels."""
    mesh = record["mesh"]
    if mesh["backend"] == "none":
        return
    tunnels, lan = ipaddress.ip_network(mesh["subnet"]), ipaddress.ip_network(record["subnet"])
    if lan != tunnels and lan.version == tunnels.version and lan.overlaps(tunnels):
        raise InvalidRecordError("mesh.subnet", f"{tunnels} overlaps the cluster's subnet {lan}")
    for index, member in enumerate(record["members"]):
        if lan != tunnels and member["interface"] == mesh["interface"]:
            raise InvalidRecordError(
                "mesh.interface", f"{member['machine']} has the cluster's subnet on {mesh['interface']}"
            )
        if member["lan_address"] is not None and ipaddress.ip_address(member["lan_address"]) in tunnels:
            raise InvalidRecordError(f"members[{index}].lan_address", f"{member['lan_address']} is in the mesh itself")


def _distinct(what: str, found: List[Any]) -> None:
    seen = set()
    for value in found:
        if value is None:
            continue
        if value in seen:
            raise InvalidRecordError(what, f"'{value}' occurs twice")
        seen.add(value)


def _checked(where: str, check: Callable[[str], str], value: str) -> str:
    try:
        return check(value)
    except ValueError as failure:
        raise InvalidRecordError(where, str(failure)) from failure


def _type_name(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")


class _Fields:
    """The fields of one object of an untrusted document. Each is taken once, and its type is checked."""

    def __init__(self, document: Document, where: str) -> None:
        self._document = document
        self._where = where
        self._taken: List[str] = []

    def _path(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key

    def names(self) -> List[str]:
        return list(self._document)

    def any(self, key: str) -> Any:
        self._taken.append(key)
        if key not in self._document:
            raise InvalidRecordError(self._path(key), "it is missing")
        return self._document[key]

    def is_null(self, key: str) -> bool:
        return self.any(key) is None

    def checked(self, key: str, check: Callable[[str], str]) -> str:
        value = self.any(key)
        if not isinstance(value, str):
            raise InvalidRecordError(self._path(key), f"expected a string, not {_type_name(value)}")
        return _checked(self._path(key), check, value)

    def optional(self, key: str, check: Callable[[str], str]) -> Optional[str]:
        return None if self.is_null(key) else self.checked(key, check)

    def matched(self, key: str, pattern: re.Pattern[str], what: str) -> str:
        value = self.checked(key, str)
        if not pattern.fullmatch(value):
            raise InvalidRecordError(self._path(key), f"'{value[:60]}' is not {what}")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        value = self.checked(key, str)
        if value not in choices:
            raise InvalidRecordError(self._path(key), f"'{value[:60]}' is not one of {', '.join(choices)}")
        return value

    def integer(self, key: str, low: int, high: Optional[int]) -> int:
        value = self.any(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidRecordError(self._path(key), f"expected an integer, not {_type_name(value)}")
        if value < low or (high is not None and value > high):
            limits = f"at least {low}" if high is None else f"from {low} to {high}"
            raise InvalidRecordError(self._path(key), f"{value} is not {limits}")
        return value

    def boolean(self, key: str) -> bool:
        value = self.any(key)
        if not isinstance(value, bool):
            raise InvalidRecordError(self._path(key), f"expected a boolean, not {_type_name(value)}")
        return value

    def flag(self, key: str) -> bool:
        """Whether the key exists; if so, it must be true."""
        there = key in self._document
        if there and not self.boolean(key):
            raise InvalidRecordError(self._path(key), "expected true, or no such key")
        return there

    def texts(self, key: str, check: Callable[[str], str]) -> List[str]:
        value = self.any(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InvalidRecordError(self._path(key), "expected a list of strings")
        return [_checked(f"{self._path(key)}[{index}]", check, item) for index, item in enumerate(value)]

    def object(self, key: str) -> _Fields:
        value = self.any(key)
        if not isinstance(value, dict):
            raise InvalidRecordError(self._path(key), f"expected an object, not {_type_name(value)}")
        return _Fields(value, self._path(key))

    def optional_object(self, key: str) -> Optional[_Fields]:
        return None if self.is_null(key) else self.object(key)

    def objects(self, key: str) -> List[_Fields]:
        value = self.any(key)
        if not isinstance(value, list):
            raise InvalidRecordError(self._path(key), f"expected a list, not {_type_name(value)}")
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                raise InvalidRecordError(f"{self._path(key)}[{index}]", f"expected an object, not {_type_name(item)}")
        return [_Fields(item, f"{self._path(key)}[{index}]") for index, item in enumerate(value)]

    def nothing_else(self, besides: Optional[set[str]] = None) -> None:
        """An unknown key is a typing error, or comes from a newer version, so it is not dropped silently."""
        unknown = sorted(set(self._document) - set(self._taken) - (besides or set()))
        if unknown:
            raise InvalidRecordError(self._path(unknown[0]), "unknown key")
