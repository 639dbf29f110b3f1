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

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership, values
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.volume import check_nesting, check_volume
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.version import require_version

#: The version that this code writes. This code reads the version itself and, through MIGRATIONS, all older ones.
SCHEMA_VERSION = 6

BACKENDS = ("none", "wireguard", "tailscale")

#: The fabric of a member's RDMA ports.
FABRICS = ("infiniband", "roce", "none")

#: The state of the keys of removed machines: still in use, to be changed since the machine is not trusted, or changed
#: after it left.
KEY_STATES = ("kept", "untrusted", "changed")
#: The site of all members by default, so that nothing is tunnelled unnecessarily.
DEFAULT_SITE = "default"

JsonObject = Dict[str, Any]


class _MemberMesh(TypedDict):
    address: str
    public_key: Optional[str]


class MemberMesh(_MemberMesh, total=False):
    """A member's end of the mesh. ``public_key`` is null until the member has generated its key.

    ``userspace`` is true for a node without an interface of the mesh, whose programs reach it through a library. Other
    records do not have this field, so that earlier versions can read them; they refuse records with it.
    """

    userspace: bool


class _Member(TypedDict):
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


class Member(_Member, total=False):
    """One machine of the cluster.

    ``slurm_node`` is false for a machine that runs no jobs (``membership.is_slurm_node``). Others do not have this field,
    so that earlier versions can read their records; they refuse records with it.
    """

    slurm_node: bool


class RemovedMember(TypedDict):
    """A machine that was removed. It does not rejoin just by being in the inventory. ``keys``: one of KEY_STATES."""

    machine: str
    at: str
    keys: str


class MeshSettings(TypedDict):
    """The network between the members. ``mtu`` null: determined by the mesh layer."""

    backend: str
    subnet: str
    port: int
    interface: str
    mtu: Optional[int]


class StorageSettings(TypedDict):
    """Volumes: name, mount_point, and the options in ``record.volume``.

    ``server`` and ``path`` name the member that has the data, and where. Without both, it is an external file system.
    """

    volumes: List[Dict[str, Any]]


class TrackingSettings(TypedDict):
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


