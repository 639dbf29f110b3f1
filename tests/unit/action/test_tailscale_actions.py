# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of the tailnet: who gets a key, which device belongs to whom, and what a host reports about itself."""

from __future__ import annotations

from typing import Any

import pytest
from action_runs import Played, play

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
IN = {
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
OUT = {**IN, "login_needed": True, "addresses": []}
PROXY = "127.0.0.2:1055"
POD = {
    **IN,
    "tun_device": False,
    "command": [
        "tailscaled",
        "--tun=userspace-networking",
        f"--socks5-server={PROXY}",
        f"--outbound-http-proxy-listen={PROXY}",
    ],
}


def on(host: str, **variables: Any) -> dict[str, Any]:
    hosts: dict[str, dict[str, Any]] = {"t1": {}, "t2": {}, "t3": {"mesh_hostname": "third"}}
    return {"inventory_hostname": host, "ansible_play_batch": ["t1", "t2"], "hostvars": hosts, **variables}


def login(*results: dict[str, Any], variables: dict[str, Any] | None = None, **given: Any) -> Played:
    return play(tailscale.ActionModule, {"record": RECORD, **given}, {MODULE: results}, variables or on("t2"))


def test_a_host_that_is_logged_in_does_not_get_the_key() -> None:
    played = login(IN, auth_key="secret")
    ((_name, given),) = played.ran
    assert given == {"hostname": "t2", "peers": ["100.64.0.1"], "login": False}
    assert played.result["ready"] is True
    assert played.result["registration"] == {"machine": "t2", "mesh": {"address": "100.64.0.2"}}


def test_a_host_that_has_to_log_in_gets_the_key_once_it_has_said_so() -> None:
    played = login(OUT, {**IN, "changed": True}, auth_key="secret")
    assert [(given["login"], given.get("auth_key")) for _name, given in played.ran] == [(False, None), (True, "secret")]
    assert played.result["changed"] is True


def test_a_file_with_the_key_that_is_missing_is_named_where_the_key_is_needed() -> None:
    here = on("t2", mesh_auth_key_file="~/no-such.key")
    refused = login(OUT, variables=here)
    assert "mesh_auth_key_file: there is no file ~/no-such.key" in refused.result["msg"]
    assert login(IN, variables=here).result["ready"] is True


@pytest.mark.parametrize(("key", "calls"), [("secret", 2), (None, 1)])
def test_a_host_with_other_tags_logs_in_again_where_there_is_a_key(key: str | None, calls: int) -> None:
    other = {**IN, "tags_differ": True}
    played = login(other, other, **({"auth_key": key} if key else {}))
    assert len(played.ran) == calls
    assert played.result["ready"] is False


@pytest.mark.parametrize(
    ("given", "calls"), [({"auth_key": "secret", "renew": True}, 2), ({"auth_key": "secret"}, 1), ({"renew": True}, 1)]
)
def test_a_host_whose_key_ends_soon_gets_another_one_if_that_is_wanted(given: dict[str, Any], calls: int) -> None:
    played = login({**IN, "renewal_due": True}, {**IN, "changed": True}, **given)
    assert [sent.get("auth_key") for _name, sent in played.ran] == [None, "secret"][:calls]
    assert played.result["renewal_due"] is (calls == 1)


def test_a_host_that_is_not_to_log_in_says_that_it_would_have_to() -> None:
    played = login(OUT, auth_key="secret", login=False)
    assert len(played.ran) == 1
    assert played.result["login_needed"] is True
    assert "registration" not in played.result


def test_a_host_is_not_logged_in_with_its_settings() -> None:
    played = play(mesh.ActionModule, {"record": RECORD}, {MODULE: [OUT]}, on("t2", mesh_auth_key="secret"))
    ((_name, given),) = played.ran
    assert given == {"hostname": "t2", "peers": ["100.64.0.1"], "login": False}
    assert played.result["ready"] is False
    played = play(mesh.ActionModule, {"record": RECORD}, {MODULE: [IN]}, on("t2"))
    assert played.result == login(IN).result


def test_the_options_of_the_role_are_those_of_the_module() -> None:
    role = {"mesh_tags": [], "mesh_ssh": False, "mesh_login_server": "", "mesh_hostname": "other"}
    ((_name, given),) = login(IN, variables=on("t2", **role)).ran
    assert given == {"hostname": "other", "tags": [], "ssh": False, "peers": ["100.64.0.1"], "login": False}


def test_a_host_without_tun_has_a_proxy() -> None:
    assert login(IN).result["flags"] == ["--tun=tailscale0"]
    for played in (login({**IN, "tun_device": False}), login(IN, variables=on("t2", mesh_userspace="always"))):
        assert "--socks5-server=127.0.0.2:1055" in played.result["flags"]


def test_a_host_without_an_interface_is_a_pod_if_that_is_wanted() -> None:
    wanted = on("t2", mesh_userspace_nodes=True)
    assert login(IN, variables=wanted).result["pod"] is False
    result = login({**IN, "tun_device": False}, variables=wanted).result
    assert result["pod"] is True and result["registration"]["mesh"]["userspace"] is True
    assert login({**IN, "tun_device": False}).result["pod"] is False


def test_the_library_is_for_pods_and_removed_from_hosts_without_tun_that_are_none() -> None:
    wanted = on("t2", mesh_userspace_nodes=True)
    assert login(POD, variables=wanted).result["library"] == "present"
    always = {**wanted, "mesh_userspace": "always"}
    assert login(IN, variables=always).result["library"] == "present"
    assert login(POD).result["library"] == "absent"
    # It is tested with the daemon that it asks.
    for result in (login(IN, variables=wanted).result, login({**POD, "addresses": []}, variables=wanted).result):
        assert "library" not in result


def test_a_pod_is_ready_once_its_proxy_has_the_port_that_its_programs_go_by() -> None:
    wanted = on("t2", mesh_userspace_nodes=True)
    assert login(POD, variables=wanted).result["ready"] is True
    result = login(POD, variables={**wanted, "mesh_proxy_port": 1056}).result
    assert (result["ready"], result["flags_differ"]) == (False, True)
    # A daemon that is not running is started with them anyway.
    assert login({**POD, "running": False, "command": []}, variables=wanted).result["flags_differ"] is False
    # Other members keep the settings of a running daemon.
    for kept in (IN, POD):
        assert login(kept, variables=on("t2", mesh_proxy_port=1056)).result["ready"] is True


def test_what_leaves_is_asked_once_and_without_a_key() -> None:
    played = play(tailscale.ActionModule, {"state": "absent"}, {MODULE: [{"changed": True}]}, on("t2"))
    assert played.ran == [(MODULE, {"state": "absent"})]


def device(host: str, **given: Any) -> Played:
    variables = on(host, mesh_api_key="secret")
    return play(tailscale_device.ActionModule, {"record": RECORD, **given}, {DEVICE: [{"changed": True}]}, variables)


def test_a_device_is_the_one_that_the_record_says() -> None:
    played = device("t1", state="absent", address="100.64.0.99")
    wanted = {"address": "100.64.0.1", "name": "t1", "api_key": "secret", "state": "absent"}
    assert played.ran == [(DEVICE, wanted)]


def test_the_device_of_another_machine_has_the_name_of_that_one() -> None:
    left = [{"machine": "t3", "mesh": {"address": "100.64.0.3"}}]
    ((_name, given),) = device("t1", machine="t3", left=left, state="absent").ran
    assert (given["address"], given["name"]) == ("100.64.0.3", "third")


def test_what_a_host_says_of_itself_counts_where_the_record_says_nothing() -> None:
    ((_name, given),) = device("t2", address="100.64.0.2", state="absent").ran
    assert given["address"] == "100.64.0.2"
    assert device("t2", state="absent").result["skipped"] is True


def test_the_ways_of_all_hosts_are_put_together() -> None:
    way = {"path": "direct", "endpoint": "192.0.2.1:41641", "relay": ""}
    variables = on("t1")
    variables["hostvars"]["t2"]["probed"] = {"peers": {"100.64.0.1": way}}
    played = play(mesh_paths.ActionModule, {"record": RECORD, "registered": "probed"}, {}, variables)
    assert played.result["paths"] == [{"from": "t2", "to": "t1", "path": "direct", "by": "192.0.2.1:41641"}]
