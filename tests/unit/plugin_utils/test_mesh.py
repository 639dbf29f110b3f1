# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a member's mesh must be, by the record and by what the members say of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import mesh
from ansible_collections.gpumesh.cluster.tests.unit.module_utils.mesh.hosts import key, member, record

HEAD = member("head", 1, "a", "203.0.113.1:51820")
DIALLED = member("dialled", 2, "b", "203.0.113.2:51820")
HIDDEN = member("hidden", 3, "c")
NEW = {**member("new", 4, "d"), "mesh": {"address": "10.99.0.4", "public_key": None}}
GIVEN = {"backend": "", "subnet": "", "port": 0, "interface": "", "mtu": 0}


def test_settings_that_nobody_gave_or_that_are_in_the_record_are_no_change() -> None:
    assert mesh.wanted_settings(record(HEAD), GIVEN) == {}
    assert mesh.wanted_settings(record(HEAD), {**GIVEN, "port": 51820, "backend": "wireguard"}) == {}


def test_settings_change_while_nobody_uses_them() -> None:
    wanted = mesh.wanted_settings(record(NEW), {**GIVEN, "port": 51830})
    assert wanted == {"port": 51830}
    with pytest.raises(InputError, match="in use by head with .*port=51820.*; port=51830 would"):
        mesh.wanted_settings(record(HEAD, NEW), {**GIVEN, "port": 51830})


def test_the_mtu_may_change_at_any_time() -> None:
    assert mesh.wanted_settings(record(HEAD), {**GIVEN, "mtu": 1380}) == {"mtu": 1380}


def test_in_a_tailnet_a_member_with_an_address_uses_the_mesh() -> None:
    tailnet = record(NEW)
    assert mesh.enrolled(tailnet) == []
    tailnet["mesh"]["backend"] = "tailscale"
    assert mesh.enrolled(tailnet) == ["new"]


@pytest.mark.parametrize(
    ("backend", "present", "said"),
    [
        ("none", ["head", "dialled"], "the mesh of cluster lab is 'none', and nothing has been changed"),
        ("tailscale", ["head", "dialled"], "the mesh of cluster lab is 'tailscale'"),
        ("wireguard", ["head"], "dialled not in this play"),
        ("wireguard", ["head", "dialled", "another"], ""),
    ],
)
def test_keys_are_rotated_where_they_are_ours_and_with_all_members(backend: str, present: list[str], said: str) -> None:
    if said:
        with pytest.raises(InputError, match=said):
            mesh.refuse_rotation(record(HEAD, DIALLED), backend, present)
    else:
        mesh.refuse_rotation(record(HEAD, DIALLED), backend, present)


def test_a_mesh_in_which_two_members_have_no_way_is_refused() -> None:
    alone = record(HIDDEN, member("also", 5, "e"), DIALLED)
    mesh.refuse_unconnected(alone, ["dialled"])
    with pytest.raises(InputError, match="have no way to each other"):
        mesh.refuse_unconnected(alone, ["hidden"])
    alone["mesh"]["backend"] = "none"
    mesh.refuse_unconnected(alone, ["hidden"])


def test_a_tunnel_is_what_the_record_says() -> None:
    options = mesh.tunnel(record(HEAD, HIDDEN, mtu=1380), "hidden", [])
    peers = options.pop("peers")
    assert [(peer["machine"], peer["persistent_keepalive"]) for peer in peers] == [("head", 25)]
    assert options == {
        "interface": "gpumesh0",
        "listen_port": 51820,
        "address": "10.99.0.3/16",
        "public_key": key("hidden"),
        "forward": False,
        "mtu": 1380,
        "probe_mtu": False,
    }
    assert mesh.tunnel(record(HEAD), "head", [])["probe_mtu"] is True


def test_hosts_are_armed_with_the_keys_that_their_peers_have_prepared() -> None:
    cluster = record(HEAD, DIALLED)
    prepared = {name: {"next_public_key": key(f"next {name}")} for name in ("head", "dialled")}
    options = {"interface": "gpumesh0", "step": "prepare"}
    assert mesh.rotation(cluster, "head", [], "prepare", {}) == options
    armed = mesh.rotation(cluster, "head", [], "arm", prepared)
    assert [peer["public_key"] for peer in armed["peers"]] == [key("next dialled")]
    switched = mesh.rotation(cluster, "head", [], "switch", {})
    assert [peer["public_key"] for peer in switched["peers"]] == [key("dialled")]
    assert {**switched, "peers": [], "step": ""} == {**armed, "peers": [], "step": ""}


def test_a_key_is_shared_by_those_who_are_there_and_have_a_tunnel() -> None:
    cluster = record(HEAD, DIALLED, HIDDEN, member("also", 5, "e"))
    assert mesh.pairs(cluster, "hidden", [], ["head", "hidden", "also"]) == ["head"]


def test_both_ends_of_a_pair_take_the_key_that_one_of_them_made() -> None:
    made: dict[str, dict[str, Any]] = {
        "a": {"preshared_keys": {"b": "ab", "c": "ac"}},
        "b": {"preshared_keys": {"c": "bc"}},
        "c": {"preshared_keys": {}},
        "d": {},
    }
    assert mesh.shared_keys("a", made) == {"b": "ab", "c": "ac"}
    assert mesh.shared_keys("b", made) == {"a": "ab", "c": "bc"}
    assert mesh.shared_keys("c", made) == {"a": "ac", "b": "bc"}
    assert mesh.shared_keys("d", made) == {}


def test_only_new_keys_are_registered() -> None:
    cluster = record(HEAD, NEW)
    assert mesh.key_registration(cluster, "head", key("head")) is None
    assert mesh.key_registration(cluster, "new", None) is None
    assert mesh.key_registration(cluster, "new", key("one")) == {"machine": "new", "mesh": {"public_key": key("one")}}
    assert mesh.key_registration(cluster, "head", key("other")) == {
        "machine": "head",
        "mesh": {"public_key": key("other")},
    }