class FoldedHistory(TypedDict):
    """The older entries of the history that are folded: how many up to ``through``, and when they were made.

    ``digest``: that of the whole history up to there.
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
    #: The version of this collection that applied the record last. Null if that version did not note itself.
    collection_version: Optional[str]
    members: List[Member]
    removed: List[RemovedMember]
    mesh: MeshSettings
    storage: StorageSettings
    #: The settings are null if no experiments are tracked.
    tracking: Optional[TrackingSettings]
    history: List[HistoryEntry]


class Record(_Record, total=False):
    """The whole record. ``members`` are in joining order, which is the rank order of jobs.

    ``folded``: records with a short history do not have it.
    """

    folded: FoldedHistory


class InvalidRecordError(RecordError):
    """A document is not a valid record. The message contains the path of the field and the reason."""

    def __init__(self, field_path: str, reason: str) -> None:
        super().__init__(f"{field_path or 'the document'}: {reason}", where=field_path, reason=reason)


class FutureSchemaError(RecordError):
    """The record was written by a newer version of this collection."""

    def __init__(self, schema_version: int) -> None:
        super().__init__(
            f"it has schema version {schema_version}, but this version of gpumesh.cluster supports only {SCHEMA_VERSION}",
            "Use the version of gpumesh.cluster that wrote it, or a newer one.",
            schema_version=schema_version,
        )


def _add_lan_addresses(document: JsonObject) -> JsonObject:
    """Schema 2: a member may have an address on the LAN of its site. An invalid record is refused later."""
    return _add_member_field(document, "lan_address")


def _add_member_field(document: JsonObject, field_name: str) -> JsonObject:
    members = document.get("members")
    if not isinstance(members, list):
        return document
    return {
        **document,
        "members": [{field_name: None, **member} if isinstance(member, dict) else member for member in members],
    }


def _add_removed(document: JsonObject) -> JsonObject:
    """Schema 3: removed machines are recorded. Earlier ones are only mentioned in the history."""
    return {"removed": [], **document}


def _add_tracking(document: JsonObject) -> JsonObject:
    """Schema 4: a member may run the tracking server."""
    return {"tracking": None, **document}


def _add_rdma(document: JsonObject) -> JsonObject:
    """Schema 5: members have RDMA ports of a known fabric."""
    return _add_member_field(document, "rdma")


def _add_collection_version(document: JsonObject) -> JsonObject:
    """Schema 6: the record names the version of this collection that applied it last."""
    return {"collection_version": None, **document}


#: The steps from schema N to schema N + 1. A released version never changes its meaning: to change the record, increase
#: SCHEMA_VERSION, and add the step here.
MIGRATIONS: Dict[int, Callable[[JsonObject], JsonObject]] = {
    1: _add_lan_addresses,
    2: _add_removed,
    3: _add_tracking,
    4: _add_rdma,
    5: _add_collection_version,
}

_MAX_CERTIFICATES = 2
_CLUSTER_ID = re.compile(r"[0-9a-f]{32}")
_DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")
_VOLUME_KEYS = {"name", "server", "path", "mount_point"}


def migrate(document: JsonObject) -> JsonObject:
    """Convert a document to the current schema, without modifying the original."""
    schema_version = document.get("schema_version")
    if not isinstance(schema_version, int) or isinstance(schema_version, bool) or schema_version < 1:
        raise InvalidRecordError("schema_version", f"{schema_version!r} is not a schema version")
    if schema_version > SCHEMA_VERSION:
        raise FutureSchemaError(schema_version)
    while schema_version < SCHEMA_VERSION:
        document = {**MIGRATIONS[schema_version](document), "schema_version": schema_version + 1}
        schema_version += 1
    return document


def parse(document: object) -> Record:
    """Validate an untrusted document, and return the record in the current schema.

    Raises InvalidRecordError with the path of the field, or FutureSchemaError.
    """
    if not isinstance(document, dict):
        raise InvalidRecordError("", f"expected a JSON object, not {_type_name(document)}")
    record_fields = _Fields(migrate(document), "")
    record: Record = {
        "schema_version": SCHEMA_VERSION,
        "id": record_fields.read_matching_text("id", _CLUSTER_ID, "32 hexadecimal digits"),
        "name": record_fields.read_text("name", values.cluster_name),
        "generation": record_fields.read_integer("generation", 1, None),
        "subnet": record_fields.read_text("subnet", values.subnet),
        "manager": record_fields.read_text("manager", values.machine_name),
        "collection_version": record_fields.read_optional_text("collection_version", require_version),
        "members": [_parse_member(entry_fields) for entry_fields in record_fields.read_objects("members")],
        "removed": [_parse_removed(entry_fields) for entry_fields in record_fields.read_objects("removed")],
        "mesh": _parse_mesh(record_fields.read_object("mesh")),
        "storage": _parse_storage(record_fields.read_object("storage")),
        "tracking": _parse_tracking(record_fields.read_optional_object("tracking")),
        "history": [_parse_history_entry(entry_fields) for entry_fields in record_fields.read_objects("history")],
    }
    if "folded" in record_fields.key_names():
        record["folded"] = _parse_folded(record_fields.read_object("folded"))
    record_fields.refuse_unknown_keys({"schema_version"})
    _check_consistency(record)
    _check_history(record)
    return record


def _parse_member(member_fields: _Fields) -> Member:
    mesh_fields = member_fields.read_optional_object("mesh")
    member: Member = {
        "machine": member_fields.read_text("machine", values.machine_name),
        "address": member_fields.read_text("address", values.address),
        "interface": member_fields.read_text("interface", values.interface_name),
        "site": member_fields.read_text("site", values.site_name),
        "lan_address": member_fields.read_optional_text("lan_address", values.address),
        "endpoint": member_fields.read_optional_text("endpoint", values.endpoint),
        "joined_at": member_fields.read_text("joined_at", values.timestamp),
        "gpus": member_fields.read_integer("gpus", 0, 1024),
        "rdma": None if member_fields.is_null("rdma") else member_fields.read_choice("rdma", FABRICS),
        "mesh": None if mesh_fields is None else _parse_member_mesh(mesh_fields),
        "ssh_host_keys": member_fields.read_texts("ssh_host_keys", values.ssh_key),
        "ssh_public_key": member_fields.read_optional_text("ssh_public_key", values.ssh_key),
    }
    if member_fields.read_flag("slurm_node", expected=False):
        member["slurm_node"] = False
    member_fields.refuse_unknown_keys()
    return member


def _parse_removed(removed_fields: _Fields) -> RemovedMember:
    removed_member: RemovedMember = {
        "machine": removed_fields.read_text("machine", values.machine_name),
        "at": removed_fields.read_text("at", values.timestamp),
        "keys": removed_fields.read_choice("keys", KEY_STATES),
    }
    removed_fields.refuse_unknown_keys()
    return removed_member


def _parse_member_mesh(mesh_fields: _Fields) -> MemberMesh:
    mesh: MemberMesh = {
        "address": mesh_fields.read_text("address", values.address),
        "public_key": mesh_fields.read_optional_text("public_key", values.printable_line),
    }
    if mesh_fields.read_flag("userspace"):
        mesh["userspace"] = True
    mesh_fields.refuse_unknown_keys()
    return mesh


def _parse_mesh(mesh_fields: _Fields) -> MeshSettings:
    mesh: MeshSettings = {
        "backend": mesh_fields.read_choice("backend", BACKENDS),
        "subnet": mesh_fields.read_text("subnet", values.subnet),
        "port": mesh_fields.read_integer("port", 1, 65535),
        "interface": mesh_fields.read_text("interface", values.mesh_interface_name),
        "mtu": None if mesh_fields.is_null("mtu") else mesh_fields.read_integer("mtu", 576, 65535),
    }
    mesh_fields.refuse_unknown_keys()
    return mesh


def _parse_storage(storage_fields: _Fields) -> StorageSettings:
    volumes = [
        _parse_volume(volume_fields, f"storage.volumes[{index}]")
        for index, volume_fields in enumerate(storage_fields.read_objects("volumes"))
    ]
    storage_fields.refuse_unknown_keys()
    return {"volumes": volumes}


def _parse_volume(volume_fields: _Fields, field_path: str) -> Dict[str, Any]:
    volume: Dict[str, Any] = {"name": volume_fields.read_text("name", values.volume_name)}
    if {"server", "path"} & set(volume_fields.key_names()):
        volume["server"] = volume_fields.read_text("server", values.machine_name)
        volume["path"] = volume_fields.read_text("path", values.absolute_path)
    volume["mount_point"] = volume_fields.read_text("mount_point", values.mount_point)
    volume.update({key: volume_fields.read_any(key) for key in volume_fields.key_names() if key not in _VOLUME_KEYS})
    try:
        check_volume(volume)
    except ValueError as failure:
        raise InvalidRecordError(field_path, str(failure)) from failure
    return volume


def _parse_tracking(tracking_fields: Optional[_Fields]) -> Optional[TrackingSettings]:
    if tracking_fields is None:
        return None
    tracking: TrackingSettings = {
        "server": tracking_fields.read_text("server", values.machine_name),
        "port": tracking_fields.read_integer("port", 1024, 65535),
        "volume": tracking_fields.read_text("volume", values.volume_name),
        "tls": tracking_fields.read_boolean("tls"),
        "certificates": tracking_fields.read_texts("certificates", values.certificate)
        if "certificates" in tracking_fields.key_names()
        else [],
    }
    if len(tracking["certificates"]) > _MAX_CERTIFICATES or (tracking["certificates"] and not tracking["tls"]):
        raise InvalidRecordError("tracking.certificates", f"expected at most {_MAX_CERTIFICATES}, and none without TLS")
    tracking_fields.refuse_unknown_keys()
    return tracking


def _parse_history_entry(entry_fields: _Fields) -> HistoryEntry:
    entry: HistoryEntry = {
        "generation": entry_fields.read_integer("generation", 1, None),
        "at": entry_fields.read_text("at", values.timestamp),
        "by": entry_fields.read_text("by", values.printable_line),
        "change": entry_fields.read_text("change", values.printable_line),
        "detail": entry_fields.read_text("detail", values.printable_line),
    }
    entry_fields.refuse_unknown_keys()
    return entry


def _parse_folded(folded_fields: _Fields) -> FoldedHistory:
    folded_history: FoldedHistory = {
        "through": folded_fields.read_integer("through", 2, None),
        "count": folded_fields.read_integer("count", 1, None),
        "first": folded_fields.read_text("first", values.timestamp),
        "last": folded_fields.read_text("last", values.timestamp),
        "digest": folded_fields.read_matching_text("digest", _DIGEST_PATTERN, "64 hexadecimal digits"),
    }
    folded_fields.refuse_unknown_keys()
    return folded_history


def _check_history(record: Record) -> None:
    """Refuse a history that does not have each generation once, in the list or folded."""
    folded_history = record.get("folded")
    last_folded, count = (folded_history["through"], folded_history["count"]) if folded_history else (0, 0)
    generations = [entry["generation"] for entry in record["history"]]
    landmark_count = last_folded - count
    # The counts are compared first, since a damaged record may claim billions of generations.
    is_complete = (
        0 <= landmark_count <= len(generations) == record["generation"] - count
        and generations[:1] == [1]
        and generations[landmark_count:] == list(range(last_folded + 1, record["generation"] + 1))
        and all(
            previous_generation < next_generation <= last_folded
            for previous_generation, next_generation in zip(
                generations[: landmark_count - 1], generations[1:landmark_count]
            )
        )
    )
    if not is_complete:
        raise InvalidRecordError(
            "history", f"it does not contain each generation from 1 to {record['generation']} once"
        )


def _check_consistency(record: Record) -> None:
    """Check the rules that involve several fields."""
    members = record["members"]
    member_machines = [member["machine"] for member in members]
    removed_machines = [removed["machine"] for removed in record["removed"]]
    _refuse_duplicates("machine", [machine.lower() for machine in [*member_machines, *removed_machines]])
    _refuse_duplicates("address", [member["address"] for member in members])
    site_addresses = [
        f"{member['lan_address']} at site {member['site']}" if member["lan_address"] else None for member in members
    ]
    _refuse_duplicates("lan_address", site_addresses)
    _refuse_duplicates("endpoint", [member["endpoint"] for member in members])
    _refuse_duplicates("mesh.address", [member["mesh"]["address"] if member["mesh"] else None for member in members])
    _refuse_duplicates(
        "mesh.public_key", [member["mesh"]["public_key"] if member["mesh"] else None for member in members]
    )
    if record["manager"] not in member_machines:
        raise InvalidRecordError("manager", f"'{record['manager']}' is not among the members")
    if not membership.slurm_nodes(record):
        raise InvalidRecordError("members", "none of them is a Slurm node")
    cluster_network = ipaddress.ip_network(record["subnet"])
    for index, member in enumerate(members):
        if not values.is_host_of(member["address"], cluster_network):
            raise InvalidRecordError(
                f"members[{index}].address", f"{member['address']} is not a host address of {cluster_network}"
            )
    _check_member_meshes(record)
    _check_mesh(record)
    _check_servers(record)
    volumes = record["storage"]["volumes"]
    _refuse_duplicates("storage.volumes.name", [volume["name"] for volume in volumes])
    _refuse_duplicates("storage.volumes.mount_point", [volume["mount_point"] for volume in volumes])


def _check_member_meshes(record: Record) -> None:
    """Check the members' ends of the mesh."""
    mesh_settings = record["mesh"]
    mesh_network = ipaddress.ip_network(mesh_settings["subnet"])
    for index, member in enumerate(record["members"]):
        member_mesh = member["mesh"]
        if member_mesh is None:
            continue
        field_path = f"members[{index}].mesh"
        if member_mesh.get("userspace") and mesh_settings["backend"] != "tailscale":
            raise InvalidRecordError(
                f"{field_path}.userspace", f"the mesh is '{mesh_settings['backend']}', not a tailnet"
            )
        # A tailnet assigns the addresses, from a range that its control server chooses.
        if mesh_settings["backend"] == "wireguard":
            if not values.is_host_of(member_mesh["address"], mesh_network):
                raise InvalidRecordError(
                    f"{field_path}.address", f"{member_mesh['address']} is not a host address of {mesh_network}"
                )
            if member_mesh["public_key"] is not None:
                _check_text(f"{field_path}.public_key", values.wireguard_key, member_mesh["public_key"])


