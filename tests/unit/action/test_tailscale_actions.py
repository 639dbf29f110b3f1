# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of the tailnet: who gets a key, which device belongs to whom, and what a host reports about itself."""

from __future__ import annotations

from typing import Any

import pytest
from action_runs import ActionRun, play_action

from ansible_collections.gpumesh.cluster.plugins.action import mesh, mesh_paths, tailscale, tailscale_device

MODULE, DEVICE = "gpumesh.cluster.tailscale", "gpumesh.cluster.tailscale_device"
RECORD: dict[str, Any] = {
    "name": "lab",
    "mesh": {"backend": "tailscale", "subnet": "100.64.0.0/10", "interface": "tailscale0"},
    "members": [
        {"machine": "t1", "mesh": {"address": "100.64.0.1", "public_key": None}},
        {"machine": "t2", "mesh": None},
    ],
}
LOGGED_IN = {
    "changed": False,
    "running": True,
    "command": ["tailscaled", "--port=41641", "--tun=tailscale0"],
    "boot": True,
    "tun_device": True,
    "login_needed": False,
    "tags_differ": False,
    "renewal_due": False,
    "addresses": ["100.64.0.2"],
}
LOGGED_OUT = {**LOGGED_IN, "login_needed": True, "addresses": []}
PROXY = "127.0.0.2:1055"
POD = {
    **LOGGED_IN,
    "tun_device": False,
    "command": [
        "tailscaled",
        "--tun=userspace-networking",
        f"--socks5-server={PROXY}",
        f"--outbound-http-proxy-listen={PROXY}",
    ],
}


def variables_of(host: str, **variables: Any) -> dict[str, Any]:
    hosts: dict[str, dict[str, Any]] = {"t1": {}, "t2": {}, "t3": {"mesh_hostname": "third"}}
    return {"inventory_hostname": host, "ansible_play_batch": ["t1", "t2"], "hostvars": hosts, **variables}


def run_tailscale(*results: dict[str, Any], variables: dict[str, Any] | None = None, **given: Any) -> ActionRun:
    return play_action(
        tailscale.ActionModule, {"record": RECORD, **given}, {MODULE: results}, variables or variables_of("t2")
    )


def test_a_logged_in_host_does_not_receive_the_key() -> None:
    played = run_tailscale(LOGGED_IN, auth_key="secret")
    ((_name, given),) = played.module_calls
    assert given == {"hostname": "t2", "ephemeral": False, "peers": ["100.64.0.1"], "login": False}
    assert played.result["ready"] is True
    assert played.result["registration"] == {"machine": "t2", "mesh": {"address": "100.64.0.2"}}


def test_a_host_receives_the_key_only_if_it_needs_to_log_in() -> None:
    played = run_tailscale(LOGGED_OUT, {**LOGGED_IN, "changed": True}, auth_key="secret")
    assert [(given["login"], given.get("auth_key")) for _name, given in played.module_calls] == [
        (False, None),
        (True, "secret"),
    ]
    assert played.result["changed"] is True


def test_a_missing_key_file_is_named_if_the_key_is_needed() -> None:
    here = variables_of("t2", mesh_auth_key_file="/no-such.key")
    refused = run_tailscale(LOGGED_OUT, variables=here)
    assert "mesh_auth_key_file: there is no file /no-such.key" in refused.result["msg"]
    assert run_tailscale(LOGGED_IN, variables=here).result["ready"] is True


@pytest.mark.parametrize(("key", "calls"), [("secret", 2), (None, 1)])
def test_a_host_with_different_tags_logs_in_again_if_there_is_a_key(key: str | None, calls: int) -> None:
    other = {**LOGGED_IN, "tags_differ": True}
    played = run_tailscale(other, other, **({"auth_key": key} if key else {}))
    assert len(played.module_calls) == calls
    assert played.result["ready"] is False


@pytest.mark.parametrize(
    ("given", "calls"), [({"auth_key": "secret", "renew": True}, 2), ({"auth_key": "secret"}, 1), ({"renew": True}, 1)]
)
def test_an_expiring_key_is_renewed_on_request(given: dict[str, Any], calls: int) -> None:
    played = run_tailscale({**LOGGED_IN, "renewal_due": True}, {**LOGGED_IN, "changed": True}, **given)
    assert [sent.get("auth_key") for _name, sent in played.module_calls] == [None, "secret"][:calls]
    assert played.result["renewal_due"] is (calls == 1)


def test_without_login_the_host_reports_that_a_login_is_needed() -> None:
    played = run_tailscale(LOGGED_OUT, auth_key="secret", login=False)
    assert len(played.module_calls) == 1
    assert played.result["login_needed"] is True
    assert "registration" not in played.result


def test_a_host_is_not_logged_in_with_its_settings() -> None:
    played = play_action(
        mesh.ActionModule, {"record": RECORD}, {MODULE: [LOGGED_OUT]}, variables_of("t2", mesh_auth_key="secret")
    )
    ((_name, given),) = played.module_calls
    assert given == {"hostname": "t2", "ephemeral": False, "peers": ["100.64.0.1"], "login": False}
    assert played.result["ready"] is False
    played = play_action(mesh.ActionModule, {"record": RECORD}, {MODULE: [LOGGED_IN]}, variables_of("t2"))
    assert played.result == run_tailscale(LOGGED_IN).result


