# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of the layers: the record in, one module with finished parameters on the host."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.action import layer_info, names
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import plan
from ansible_collections.gpumesh.cluster.tests.support.action_runs import Played, play

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
STAMP = plan.Stamp("2026-11-20T20:31:00Z", "alice")
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)


def on_host(action: Any, arguments: dict[str, Any], result: dict[str, Any], **variables: Any) -> Played:
    """Run it on n1, where its module gives this result."""
    module = action.__name__.rpartition(".")[2]
    here = {"inventory_hostname": "n1", **variables}
    return play(action.ActionModule, arguments, {f"gpumesh.cluster.{module}": [result]}, here)


def sent(action: Any, arguments: dict[str, Any], **variables: Any) -> dict[str, Any]:
    """The parameters of its module."""
    played = on_host(action, arguments, {"changed": False}, **variables)
    ((_module, parameters),) = played.ran
    return parameters


def test_the_record_stays_on_the_controller() -> None:
    assert sent(names, {"record": RECORD}) == {
        "cluster": "lab",
        "state": "present",
        "members": [{"address": "10.0.0.1", "names": ["n1"]}, {"address": "10.0.0.2", "names": ["n2"]}],
        "address": "10.0.0.1",
    }
    assert sent(names, {"record": RECORD, "state": "absent"}) == {"cluster": "lab", "state": "absent"}


@pytest.mark.parametrize("record", [{}, {**RECORD, "members": "n1"}])
def test_what_is_no_record_is_refused_on_the_controller(record: Any) -> None:
    played = play(names.ActionModule, {"record": record}, {}, {"inventory_hostname": "n1"})
    assert played.result["failed"] and played.result["error"]["kind"] == "invalid_record"


def test_a_machine_that_is_not_a_member_is_refused() -> None:
    played = play(names.ActionModule, {"record": RECORD}, {}, {"inventory_hostname": "n9"})
    assert "'n9' is not a member of cluster 'lab'" in played.result["msg"]


def test_the_host_is_compared_with_what_the_roles_are_told() -> None:
    def asked(**variables: Any) -> set[str]:
        given = sent(layer_info, {"record": RECORD}, **variables)
        return {entry.get("path") or entry["unit"] for entry in (*given["files"], *given["services"])}

    assert sent(layer_info, {"record": RECORD})["modules"]["names"] == sent(names, {"record": RECORD})
    assert asked() - asked(slurm_accounting="false") == {"slurmdbd.service"}
