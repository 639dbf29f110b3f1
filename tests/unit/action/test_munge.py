# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of munge: the manager's key first, then the members with it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from action_runs import ActionRun, play_action

from ansible_collections.gpumesh.cluster.plugins.action.munge import ActionModule
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
OWNER = {"cluster": "lab", "cluster_id": "0" * 32}
MANAGER = {
    "content": "a2V5",
    "credential": "MUNGE:signed:",
    "reason": "",
    "clock_ahead": 0.5,
    "fingerprint": "f",
    "missing": [],
}
UNCHANGED = {"changed": False, "missing": []}


def run_munge(
    arguments: dict[str, Any], *results: dict[str, Any], check_mode: bool = False, **variables: Any
) -> ActionRun:
    host_variables = {
        "inventory_hostname": "n2",
        "ansible_play_batch": ["n1", "n2"],
        "groups": {},
        "ansible_facts": {"pkg_mgr": "apt"},
        **variables,
    }
    given = {"gpumesh.cluster.munge": results, "ansible.builtin.apt": [{"changed": True}]}
    return play_action(ActionModule, {"record": RECORD, **arguments}, given, host_variables, check_mode)


def module_arguments_of(played: ActionRun) -> dict[str, Any]:
    """The arguments of the module, without the time."""
    ((_module, arguments),) = played.module_calls
    assert arguments.pop("controller_time", 1) > 0
    return arguments


def test_the_manager_has_a_key_and_signs() -> None:
    asked = {**OWNER, "sign": True, "start": True}
    assert module_arguments_of(run_munge({}, MANAGER)) == {**asked, "generate": True, "rotate": False}
    assert module_arguments_of(run_munge({}, MANAGER, munge_rotate_key=True)) == {
        **asked,
        "generate": False,
        "rotate": True,
    }


def test_a_manager_outside_the_play_is_only_queried() -> None:
    away = {"ansible_play_batch": ["n2"]}
    assert module_arguments_of(run_munge({}, MANAGER, **away))["start"] is False
    lacking = run_munge({}, {**MANAGER, "missing": ["munge"]}, **away)
    assert "munge is not installed" in lacking.result["msg"]
    assert "msg" not in run_munge({}, {**MANAGER, "missing": ["munge"]}, check_mode=True, **away).result


def test_a_member_receives_the_key_and_verifies_the_credential() -> None:
    given = module_arguments_of(run_munge({"manager": MANAGER}, UNCHANGED))
    assert given == {
        **OWNER,
        "content": "a2V5",
        "verify": "MUNGE:signed:",
        "manager_name": "n1",
        "manager_clock_ahead": 0.5,
    }


def test_a_manager_without_a_credential_is_named_and_restarts_nothing() -> None:
    played = run_munge({"manager": {**MANAGER, "credential": "", "reason": "munged does not answer"}})
    assert "n1 did not sign a credential: munged does not answer" in played.result["msg"]
    assert played.module_calls == []


@pytest.mark.parametrize(
    ("manager", "words"),
    [
        (
            {"failed": True, "msg": "The key is too short. Replace it.", "error": {"kind": "input"}},
            "n1: The key is too short. Replace it.",
        ),
        ({"unreachable": True, "msg": "No route to host"}, "n1: No route to host"),
        ({"censored": "by no_log"}, "n1: the munge key cannot be read"),
    ],
    ids=["failed", "unreachable", "without a reason"],
)
@pytest.mark.parametrize("check_mode", [False, True])
def test_without_the_key_of_the_manager_nothing_changes(manager: dict[str, Any], words: str, check_mode: bool) -> None:
    for given in ({}, {"munge_key_file": "/nonexistent"}):
        played = run_munge({"manager": manager}, check_mode=check_mode, **given)
        assert played.result["failed"] and played.result["msg"] == words
        assert played.module_calls == []


def test_a_given_key_file_is_read_on_the_controller(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"x" * 32)
    content = base64.b64encode(b"x" * 32).decode()
    for given in ({}, {"manager": {**MANAGER, "content": "masked"}}):
        assert module_arguments_of(run_munge(given, MANAGER, munge_key_file=str(path)))["content"] == content
    refused = run_munge({}, munge_key_file=str(tmp_path / "none"))
    assert "munge_key_file: " in refused.result["msg"] and refused.module_calls == []


def test_a_key_rotation_requires_all_members_with_munge() -> None:
    refused = run_munge({}, munge_rotate_key=True, ansible_play_batch=["n1"])
    assert "Not in this play, or unreachable: n2." in refused.result["msg"] and refused.module_calls == []
    left_out = {"ansible_play_batch": ["n1"], "cluster_userspace_only": ["n2"]}
    assert module_arguments_of(run_munge({}, MANAGER, munge_rotate_key=True, **left_out))["rotate"]


@pytest.mark.parametrize(("check_mode", "runs"), [(False, ["munge", "apt", "munge"]), (True, ["munge"])])
def test_a_missing_munge_is_installed(check_mode: bool, runs: list[str]) -> None:
    lacking = {"changed": check_mode, "missing": ["munge", "supervisor"]}
    played = run_munge({"manager": MANAGER}, lacking, UNCHANGED, check_mode=check_mode)
    assert [module.rpartition(".")[2] for module, _given in played.module_calls] == runs
    if len(runs) > 1:
        assert played.module_calls[1][1]["name"] == ["munge", "supervisor"]
        assert played.module_calls[2][1]["controller_time"] >= played.module_calls[0][1]["controller_time"], (
            "the clock went on meanwhile"
        )


def test_a_removal_needs_only_the_name_of_the_cluster() -> None:
    assert module_arguments_of(run_munge({"state": "absent"}, UNCHANGED)) == {**OWNER, "state": "absent"}


def test_a_delegated_task_uses_the_variables_of_the_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionModule, "is_delegated", True)
    found = {"ansible_facts": {"ansible_pkg_mgr": "dnf"}}
    hostvars = {None: {"daemon_supervisor_programs": "/opt"}}
    results = {
        "gpumesh.cluster.munge": [{**MANAGER, "missing": ["munge"]}, MANAGER],
        "ansible.builtin.setup": [found],
        "ansible.builtin.dnf": [{"changed": True}],
    }
    here = {
        "inventory_hostname": "n2",
        "ansible_play_batch": ["n1"],
        "hostvars": hostvars,
        "ansible_facts": {"pkg_mgr": "apt"},
    }
    played = play_action(ActionModule, {"record": RECORD}, results, here)
    assert [module.rpartition(".")[2] for module, _given in played.module_calls] == ["munge", "setup", "dnf", "munge"]
    assert played.module_calls[0][1]["supervisor_programs"] == "/opt"
