# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two versions of the collection and one record: the older one refuses to change it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import apply, derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store, format_record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import version

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2, 3)]
REQUEST = apply.ClusterRequest("10.0.0.0/24", "n1", {}, members=MEMBERS)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A cluster that version 1.2.0 has created."""
    monkeypatch.setattr(version, "VERSION", "1.2.0")
    made = Store(str(tmp_path / "clusters"), "lab")
    apply.cluster_present(made, REQUEST, "alice", False)
    return made


def recorded_version(store: Store) -> tuple[Any, int]:
    record = store.read()
    assert record is not None
    return record["collection_version"], record["generation"]


def remove_member(store: Store, older_version: bool = False) -> apply.RecordResult:
    return apply.members_absent(store, ["n3"], None, False, False, "alice", False, older_version)


def test_new_record_contains_the_version(store: Store) -> None:
    assert recorded_version(store) == ("1.2.0", 1)


def test_upgrade_is_recorded_once_beside_other_changes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "VERSION", "1.3.0")
    applied = apply.cluster_present(store, REQUEST, "alice", False)
    assert [change.detail for change in applied.changes] == ["gpumesh.cluster 1.3.0 (was 1.2.0)"]
    assert recorded_version(store) == ("1.3.0", 2)
    assert not apply.cluster_present(store, REQUEST, "alice", False).changes
    monkeypatch.setattr(version, "VERSION", "1.4.0")
    assert [change.kind for change in remove_member(store).changes] == ["remove", "version"]
    assert recorded_version(store) == ("1.4.0", 3)


def test_older_version_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path(store.path).read_bytes()
    for older in ("1.1.9", "1.2.0-rc.1"):
        monkeypatch.setattr(version, "VERSION", older)
        for change in (
            lambda: apply.cluster_present(store, REQUEST, "alice", False),
            lambda: apply.members_present(store, MEMBERS, None, "alice", False),
            lambda: remove_member(store),
        ):
            with pytest.raises(
                derive.OlderVersionError, match=f"by gpumesh.cluster 1.2.0, and this is {older}"
            ) as told:
                change()
            assert "Use gpumesh.cluster 1.2.0 or newer" in told.value.remedy
            assert "cluster_older_version=true" in told.value.remedy
    assert Path(store.path).read_bytes() == before


def test_allowed_downgrade_is_recorded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "VERSION", "1.1.0")
    assert remove_member(store, older_version=True).changes
    assert recorded_version(store) == ("1.1.0", 2)
    assert not remove_member(store).changes


def test_builds_of_one_version_are_not_recorded_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "VERSION", "1.2.0+git.7")
    assert not apply.cluster_present(store, REQUEST, "alice", False).changes


def test_record_without_a_version_is_upgraded_once(store: Store) -> None:
    record = store.read()
    assert record is not None
    document = {key: value for key, value in record.items() if key != "collection_version"}
    Path(store.path).write_text(json.dumps({**document, "schema_version": 5}))
    applied = apply.cluster_present(store, REQUEST, "alice", False)
    assert [change.detail for change in applied.changes] == ["gpumesh.cluster 1.2.0 (was not noted)"]
    assert recorded_version(store) == ("1.2.0", 2)
    assert not apply.cluster_present(store, REQUEST, "alice", False).changes


def test_version_change_does_not_hide_the_hand_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "VERSION", "1.3.0")
    applied = apply.members_absent(store, ["n1"], "n2", False, False, "alice", False)
    assert applied.after is not None
    assert derive.manager_terms(applied.after) == [derive.ManagerTerm(1, "n1"), derive.ManagerTerm(2, "n2")]


def test_version_survives_writing_and_reading(store: Store) -> None:
    record = store.read()
    assert record is not None
    assert model.parse(json.loads(format_record(record))) == record
