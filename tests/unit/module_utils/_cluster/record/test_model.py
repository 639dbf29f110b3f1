# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents that are records, and documents that are not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import RecordError

KEY = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
DOCUMENT: dict[str, Any] = {
    "schema_version": 6,
    "id": "7c9e6679742540de944be07fc1f90ae7",
    "name": "lab",
    "generation": 2,
    "subnet": "10.77.0.0/24",
    "manager": "n1",
    "collection_version": "1.0.0",
    "members": [
        {
            "machine": "n1",
            "address": "10.77.0.11",
            "interface": "eth0",
            "site": "default",
            "lan_address": "10.77.0.11",
            "endpoint": "203.0.113.10:51820",
            "joined_at": "2026-11-20T20:31:00Z",
            "gpus": 2,
            "rdma": "infiniband",
            "mesh": {"address": "10.99.0.1", "public_key": KEY},
            "ssh_host_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE"],
            "ssh_public_key": None,
        },
        {
            "machine": "n2",
            "address": "10.77.0.12",
            "interface": "enp3s0f1",
            "site": "default",
            "lan_address": None,
            "endpoint": None,
            "joined_at": "2026-11-20T20:32:00Z",
            "gpus": 0,
            "rdma": None,
            "mesh": None,
            "ssh_host_keys": [],
            "ssh_public_key": None,
        },
    ],
    "removed": [{"machine": "n3", "at": "2026-11-20T20:31:30Z", "keys": "kept"}],
    "mesh": {"backend": "wireguard", "subnet": "10.99.0.0/16", "port": 51820, "interface": "gpumesh0", "mtu": None},
    "storage": {
        "volumes": [{"name": "data", "server": "n1", "path": "/srv/data", "mount_point": "/mnt/data", "quota": "7G"}]
    },
    "tracking": {"server": "n2", "port": 5000, "volume": "data", "tls": True, "certificates": [CERTIFICATE]},
    "history": [
        {"generation": 1, "at": "2026-11-20T20:31:00Z", "by": "root@n1", "change": "create", "detail": "created"},
        {"generation": 2, "at": "2026-11-20T20:32:00Z", "by": "root@n1", "change": "join", "detail": "n2 joined"},
    ],
}


def change_document(path: str, value: Any) -> dict[str, Any]:
    """DOCUMENT with the value at a dotted path replaced, or removed if it is ``...``."""
    document = copy.deepcopy(DOCUMENT)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    parent: Any = document
    for part in parents:
        parent = parent[part]
    if value is ...:
        del parent[last]
    else:
        parent[last] = value
    return document


def test_valid_record_is_unchanged() -> None:
    assert model.parse(copy.deepcopy(DOCUMENT)) == DOCUMENT


def test_values_are_normalized() -> None:
    assert model.parse(change_document("subnet", "10.77.0.9/24"))["subnet"] == "10.77.0.0/24"
    assert (
        model.parse(change_document("storage.volumes.0.path", "/srv//data/"))["storage"]["volumes"][0]["path"]
        == "/srv/data"
    )


@pytest.mark.parametrize(
    ("path", "value", "where", "reason"),
    [
        ("id", "lab", "id", "32 hexadecimal digits"),
        ("name", "Lab", "name", "cluster name"),
        ("name", "../etc/passwd", "name", "cluster name"),
        ("generation", "2", "generation", "expected an integer, not a string"),
        ("generation", True, "generation", "not a boolean"),
        ("generation", 3, "history", "each generation from 1 to 3"),
        ("generation", 10**15, "history", "each generation from 1 to 1000000000000000"),
        ("subnet", "10.77.0.11/32", "subnet", "shorter than /32"),
        ("subnet", "10.77.0.11", "subnet", "ADDRESS/MASK"),
        ("subnet", "10.78.0.0/24", "members[0].address", "10.77.0.11 is not a host address of 10.78.0.0/24"),
        ("manager", "n3", "manager", "not among the members"),
        ("manager", ..., "manager", "missing"),
        ("collection_version", ..., "collection_version", "missing"),
        ("collection_version", "1.0", "collection_version", "not a semantic version"),
        ("collection_version", 1, "collection_version", "expected a string"),
        ("members", {}, "members", "expected a list, not an object"),
        ("members.1", None, "members[1]", "expected an object, not null"),
        ("members.1.machine", "N1", "machine", "twice"),
        ("members.1.machine", "n2\nevil", "members[1].machine", "machine name"),
        ("members.1.address", "10.77.0.11", "address", "twice"),
        ("members.1.address", "10.77.0.0", "members[1].address", "not a host address of"),
        ("members.1.address", "10.77.0.255", "members[1].address", "not a host address of"),
        ("members.1.address", "10.77.0.300", "members[1].address", "10.77.0.300"),
        ("members.1.interface", "eth0; reboot", "members[1].interface", "interface name"),
        ("members.1.endpoint", "203.0.113.10:51820", "endpoint", "twice"),
        ("members.1.endpoint", "203.0.113.10", "members[1].endpoint", "valid endpoint"),
        ("members.1.gpus", -1, "members[1].gpus", "-1 is not from 0 to 1024"),
        ("members.1.joined_at", "yesterday", "members[1].joined_at", "'yesterday'"),
        ("members.1.rank", 1, "members[1].rank", "unknown key"),
        ("members.0.mesh.address", "10.98.0.1", "members[0].mesh.address", "10.99.0.0/16"),
        ("members.0.mesh.public_key", "c2hvcnQ=", "members[0].mesh.public_key", "32 bytes in base64"),
        ("members.0.mesh.userspace", False, "members[0].mesh.userspace", "expected true, or no such key"),
        ("members.0.mesh.userspace", 1, "members[0].mesh.userspace", "expected a boolean, not a number"),
        ("members.0.slurm_node", True, "members[0].slurm_node", "expected false, or no such key"),
        ("members.0.slurm_node", None, "members[0].slurm_node", "expected a boolean, not null"),
        ("members.0.ssh_host_keys", ["ssh-ed25519"], "members[0].ssh_host_keys[0]", "public SSH key"),
        ("mesh.backend", "ipsec", "mesh.backend", "one of none, wireguard, tailscale"),
        ("mesh.port", 65536, "mesh.port", "65536 is not from 1 to 65535"),
        ("storage.volumes.0.mount_point", "/mnt/../etc", "storage.volumes[0].mount_point", "absolute path"),
        ("history.1.generation", 1, "history", "each generation from 1 to 2"),
        ("schema_version", "1", "schema_version", "'1'"),
        ("colour", "red", "colour", "unknown key"),
    ],
)
def test_invalid_record_is_refused_with_path_and_reason(path: str, value: Any, where: str, reason: str) -> None:
    with pytest.raises(model.InvalidRecordError) as caught:
        model.parse(change_document(path, value))
    assert caught.value.details["where"] == where
    assert reason in caught.value.details["reason"]