def _check_servers(record: Record) -> None:
    member_machines = [member["machine"] for member in record["members"]]
    for index, volume in enumerate(record["storage"]["volumes"]):
        if "server" in volume and volume["server"] not in member_machines:
            field_path = f"storage.volumes[{index}].server"
            raise InvalidRecordError(field_path, f"'{volume['server']}' is not among the members")
    try:
        check_nesting(record["storage"]["volumes"])
    except ValueError as failure:
        raise InvalidRecordError("storage.volumes", str(failure)) from failure
    tracking = record["tracking"]
    if tracking is not None and tracking["server"] not in member_machines:
        raise InvalidRecordError("tracking.server", f"'{tracking['server']}' is not among the members")
    volume_names = [volume["name"] for volume in record["storage"]["volumes"]]
    if tracking is not None and tracking["volume"] not in volume_names:
        raise InvalidRecordError("tracking.volume", f"'{tracking['volume']}' is not among the volumes")


def _check_mesh(record: Record) -> None:
    """Refuse a mesh that would route other traffic into the tunnels."""
    mesh_settings = record["mesh"]
    if mesh_settings["backend"] == "none":
        return
    mesh_network, cluster_network = (
        ipaddress.ip_network(mesh_settings["subnet"]),
        ipaddress.ip_network(record["subnet"]),
    )
    if (
        cluster_network != mesh_network
        and cluster_network.version == mesh_network.version
        and cluster_network.overlaps(mesh_network)
    ):
        raise InvalidRecordError("mesh.subnet", f"{mesh_network} overlaps the cluster's subnet {cluster_network}")
    for index, member in enumerate(record["members"]):
        if cluster_network != mesh_network and member["interface"] == mesh_settings["interface"]:
            raise InvalidRecordError(
                "mesh.interface", f"{member['machine']} has the cluster's subnet on {mesh_settings['interface']}"
            )
        if member["lan_address"] is not None and ipaddress.ip_address(member["lan_address"]) in mesh_network:
            raise InvalidRecordError(f"members[{index}].lan_address", f"{member['lan_address']} is in the mesh itself")


