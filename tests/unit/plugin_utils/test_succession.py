# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which queue a manager's controller continues with, and what happens to those of former managers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from action_runs import play

from ansible_collections.gpumesh.cluster.plugins.action.slurm_state import ActionModule
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record

AT = plan.Stamp("2026-01-01T00:00:00Z", "test")
ID = "0" * 32
OTHER = "f" * 32
HOSTS = ("n1", "n2", "n3")


def cluster(*managers: str) -> Record:
    """A cluster of three, created by n1, and then managed by these machines, each from the next generation on."""
    members = [{"machine": name, "address": f"10.0.0.{name[1]}", "interface": "eth0"} for name in HOSTS]
    record = plan.commit(plan.create(ID, "lab", "10.0.0.0/24", "n1", {}, members, AT), AT)
    for manager in managers:
        record = plan.commit(plan.hand_over(record, manager), AT)
    return record


def queue(*tenures: int, cluster: str = ID, machine: str = "n1", node: bool = True) -> dict[str, Any]:
    """The state that a machine with a queue reports."""
    marker = {"cluster": cluster, "machine": machine, "tenures": list(tenures)} if tenures else None
    return {"used": True, "marker": marker, "accounting": False, "node": node}


NONE = {"used": False, "marker": None, "accounting": False, "node": True}
BARE = {**NONE, "node": False}
SILENT = {"unreachable": True, "msg": "no route to host"}
SKIPPED: dict[str, Any] = {"skipped": True}


def asked(
    record: Record, answer: dict[str, Any], machine: str = "n1", inventory: Sequence[str] = HOSTS, **options: Any
) -> dict[str, Any]:
    """The result of the task, where the queried host returns this answer."""
    arguments = {"record": record, "state": "inspected", **options}
    here = {"inventory_hostname": machine, "groups": {"all": list(inventory)}}
    return play(ActionModule, arguments, {"gpumesh.cluster.slurm_state": [answer]}, here).result


