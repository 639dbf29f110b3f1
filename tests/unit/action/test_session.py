# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of sessions: the settings of a host, and how a session is followed until its containers run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.action import session, session_run
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import source_digests
from ansible_collections.gpumesh.cluster.tests.support.action_runs import ActionRun, play_action, unpack_files

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
MODULE, RUN = "gpumesh.cluster.session", "gpumesh.cluster.session_run"
INFO = "gpumesh.cluster.session_run_info"
HOST_VARIABLES = {"inventory_hostname": "n2", "ansible_facts": {"pkg_mgr": "apt"}, "session_enabled": True}
UNCHANGED = {"changed": False, "missing": [], "outdated": []}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_run, "_POLL_INTERVAL", 0.0)


def run_session(*results: dict[str, Any], check_mode: bool = False, **variables: Any) -> ActionRun:
    module_results = {MODULE: results, "ansible.builtin.apt": [{"changed": True}]}
    return play_action(
        session.ActionModule, {"record": RECORD}, module_results, {**HOST_VARIABLES, **variables}, check_mode
    )


def test_a_host_receives_the_members_and_the_closed_networks() -> None:
    ((module, given),) = run_session(UNCHANGED).module_calls
    assert (module, given["machine"], given["state"]) == (MODULE, "n2", "present")
    assert given["members"] == {"n1": "10.0.0.1", "n2": "10.0.0.2"}
    assert "10.0.0.0/24" in given["closed"]
    assert set(given["digests"]) == {"gpumesh-session", "gpumesh_session.c"}


def test_the_public_address_of_a_member_is_closed_too() -> None:
    names = ["203.0.113.10:51820", "gpu.example.org:51820"]
    members = [{**member, "endpoint": endpoint} for member, endpoint in zip(MEMBERS, names, strict=True)]
    made = plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, members, STAMP)
    ((_module, given),) = play_action(
        session.ActionModule, {"record": plan.commit(made, STAMP)}, {MODULE: [UNCHANGED]}, {**HOST_VARIABLES}
    ).module_calls
    assert given["closed"] == ["10.0.0.0/24", "10.0.0.1", "203.0.113.10", "10.0.0.2"]


def test_packages_that_are_missing_are_installed() -> None:
    played = run_session(
        {**UNCHANGED, "missing": ["podman", "/usr/include/slurm/spank.h"]}, {**UNCHANGED, "changed": True}
    )
    assert [module for module, _given in played.module_calls] == [MODULE, "ansible.builtin.apt", MODULE]
    assert played.module_calls[1][1]["name"] == ["podman", "libslurm-dev"]


def test_the_program_is_pushed_to_a_host_that_lacks_it() -> None:
    played = run_session(
        {**UNCHANGED, "missing": ["podman"]},
        {**UNCHANGED, "outdated": ["gpumesh-session", "gpumesh_session.c"]},
        {**UNCHANGED, "changed": True},
    )
    assert [module for module, _given in played.module_calls] == [MODULE, "ansible.builtin.apt", MODULE, MODULE]
    given = [given for module, given in played.module_calls if module == MODULE]
    assert given[0] == given[1] == {name: value for name, value in given[2].items() if name != "contents"}
    assert source_digests(unpack_files(given[2]["contents"])) == given[0]["digests"]
    assert (played.result["changed"], played.result["outdated"]) == (True, [])


def test_nothing_is_sent_in_check_mode() -> None:
    found = {**UNCHANGED, "changed": True, "outdated": ["gpumesh-session"]}
    played = run_session(found, check_mode=True)
    assert (len(played.module_calls), played.result) == (1, found)


def test_without_sessions_nothing_is_installed() -> None:
    played = run_session(session_enabled=False)
    assert (played.result, played.module_calls) == ({"changed": False, "missing": []}, [])


def test_a_pool_that_the_cluster_uses_is_refused() -> None:
    played = run_session(session_subnets=["10.0.0.0/16"])
    assert "overlaps with 10.0.0.0/24" in played.result["msg"]
    assert played.module_calls == []


def session_result(state: str, reason: str = "", changed: bool = False) -> dict[str, Any]:
    found = {
        "job": 7,
        "summary": f"demo: {state}",
        "session_state": state,
        "reason": reason,
        "log": "/mnt/x.log",
        "host": "n2",
    }
    return {"changed": changed, **found}


def run_session_run(*results: dict[str, Any], check_mode: bool = False, **options: Any) -> ActionRun:
    arguments = {"record": RECORD, "name": "demo", "roles": "[{name: main, image: x}]", **options}
    return play_action(
        session_run.ActionModule, arguments, {RUN: results[:1], INFO: results[1:]}, HOST_VARIABLES, check_mode
    )


def test_a_session_is_followed_until_its_containers_run() -> None:
    played = run_session_run(
        session_result("waiting", changed=True),
        session_result("fetching"),
        session_result("starting"),
        session_result("running"),
    )
    assert (played.result["changed"], played.result["summary"]) == (True, "demo: running")
    (started, first), *later = played.module_calls
    assert (started, json.loads(first["roles"])) == (RUN, [{"name": "main", "image": "x"}])
    assert later == [(INFO, {"name": "demo", "job": 7})] * 3


def test_a_failed_session_fails_with_its_reason() -> None:
    played = run_session_run(
        session_result("waiting", changed=True), session_result("failed", "The image x cannot be fetched: no such.")
    )
    assert played.result["failed"]
    assert "The image x cannot be fetched: no such. See /mnt/x.log on n2." in played.result["msg"]


def test_a_session_whose_command_is_done_at_once_has_not_failed() -> None:
    assert not run_session_run(session_result("waiting", changed=True), session_result("ended")).result.get("failed")


@pytest.mark.parametrize("options", [{"wait": False}, {"state": "absent"}, {"check_mode": True}])
def test_without_wait_the_session_is_not_followed(options: dict[str, Any]) -> None:
    played = run_session_run(session_result("waiting", changed=True), **options)
    assert played.result["changed"] and len(played.module_calls) == 1


def test_sessions_are_refused_if_the_layer_is_disabled() -> None:
    given = {"record": RECORD, "name": "demo"}
    played = play_action(session_run.ActionModule, given, {RUN: []}, {**HOST_VARIABLES, "session_enabled": False})
    assert "session_enabled: true" in played.result["msg"]
    assert played.module_calls == []


def test_the_module_does_not_run_if_the_layer_is_disabled() -> None:
    played = run_session(session_enabled=False)
    assert (played.module_calls, played.result["changed"]) == ([], False)
