# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired mesh of a member, from the record and from what members report."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import desired
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import mesh
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._layers.mesh.hosts import key, member, record

HEAD = member("head", 1, "a", "203.0.113.1:51820")
DIALLED = member("dialled", 2, "b", "203.0.113.2:51820")
HIDDEN = member("hidden", 3, "c")
NEW = {**member("new", 4, "d"), "mesh": {"address": "10.99.0.4", "public_key": None}}
GIVEN = {"backend": "", "subnet": "", "port": 0, "interface": "", "mtu": 0}


def test_unset_or_recorded_settings_are_no_change() -> None:
    assert mesh.changed_settings(record(HEAD), GIVEN) == {}
    assert mesh.changed_settings(record(HEAD), {**GIVEN, "port": 51820, "backend": "wireguard"}) == {}


@pytest.mark.parametrize(("subnet", "given"), [("10.99.0.0/16", "10.99.0.1/16"), ("fd00:99::/64", "FD00:99:0:0::/64")])
def test_equivalent_subnet_is_no_change(subnet: str, given: str) -> None:
    """The record has its normal form, whatever was given for it."""
    cluster = record(HEAD)
    cluster["mesh"]["subnet"] = subnet
    assert mesh.changed_settings(cluster, {**GIVEN, "subnet": given}) == {}


def test_new_or_invalid_subnet_is_refused_while_the_mesh_is_in_use() -> None:
    for given in ("10.98.0.0/16", "10.99.0.1"):
        with pytest.raises(InputError, match=f"subnet={given} would cut them off"):
            mesh.changed_settings(record(HEAD), {**GIVEN, "subnet": given})


def test_address_is_matched_with_any_form_of_the_subnet() -> None:
    assert mesh.find_tailnet_address(["fd7a::1", "100.64.0.7"], "100.64.0.1/10") == "100.64.0.7"
    assert mesh.find_tailnet_address(["fd7a::1", "100.64.0.7"], "100.65.0.0/16") is None


def test_settings_of_an_unused_mesh_can_change() -> None:
    wanted = mesh.changed_settings(record(NEW), {**GIVEN, "port": 51830})
    assert wanted == {"port": 51830}
    with pytest.raises(InputError, match="in use by head with .*port=51820.*; port=51830 would"):
        mesh.changed_settings(record(HEAD, NEW), {**GIVEN, "port": 51830})


def test_mtu_can_change_at_any_time() -> None:
    assert mesh.changed_settings(record(HEAD), {**GIVEN, "mtu": 1380}) == {"mtu": 1380}


def test_tailnet_is_in_use_by_members_with_an_address() -> None:
    tailnet = record(NEW)
    assert mesh.enrolled_machines(tailnet) == []
    tailnet["mesh"]["backend"] = "tailscale"
    assert mesh.enrolled_machines(tailnet) == ["new"]


@pytest.mark.parametrize(
    ("backend", "present", "said"),
    [
        ("none", ["head", "dialled"], "the mesh of cluster lab is 'none'. Nothing has been changed"),
        ("tailscale", ["head", "dialled"], "the mesh of cluster lab is 'tailscale'"),
        ("wireguard", ["head"], "Not in this play, or unreachable: dialled."),
        ("wireguard", ["head", "dialled", "another"], ""),
    ],
)
def test_rotation_needs_wireguard_and_all_members(backend: str, present: list[str], said: str) -> None:
    if said:
        with pytest.raises(InputError, match=said):
            mesh.refuse_rotation(record(HEAD, DIALLED), backend, present)
    else:
        mesh.refuse_rotation(record(HEAD, DIALLED), backend, present)


def test_mesh_with_unconnected_members_is_refused() -> None:
    alone = record(HIDDEN, member("also", 5, "e"), DIALLED)
    mesh.refuse_unconnected(alone, ["dialled"])
    with pytest.raises(InputError) as refused:
        mesh.refuse_unconnected(alone, ["hidden"])
    assert refused.value.details["pair"] == ["hidden", "also"]
    alone["mesh"]["backend"] = "none"
    mesh.refuse_unconnected(alone, ["hidden"])


def test_tunnel_options_follow_the_record() -> None:
    options = desired.derive_parameters(record(HEAD, HIDDEN, mtu=1380), {"machine": "hidden", "relays": []})
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
    assert desired.derive_parameters(record(HEAD), {"machine": "head", "relays": []})["probe_mtu"] is True


