# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading, writing and planning a WireGuard interface, without one."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError, ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import interface
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import wireguard as wg
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._layers.mesh.hosts import FIXTURES, key

NOW = 1_795_210_200


def peers(**overrides: Any) -> list[dict[str, Any]]:
    """One peer n2, with the changes of a test."""
    return [
        {
            "machine": "n2",
            "public_key": key("n2"),
            "endpoint": "203.0.113.2:51820",
            "allowed_ips": ["10.99.0.2/32"],
            "persistent_keepalive": 25,
            **overrides,
        }
    ]


def desired_interface(entries: list[dict[str, Any]] | None = None, **overrides: Any) -> wg.DesiredInterface:
    wanted_interface = wg.make_desired("gpumesh0", "10.99.0.1/16", 51820, 1420, peers() if entries is None else entries)
    return wanted_interface._replace(**overrides)


def running_interface(wanted_interface: wg.DesiredInterface, handshake: int = NOW - 10) -> wg.RunningInterface:
    """A running interface in the desired state."""
    live = {
        peer.public_key: wg.RunningPeer(
            peer.public_key, peer.endpoint, peer.allowed_ips, handshake, 1, 2, peer.persistent_keepalive
        )
        for peer in wanted_interface.peers
    }
    link = wg.InterfaceLink(wanted_interface.mtu, True, (wanted_interface.address,), "tun")
    return wg.RunningInterface(
        wg.WireguardDump(key("own"), wanted_interface.listen_port, live), link, frozenset(), wanted_interface.forward
    )


def plan_changes(
    wanted_interface: wg.DesiredInterface,
    runtime: wg.RunningInterface,
    written: dict[str, wg.ConfPeer] | None = None,
    now: int = NOW,
) -> wg.InterfacePlan:
    resolved_endpoints = {peer.public_key: wg.ConfPeer(peer.machine, peer.endpoint) for peer in wanted_interface.peers}
    resolved = {peer.endpoint: (peer.endpoint,) for peer in wanted_interface.peers if peer.endpoint}
    return wg.plan_interface(
        wanted_interface, runtime, key("own"), resolved_endpoints if written is None else written, resolved, now
    )


def test_dump_is_parsed_without_secrets() -> None:
    text = (FIXTURES / "wg_dump.txt").read_text(encoding="utf-8")
    dump = wg.parse_dump(text)
    assert dump.public_key == "UWJwTE3F1JCX8eTzrOdvCjfWsB2gD90kJx9YACTzQmc="
    assert dump.listen_port == 51820
    assert len(dump.peers_by_key) == 3
    w2 = dump.peers_by_key["8DuT+GtAjr64qYFzj+C6LnUuC+XZ9hqBuGViWhsZuVY="]
    assert w2 == wg.RunningPeer(w2.public_key, "10.77.50.254:22234", ("10.99.0.2/32",), 1795210172, 8161323, 7362796, 0)
    assert text.split("\t", 1)[0] not in repr(dump)


def test_dump_of_a_fresh_interface() -> None:
    assert wg.parse_dump("(none)\t(none)\t0\toff\n") == wg.WireguardDump(None, 0, {})


@pytest.mark.parametrize(
    "text",
    ["", "one\ttwo\n", "a\tb\tport\toff\n", "a\tb\t1\toff\nkey\tpsk\n", "a\tb\t1\toff\nk\tp\te\ta\tsoon\t1\t2\toff\n"],
)
def test_dump_that_cannot_be_read_names_the_command(text: str) -> None:
    with pytest.raises(ParseError, match="wg show dump"):
        wg.parse_dump(text)


def test_link_and_routes_of_a_userspace_tunnel() -> None:
    link = wg.parse_link((FIXTURES / "ip_address_userspace.json").read_text(encoding="utf-8"))
    assert link == wg.InterfaceLink(1335, True, ("10.99.0.2/16",), "tun")
    routes = wg.parse_routes(
        (FIXTURES / "ip_route_4.json").read_text(encoding="utf-8"),
        (FIXTURES / "ip_route_6.json").read_text(encoding="utf-8"),
    )
    assert routes == {"192.0.2.0/24"}


def test_link_skips_padding_and_link_local_addresses() -> None:
    entry = {
        "mtu": 1420,
        "flags": [],
        "linkinfo": {"info_kind": "wireguard"},
        "addr_info": [{"local": "fe80::1", "prefixlen": 64, "scope": "link"}],
    }
    assert wg.parse_link(json.dumps([{}, entry])) == wg.InterfaceLink(1420, False, (), "wireguard")


