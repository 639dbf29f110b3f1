# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which queue a manager's controller continues with, and what happens to those of former managers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from action_runs import play_action

from ansible_collections.gpumesh.cluster.plugins.action.slurm_state_info import ActionModule
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record

AT = plan.ChangeStamp("2026-01-01T00:00:00Z", "test")
ID = "0" * 32
OTHER = "f" * 32
HOSTS = ("n1", "n2", "n3")


def build_record(*managers: str) -> Record:
    """A cluster of three, created by n1, and then managed by these machines, each from the next generation on."""
    members = [{"machine": name, "address": f"10.0.0.{name[1]}", "interface": "eth0"} for name in HOSTS]
    record = plan.commit(plan.create(ID, "lab", "10.0.0.0/24", "n1", {}, members, AT), AT)
    for manager in managers:
        record = plan.commit(plan.hand_over(record, manager), AT)
    return record


def controller_state(*tenures: int, cluster: str = ID, machine: str = "n1", node: bool = True) -> dict[str, Any]:
    """The state that a machine with a queue reports."""
    marker = {"cluster": cluster, "machine": machine, "tenures": list(tenures)} if tenures else None
    return {"in_use": True, "marker": marker, "pending_accounting": False, "is_node": node}


NONE = {"in_use": False, "marker": None, "pending_accounting": False, "is_node": True}
BARE = {**NONE, "is_node": False}
SILENT = {"unreachable": True, "msg": "no route to host"}
SKIPPED: dict[str, Any] = {"skipped": True}


def run_action(
    record: Record,
    answer: dict[str, Any],
    machine: str = "n1",
    inventory: Sequence[str] = HOSTS,
    former_manager: str = "",
    manager_lost: bool = False,
    **arguments: Any,
) -> dict[str, Any]:
    """The result of the task, where the queried host returns this answer."""
    hosts_in_run = {
        "inventory_hostname": machine,
        "groups": {"all": list(inventory)},
        "slurm_former_manager": former_manager,
        "cluster_manager_lost": manager_lost,
    }
    arguments = {"record": record, **arguments}
    return play_action(ActionModule, arguments, {"gpumesh.cluster.slurm_state_info": [answer]}, hosts_in_run).result