def test_rotation_arms_hosts_with_the_prepared_keys() -> None:
    cluster = record(HEAD, DIALLED)
    prepared = {name: {"next_public_key": key(f"next {name}")} for name in ("head", "dialled")}
    options = {"interface": "gpumesh0", "step": "prepare"}
    assert mesh.rotation_options(cluster, "head", [], "prepare", {}) == options
    armed = mesh.rotation_options(cluster, "head", [], "arm", prepared)
    assert [peer["public_key"] for peer in armed["peers"]] == [key("next dialled")]
    switched = mesh.rotation_options(cluster, "head", [], "switch", {})
    assert [peer["public_key"] for peer in switched["peers"]] == [key("dialled")]
    assert {**switched, "peers": [], "step": ""} == {**armed, "peers": [], "step": ""}


def test_preshared_keys_need_present_peers_with_a_tunnel() -> None:
    cluster = record(HEAD, DIALLED, HIDDEN, member("also", 5, "e"))
    assert mesh.key_sharing_peers(cluster, "hidden", [], ["head", "hidden", "also"]) == ["head"]


def test_both_peers_get_the_generated_preshared_key() -> None:
    made: dict[str, dict[str, Any]] = {
        "a": {"preshared_keys": {"b": "ab", "c": "ac"}},
        "b": {"preshared_keys": {"c": "bc"}},
        "c": {"preshared_keys": {}},
        "d": {},
    }
    assert mesh.preshared_keys("a", made) == {"b": "ab", "c": "ac"}
    assert mesh.preshared_keys("b", made) == {"a": "ab", "c": "bc"}
    assert mesh.preshared_keys("c", made) == {"a": "ac", "b": "bc"}
    assert mesh.preshared_keys("d", made) == {}


@pytest.mark.parametrize("lost", [{}, {"b": {}}])
def test_preshared_key_of_a_failed_member_is_dropped(lost: dict[str, Any]) -> None:
    """It would use the former one, or none, and the tunnel between the two would be lost."""
    made = {"a": {"preshared_keys": {"b": "ab", "c": "ac"}}, "c": {"preshared_keys": {}}, **lost}
    assert mesh.preshared_keys("a", made) == {"c": "ac"}


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


def test_pod_flag_is_registered_and_removed() -> None:
    entry = mesh.address_registration(TAILNET, "t1", ["100.64.0.1"], True)
    assert entry == {"machine": "t1", "mesh": {"address": "100.64.0.1", "userspace": True}}
    one = {"machine": "t1", "mesh": {"address": "100.64.0.1", "public_key": None, "userspace": True}}
    known = {**TAILNET, "members": [one]}
    assert mesh.address_registration(known, "t1", ["100.64.0.1"], True) is None
    entry = mesh.address_registration(known, "t1", ["100.64.0.1"])
    assert entry == {"machine": "t1", "mesh": {"address": "100.64.0.1", "userspace": False}}


def test_preload_options_of_a_pod() -> None:
    assert mesh.preload_options(TAILNET, "t1", 1056) == {
        "address": "100.64.0.1",
        "subnet": "100.64.0.0/10",
        "interface": "tailscale0",
        "proxy_address": "127.0.0.2",
        "proxy_port": 1056,
    }


def test_an_address_outside_of_the_subnet_is_refused() -> None:
    with pytest.raises(InputError, match=r"t2 has 10\.9\.0\.1"):
        mesh.address_registration(TAILNET, "t2", ["10.9.0.1"])


def test_path_rows_contain_machine_names() -> None:
    way = {"name": "x", "path": "relayed", "endpoint": "", "relay": "lab"}
    rows = mesh.build_path_rows(TAILNET, {"t2": {"peers": {"100.64.0.1": way, "100.64.0.7": way}}, "t1": {}})
    assert [(row["from"], row["to"], row["by"]) for row in rows] == [("t2", "t1", "lab"), ("t2", "100.64.0.7", "lab")]


@pytest.mark.parametrize(("machine", "name"), [("gpu1", "gpu1"), ("GPU_1.example.org", "gpu-1")])
def test_tailnet_name_replaces_invalid_characters(machine: str, name: str) -> None:
    assert mesh.tailnet_name(machine) == name


def test_userspace_host_has_a_proxy() -> None:
    assert mesh.daemon_flags(TAILNET["mesh"], False, 1055) == ["--tun=tailscale0"]
    assert mesh.daemon_flags(TAILNET["mesh"], True, 1056) == [
        "--tun=userspace-networking",
        "--socks5-server=127.0.0.2:1056",
        "--outbound-http-proxy-listen=127.0.0.2:1056",
    ]


def test_device_address_is_known_for_current_and_former_members() -> None:
    left = [{"machine": "t3", "mesh": {"address": "100.64.0.3"}}]
    found = [mesh.find_device_address([*TAILNET["members"], *left], name) for name in ("t1", "t2", "t3", "t4")]
    assert found == ["100.64.0.1", "", "100.64.0.3", ""]