def test_the_options_of_the_role_are_passed_to_the_module() -> None:
    role = {"mesh_tags": [], "mesh_ssh": False, "mesh_login_server": "", "mesh_hostname": "other"}
    ((_name, given),) = run_tailscale(LOGGED_IN, variables=variables_of("t2", **role)).module_calls
    settings = {"hostname": "other", "ephemeral": False, "tags": [], "ssh": False}
    assert given == {**settings, "peers": ["100.64.0.1"], "login": False}


def test_a_host_without_tun_has_a_proxy() -> None:
    assert run_tailscale(LOGGED_IN).result["flags"] == ["--tun=tailscale0"]
    for played in (
        run_tailscale({**LOGGED_IN, "tun_device": False}),
        run_tailscale(LOGGED_IN, variables=variables_of("t2", mesh_userspace="always")),
    ):
        assert "--socks5-server=127.0.0.2:1055" in played.result["flags"]


def test_a_host_without_an_interface_becomes_a_pod_on_request() -> None:
    wanted = variables_of("t2", mesh_userspace_nodes=True)
    assert run_tailscale(LOGGED_IN, variables=wanted).result["pod"] is False
    result = run_tailscale({**LOGGED_IN, "tun_device": False}, variables=wanted).result
    assert result["pod"] is True and result["registration"]["mesh"]["userspace"] is True
    assert run_tailscale({**LOGGED_IN, "tun_device": False}).result["pod"] is False


def test_the_library_is_installed_on_pods_and_removed_from_other_hosts_without_tun() -> None:
    wanted = variables_of("t2", mesh_userspace_nodes=True)
    assert run_tailscale(POD, variables=wanted).result["library"] == "present"
    always = {**wanted, "mesh_userspace": "always"}
    assert run_tailscale(LOGGED_IN, variables=always).result["library"] == "present"
    assert run_tailscale(POD).result["library"] == "absent"
    # The library is tested with the daemon that it queries.
    for result in (
        run_tailscale(LOGGED_IN, variables=wanted).result,
        run_tailscale({**POD, "addresses": []}, variables=wanted).result,
    ):
        assert "library" not in result


def test_a_pod_is_ready_once_its_proxy_listens_on_the_configured_port() -> None:
    wanted = variables_of("t2", mesh_userspace_nodes=True)
    assert run_tailscale(POD, variables=wanted).result["ready"] is True
    result = run_tailscale(POD, variables={**wanted, "mesh_proxy_port": 1056}).result
    assert (result["ready"], result["flags_differ"]) == (False, True)
    # A daemon that is not running is started with them anyway.
    assert run_tailscale({**POD, "running": False, "command": []}, variables=wanted).result["flags_differ"] is False
    # Other members keep the settings of a running daemon.
    for kept in (LOGGED_IN, POD):
        assert run_tailscale(kept, variables=variables_of("t2", mesh_proxy_port=1056)).result["ready"] is True


def test_a_removal_takes_one_module_and_no_key() -> None:
    played = play_action(tailscale.ActionModule, {"state": "absent"}, {MODULE: [{"changed": True}]}, variables_of("t2"))
    assert played.module_calls == [(MODULE, {"state": "absent"})]


def run_device(host: str, **given: Any) -> ActionRun:
    variables = variables_of(host, mesh_api_key="secret")
    return play_action(
        tailscale_device.ActionModule, {"record": RECORD, **given}, {DEVICE: [{"changed": True}]}, variables
    )


def test_the_device_is_found_by_the_address_in_the_record() -> None:
    played = run_device("t1", state="absent", address="100.64.0.99")
    wanted = {"address": "100.64.0.1", "name": "t1", "api_key": "secret", "state": "absent"}
    assert played.module_calls == [(DEVICE, wanted)]


def test_the_device_of_another_machine_is_found_by_the_name_of_that_machine() -> None:
    left = [{"machine": "t3", "mesh": {"address": "100.64.0.3"}}]
    ((_name, given),) = run_device("t1", machine="t3", former_members=left, state="absent").module_calls
    assert (given["address"], given["name"]) == ("100.64.0.3", "third")


def test_a_reported_address_is_used_only_if_the_record_has_none() -> None:
    ((_name, given),) = run_device("t2", address="100.64.0.2", state="absent").module_calls
    assert given["address"] == "100.64.0.2"
    assert run_device("t2", state="absent").result["skipped"] is True


def test_the_tags_of_a_device_are_those_of_the_role() -> None:
    variables = variables_of("t1", mesh_api_key="secret", mesh_tags=["tag:gpu"])
    played = play_action(tailscale_device.ActionModule, {"record": RECORD}, {DEVICE: [{"changed": True}]}, variables)
    assert played.module_calls[0][1]["tags"] == ["tag:gpu"]


def test_the_paths_of_all_hosts_are_combined() -> None:
    way = {"path": "direct", "endpoint": "192.0.2.1:41641", "relay": ""}
    variables = variables_of("t1")
    variables["hostvars"]["t2"]["probed"] = {"peers": {"100.64.0.1": way}}
    played = play_action(mesh_paths.ActionModule, {"record": RECORD, "registered": "probed"}, {}, variables)
    assert played.result["paths"] == [{"from": "t2", "to": "t1", "path": "direct", "by": "192.0.2.1:41641"}]
