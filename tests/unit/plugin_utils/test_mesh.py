# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired mesh of a member, from the record and from what members report."""

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


@pytest.mark.parametrize(("subnet", "given"), [("10.99.0.0/16", "10.99.0.1/16"), ("fd00:99::/64", "FD00:99:0:0::/64")])
def test_the_same_subnet_in_another_form_is_no_change(subnet: str, given: str) -> None:
    """The record has its normal form, whatever was given for it."""
    cluster = record(HEAD)
    cluster["mesh"]["subnet"] = subnet
    assert mesh.wanted_settings(cluster, {**GIVEN, "subnet": given}) == {}


def test_another_subnet_or_an_invalid_one_is_refused_while_the_mesh_is_in_use() -> None:
    for given in ("10.98.0.0/16", "10.99.0.1"):
        with pytest.raises(InputError, match=f"subnet={given} would cut them off"):
            mesh.wanted_settings(record(HEAD), {**GIVEN, "subnet": given})


def test_an_address_is_found_in_a_subnet_in_any_form() -> None:
    assert mesh.address_in(["fd7a::1", "100.64.0.7"], "100.64.0.1/10") == "100.64.0.7"
    assert mesh.address_in(["fd7a::1", "100.64.0.7"], "100.65.0.0/16") is None


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
        ("none", ["head", "dialled"], "the mesh of cluster lab is 'none'. Nothing has been changed"),
        ("tailscale", ["head", "dialled"], "the mesh of cluster lab is 'tailscale'"),
        ("wireguard", ["head"], "Not in this play, or unreachable: dialled."),
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
    with pytest.raises(InputError) as refused:
        mesh.refuse_unconnected(alone, ["hidden"])
    assert refused.value.details["pair"] == ["hidden", "also"]
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


@pytest.mark.parametrize("lost", [{}, {"b": {}}])
def test_a_key_is_not_used_with_a_member_that_has_failed_since(lost: dict[str, Any]) -> None:
    """It would use the former one, or none, and the tunnel between the two would be lost."""
    made = {"a": {"preshared_keys": {"b": "ab", "c": "ac"}}, "c": {"preshared_keys": {}}, **lost}
    assert mesh.shared_keys("a", made) == {"c": "ac"}


def test_only_new_keys_are_registered() -> None:
    cluster = record(HEAD, NEW)
    assert mesh.key_registration(cluster, "head", key("head")) is None
    assert mesh.key_registration(cluster, "new", None) is None
    assert mesh.key_registration(cluster, "new", key("one")) == {"machine": "new", "mesh": {"public_key": key("one")}}
    assert mesh.key_registration(cluster, "head", key("other")) == {
        "machine": "head",
        "mesh": {"public_key": key("other")},
    }


# --- Tailscale

TAILNET: dict[str, Any] = {
    "mesh": {"subnet": "100.64.0.0/10", "interface": "tailscale0"},
    "members": [
        {"machine": "t1", "mesh": {"address": "100.64.0.1", "public_key": None}},
        {"machine": "t2", "mesh": None},
    ],
}


def test_only_new_addresses_of_members_are_registered() -> None:
    assert mesh.address_registration(TAILNET, "t1", ["100.64.0.1"]) is None
    assert mesh.address_registration(TAILNET, "t2", []) is None
    assert mesh.address_registration(TAILNET, "stranger", ["100.64.0.9"]) is None
    entry = mesh.address_registration(TAILNET, "t2", ["fd7a:115c:a1e0::2", "100.64.0.2"])
    assert entry == {"machine": "t2", "mesh": {"address": "100.64.0.2"}}


def test_that_a_member_is_a_pod_is_registered_and_taken_back() -> None:
    entry = mesh.address_registration(TAILNET, "t1", ["100.64.0.1"], True)
    assert entry == {"machine": "t1", "mesh": {"address": "100.64.0.1", "userspace": True}}
    one = {"machine": "t1", "mesh": {"address": "100.64.0.1", "public_key": None, "userspace": True}}
    known = {**TAILNET, "members": [one]}
    assert mesh.address_registration(known, "t1", ["100.64.0.1"], True) is None
    entry = mesh.address_registration(known, "t1", ["100.64.0.1"])
    assert entry == {"machine": "t1", "mesh": {"address": "100.64.0.1", "userspace": False}}


def test_what_the_library_of_a_pod_has_to_know() -> None:
    assert mesh.preload(TAILNET, "t1", 1056) == {
        "address": "100.64.0.1",
        "subnet": "100.64.0.0/10",
        "interface": "tailscale0",
        "proxy_address": "127.0.0.2",
        "proxy_port": 1056,
    }


def test_an_address_outside_of_the_subnet_is_refused() -> None:
    with pytest.raises(InputError, match=r"t2 has 10\.9\.0\.1"):
        mesh.address_registration(TAILNET, "t2", ["10.9.0.1"])


def test_the_rows_name_the_machines() -> None:
    way = {"name": "x", "path": "relayed", "endpoint": "", "relay": "lab"}
    rows = mesh.path_rows(TAILNET, {"t2": {"peers": {"100.64.0.1": way, "100.64.0.7": way}}, "t1": {}})
    assert [(row["from"], row["to"], row["by"]) for row in rows] == [("t2", "t1", "lab"), ("t2", "100.64.0.7", "lab")]


@pytest.mark.parametrize(("machine", "name"), [("gpu1", "gpu1"), ("GPU_1.example.org", "gpu-1")])
def test_a_machine_is_called_in_its_tailnet_as_far_as_that_is_allowed(machine: str, name: str) -> None:
    assert mesh.tailnet_name(machine) == name


def test_a_host_without_an_interface_has_a_proxy() -> None:
    assert mesh.daemon_flags(TAILNET["mesh"], False, 1055) == ["--tun=tailscale0"]
    assert mesh.daemon_flags(TAILNET["mesh"], True, 1056) == [
        "--tun=userspace-networking",
        "--socks5-server=127.0.0.2:1056",
        "--outbound-http-proxy-listen=127.0.0.2:1056",
    ]


def test_a_device_is_known_by_the_record_before_and_after_its_machine_has_left() -> None:
    left = [{"machine": "t3", "mesh": {"address": "100.64.0.3"}}]
    found = [mesh.device_address([*TAILNET["members"], *left], name) for name in ("t1", "t2", "t3", "t4")]
    assert found == ["100.64.0.1", "", "100.64.0.3", ""]
