# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of the mesh: what they run on a host, with which options, and what they leave to the controller."""

from __future__ import annotations

from typing import Any

import pytest
from action_runs import ActionRun, play_action

from ansible_collections.gpumesh.cluster.plugins.action import mesh as mesh_action
from ansible_collections.gpumesh.cluster.plugins.action import (
    mesh_settings,
    wireguard,
    wireguard_preshared,
    wireguard_rotation,
)
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._layers.mesh.hosts import key, member, record

HEAD = member("head", 1, "a", "203.0.113.1:51820")
DIALLED_MEMBER = member("dialled", 2, "b", "203.0.113.2:51820")
NEW_MEMBER = {**member("new", 4, "d"), "mesh": {"address": "10.99.0.4", "public_key": None}}
HIDDEN_MEMBER, OTHER_HIDDEN_MEMBER = member("hidden", 5, "e"), member("also", 6, "f")
RECORD = record(HEAD, DIALLED_MEMBER)
MODULE = "gpumesh.cluster.wireguard"
TUNNEL_RESULT = {
    "changed": False,
    "public_key": key("head"),
    "tools": True,
    "implementation": "kernel",
    "interface_up": True,
    "boot": True,
}
BARE_RESULT = {**TUNNEL_RESULT, "public_key": None, "tools": False, "interface_up": False, "boot": False}


def variables_of(host: str, present: list[str] | None = None, **registered: dict[str, Any]) -> dict[str, Any]:
    """The variables of a host in a play of ``present``. ``registered``: the registered results of each host, by name."""
    hosts = present or ["head", "dialled"]
    return {
        "inventory_hostname": host,
        "ansible_play_batch": hosts,
        "ansible_facts": {"pkg_mgr": "apt"},
        "hostvars": {name: {variable: each.get(name) for variable, each in registered.items()} for name in hosts},
    }


def run_wireguard(results: list[dict[str, Any]], check_mode: bool = False, **options: Any) -> ActionRun:
    installed = {"ansible.builtin.apt": [{"changed": True}]}
    return play_action(
        wireguard.ActionModule,
        {"record": RECORD, **options},
        {MODULE: results, **installed},
        variables_of("head"),
        check_mode,
    )


def test_an_unchanged_tunnel_takes_one_module() -> None:
    played = run_wireguard([TUNNEL_RESULT])
    assert played.result == {**TUNNEL_RESULT, "ready": True}
    assert [(name, given["address"]) for name, given in played.module_calls] == [(MODULE, "10.99.0.1/16")]
    assert "record" not in played.module_calls[0][1]
    assert "preshared_without" not in played.module_calls[0][1]


@pytest.mark.parametrize(("up", "boot"), [(False, True), (True, False)])
def test_a_tunnel_is_not_ready_before_its_service_runs_it(up: bool, boot: bool) -> None:
    assert run_wireguard([{**TUNNEL_RESULT, "interface_up": up, "boot": boot}]).result["ready"] is False


@pytest.mark.parametrize(
    ("first", "packages"),
    [
        (BARE_RESULT, ["wireguard-tools"]),
        ({**BARE_RESULT, "implementation": "missing"}, ["wireguard-tools", "wireguard-go"]),
        ({**BARE_RESULT, "implementation": "userspace"}, ["wireguard-tools", "wireguard-go"]),
        ({**TUNNEL_RESULT, "implementation": "missing"}, ["wireguard-tools", "wireguard-go"]),
    ],
)
def test_missing_packages_are_installed_and_the_module_runs_again(first: dict[str, Any], packages: list[str]) -> None:
    played = run_wireguard([first, TUNNEL_RESULT])
    assert [name for name, _given in played.module_calls] == [MODULE, "ansible.builtin.apt", MODULE]
    assert played.module_calls[1][1]["name"] == packages
    assert played.result["changed"] is True
    assert [name for name, _given in run_wireguard([first], check_mode=True).module_calls] == [MODULE]


def test_a_host_returns_its_registration_for_the_record() -> None:
    entry = {"machine": "head", "mesh": {"public_key": key("made")}}
    assert run_wireguard([{**TUNNEL_RESULT, "public_key": key("made")}]).result["registration"] == entry
    assert "registration" not in run_wireguard([BARE_RESULT], check_mode=True).result
    given = {"record": RECORD, "step": "switch"}
    name = "gpumesh.cluster.wireguard_rotation"
    switched = {name: [{"changed": True, "public_key": key("made")}]}
    assert (
        play_action(wireguard_rotation.ActionModule, given, switched, variables_of("head")).result["registration"]
        == entry
    )


def test_a_given_option_overrides_the_record() -> None:
    assert run_wireguard([TUNNEL_RESULT], listen_port=51900).module_calls[0][1]["listen_port"] == 51900


def test_without_a_record_the_module_runs_with_the_given_options() -> None:
    given = {"interface": "gpumesh0", "state": "absent"}
    assert play_action(wireguard.ActionModule, given, {MODULE: [TUNNEL_RESULT]}, variables_of("head")).module_calls == [
        (MODULE, given)
    ]


def test_the_paths_of_supervisord_may_be_host_variables() -> None:
    variables = {**variables_of("head"), "daemon_supervisor_programs": "/opt/programs"}
    played = play_action(wireguard.ActionModule, {"record": RECORD}, {MODULE: [TUNNEL_RESULT]}, variables)
    assert played.module_calls[0][1]["supervisor_programs"] == "/opt/programs"


