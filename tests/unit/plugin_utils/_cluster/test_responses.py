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
from module_runs import read_result, start_module

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.copies import find_record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.registration import enrolled_members
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import (
    collect_sent_records,
    outdated_members,
    plan_record_requests,
    read_responses,
)

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice@desk")
MANY = 1000


def public_key(number: int, salt: int) -> str:
    return base64.b64encode((number * 7919 + salt).to_bytes(32, "big")).decode()


def member_entry(number: int) -> dict[str, Any]:
    """A member with everything that a cluster with WireGuard and SSH trust records about it."""
    return {
        "machine": f"gpu{number:04}",
        "address": f"10.20.{number // 250}.{number % 250 + 1}",
        "interface": "eno1",
        "site": "default",
        "gpus": 8,
        "mesh": {"public_key": public_key(number, 1)},
        "ssh_host_keys": [f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{public_key(number, 2)[1:]}"],
        "ssh_public_key": f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{public_key(number, 3)[1:]}",
    }


def build_record(members: int, name: str = "lab", identity: str = "0" * 32) -> model.Record:
    entries = [member_entry(number) for number in range(members)]
    draft = plan.create(identity, name, "10.20.0.0/16", entries[0]["machine"], {}, entries, STAMP)
    return plan.commit(draft, STAMP)


def next_generation(record: model.Record, gpus: int = 4) -> model.Record:
    return plan.commit(plan.join(record, [{"machine": "gpu0001", "gpus": gpus}], STAMP), STAMP)


def announce(*records: model.Record, **changed: Any) -> dict[str, Any]:
    announcements = [
        {"name": record["name"], "generation": record["generation"], "digest": derive.record_digest(record), **changed}
        for record in records
    ]
    return {"clusters": announcements, "damaged": []}


def send_whole(*records: model.Record) -> dict[str, Any]:
    return {"clusters": list(records), "damaged": []}


OLD = build_record(4)
NEW = next_generation(OLD)
OTHER = build_record(2, "other", "1" * 32)
A, B, C, D = (member["machine"] for member in OLD["members"])


class TestDigest:
    def test_digest_does_not_depend_on_key_order(self) -> None:
        turned = json.loads(json.dumps(dict(reversed(list(NEW.items())))))
        assert derive.record_digest(model.parse(turned)) == derive.record_digest(turned) == derive.record_digest(NEW)
        assert derive.record_digest(OLD) != derive.record_digest(NEW)


class TestRecordRequests:
    def test_no_request_if_one_host_has_sent_the_common_record(self) -> None:
        results = {A: send_whole(NEW), B: announce(NEW), C: announce(NEW)}
        assert plan_record_requests(results, {}) == []

    def test_one_host_is_queried_for_each_record(self) -> None:
        results = {A: announce(NEW), B: announce(NEW), C: announce(OLD, OTHER), D: announce(OTHER)}
        asked = plan_record_requests(results, {}, ["lab"])
        assert [(request["machine"], request["complete"]) for request in asked] == [(A, ["lab"]), (C, ["lab"])]
        every = plan_record_requests(results, {})
        assert [(request["machine"], request["complete"]) for request in every] == [(A, ["lab"]), (C, ["lab", "other"])]
        assert plan_record_requests(results, collect_sent_records([send_whole(NEW, OLD)], {}), ["lab"]) == []

    def test_requests_are_limited_to_given_machines(self) -> None:
        results = {A: announce(NEW), B: announce(NEW), D: announce(OTHER)}
        assert [request["machine"] for request in plan_record_requests(results, {}, None, [D])] == [D]

    def test_two_other_hosts_are_queried_if_the_first_did_not_send_it(self) -> None:
        results = {name: announce(NEW) for name in (A, B, C, D)}
        first = plan_record_requests(results, {}, ["lab"])
        assert [
            request["machine"] for request in plan_record_requests(results, {}, ["lab"], earlier_requests=first)
        ] == [B, C]
        # If there is no other, the same one is queried again.
        alone = {A: announce(NEW)}
        assert plan_record_requests(alone, {}, ["lab"], earlier_requests=first) == first

    def test_invalid_announcements_are_not_queried(self) -> None:
        for changed in ({"digest": "../x"}, {"digest": None}, {"name": "../x"}, {"generation": "1"}, {"name": None}):
            assert plan_record_requests({A: announce(NEW, **changed)}, {}) == []
        assert plan_record_requests({A: {"clusters": "lab"}, B: {}, C: {"clusters": [None, 7, "x"]}}, {}) == []


class TestTrustedResponses:
    def test_announced_record_is_the_one_that_was_sent(self) -> None:
        answers = read_responses({A: announce(NEW), B: announce(NEW)}, collect_sent_records([send_whole(NEW)], {}))
        assert answers[A].find_copy("lab") == answers[B].find_copy("lab") == NEW
        # Parsed once, however many report it.
        assert answers[A].find_copy("lab") is answers[B].find_copy("lab")

    def test_announced_but_unsent_record_is_damage_of_that_host_only(self) -> None:
        records = collect_sent_records([send_whole(NEW)], {})
        answers = read_responses({A: announce(NEW), B: announce(OLD), C: announce(NEW, generation=7)}, records)
        found = find_record(answers, "lab")
        assert found is not None
        assert found.record == NEW
        assert list(found.relations) == [A]
        assert f"{B}: the record /var/lib/gpumesh/clusters/lab.json is invalid: " in found.remarks[0]
        assert "generation 1 was announced but not sent" in found.remarks[0]
        assert "it belongs to another record" in found.remarks[1]

    def test_host_that_sends_a_different_record_does_not_affect_others(self) -> None:
        evil = next_generation(NEW, 7)
        results = {A: announce(NEW), B: announce(NEW), C: announce(NEW)}
        records = collect_sent_records([send_whole(evil)], {})
        assert [request["machine"] for request in plan_record_requests(results, records, ["lab"])] == [A]
        found = find_record(read_responses(results, collect_sent_records([send_whole(NEW)], records)), "lab")
        assert found is not None
        assert found.record == NEW

    @pytest.mark.parametrize("document", [{"digest": None}, {"digest": "0" * 64}, {"name": ["lab"], "digest": "x"}])
    def test_invalid_records_are_reported(self, document: dict[str, Any]) -> None:
        answer = read_responses({A: {"clusters": [document], "damaged": []}}, {})[A]
        assert answer.records == []
        assert "not a record" in answer.damage_reports[0]["reason"]


class TestOutdated:
    def test_members_with_a_different_or_no_copy_are_outdated(self) -> None:
        results = {A: send_whole(NEW), B: announce(OTHER, NEW), C: announce(OLD), D: announce(OTHER)}
        assert outdated_members({**results, "a-stranger": {"unreachable": True}}, NEW) == [C, D]


class Wire:
    """Modules as Ansible runs them on hosts with the same record, and the bytes that are transferred."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.bytes = 0

    def call(self, module: str, hosts: int = 1, **arguments: Any) -> dict[str, Any]:
        """One call for each of this many hosts, all of which return the same answer."""
        result = read_result(start_module(module, {**arguments, "path": self.folder}))
        assert not result.get("failed"), result
        self.bytes += hosts * (len(json.dumps(arguments)) + len(json.dumps(result)))
        return result


def test_unchanged_cluster_of_a_thousand_members_takes_less_than_a_mebibyte(
    tmp_path: Path,
) -> None:
    """The data exchanged between `site` and the record's modules, as in the tasks of the role cluster."""
    record = build_record(MANY)
    folder = tmp_path / "clusters"
    folder.mkdir(mode=0o700)
    Store(str(folder), "lab").write(record)
    wire = Wire(str(folder))
    machines = [member["machine"] for member in record["members"]]

    def ask(known: list[str]) -> dict[str, dict[str, Any]]:
        first = wire.call("cluster_info", complete=["lab"], known_digests=known)
        others = wire.call("cluster_info", hosts=MANY - 1, complete=[])
        return {machine: first if machine == record["manager"] else others for machine in machines}

    results = ask([])
    records = collect_sent_records(results.values(), {})
    assert plan_record_requests(results, records) == []
    found = find_record(read_responses(results, records), "lab")
    assert found is not None
    assert (found.record, len(found.relations)) == (record, MANY)

    # Two members that are not in the record would be sent completely.
    present = [{**member_entry(number), "mesh": None} for number in range(MANY + 2)]
    decision = {"members": present[:MANY], "enrolling": [], "enrol_settings": record["mesh"], "subnet": "10.20.0.0/16"}
    entries = enrolled_members(decision, record, {})
    assert [list(one) for one in entries] == [["machine"]] * MANY
    assert enrolled_members({**decision, "members": present}, record, {})[MANY:] == present[MANY:]
    for check_mode in (True, False):
        request = {"name": "lab", "members": entries, "joining": [], "known_digests": list(records)}
        written = wire.call("cluster", **request, _ansible_check_mode=check_mode)
        assert (written["changed"], "record" in written, records[written["digest"]]) == (False, False, record)
    assert outdated_members(results, record) == []
    # Before the tunnels, the storage, the scheduler and the check.
    for _layer in range(4):
        wire.call("cluster_info", hosts=MANY, cluster="lab", generation=record["generation"])
    assert wire.bytes < 1 << 20, wire.bytes
    # Another playbook of the same run, which queries again.
    before = wire.bytes
    assert plan_record_requests(ask(list(records)), records) == []
    assert wire.bytes - before < 220 * MANY


def test_sent_copy_is_reported_as_its_digest(tmp_path: Path) -> None:
    wire = Wire(str(tmp_path / "clusters"))
    kept = wire.call("cluster", name="lab", state="replica", record=NEW)
    assert (kept["changed"], kept["digest"], "record" in kept) == (True, derive.record_digest(NEW), False)
    assert len(json.dumps(kept)) < 1000
    assert wire.call("cluster_info")["clusters"] == [NEW]
    assert wire.call("cluster_info", complete=["lab"])["clusters"] == [NEW]
    assert wire.call("cluster_info", complete=["other"])["clusters"] == announce(NEW)["clusters"]
    assert wire.call("cluster_info", known_digests=[derive.record_digest(NEW)])["clusters"] == announce(NEW)["clusters"]