@pytest.mark.parametrize("text", ["", "[]", "[{}]", "{}", '[{"mtu": "x", "flags": []}]', "[1]"])
def test_link_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ParseError):
        wg.parse_link(text)


@given(st.text())
def test_any_text_is_parsed_or_raises_parse_error(text: str) -> None:
    for parse in (wg.parse_dump, wg.parse_link, wg.parse_routes):
        with contextlib.suppress(ParseError):
            parse(text)
    wg.parse_conf(text)
    wg.redact_secrets(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"public_key": "short"}, "public key of n2"),
        ({"public_key": key("n2")[:-4] + "===="}, "public key of n2"),
        ({"endpoint": "203.0.113.2"}, "'203.0.113.2' is not a valid endpoint"),
        ({"endpoint": "2001:db8::1:51820"}, "'2001:db8::1:51820' is not a valid endpoint"),
        ({"endpoint": "host:99999"}, "'host:99999' is not a valid endpoint"),
        ({"allowed_ips": ["10.99.0.2/16"]}, "n2: 10.99.0.2/16"),
        ({"allowed_ips": ["0.0.0.0/0"]}, "all traffic"),
    ],
)
def test_bad_peers_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        desired_interface(peers(**change))


def test_two_peers_may_share_neither_key_nor_address() -> None:
    twin = {**peers()[0], "machine": "n3", "allowed_ips": ["10.99.0.3/32"]}
    with pytest.raises(InputError, match="n2 and n3 have the same public key"):
        desired_interface([*peers(), twin])
    with pytest.raises(InputError, match=r"10\.99\.0\.2/32 is allowed for n2 and for n3"):
        desired_interface([*peers(), {**twin, "public_key": key("n3"), "allowed_ips": ["10.99.0.2/32"]}])


@pytest.mark.parametrize("name", ["", "a" * 16, "with space", "semi;colon", "..", "a/b"])
def test_invalid_interface_names_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        wg.check_interface_name(name)


def test_configuration_contains_no_secret_and_can_be_parsed() -> None:
    wanted_interface = desired_interface(
        [
            *peers(path_mtu=None),
            {
                **peers()[0],
                "machine": "n3",
                "public_key": key("n3"),
                "endpoint": None,
                "allowed_ips": ["192.0.2.0/24"],
                "persistent_keepalive": 0,
            },
        ]
    )
    wanted_interface = wanted_interface._replace(
        peers=(wanted_interface.peers[0]._replace(path_mtu=1480), wanted_interface.peers[1]._replace(path_mtu=0))
    )
    conf = wg.render_conf(wanted_interface, "/etc/wireguard/gpumesh0.key")
    assert "PrivateKey" not in conf
    assert wg.is_managed(conf)
    assert (
        f"PostUp = wg set %i private-key /etc/wireguard/gpumesh0.key peer {key('n2')} persistent-keepalive 25" in conf
    )
    assert "PostUp = ip route replace 192.0.2.0/24 dev %i" in conf
    assert "/dev/udp/" not in conf, "one peer keeps its session alive, and the other one cannot be dialled"
    assert "10.99.0.2/32 dev" not in conf
    assert wg.parse_conf(conf) == {
        key("n2"): wg.ConfPeer("n2", "203.0.113.2:51820", 1480),
        key("n3"): wg.ConfPeer("n3", None, 0),
    }


def test_a_relay_forwards_through_the_tunnel_alone() -> None:
    conf = wg.render_conf(desired_interface(forward=True), "/k")
    assert "/proc/sys/net/ipv4/conf/%i/forwarding" in conf
    assert "ip_forward" not in conf
    assert "forwarding" not in wg.render_conf(desired_interface(), "/k")


def ipv6_settings(folder: Path) -> Path:
    """The interfaces of a host: eth0 gets its routes from a router, eth1 takes none, and eth2 forwards already."""
    for name, forwarding, accept_ra in (("default", 0, 1), ("eth0", 0, 1), ("eth1", 0, 0), ("eth2", 1, 1)):
        (folder / name).mkdir(parents=True)
        (folder / name / "forwarding").write_text(f"{forwarding}\n")
        (folder / name / "accept_ra").write_text(f"{accept_ra}\n")
    return folder


