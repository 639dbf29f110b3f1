# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of training: the settings of a host, and how a run is followed without a connection to it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.action import train, train_run, train_runs_info
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import source_digests
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.train import program_sources
from ansible_collections.gpumesh.cluster.tests.support.action_runs import ActionRun, play_action, unpack_files

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
MEMBERS = [{"machine": "n1", "address": "10.0.0.1", "interface": "eth0"}]
VOLUMES = [
    {"name": "data", "mount_point": "/mnt/data", "read_only": True},
    {"name": "shared", "mount_point": "/mnt/shared"},
]
EMPTY = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
RECORD = plan.set_storage(EMPTY, VOLUMES).record
MODULE, RUN = "gpumesh.cluster.train", "gpumesh.cluster.train_run"
INFO = "gpumesh.cluster.train_run_info"
UNCHANGED = {"changed": False, "outdated": []}
HOST_VARIABLES = {"inventory_hostname": "n1"}


def run_result(state: str, action: str = "attached", changed: bool = False) -> dict[str, Any]:
    ended = state in ("finished", "failed")
    shown = {"ended": ended, "summary": f"nano: {state}", "folder": "/mnt/shared/nano", "run": {"state": state}}
    return {"changed": changed, "action": action, **shown}


def run_train(*results: dict[str, Any], **options: Any) -> ActionRun:
    arguments = {"record": RECORD, "name": "nano", "command": "true", **options}
    return play_action(train_run.ActionModule, arguments, {RUN: results[:1], INFO: results[1:]}, HOST_VARIABLES)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_run, "_POLL_INTERVAL", 0.0)


def test_the_program_receives_the_writable_volumes() -> None:
    played = play_action(
        train.ActionModule,
        {"record": RECORD},
        {MODULE: [UNCHANGED]},
        {**HOST_VARIABLES, "train_stage_dir": "/scratch"},
    )
    ((module, given),) = played.module_calls
    assert given.pop("digests") == source_digests(program_sources())
    wanted = {"state": "present", "volumes": ["/mnt/shared"], "run_dir": "", "stage_dir": "/scratch"}
    assert (module, given) == (MODULE, wanted)


def test_outdated_files_are_pushed() -> None:
    first = {"changed": False, "outdated": ["gpumesh-trace", "gpumesh_run.py"]}
    played = play_action(
        train.ActionModule, {"record": RECORD}, {MODULE: [first, {**UNCHANGED, "changed": True}]}, HOST_VARIABLES
    )
    (_module, before), (_again, after) = played.module_calls
    sent = unpack_files(after.pop("contents"))
    assert (before, played.result) == (after, {**UNCHANGED, "changed": True})
    assert sent == {name: program_sources()[name] for name in first["outdated"]}
    # In check mode, the first result is the answer.
    found = {**first, "changed": True}
    would = play_action(train.ActionModule, {"record": RECORD}, {MODULE: [found]}, HOST_VARIABLES, check_mode=True)
    assert (would.result, len(would.module_calls)) == (found, 1)


def test_a_removal_sends_no_digests() -> None:
    given = {"record": RECORD, "state": "absent"}
    ((_module, parameters),) = play_action(
        train.ActionModule, given, {MODULE: [UNCHANGED]}, HOST_VARIABLES
    ).module_calls
    assert (parameters["state"], parameters["digests"]) == ("absent", {})


def test_a_pod_receives_no_volumes() -> None:
    members = [{**MEMBERS[0], "mesh": {"address": "100.64.0.1", "userspace": True}}]
    mesh = {"backend": "tailscale"}
    empty = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", mesh, members, STAMP), STAMP)
    given = {"record": plan.set_storage(empty, VOLUMES).record}
    played = play_action(train.ActionModule, given, {MODULE: [UNCHANGED]}, HOST_VARIABLES)
    ((_module, given),) = played.module_calls
    assert given["volumes"] == []