def outcome(
    record: Record, own: dict[str, Any], former: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """The result of the last task of the role: the manager is queried, and the previous one if necessary."""
    result = asked(record, own, **options)
    if former is not None and result.get("succession", {}).get("former"):
        result = asked(record, former, manager_queue=own, **options)
    return result


def decided(
    record: Record, own: dict[str, Any], former: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """The decision of the role, without empty values."""
    return {key: value for key, value in outcome(record, own, former, **options)["succession"].items() if value}


def refused(record: Record, own: dict[str, Any], former: dict[str, Any] | None, *said: str, **options: Any) -> None:
    refusal = outcome(record, own, former, **options)["msg"]
    assert [text for text in said if text not in refusal] == [], refusal


def mark(*tenures: int, retire: str = "", action: str = "mark") -> dict[str, Any]:
    return {"action": action, "tenures": list(tenures), **({"retire": retire} if retire else {})}


GO_ON = {"action": "go_on"}


def test_the_tenures_are_those_of_the_history() -> None:
    assert derive.tenures(cluster()) == [(1, "n1")]
    assert derive.tenures(cluster("n2", "n1")) == [(1, "n1"), (2, "n2"), (3, "n1")]
    record = cluster("n2")
    left = plan.commit(plan.remove(record, ["n2"], AT, "n3"), AT)
    assert derive.tenures(left) == [(1, "n1"), (2, "n2"), (3, "n3")]
    # A history that does not lead to the manager proves nothing.
    record["manager"] = "n3"
    assert derive.tenures(record) == [(1, "n3")]


@pytest.mark.parametrize("own", [BARE, NONE, queue()])
def test_the_first_manager_begins_and_notes_it(own: dict[str, Any]) -> None:
    assert decided(cluster(), own) == mark(1)


def test_a_manager_goes_on_with_what_is_of_its_time() -> None:
    assert decided(cluster(), queue(1)) == GO_ON
    assert decided(cluster("n2"), queue(1, 2)) == decided(cluster("n2"), queue(2)) == GO_ON
    assert decided(cluster("n2"), queue(1, 2), queue(1), handing="n1") == GO_ON
    assert decided(cluster("n2"), queue(2), lost=True) == GO_ON


def test_another_cluster_of_the_same_name_is_set_aside() -> None:
    assert decided(cluster(), queue(1, cluster=OTHER)) == mark(1, retire="keep")


def test_the_queue_is_taken_from_who_hands_it_over() -> None:
    assert decided(cluster("n2"), NONE, handing="n1") == {"action": "go_on", "former": "n1"}
    for former in (queue(1), queue()):
        assert decided(cluster("n2"), NONE, former, handing="n1") == mark(1, 2, action="take")


def test_handed_back_the_old_queue_of_a_member_does_not_count() -> None:
    record = cluster("n2", "n1")
    taken = decided(record, queue(1), queue(1, 2), handing="n2")
    assert taken == mark(1, 2, 3, action="take", retire="delete")
    # After a loss in which the second manager started with an empty queue, it is kept.
    taken = decided(record, queue(1), queue(2), handing="n2")
    assert taken == mark(2, 3, action="take", retire="keep")
    # A state without a marker is kept or deleted depending on the machine's last tenure.
    assert decided(record, queue(), queue(1, 2), handing="n2")["retire"] == "delete"
    assert decided(record, queue(), queue(2), handing="n2")["retire"] == "keep"


def test_a_former_manager_cannot_claim_times_that_nobody_had() -> None:
    claimed = queue(1, 7, 99, 2)
    assert decided(cluster("n2", "n1"), NONE, claimed, handing="n2")["tenures"] == [1, 2, 3]


@pytest.mark.parametrize("own", [NONE, BARE, queue(7), queue(1, cluster=OTHER)])
def test_between_a_hand_over_that_was_cut_off_and_its_rerun_no_controller_starts(own: dict[str, Any]) -> None:
    record = cluster("n2")
    assert decided(record, own) == {"action": "go_on", "former": "n1"}
    refused(record, own, queue(1), "still on n1", "remove again", "cluster_new_manager=n2")
    refused(record, own, queue(), "still on n1")


def test_a_manager_that_cannot_be_asked_is_waited_for() -> None:
    record = cluster("n2")
    refused(record, NONE, SILENT, "Bring n1 back", "no route to host", "cluster_manager_lost=true")
    refused(record, NONE, SILENT, "Bring n1 back", handing="n1")
    assert "it is not in the inventory" in asked(record, NONE, inventory=["n2"])["msg"]
    assert decided(record, NONE, SILENT, lost=True) == decided(record, NONE, lost=True) == mark(2)
    assert decided(cluster("n2", "n1"), queue(1), SILENT, lost=True) == mark(3, retire="keep")


def test_a_queue_of_another_time_is_not_taken_for_the_one_that_counts() -> None:
    record = cluster("n2", "n1", "n3")
    # n1 was the manager twice, and has only its first state; n2 may have the rest.
    refused(record, NONE, queue(1), "does not have them either", handing="n1")
    refused(cluster("n2"), NONE, queue(1, cluster=OTHER), "does not have them either", handing="n1")
    refused(cluster("n2", "n1"), queue(1), NONE, "n2 had before, and which does not have them either")


def test_slurm_may_come_after_the_hand_over() -> None:
    assert decided(cluster("n2"), BARE, BARE) == decided(cluster("n2"), NONE, NONE) == mark(2)
    assert decided(cluster("n2"), BARE, SILENT) == mark(2)


def test_what_an_earlier_version_has_left_is_gone_on_with() -> None:
    for former in (NONE, SILENT, queue()):
        assert decided(cluster("n2"), queue(), former) == mark(2)


def test_a_manager_that_says_nothing_is_no_manager_without_a_queue() -> None:
    assert "n1 did not return" in asked(cluster(), {"changed": False})["msg"]


@pytest.mark.parametrize(
    "marker",
    [
        [],
        {},
        {"cluster": ID, "machine": "n1"},
        {"cluster": ID, "machine": "n1", "tenures": []},
        {"cluster": ID, "machine": "n1", "tenures": [True]},
        {"cluster": ID, "machine": "n1", "tenures": [0]},
        {"cluster": ID, "machine": "n1", "tenures": "1"},
        {"cluster": 1, "machine": "n1", "tenures": [1]},
    ],
    ids=json.dumps,
)
def test_what_is_no_marker_is_no_answer(marker: object) -> None:
    refused(cluster("n2"), NONE, {**queue(1), "marker": marker}, "it does not answer", handing="n1")


@pytest.mark.parametrize(
    ("managers", "own", "manager", "becomes"),
    [
        # It was handed over.
        (["n2"], queue(1), queue(1, 2), "delete"),
        (["n2"], queue(), queue(1, 2), "delete"),
        # It was lost, and the next one started with an empty queue.
        (["n2"], queue(1), queue(2), "keep"),
        (["n2"], queue(), queue(2), "keep"),
        (["n2"], queue(1, cluster=OTHER), queue(1, 2), "keep"),
        # The manager does not have it yet.
        (["n2"], queue(1), NONE, ""),
        (["n2"], queue(1), queue(1), ""),
        (["n2"], queue(1), queue(1, 2, cluster=OTHER), ""),
        (["n2"], queue(1), SILENT, ""),
        (["n2", "n3"], queue(1), queue(1, 2), ""),
        (["n2", "n3"], queue(1), queue(1, 2, 3), "delete"),
        # An earlier version has handed it over.
        (["n2"], queue(), queue(), "delete"),
        (["n2"], queue(1), queue(), ""),
        ([], queue(), queue(1), "keep"),
    ],
)
def test_the_queue_of_a_former_manager_goes_once_it_is_contained_in_the_new_one(
    managers: Sequence[str], own: dict[str, Any], manager: dict[str, Any], becomes: str
) -> None:
    assert asked(cluster(*managers), manager, member_queue=own).get("leftover", "") == becomes


def test_of_a_machine_that_says_nothing_nothing_becomes() -> None:
    assert asked(cluster("n2"), queue(1, 2), member_queue=SKIPPED)["leftover"] == ""