def test_ipv6_relay_keeps_routes_of_router_advertisements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ipv6_settings(tmp_path / "conf")
    wanted_interface = desired_interface(address="fd00::1/64", forward=True)
    lines = [line for line in wg.render_conf(wanted_interface, "/k").splitlines() if wg.IPV6_CONF_DIRECTORY in line]
    assert "accept_ra" in lines[0] and lines[1].endswith("all/forwarding")
    assert "accept_ra" not in wg.render_conf(desired_interface(forward=True), "/k")
    expected = [(f"{folder}/{name}/accept_ra", "2") for name in ("default", "eth0")]
    assert interface.route_keeping_settings(str(folder)) == expected
    result: list[list[tuple[str, str]]] = []
    monkeypatch.setattr(interface, "_write_kernel_settings", lambda settings: result.append(list(settings)))
    monkeypatch.setattr(interface, "route_keeping_settings", lambda: expected)
    host = interface.WireguardHost(lambda *_args: CommandResult(0, "", ""), False)
    interface._apply_link(host, wanted_interface, wg.InterfacePlan(start_forwarding=True))
    assert result == [[*expected, *wg.forwarding_settings(wanted_interface.address, "gpumesh0")]]
    # wg-quick runs the line in bash with errexit.
    script = lines[0].partition(" = ")[2].replace(wg.IPV6_CONF_DIRECTORY, str(folder))
    subprocess.run(["bash", "-ec", '(eval "$1")', "bash", script], check=True)
    assert [(folder / f"eth{n}" / "accept_ra").read_text().strip() for n in range(3)] == ["2", "0", "1"]


def test_a_foreign_configuration_is_shown_without_keys() -> None:
    redacted = wg.redact_secrets(
        "[Interface]\nPrivateKey = SECRET1=\nprivatekey=SECRET2=\n[Peer]\n PresharedKey = SECRET3=\n"
    )
    assert "SECRET" not in redacted
    assert redacted.count("(not shown)") == 3


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert not plan_changes(desired_interface(), running_interface(desired_interface())).has_steps


def test_each_manual_change_is_reverted() -> None:
    wanted_interface = desired_interface()
    good = running_interface(wanted_interface)
    assert (
        plan_changes(wanted_interface, good._replace(wg_dump=good.wg_dump._replace(peers_by_key={}))).set_peers
        == wanted_interface.peers
    )
    assert plan_changes(wanted_interface, good._replace(wg_dump=good.wg_dump._replace(public_key=None))).load_key
    assert (
        plan_changes(wanted_interface, good._replace(wg_dump=good.wg_dump._replace(listen_port=1))).listen_port == 51820
    )
    assert (
        plan_changes(wanted_interface, good._replace(interface_link=good.interface_link._replace(mtu=1300))).mtu == 1420
    )
    assert plan_changes(
        wanted_interface, good._replace(interface_link=good.interface_link._replace(is_up=False))
    ).set_up
    moved = plan_changes(
        wanted_interface, good._replace(interface_link=good.interface_link._replace(addresses=("10.99.0.9/16",)))
    )
    assert (moved.add_addresses, moved.drop_addresses) == (("10.99.0.1/16",), ("10.99.0.9/16",))
    assert plan_changes(wanted_interface, good._replace(mesh_routes=frozenset(["192.0.2.0/24"]))).drop_routes == (
        "192.0.2.0/24",
    )
    assert plan_changes(wanted_interface._replace(forward=True), good).start_forwarding


def test_only_differing_peers_are_changed() -> None:
    entries = [
        {**peers()[0], "machine": f"n{n}", "public_key": key(f"n{n}"), "allowed_ips": [f"10.99.0.{n}/32"]}
        for n in range(2, 9)
    ]
    before = desired_interface(entries)
    entries[3]["persistent_keepalive"] = 0
    after = desired_interface([*entries[:-1]])
    plan = plan_changes(after, running_interface(before))
    assert [peer.machine for peer in plan.set_peers] == ["n5"]
    assert plan.drop_peers == (key("n8"),)


