# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A task receives the cluster record, or the name of the variable that contains it."""

from __future__ import annotations

from typing import Any

from action_runs import ActionRun, play_action

from ansible_collections.gpumesh.cluster.plugins.action.names import ActionModule
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)


def run_names(record: Any, **variables: Any) -> ActionRun:
    given = {"inventory_hostname": "n1", **variables}
    return play_action(
        ActionModule, {"record": record}, {"gpumesh.cluster.names": [{"changed": True, "outdated": []}]}, given
    )


def test_the_record_can_be_given_by_the_name_of_its_variable() -> None:
    by_name, by_value = run_names("held", held=RECORD), run_names(RECORD)
    assert by_name.result == by_value.result
    # Only the record in a variable of the play is the one that the host has, too.
    assert "members" in by_value.module_calls[0][1] and "record_copy" in by_name.module_calls[0][1]
    assert run_names(RECORD).result["changed"]


def test_the_name_of_an_unknown_variable_is_refused() -> None:
    refused = run_names("held")
    assert refused.module_calls == [] and "no variable held" in refused.result["msg"]


def test_an_invalid_record_is_refused_by_value_and_by_name() -> None:
    for refused in (run_names("held", held=["n1"]), run_names(["n1"]), run_names("held", held={"name": "lab"})):
        assert refused.result["failed"] and refused.module_calls == []