def test_a_host_that_is_not_a_member_is_refused() -> None:
    played = play_action(wireguard.ActionModule, {"record": RECORD}, {}, variables_of("stranger"))
    assert "stranger is not among the members" in played.result["msg"]


def test_preshared_keys_come_from_the_results_and_are_removed_only_among_present_hosts() -> None:
    made = {"dialled": {"preshared_keys": {"head": "secret"}}, "head": {"preshared_keys": {}}}
    given = {"record": RECORD, "preshared": True, "preshared_results": "made"}
    played = play_action(wireguard.ActionModule, given, {MODULE: [TUNNEL_RESULT]}, variables_of("head", made=made))
    assert played.module_calls[0][1]["preshared_keys"] == {"dialled": "secret"}
    assert run_wireguard([TUNNEL_RESULT], preshared=False).module_calls[0][1]["preshared_without"] == ["dialled"]
    alone = play_action(
        wireguard.ActionModule,
        {"record": RECORD, "preshared": False},
        {MODULE: [TUNNEL_RESULT]},
        variables_of("head", ["head"]),
    )
    assert alone.module_calls[0][1]["preshared_without"] == []


def test_preshared_keys_are_offered_to_the_peers_of_the_host() -> None:
    name = "gpumesh.cluster.wireguard_preshared"
    played = play_action(
        wireguard_preshared.ActionModule,
        {"record": RECORD},
        {name: [{}]},
        {**variables_of("head"), "mesh_rotate_preshared_keys": True},
    )
    wanted = {"interface": "gpumesh0", "machine": "head", "peers": ["dialled"], "renew": True}
    assert played.module_calls == [(name, wanted)]


def run_rotation(
    step: str, host: str = "head", cluster: dict[str, Any] | None = None, **registered: dict[str, Any]
) -> ActionRun:
    cluster = cluster or RECORD
    name = "gpumesh.cluster.wireguard_rotation"
    given = {"record": cluster, "step": step, **({"prepared": "next"} if registered else {})}
    present = [one["machine"] for one in cluster["members"]]
    return play_action(
        wireguard_rotation.ActionModule, given, {name: [{"changed": True}]}, variables_of(host, present, **registered)
    )


def test_a_rotation_arms_each_host_with_the_prepared_keys_of_the_others() -> None:
    found = {"dialled": {"next_public_key": key("next")}}
    peers = run_rotation("arm", next=found).module_calls[0][1]["peers"]
    assert [peer["public_key"] for peer in peers] == [key("next")]
    assert [peer["public_key"] for peer in run_rotation("switch").module_calls[0][1]["peers"]] == [key("dialled")]


def test_a_member_without_a_tunnel_has_no_key_to_change() -> None:
    played = run_rotation("prepare", "new", record(HEAD, NEW_MEMBER))
    assert played.result["skipped"] is True
    assert played.module_calls == []


def test_a_rotation_without_a_member_is_refused_at_every_step() -> None:
    for step in ("prepare", "arm", "switch"):
        given = {"record": RECORD, "step": step}
        played = play_action(wireguard_rotation.ActionModule, given, {}, variables_of("head", ["head"]))
        assert "Not in this play, or unreachable: dialled." in played.result["msg"]


def test_settings_are_compared_on_the_controller() -> None:
    given = {"record": record(NEW_MEMBER)}
    own = {**variables_of("new"), "mesh_backend": "", "mesh_port": "51830", "mesh_mtu": 0}
    assert play_action(mesh_settings.ActionModule, given, {}, own).result == {
        "changed": False,
        "settings": {"port": 51830},
    }
    wrong = play_action(mesh_settings.ActionModule, given, {}, {**own, "mesh_port": "wide"})
    assert "mesh_port" in wrong.result["msg"]
    listed = {"record": record(HEAD, HIDDEN_MEMBER, OTHER_HIDDEN_MEMBER), "list_relayed": True}
    pairs = play_action(mesh_settings.ActionModule, listed, {}, variables_of("head")).result["relayed"]
    assert pairs == [{"a": "hidden", "b": "also", "relay": "head"}]
    refused = play_action(
        mesh_settings.ActionModule,
        {"record": RECORD},
        {},
        {**variables_of("head", ["head"]), "mesh_rotate_keys": True},
    )
    assert "Not in this play, or unreachable: dialled." in refused.result["msg"]


def test_a_host_is_connected_by_the_module_of_its_backend() -> None:
    given = {"record": RECORD, "relays": ["head"], "preshared": False}
    own = {**variables_of("head"), "mesh_relays": ["head"], "mesh_preshared_keys": False}
    played = play_action(mesh_action.ActionModule, {"record": RECORD}, {MODULE: [TUNNEL_RESULT]}, own)
    alone = play_action(wireguard.ActionModule, given, {MODULE: [TUNNEL_RESULT]}, variables_of("head"))
    assert played.module_calls == alone.module_calls and played.module_calls[0][1]["preshared_without"] == ["dialled"]
    assert played.result == alone.result == {**TUNNEL_RESULT, "ready": True}
    none = {**RECORD, "mesh": {**RECORD["mesh"], "backend": "none"}}
    nothing = play_action(mesh_action.ActionModule, {"record": none}, {}, variables_of("head"))
    assert (nothing.result, nothing.module_calls) == ({"changed": False, "ready": True}, [])