@pytest.mark.parametrize(
    ("age", "written_endpoint", "moves"),
    [
        (10, "203.0.113.2:51820", False),  # roamed and alive: keeps its endpoint
        (500, "203.0.113.2:51820", True),  # dead there: set to the one in the record
        (10, "198.51.100.9:51820", True),  # the record has changed: set although alive
        (10, None, True),
    ],
)
def test_endpoint_of_a_roaming_peer_with_a_session_is_kept(age: int, written_endpoint: str | None, moves: bool) -> None:
    wanted_interface = desired_interface()
    live = running_interface(wanted_interface, NOW - age)
    roamed = live.wg_dump.peers_by_key[key("n2")]._replace(endpoint="203.0.113.77:4000")
    live = live._replace(wg_dump=live.wg_dump._replace(peers_by_key={key("n2"): roamed}))
    plan = plan_changes(wanted_interface, live, {key("n2"): wg.ConfPeer("n2", written_endpoint)})
    assert plan.has_steps is moves
    if moves:
        assert plan.set_peers[0].endpoint == "203.0.113.2:51820"


def test_a_changed_peer_that_roamed_keeps_its_endpoint() -> None:
    wanted_interface = desired_interface(peers(persistent_keepalive=0))
    live = running_interface(desired_interface())
    roamed = live.wg_dump.peers_by_key[key("n2")]._replace(endpoint="203.0.113.77:4000")
    plan = plan_changes(
        wanted_interface, live._replace(wg_dump=live.wg_dump._replace(peers_by_key={key("n2"): roamed}))
    )
    assert [peer.endpoint for peer in plan.set_peers] == [None]


def test_a_new_key_takes_over_the_learned_endpoint() -> None:
    """A member behind NAT has only the endpoint from which its packets came."""
    old = desired_interface(peers(endpoint=None))
    live = running_interface(old)
    learned = live.wg_dump.peers_by_key[key("n2")]._replace(endpoint="203.0.113.77:4000")
    live = live._replace(wg_dump=live.wg_dump._replace(peers_by_key={key("n2"): learned}))
    plan = plan_changes(desired_interface(peers(endpoint=None, public_key=key("n2 again"))), live)
    assert [(peer.public_key, peer.endpoint) for peer in plan.set_peers] == [(key("n2 again"), "203.0.113.77:4000")]
    assert plan.drop_peers == (key("n2"),)


def test_unresolved_name_changes_no_endpoint() -> None:
    wanted_interface = desired_interface(peers(endpoint="gone.example:51820"))
    live = running_interface(desired_interface(), NOW - 10_000)
    assert not wg.plan_interface(wanted_interface, live, key("own"), {}, {"gone.example:51820": ()}, NOW).has_steps
    absent = live._replace(wg_dump=live.wg_dump._replace(peers_by_key={}))
    plan = wg.plan_interface(wanted_interface, absent, key("own"), {}, {"gone.example:51820": ()}, NOW)
    assert [peer.endpoint for peer in plan.set_peers] == [None]


def test_peer_changes_are_reported_by_machine() -> None:
    wanted_interface = desired_interface(
        [*peers(), {**peers()[0], "machine": "n3", "public_key": key("n3 again"), "allowed_ips": ["10.99.0.3/32"]}]
    )
    changes = wg.compare_peers(
        wanted_interface,
        {key("n3"): "n3", key("n4"): "n4"},
        [key("n2"), key("n3 again")],
        [key("n3"), key("n4"), key("?")],
    )
    assert changes == wg.PeerChanges(added=["n2"], removed=sorted(["n4", key("?")]), updated=["n3"])


def test_addconf_disables_keepalive_explicitly_and_omits_the_interface() -> None:
    text = wg.render_peers(desired_interface(peers(persistent_keepalive=0)).peers)
    assert "PersistentKeepalive = off" in text
    assert "[Interface]" not in text


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.booleans()), min_size=0, max_size=20))
def test_applied_plan_leaves_nothing_to_do(rows: list[tuple[bool, int, bool]]) -> None:
    entries = [
        {
            "machine": f"n{index}",
            "public_key": key(f"n{index}"),
            "endpoint": f"203.0.113.{index}:51820" if dialled else None,
            "allowed_ips": [f"10.99.1.{index}/32"] + ([f"192.168.{index}.0/24"] if outside else []),
            "persistent_keepalive": seconds,
        }
        for index, (dialled, seconds, outside) in enumerate(rows)
    ]
    wanted_interface = desired_interface(entries)
    empty = running_interface(desired_interface([]))
    first = plan_changes(wanted_interface, empty)
    live = running_interface(wanted_interface)._replace(mesh_routes=frozenset(first.add_routes))
    assert {peer.public_key for peer in first.set_peers} == {key(f"n{index}") for index in range(len(rows))}
    assert not plan_changes(wanted_interface, live).has_steps
