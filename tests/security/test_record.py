# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Root of one member writes into its own copy of the record whatever it likes. Nobody else may come to harm by that."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.copies import (
    refuse_unexpected_record,
    select_outside_hosts,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import (
    collect_sent_records,
    read_responses,
)
from ansible_collections.gpumesh.cluster.tests.support.decisions import find_cluster
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ansible
from ansible_collections.gpumesh.cluster.tests.support.told_records import telling

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
SILENT = {"unreachable": True, "msg": "Task failed: no route to host"}
NOTHING: dict[str, Any] = {"clusters": [], "damaged": []}
#: m is the member whose root attacks; v is the manager of another cluster of the same inventory.
HOSTS: dict[str, dict[str, str]] = {
    **{name: {"ansible_host": f"198.51.100.{number}"} for number, name in enumerate(("a", "b", "m", "v"), start=1)},
    "here": {"ansible_connection": "local"},
    "loop": {"ansible_host": "127.0.0.1"},
    "spelled": {"ansible_host": "0x7f.1"},
}
ALIASES = ("here", "loop", "spelled")
#: Names that mean the controller, or every host, whatever the inventory says.
IMPLICIT = (
    "localhost",
    "LOCALHOST",
    "localhost.localdomain",
    "localhost4",
    "localhost6.localdomain6",
    "db.localhost",
    "ip6-loopback",
    "127.0.0.1",
    "127.8.9.10",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0.0.0.0",
    "0",
    "all",
    "Ungrouped",
)


def made(machines: tuple[str, ...] = ("a", "b", "m")) -> model.Record:
    entries = [
        {"machine": name, "address": f"10.0.0.{number}", "interface": "eth0"}
        for number, name in enumerate(machines, start=1)
    ]
    return plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", machines[0], {}, entries, STAMP), STAMP)


HONEST = made()


def forged(manager: str, document: model.Record = HONEST) -> Any:
    """Return the next generation of a record, as no run of ours would create it: whoever is not a member becomes one."""
    new: Any = copy.deepcopy(document)
    if manager not in [member["machine"] for member in new["members"]]:
        mesh = {"address": "10.99.0.99", "public_key": None}
        new["members"].append({**new["members"][-1], "machine": manager, "address": "10.0.0.99", "mesh": mesh})
    new["manager"] = manager
    new["generation"] += 1
    new["history"].append({**new["history"][-1], "generation": new["generation"], "change": "hand_over"})
    return new


def holding(record: object) -> dict[str, Any]:
    return {"clusters": [record], "damaged": []}


def believed(answers: dict[str, Any], **said: Any) -> dict[str, Any]:
    found = find_cluster(answers, "lab", machines=list(HOSTS), variables=HOSTS, **said)
    # Hosts that announce the digests of their records lead to the same result.
    records = collect_sent_records(answers.values(), {})
    told = find_cluster(telling(answers), "lab", machines=list(HOSTS), variables=HOSTS, records=records, **said)
    assert told == found
    return found


class TestWhoIsTheManager:
    @pytest.mark.parametrize("manager", ["m", "v", "server.of.the.attacker", *ALIASES, "localhost", "127.0.0.1"])
    @pytest.mark.parametrize("others", [holding(HONEST), SILENT, NOTHING], ids=["honest", "silent", "without"])
    def test_one_member_does_not_choose_it(self, manager: str, others: dict[str, Any]) -> None:
        evil = holding(forged(manager))
        answers = {"a": holding(HONEST), "b": others, "m": evil, "v": NOTHING}
        found = believed(answers)
        assert found["refusal"] or found["record"] == HONEST
        # Nor where it is reached alone, and the inventory's first host is asked beside those that it names.
        asked = select_outside_hosts(read_responses({"m": evil}), "lab", "a")
        assert "a" in asked or manager.startswith(("localhost", "127."))
        found = believed({"m": evil, **{machine: answers[machine] for machine in asked if machine in answers}})
        assert found["record"] in (None, HONEST)

    @pytest.mark.parametrize("manager", ["v", *ALIASES, "server.of.the.attacker"])
    def test_nor_while_the_manager_is_silent(self, manager: str) -> None:
        for beside in ({}, {"b": holding(HONEST)}, {"b": NOTHING}):
            found = believed({"a": SILENT, manager: SILENT, **beside, "m": holding(forged(manager))})
            assert found["record"] is None
            assert found["refusal"]

    def test_nor_by_a_copy_of_its_own_making_that_names_itself(self) -> None:
        assert "does not confirm" in believed({"a": holding(HONEST), "m": holding(forged("m"))})["refusal"]
        assert "does not confirm" in believed({"a": SILENT, "b": holding(HONEST), "m": holding(forged("m"))})["refusal"]

    def test_the_successor_of_a_lost_manager_is_whom_the_user_names(self) -> None:
        answers = {"a": SILENT, "b": holding(HONEST), "m": holding(forged("m"))}
        assert believed(answers, successor="b")["record"] is None

    @pytest.mark.parametrize("alias", ALIASES)
    def test_the_controller_is_none_even_in_a_copy_that_the_user_trusts(self, alias: str) -> None:
        evil = forged(alias)
        for said in ({}, {"trusted": "m"}, {"trusted": alias}, {"successor": alias}):
            answers = {"m": holding(evil), alias: holding(evil)}
            assert "the machine that runs Ansible" in believed(answers, **said)["refusal"]
        # The inventory says so if Ansible runs on the manager.
        assert believed({alias: holding(evil)}, manager=alias)["source"] == alias

    def test_an_older_copy_that_is_trusted_is_one_that_the_user_knows_to_be_older(self) -> None:
        answers = {"a": holding(plan.commit(plan.hand_over(HONEST, "b"), STAMP)), "m": holding(HONEST)}
        assert "newer ones" in believed(answers, trusted="m")["refusal"]

    @pytest.mark.parametrize("manager", ["localhost", "v", "m"])
    def test_what_the_manager_returns_after_a_change_names_no_other(self, manager: str) -> None:
        with pytest.raises(Exception, match="cannot be the name|was expected"):
            refuse_unexpected_record(model.parse(forged(manager)), "lab", "a")
        refuse_unexpected_record(model.parse(HONEST), "lab", "a")