def _refuse_duplicates(field_path: str, candidates: List[Any]) -> None:
    earlier_entries = set()
    for value in candidates:
        if value is None:
            continue
        if value in earlier_entries:
            raise InvalidRecordError(field_path, f"'{value}' occurs twice")
        earlier_entries.add(value)


def _check_text(field_path: str, normalize: Callable[[str], str], value: str) -> str:
    try:
        return normalize(value)
    except ValueError as failure:
        raise InvalidRecordError(field_path, str(failure)) from failure


def _type_name(value: object) -> str:
    type_names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number"}
    return "null" if value is None else type_names.get(type(value), f"a {type(value).__name__}")


class _Fields:
    """The fields of one object of an untrusted document. Each is read once, and its type is checked."""

    def __init__(self, document: JsonObject, field_path: str) -> None:
        self._document = document
        self._field_path = field_path
        self._read_keys: List[str] = []

    def _key_path(self, key: str) -> str:
        return f"{self._field_path}.{key}" if self._field_path else key

    def key_names(self) -> List[str]:
        return list(self._document)

    def read_any(self, key: str) -> Any:
        self._read_keys.append(key)
        if key not in self._document:
            raise InvalidRecordError(self._key_path(key), "it is missing")
        return self._document[key]

    def is_null(self, key: str) -> bool:
        return self.read_any(key) is None

    def read_text(self, key: str, normalize: Callable[[str], str]) -> str:
        value = self.read_any(key)
        if not isinstance(value, str):
            raise InvalidRecordError(self._key_path(key), f"expected a string, not {_type_name(value)}")
        return _check_text(self._key_path(key), normalize, value)

    def read_optional_text(self, key: str, normalize: Callable[[str], str]) -> Optional[str]:
        return None if self.is_null(key) else self.read_text(key, normalize)

    def read_matching_text(self, key: str, pattern: re.Pattern[str], expected_form: str) -> str:
        value = self.read_text(key, str)
        if not pattern.fullmatch(value):
            raise InvalidRecordError(self._key_path(key), f"'{value[:60]}' is not {expected_form}")
        return value

    def read_choice(self, key: str, valid_choices: tuple[str, ...]) -> str:
        value = self.read_text(key, str)
        if value not in valid_choices:
            raise InvalidRecordError(self._key_path(key), f"'{value[:60]}' is not one of {', '.join(valid_choices)}")
        return value

    def read_integer(self, key: str, minimum: int, maximum: Optional[int]) -> int:
        value = self.read_any(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidRecordError(self._key_path(key), f"expected an integer, not {_type_name(value)}")
        if value < minimum or (maximum is not None and value > maximum):
            valid_range = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise InvalidRecordError(self._key_path(key), f"{value} is not {valid_range}")
        return value

    def read_boolean(self, key: str) -> bool:
        value = self.read_any(key)
        if not isinstance(value, bool):
            raise InvalidRecordError(self._key_path(key), f"expected a boolean, not {_type_name(value)}")
        return value

    def read_flag(self, key: str, expected: bool = True) -> bool:
        """Whether the key exists; if so, it must have the expected value."""
        is_present = key in self._document
        if is_present and self.read_boolean(key) is not expected:
            raise InvalidRecordError(self._key_path(key), f"expected {str(expected).lower()}, or no such key")
        return is_present

    def read_texts(self, key: str, normalize: Callable[[str], str]) -> List[str]:
        raw_texts = self.read_any(key)
        if not isinstance(raw_texts, list) or not all(isinstance(text, str) for text in raw_texts):
            raise InvalidRecordError(self._key_path(key), "expected a list of strings")
        return [_check_text(f"{self._key_path(key)}[{index}]", normalize, text) for index, text in enumerate(raw_texts)]

    def read_object(self, key: str) -> _Fields:
        raw_object = self.read_any(key)
        if not isinstance(raw_object, dict):
            raise InvalidRecordError(self._key_path(key), f"expected an object, not {_type_name(raw_object)}")
        return _Fields(raw_object, self._key_path(key))

    def read_optional_object(self, key: str) -> Optional[_Fields]:
        return None if self.is_null(key) else self.read_object(key)

    def read_objects(self, key: str) -> List[_Fields]:
        raw_objects = self.read_any(key)
        if not isinstance(raw_objects, list):
            raise InvalidRecordError(self._key_path(key), f"expected a list, not {_type_name(raw_objects)}")
        for index, raw_object in enumerate(raw_objects):
            if not isinstance(raw_object, dict):
                raise InvalidRecordError(
                    f"{self._key_path(key)}[{index}]", f"expected an object, not {_type_name(raw_object)}"
                )
        return [_Fields(raw_object, f"{self._key_path(key)}[{index}]") for index, raw_object in enumerate(raw_objects)]

    def refuse_unknown_keys(self, other_keys: Optional[set[str]] = None) -> None:
        """Refuse unknown keys.

        They are typing errors, or come from a newer version, so they are not dropped silently.
        """
        unknown_keys = sorted(set(self._document) - set(self._read_keys) - (other_keys or set()))
        if unknown_keys:
            raise InvalidRecordError(self._key_path(unknown_keys[0]), "unknown key")
