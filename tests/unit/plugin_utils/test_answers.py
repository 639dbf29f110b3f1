# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts report the digests of their records, one of them sends each, and a run with many members transfers little."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from module_runs import result_of, start

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.store import Store
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import (
    outdated_members,
    read_answers,
    sent,
    to_read,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.copies import find
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.registration import enrolled

STAMP = plan.Stamp("2026-11-20T20:31:00Z", "alice@desk")
MANY = 1000


def key(number: int, salt: int) -> str:
    return base64.b64encode((number * 7919 + salt).to_bytes(32, "big")).decode()


def entry(number: int) -> dict[str, Any]:
    """A member with everything that a cluster with WireGuard and SSH trust records about it."""
    return {
        "machine": f"gpu{number:04}",
        "address": f"10.20.{number // 250}.{number % 250 + 1}",
        "interface": "eno1",
        "site": "default",
        "gpus": 8,
        "mesh": {"public_key": key(number, 1)},
        "ssh_host_keys": [f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{key(number, 2)[1:]}"],
        "ssh_public_key": f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{key(number, 3)[1:]}",
    }


def made(members: int, name: str = "lab", identity: str = "0" * 32) -> model.Record:
    entries = [entry(number) for number in range(members)]
    draft = plan.create(identity, name, "10.20.0.0/16", entries[0]["machine"], {}, entries, STAMP)
    return plan.commit(draft, STAMP)


def later(record: model.Record, gpus: int = 4) -> model.Record:
    return plan.commit(plan.join(record, [{"machine": "gpu0001", "gpus": gpus}], STAMP), STAMP)


def telling(*records: model.Record, **changed: Any) -> dict[str, Any]:
    told = [
        {"name": record["name"], "generation": record["generation"], "digest": derive.digest(record), **changed}
        for record in records
    ]
    return {"clusters": told, "damaged": []}


def sending(*records: model.Record) -> dict[str, Any]:
    return {"clusters": list(records), "damaged": []}


OLD = made(4)
NEW = later(OLD)
OTHER = made(2, "other", "1" * 32)
A, B, C, D = (member["machine"] for member in OLD["members"])


class TestDigest:
    def test_equal_records_have_equal_ones_in_whatever_order_they_are_written(self) -> None:
        turned = json.loads(json.dumps(dict(reversed(list(NEW.items())))))
        assert derive.digest(model.parse(turned)) == derive.digest(turned) == derive.digest(NEW)
        assert derive.digest(OLD) != derive.digest(NEW)


class TestWhomToRead:
    def test_nobody_where_one_has_sent_what_all_have(self) -> None:
        results = {A: sending(NEW), B: telling(NEW), C: telling(NEW)}
        assert to_read(results, {}) == []

    def test_one_for_each_record(self) -> None:
        results = {A: telling(NEW), B: telling(NEW), C: telling(OLD, OTHER), D: telling(OTHER)}
        asked = to_read(results, {}, ["lab"])
        assert [(request["machine"], request["whole"]) for request in asked] == [(A, ["lab"]), (C, ["lab"])]
        every = to_read(results, {})
        assert [(request["machine"], request["whole"]) for request in every] == [(A, ["lab"]), (C, ["lab", "other"])]
        assert to_read(results, sent([sending(NEW, OLD)], {}), ["lab"]) == []

    def test_of_some_machines_alone(self) -> None:
        results = {A: telling(NEW), B: telling(NEW), D: telling(OTHER)}
        assert [request["machine"] for request in to_read(results, {}, None, [D])] == [D]

    def test_two_others_where_the_first_has_not_sent_it(self) -> None:
        results = {name: telling(NEW) for name in (A, B, C, D)}
        first = to_read(results, {}, ["lab"])
        assert [request["machine"] for request in to_read(results, {}, ["lab"], asked=first)] == [B, C]
        # If there is no other, the same one is queried again.
        alone = {A: telling(NEW)}
        assert to_read(alone, {}, ["lab"], asked=first) == first

    def test_what_tells_of_nothing_is_asked_for_nothing(self) -> None:
        for changed in ({"digest": "../x"}, {"digest": None}, {"name": "../x"}, {"generation": "1"}, {"name": None}):
            assert to_read({A: telling(NEW, **changed)}, {}) == []
        assert to_read({A: {"clusters": "lab"}, B: {}, C: {"clusters": [None, 7, "x"]}}, {}) == []


class TestWhatIsBelieved:
    def test_a_record_that_is_told_of_is_the_one_that_was_sent(self) -> None:
        answers = read_answers({A: telling(NEW), B: telling(NEW)}, sent([sending(NEW)], {}))
        assert answers[A].copy_of("lab") == answers[B].copy_of("lab") == NEW
        # Parsed once, however many report it.
        assert answers[A].copy_of("lab") is answers[B].copy_of("lab")

    def test_what_was_told_of_and_not_sent_is_no_copy_and_stops_nobody(self) -> None:
        records = sent([sending(NEW)], {})
        answers = read_answers({A: telling(NEW), B: telling(OLD), C: telling(NEW, generation=7)}, records)
        found = find(answers, "lab")
        assert found is not None
        assert found.record == NEW
        assert list(found.standing) == [A]
        assert f"{B}: the record /var/lib/gpumesh/clusters/lab.json is invalid: " in found.remarks[0]
        assert "generation 1 was announced but not sent" in found.remarks[0]
        assert "it belongs to another record" in found.remarks[1]

    def test_who_sends_another_record_than_it_told_of_changes_nothing_for_those_who_have_it(self) -> None:
        evil = later(NEW, 7)
        results = {A: telling(NEW), B: telling(NEW), C: telling(NEW)}
        records = sent([sending(evil)], {})
        assert [request["machine"] for request in to_read(results, records, ["lab"])] == [A]
        found = find(read_answers(results, sent([sending(NEW)], records)), "lab")
        assert found is not None
        assert found.record == NEW

    @pytest.mark.parametrize("document", [{"digest": None}, {"digest": "0" * 64}, {"name": ["lab"], "digest": "x"}])
    def test_nonsense_is_named(self, document: dict[str, Any]) -> None:
        answer = read_answers({A: {"clusters": [document], "damaged": []}}, {})[A]
        assert answer.records == []
        assert "not a record" in answer.damaged[0]["reason"]


class TestOutdated:
    def test_who_has_another_or_none(self) -> None:
        results = {A: sending(NEW), B: telling(OTHER, NEW), C: telling(OLD), D: telling(OTHER)}
        assert outdated_members({**results, "a-stranger": {"unreachable": True}}, NEW) == [C, D]


class Wire:
    """Modules as Ansible runs them on hosts with the same record, and the bytes that are transferred."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.bytes = 0

    def call(self, module: str, hosts: int = 1, **arguments: Any) -> dict[str, Any]:
        """One call for each of this many hosts, all of which return the same answer."""
        result = result_of(start(module, {**arguments, "path": self.folder}))
        assert not result.get("failed"), result
        self.bytes += hosts * (len(json.dumps(arguments)) + len(json.dumps(result)))
        return result


def test_a_run_that_finds_all_as_it_should_be_sends_less_than_a_mebibyte_for_a_thousand_members(
    tmp_path: Path,
) -> None:
    """The data exchanged between `site` and the record's modules, as in the tasks of the role cluster."""
    record = made(MANY)
    folder = tmp_path / "clusters"
    folder.mkdir(mode=0o700)
    Store(str(folder), "lab").write(record)
    wire = Wire(str(folder))
    machines = [member["machine"] for member in record["members"]]

    def ask(known: list[str]) -> dict[str, dict[str, Any]]:
        first = wire.call("cluster_info", whole=["lab"], known=known)
        others = wire.call("cluster_info", hosts=MANY - 1, whole=[])
        return {machine: first if machine == record["manager"] else others for machine in machines}

    results = ask([])
    records = sent(results.values(), {})
    assert to_read(results, records) == []
    found = find(read_answers(results, records), "lab")
    assert found is not None
    assert (found.record, len(found.standing)) == (record, MANY)

    # Two members that are not in the record would be sent completely.
    present = [{**entry(number), "mesh": None} for number in range(MANY + 2)]
    decision = {"members": present[:MANY], "enrolling": [], "enrol_settings": record["mesh"], "subnet": "10.20.0.0/16"}
    entries = enrolled(decision, record, {})
    assert [list(one) for one in entries] == [["machine"]] * MANY
    assert enrolled({**decision, "members": present}, record, {})[MANY:] == present[MANY:]
    for check_mode in (True, False):
        request = {"name": "lab", "members": entries, "joining": [], "known": list(records)}
        written = wire.call("cluster", **request, _ansible_check_mode=check_mode)
        assert (written["changed"], "record" in written, records[written["digest"]]) == (False, False, record)
    assert outdated_members(results, record) == []
    # Before the tunnels, the storage, the scheduler and the check.
    for _layer in range(4):
        wire.call("cluster_info", hosts=MANY, cluster="lab", generation=record["generation"])
    assert wire.bytes < 1 << 20, wire.bytes
    # Another playbook of the same run, which queries again.
    before = wire.bytes
    assert to_read(ask(list(records)), records) == []
    assert wire.bytes - before < 220 * MANY


def test_a_copy_is_sent_and_comes_back_as_its_digest(tmp_path: Path) -> None:
    wire = Wire(str(tmp_path / "clusters"))
    kept = wire.call("cluster", name="lab", state="replica", record=NEW)
    assert (kept["changed"], kept["digest"], "record" in kept) == (True, derive.digest(NEW), False)
    assert len(json.dumps(kept)) < 1000
    assert wire.call("cluster_info")["clusters"] == [NEW]
    assert wire.call("cluster_info", whole=["lab"])["clusters"] == [NEW]
    assert wire.call("cluster_info", whole=["other"])["clusters"] == telling(NEW)["clusters"]
    assert wire.call("cluster_info", known=[derive.digest(NEW)])["clusters"] == telling(NEW)["clusters"]