class TestWhatElseIsInIt:
    @pytest.mark.parametrize("what", ["address", "volume", "interface"])
    def test_one_member_alone_changes_nothing_for_others_while_the_manager_is_silent(self, what: str) -> None:
        evil: Any = forged("a")
        if what == "address":
            evil["members"][1]["address"] = "10.0.0.77"
        elif what == "interface":
            evil["mesh"]["interface"] = "eth1"
        else:
            volume = {"name": "opt", "server": "m", "path": "/srv", "mount_point": "/opt"}
            evil["storage"]["volumes"].append(volume)
        model.parse(evil)
        assert believed({"a": SILENT, "b": holding(HONEST), "m": holding(evil)})["record"] is None
        assert believed({"a": SILENT, "b": NOTHING, "m": holding(evil)})["record"] is None

    def test_a_record_that_is_read_is_held_to_the_rules_of_one_that_is_written(self) -> None:
        outside = {"name": "data", "server": "v", "path": "/srv", "mount_point": "/data"}
        changes: list[tuple[str, Any]] = [
            ("storage", {"volumes": [outside]}),
            ("mesh", {**HONEST["mesh"], "subnet": "10.0.0.0/16"}),
            ("storage", {"volumes": [{**outside, "server": "a", "mount_point": "/etc"}]}),
            ("mesh", {**HONEST["mesh"], "interface": "eth0"}),
            ("history", [{**HONEST["history"][0], "detail": "\x1b]0;title\x07"}]),
            ("members", [{**HONEST["members"][0], "mesh": {"address": "127.0.0.1", "public_key": None}}]),
        ]
        for key, value in changes:
            with pytest.raises(GpumeshError):
                model.parse({**HONEST, key: value})

    @pytest.mark.parametrize(
        "answer",
        [
            {"clusters": [{"name": "lab"}], "damaged": []},
            {"clusters": "lab", "damaged": {}},
            {"clusters": [None, 7, [], {"name": ["lab"]}], "damaged": [None, 7, {"path": 7}]},
            {"clusters": [], "damaged": [{"path": "/lab.json", "reason": None, "last_good": []}]},
            {"clusters": [{**HONEST, "manager": "localhost"}], "damaged": []},
        ],
    )
    def test_an_answer_that_is_none_stops_nobody(self, answer: dict[str, Any]) -> None:
        found = believed({"a": holding(HONEST), "b": holding(HONEST), "m": answer})
        assert (found["refusal"], found["record"]) == ("", HONEST)


class TestImplicitNames:
    @pytest.mark.parametrize("name", IMPLICIT)
    def test_no_record_has_them(self, name: str) -> None:
        for document in (forged(name), {**HONEST, "name": name}):
            with pytest.raises(GpumeshError):
                model.parse(document)
        with pytest.raises(GpumeshError, match="cannot be the name"):
            plan.join(HONEST, [{"machine": name, "address": "10.0.0.9", "interface": "eth0"}], STAMP)

    @pytest.mark.parametrize(
        ("machine", "said"), [("localhost", "cannot be the name"), ("here", "runs Ansible"), ("gpus", "is a group")]
    )
    def test_the_inventory_of_a_record_redefines_neither_the_controller_nor_a_group(
        self, tmp_path: Path, machine: str, said: str
    ) -> None:
        (tmp_path / "records").mkdir()
        record: Any = forged(machine)
        record["manager"] = "a"
        (tmp_path / "records" / "lab.json").write_text(json.dumps(record), encoding="utf-8")
        (tmp_path / "1.json").write_text(
            json.dumps({"all": {"hosts": {"here": {"ansible_connection": "local"}}, "children": {"gpus": {}}}}),
            encoding="utf-8",
        )
        source = {"plugin": "gpumesh.cluster.clusters", "path": "records"}
        (tmp_path / "2.clusters.yml").write_text(json.dumps(source), encoding="utf-8")
        done = ansible("ansible-inventory", "-i", "1.json", "-i", "2.clusters.yml", "--list", cwd=tmp_path)
        assert said in done.words
        assert "10.0.0.99" not in done.output