def test_newer_schema_version_is_refused() -> None:
    with pytest.raises(model.FutureSchemaError) as caught:
        model.parse(change_document("schema_version", 7))
    assert caught.value.details == {"schema_version": 7}
    assert "newer" in caught.value.remedy


def test_older_record_passes_every_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(
        model,
        "MIGRATIONS",
        {
            1: lambda document: {**document, "mesh": {**document["mesh"], "interface": "wg1"}},
            2: lambda document: {**document, "name": document["name"] + "-" + document["mesh"]["interface"]},
        },
    )
    old = change_document("schema_version", 1)
    record = model.parse(old)
    assert (record["schema_version"], record["name"]) == (3, "lab-wg1")
    assert old == change_document("schema_version", 1), "a migration must not change what it was given"


def test_schema_1_members_have_no_lan_address() -> None:
    old = change_document("schema_version", 1)
    for member in old["members"]:
        del member["lan_address"], member["rdma"]
    record = model.parse(old)
    assert [(member["lan_address"], member["rdma"]) for member in record["members"]] == [(None, None)] * 2
    for members in (None, {}, [None], ["n1"]):
        with pytest.raises(model.InvalidRecordError):
            model.parse({**old, "members": members})


def test_records_before_schema_4_have_no_tracking() -> None:
    assert model.parse({**change_document("tracking", ...), "schema_version": 3})["tracking"] is None
    assert model.parse(change_document("tracking.certificates", ...))["tracking"]["certificates"] == []


def test_records_before_schema_6_have_no_collection_version() -> None:
    assert (
        model.parse({**change_document("collection_version", ...), "schema_version": 5})["collection_version"] is None
    )


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("tracking.server", "n9", "tracking.server"),
        ("tracking.volume", "other", "tracking.volume"),
        ("tracking.port", 80, "tracking.port"),
        ("tracking.tls", 1, "tracking.tls"),
        ("tracking.users", {}, "tracking.users"),
        ("tracking.tls", False, "tracking.certificates"),
        ("tracking.certificates", [CERTIFICATE] * 3, "tracking.certificates"),
        ("tracking.certificates", [CERTIFICATE * 2], "tracking.certificates[0]"),
        ("tracking.certificates", [CERTIFICATE.replace("CERTIFICATE", "PRIVATE KEY")], "tracking.certificates[0]"),
        ("tracking.certificates", [CERTIFICATE.replace("AAAA", "\x1b]0;x")], "tracking.certificates[0]"),
    ],
)
def test_invalid_tracking_server_is_refused(path: str, value: Any, where: str) -> None:
    with pytest.raises(model.InvalidRecordError) as caught:
        model.parse(change_document(path, value))
    assert caught.value.details["where"] == where


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def document_paths(value: Any, path: str = "") -> list[str]:
    """All dotted paths in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    paths = []
    for key, inner in items:
        current_path = f"{path}.{key}" if path else str(key)
        paths += [current_path, *document_paths(inner, current_path)]
    return paths


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(document_paths(DOCUMENT)), value=JSON)
def test_arbitrary_json_at_any_path_is_parsed_or_raises_a_typed_error(path: str, value: Any) -> None:
    try:
        record = model.parse(change_document(path, value))
    except RecordError:
        return
    assert model.parse(json.loads(json.dumps(record))) == record


@settings(max_examples=200, deadline=None)
@given(document=JSON)
def test_arbitrary_json_is_not_a_record(document: Any) -> None:
    with pytest.raises(RecordError):
        model.parse(document)
