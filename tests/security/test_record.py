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
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import run_ansible
from ansible_collections.gpumesh.cluster.tests.support.told_records import replace_records_with_digests

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
UNREACHABLE = {"unreachable": True, "msg": "Task failed: no route to host"}
NO_RECORDS: dict[str, Any] = {"clusters": [], "damaged": []}
#: m is the member whose root attacks; v is the manager of another cluster of the same inventory.
VARIABLES_BY_HOST: dict[str, dict[str, str]] = {
    **{name: {"ansible_host": f"198.51.100.{number}"} for number, name in enumerate(("a", "b", "m", "v"), start=1)},
    "here": {"ansible_connection": "local"},
    "loop": {"ansible_host": "127.0.0.1"},
    "spelled": {"ansible_host": "0x7f.1"},
}
CONTROLLER_ALIASES = ("here", "loop", "spelled")
#: Names that mean the controller, or every host, whatever the inventory says.
IMPLICIT_NAMES = (
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


def create_record(machines: tuple[str, ...] = ("a", "b", "m")) -> model.Record:
    entries = [
        {"machine": name, "address": f"10.0.0.{number}", "interface": "eth0"}
        for number, name in enumerate(machines, start=1)
    ]
    return plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", machines[0], {}, entries, STAMP), STAMP)


HONEST_RECORD = create_record()


def forge_record(manager: str, document: model.Record = HONEST_RECORD) -> Any:
    """Return the next generation of a record, as no run of ours would create it: whoever is not a member becomes one."""
    forged_record: Any = copy.deepcopy(document)
    if manager not in [member["machine"] for member in forged_record["members"]]:
        mesh = {"address": "10.99.0.99", "public_key": None}
        forged_record["members"].append(
            {**forged_record["members"][-1], "machine": manager, "address": "10.0.0.99", "mesh": mesh}
        )
    forged_record["manager"] = manager
    forged_record["generation"] += 1
    forged_record["history"].append(
        {**forged_record["history"][-1], "generation": forged_record["generation"], "change": "hand_over"}
    )
    return forged_record


def record_response(record: object) -> dict[str, Any]:
    return {"clusters": [record], "damaged": []}


def find_believed(responses: dict[str, Any], **overrides: Any) -> dict[str, Any]:
    selected = find_cluster(
        responses, "lab", machines=list(VARIABLES_BY_HOST), variables=VARIABLES_BY_HOST, **overrides
    )
    # Hosts that announce the digests of their records lead to the same result.
    records = collect_sent_records(responses.values(), {})
    selected_by_digest = find_cluster(
        replace_records_with_digests(responses),
        "lab",
        machines=list(VARIABLES_BY_HOST),
        variables=VARIABLES_BY_HOST,
        records=records,
        **overrides,
    )
    assert selected_by_digest == selected
    return selected


class TestManagerChoice:
    @pytest.mark.parametrize(
        "manager", ["m", "v", "server.of.the.attacker", *CONTROLLER_ALIASES, "localhost", "127.0.0.1"]
    )
    @pytest.mark.parametrize(
        "other_response", [record_response(HONEST_RECORD), UNREACHABLE, NO_RECORDS], ids=["honest", "silent", "without"]
    )
    def test_one_member_does_not_choose_the_manager(self, manager: str, other_response: dict[str, Any]) -> None:
        forged_response = record_response(forge_record(manager))
        answers = {"a": record_response(HONEST_RECORD), "b": other_response, "m": forged_response, "v": NO_RECORDS}
        selected = find_believed(answers)
        assert selected["refusal"] or selected["record"] == HONEST_RECORD
        # Nor where it is reached alone, and the inventory's first host is asked beside those that it names.
        outside_machines = select_outside_hosts(read_responses({"m": forged_response}), "lab", "a")
        assert "a" in outside_machines or manager.startswith(("localhost", "127."))
        selected = find_believed(
            {"m": forged_response, **{machine: answers[machine] for machine in outside_machines if machine in answers}}
        )
        assert selected["record"] in (None, HONEST_RECORD)

    @pytest.mark.parametrize("manager", ["v", *CONTROLLER_ALIASES, "server.of.the.attacker"])
    def test_unreachable_manager_is_not_replaced(self, manager: str) -> None:
        for beside in ({}, {"b": record_response(HONEST_RECORD)}, {"b": NO_RECORDS}):
            selected = find_believed(
                {"a": UNREACHABLE, manager: UNREACHABLE, **beside, "m": record_response(forge_record(manager))}
            )
            assert selected["record"] is None
            assert selected["refusal"]

    def test_forged_copy_naming_itself_is_not_confirmed(self) -> None:
        assert (
            "does not confirm"
            in find_believed({"a": record_response(HONEST_RECORD), "m": record_response(forge_record("m"))})["refusal"]
        )
        assert (
            "does not confirm"
            in find_believed(
                {"a": UNREACHABLE, "b": record_response(HONEST_RECORD), "m": record_response(forge_record("m"))}
            )["refusal"]
        )

    def test_user_names_the_successor_of_a_lost_manager(self) -> None:
        answers = {"a": UNREACHABLE, "b": record_response(HONEST_RECORD), "m": record_response(forge_record("m"))}
        assert find_believed(answers, successor="b")["record"] is None

    @pytest.mark.parametrize("alias", CONTROLLER_ALIASES)
    def test_controller_is_never_manager_even_in_a_trusted_copy(self, alias: str) -> None:
        forged_copy = forge_record(alias)
        for overrides in ({}, {"trusted": "m"}, {"trusted": alias}, {"successor": alias}):
            answers = {"m": record_response(forged_copy), alias: record_response(forged_copy)}
            assert "the machine that runs Ansible" in find_believed(answers, **overrides)["refusal"]
        # The inventory says so if Ansible runs on the manager.
        assert find_believed({alias: record_response(forged_copy)}, manager=alias)["source"] == alias

    def test_trusted_older_copy_needs_its_generation(self) -> None:
        answers = {
            "a": record_response(plan.commit(plan.hand_over(HONEST_RECORD, "b"), STAMP)),
            "m": record_response(HONEST_RECORD),
        }
        assert "newer ones" in find_believed(answers, trusted="m")["refusal"]

    @pytest.mark.parametrize("manager", ["localhost", "v", "m"])
    def test_returned_record_cannot_name_another_manager(self, manager: str) -> None:
        with pytest.raises(Exception, match="cannot be the name|was expected"):
            refuse_unexpected_record(model.parse(forge_record(manager)), "lab", "a")
        refuse_unexpected_record(model.parse(HONEST_RECORD), "lab", "a")


class TestForgedContent:
    @pytest.mark.parametrize("changed_field", ["address", "volume", "interface"])
    def test_one_member_changes_nothing_while_manager_is_unreachable(self, changed_field: str) -> None:
        forged_copy: Any = forge_record("a")
        if changed_field == "address":
            forged_copy["members"][1]["address"] = "10.0.0.77"
        elif changed_field == "interface":
            forged_copy["mesh"]["interface"] = "eth1"
        else:
            volume = {"name": "opt", "server": "m", "path": "/srv", "mount_point": "/opt"}
            forged_copy["storage"]["volumes"].append(volume)
        model.parse(forged_copy)
        assert (
            find_believed({"a": UNREACHABLE, "b": record_response(HONEST_RECORD), "m": record_response(forged_copy)})[
                "record"
            ]
            is None
        )
        assert find_believed({"a": UNREACHABLE, "b": NO_RECORDS, "m": record_response(forged_copy)})["record"] is None

    def test_read_record_is_validated_like_a_written_one(self) -> None:
        outside = {"name": "data", "server": "v", "path": "/srv", "mount_point": "/data"}
        changes: list[tuple[str, Any]] = [
            ("storage", {"volumes": [outside]}),
            ("mesh", {**HONEST_RECORD["mesh"], "subnet": "10.0.0.0/16"}),
            ("storage", {"volumes": [{**outside, "server": "a", "mount_point": "/etc"}]}),
            ("mesh", {**HONEST_RECORD["mesh"], "interface": "eth0"}),
            ("history", [{**HONEST_RECORD["history"][0], "detail": "\x1b]0;title\x07"}]),
            ("members", [{**HONEST_RECORD["members"][0], "mesh": {"address": "127.0.0.1", "public_key": None}}]),
        ]
        for key, value in changes:
            with pytest.raises(GpumeshError):
                model.parse({**HONEST_RECORD, key: value})

    @pytest.mark.parametrize(
        "answer",
        [
            {"clusters": [{"name": "lab"}], "damaged": []},
            {"clusters": "lab", "damaged": {}},
            {"clusters": [None, 7, [], {"name": ["lab"]}], "damaged": [None, 7, {"path": 7}]},
            {"clusters": [], "damaged": [{"path": "/lab.json", "reason": None, "last_good": []}]},
            {"clusters": [{**HONEST_RECORD, "manager": "localhost"}], "damaged": []},
        ],
    )
    def test_invalid_response_does_not_stop_the_run(self, answer: dict[str, Any]) -> None:
        selected = find_believed(
            {"a": record_response(HONEST_RECORD), "b": record_response(HONEST_RECORD), "m": answer}
        )
        assert (selected["refusal"], selected["record"]) == ("", HONEST_RECORD)


class TestImplicitNames:
    @pytest.mark.parametrize("name", IMPLICIT_NAMES)
    def test_records_reject_implicit_names(self, name: str) -> None:
        for document in (forge_record(name), {**HONEST_RECORD, "name": name}):
            with pytest.raises(GpumeshError):
                model.parse(document)
        with pytest.raises(GpumeshError, match="cannot be the name"):
            plan.join(HONEST_RECORD, [{"machine": name, "address": "10.0.0.9", "interface": "eth0"}], STAMP)

    @pytest.mark.parametrize(
        ("machine", "message"), [("localhost", "cannot be the name"), ("here", "runs Ansible"), ("gpus", "is a group")]
    )
    def test_record_inventory_cannot_redefine_controller_or_group(
        self, tmp_path: Path, machine: str, message: str
    ) -> None:
        (tmp_path / "records").mkdir()
        record: Any = forge_record(machine)
        record["manager"] = "a"
        (tmp_path / "records" / "lab.json").write_text(json.dumps(record), encoding="utf-8")
        (tmp_path / "1.json").write_text(
            json.dumps({"all": {"hosts": {"here": {"ansible_connection": "local"}}, "children": {"gpus": {}}}}),
            encoding="utf-8",
        )
        source = {"plugin": "gpumesh.cluster.clusters", "path": "records"}
        (tmp_path / "2.clusters.yml").write_text(json.dumps(source), encoding="utf-8")
        inventory_run = run_ansible("ansible-inventory", "-i", "1.json", "-i", "2.clusters.yml", "--list", cwd=tmp_path)
        assert message in inventory_run.flat_output
        assert "10.0.0.99" not in inventory_run.output