def run_decision(
    record: Record, manager_state: dict[str, Any], former: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """The result of the last task of the role: the manager is queried, and the previous one if necessary."""
    result = run_action(record, manager_state, **options)
    if former is not None and result.get("handover", {}).get("query"):
        result = run_action(record, former, manager_state=manager_state, **options)
    return result


def decision_of(
    record: Record, manager_state: dict[str, Any], former: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """The decision of the role, without empty values."""
    return {
        key: value for key, value in run_decision(record, manager_state, former, **options)["handover"].items() if value
    }


def check_refusal(
    record: Record, manager_state: dict[str, Any], former: dict[str, Any] | None, *fragments: str, **options: Any
) -> None:
    refusal = run_decision(record, manager_state, former, **options)["msg"]
    assert [text for text in fragments if text not in refusal] == [], refusal


def mark_decision(*tenures: int, retire: str = "", action: str = "mark") -> dict[str, Any]:
    return {"action": action, "tenures": list(tenures), **({"retire": retire} if retire else {})}


GO_ON = {"action": "continue"}


def test_terms_follow_the_history() -> None:
    assert derive.manager_terms(build_record()) == [(1, "n1")]
    assert derive.manager_terms(build_record("n2", "n1")) == [(1, "n1"), (2, "n2"), (3, "n1")]
    record = build_record("n2")
    left = plan.commit(plan.remove(record, ["n2"], AT, "n3"), AT)
    assert derive.manager_terms(left) == [(1, "n1"), (2, "n2"), (3, "n3")]
    # A history that does not lead to the manager proves nothing.
    record["manager"] = "n3"
    assert derive.manager_terms(record) == [(1, "n3")]


@pytest.mark.parametrize("own", [BARE, NONE, controller_state()])
def test_first_manager_starts_and_marks_its_state(own: dict[str, Any]) -> None:
    assert decision_of(build_record(), own) == mark_decision(1)


def test_manager_continues_with_the_state_of_its_term() -> None:
    assert decision_of(build_record(), controller_state(1)) == GO_ON
    assert (
        decision_of(build_record("n2"), controller_state(1, 2))
        == decision_of(build_record("n2"), controller_state(2))
        == GO_ON
    )
    assert decision_of(build_record("n2"), controller_state(1, 2), controller_state(1), former_manager="n1") == GO_ON
    assert decision_of(build_record("n2"), controller_state(2), manager_lost=True) == GO_ON


def test_state_of_another_cluster_is_kept_aside() -> None:
    assert decision_of(build_record(), controller_state(1, cluster=OTHER)) == mark_decision(1, retire="keep")


def test_queue_is_taken_from_the_outgoing_manager() -> None:
    assert decision_of(build_record("n2"), NONE, former_manager="n1") == {"action": "continue", "query": "n1"}
    for former in (controller_state(1), controller_state()):
        assert decision_of(build_record("n2"), NONE, former, former_manager="n1") == mark_decision(
            1, 2, action="take_over"
        )


def test_old_queue_is_ignored_after_handing_back() -> None:
    record = build_record("n2", "n1")
    taken = decision_of(record, controller_state(1), controller_state(1, 2), former_manager="n2")
    assert taken == mark_decision(1, 2, 3, action="take_over", retire="delete")
    # After a loss in which the second manager started with an empty queue, it is kept.
    taken = decision_of(record, controller_state(1), controller_state(2), former_manager="n2")
    assert taken == mark_decision(2, 3, action="take_over", retire="keep")
    # A state without a marker is kept or deleted depending on the machine's last tenure.
    assert decision_of(record, controller_state(), controller_state(1, 2), former_manager="n2")["retire"] == "delete"
    assert decision_of(record, controller_state(), controller_state(2), former_manager="n2")["retire"] == "keep"


def test_former_manager_cannot_claim_unknown_terms() -> None:
    claimed = controller_state(1, 7, 99, 2)
    assert decision_of(build_record("n2", "n1"), NONE, claimed, former_manager="n2")["tenures"] == [1, 2, 3]


@pytest.mark.parametrize("own", [NONE, BARE, controller_state(7), controller_state(1, cluster=OTHER)])
def test_no_controller_starts_after_an_interrupted_hand_over(own: dict[str, Any]) -> None:
    record = build_record("n2")
    assert decision_of(record, own) == {"action": "continue", "query": "n1"}
    check_refusal(record, own, controller_state(1), "still on n1", "remove again", "cluster_new_manager=n2")
    check_refusal(record, own, controller_state(), "still on n1")


def test_unreachable_former_manager_is_waited_for() -> None:
    record = build_record("n2")
    check_refusal(record, NONE, SILENT, "Bring n1 back", "no route to host", "cluster_manager_lost=true")
    check_refusal(record, NONE, SILENT, "Bring n1 back", former_manager="n1")
    assert "it is not in the inventory" in run_action(record, NONE, inventory=["n2"])["msg"]
    assert (
        decision_of(record, NONE, SILENT, manager_lost=True)
        == decision_of(record, NONE, manager_lost=True)
        == mark_decision(2)
    )
    assert decision_of(build_record("n2", "n1"), controller_state(1), SILENT, manager_lost=True) == mark_decision(
        3, retire="keep"
    )


def test_queue_of_another_term_is_not_taken() -> None:
    record = build_record("n2", "n1", "n3")
    # n1 was the manager twice, and has only its first state; n2 may have the rest.
    check_refusal(record, NONE, controller_state(1), "does not have them either", former_manager="n1")
    check_refusal(
        build_record("n2"), NONE, controller_state(1, cluster=OTHER), "does not have them either", former_manager="n1"
    )
    check_refusal(
        build_record("n2", "n1"), controller_state(1), NONE, "n2 had before, and which does not have them either"
    )


def test_slurm_can_be_set_up_after_the_hand_over() -> None:
    assert (
        decision_of(build_record("n2"), BARE, BARE) == decision_of(build_record("n2"), NONE, NONE) == mark_decision(2)
    )
    assert decision_of(build_record("n2"), BARE, SILENT) == mark_decision(2)


def test_unmarked_state_of_an_earlier_version_is_continued() -> None:
    for former in (NONE, SILENT, controller_state()):
        assert decision_of(build_record("n2"), controller_state(), former) == mark_decision(2)


def test_manager_without_a_response_is_an_error() -> None:
    assert "n1 did not return" in run_action(build_record(), {"changed": False})["msg"]


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
def test_invalid_marker_counts_as_no_response(marker: object) -> None:
    check_refusal(
        build_record("n2"), NONE, {**controller_state(1), "marker": marker}, "it does not answer", former_manager="n1"
    )


@pytest.mark.parametrize(
    ("managers", "own", "manager", "becomes"),
    [
        # It was handed over.
        (["n2"], controller_state(1), controller_state(1, 2), "delete"),
        (["n2"], controller_state(), controller_state(1, 2), "delete"),
        # It was lost, and the next one started with an empty queue.
        (["n2"], controller_state(1), controller_state(2), "keep"),
        (["n2"], controller_state(), controller_state(2), "keep"),
        (["n2"], controller_state(1, cluster=OTHER), controller_state(1, 2), "keep"),
        # The manager does not have it yet.
        (["n2"], controller_state(1), NONE, ""),
        (["n2"], controller_state(1), controller_state(1), ""),
        (["n2"], controller_state(1), controller_state(1, 2, cluster=OTHER), ""),
        (["n2"], controller_state(1), SILENT, ""),
        (["n2", "n3"], controller_state(1), controller_state(1, 2), ""),
        (["n2", "n3"], controller_state(1), controller_state(1, 2, 3), "delete"),
        # An earlier version has handed it over.
        (["n2"], controller_state(), controller_state(), "delete"),
        (["n2"], controller_state(1), controller_state(), ""),
        ([], controller_state(), controller_state(1), "keep"),
    ],
)
def test_queue_of_a_former_manager_is_deleted_after_the_takeover(
    managers: Sequence[str], own: dict[str, Any], manager: dict[str, Any], becomes: str
) -> None:
    assert run_action(build_record(*managers), manager, member_state=own).get("leftover_action", "") == becomes


def test_machine_without_a_response_is_not_changed() -> None:
    assert run_action(build_record("n2"), controller_state(1, 2), member_state=SKIPPED)["leftover_action"] == ""