def test_a_run_uses_the_volumes_of_the_manager_even_if_the_first_host_is_a_pod() -> None:
    pod = {**MEMBERS[0], "machine": "a1", "address": "10.0.0.9", "mesh": {"address": "100.64.0.9", "userspace": True}}
    mesh = {"backend": "tailscale"}
    empty = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", mesh, [*MEMBERS, pod], STAMP), STAMP)
    given = {"record": plan.set_storage(empty, VOLUMES).record, "name": "nano", "command": "true"}
    first = {"inventory_hostname": "a1"}
    played = play_action(train_run.ActionModule, given, {RUN: [run_result("finished")]}, first, delegate_to="n1")
    assert [parameters["volumes"] for _module, parameters in played.module_calls] == [["/mnt/shared"]]
    played = play_action(train_run.ActionModule, given, {RUN: [run_result("finished")]}, first)
    assert [parameters["volumes"] for _module, parameters in played.module_calls] == [[]]


def test_a_run_is_followed_until_it_ends() -> None:
    played = run_train(run_result("queued", "started", changed=True), run_result("running"), run_result("finished"))
    shown = [played.result[key] for key in ("changed", "action", "summary")]
    assert shown == [True, "started", "nano: finished"]
    (started, parameters), *later = played.module_calls
    assert (started, parameters["volumes"]) == (RUN, ["/mnt/shared"])
    assert later == [(INFO, {"folder": "/mnt/shared/nano"})] * 2


def test_the_result_of_a_run_is_set_as_stats() -> None:
    ended = run_result("finished")
    ended.update(
        folder="/mnt/shared/alice/runs/nano", run={"state": "finished", "step": 9, "loss": 0.5, "attempts": [{}]}
    )
    played = run_train(ended)
    assert played.result["ansible_stats"]["data"] == {
        "gpumesh_train_name": "nano",
        "gpumesh_train_state": "finished",
        "gpumesh_train_step": 9,
        "gpumesh_train_loss": 0.5,
        "gpumesh_train_attempts": 1,
        "gpumesh_train_folder": "/mnt/shared/alice/runs/nano",
    }


def test_a_run_that_fails_fails_the_task() -> None:
    played = run_train(run_result("running"), run_result("failed"))
    assert played.result["failed"]
    assert played.result["msg"].splitlines() == [
        "nano: failed",
        "Its files, with the output of all processes, are in /mnt/shared/nano on n1.",
    ]


def test_the_last_line_says_how_a_run_ended_and_where_its_files_are(capsys: pytest.CaptureFixture[str]) -> None:
    run_train(run_result("running"), run_result("finished"))
    state, place = capsys.readouterr().out.split("\n\n")[-1].strip().splitlines()[-2:]
    assert (state, place) == (
        "nano: finished",
        "Its files, with the output of all processes, are in /mnt/shared/nano on n1.",
    )


def test_a_run_that_is_cancelled_on_request_is_no_failure() -> None:
    cancelled = {**run_result("cancelled", "cancelled", changed=True), "ended": True}
    played = run_train(cancelled, state="cancelled")
    assert played.result["changed"] and not played.result.get("failed")
    ((_module, parameters),) = played.module_calls
    assert parameters["state"] == "cancelled"


def test_all_runs_of_a_user_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"changed": False, "folder": "/mnt/shared/a/runs", "runs": [{"name": "nano", "summary": "nano: running"}]}
    played = play_action(
        train_runs_info.ActionModule,
        {"record": RECORD, "run_dir": ""},
        {"gpumesh.cluster.train_runs_info": [found]},
        HOST_VARIABLES,
    )
    ((_module, parameters),) = played.module_calls
    assert parameters == {"run_dir": "", "volumes": ["/mnt/shared"]}
    assert "Runs in /mnt/shared/a/runs: 1\nnano: running" in capsys.readouterr().out


def test_without_wait_the_run_is_not_followed() -> None:
    played = run_train(run_result("queued", "started", changed=True), wait=False)
    assert played.result["changed"] and not played.result.get("failed")
    assert len(played.module_calls) == 1
