# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's interface, from creation to removal, on a host in memory."""

from __future__ import annotations

import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.daemon import Places
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh import interface as mesh_interface
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.interface import Host, Result, absent, present
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.wireguard import Desired, make_desired
from ansible_collections.gpumesh.cluster.tests.unit.module_utils.mesh.hosts import FakeHost, key

READS = {("wg", "show"), ("wg", "pubkey"), ("ip", "-j")}


def silent(sizes: Mapping[str, int]) -> dict[str, bool]:
    return {}


def wanted(*numbers: int, **overrides: Any) -> Desired:
    peers = [
        {
            "machine": f"n{n}",
            "public_key": key(f"n{n}"),
            "endpoint": f"203.0.113.{n}:51820",
            "allowed_ips": [f"10.99.0.{n}/32"],
        }
        for n in numbers
    ]
    return make_desired("gpumesh0", "10.99.0.1/16", 51820, 1420, peers)._replace(**overrides)


class Lab:
    """A fake host with a folder for its files."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeHost()
        self.folder = folder
        self.conf, self.key = folder / "gpumesh0.conf", folder / "gpumesh0.key"

    def host(self, check_mode: bool = False, probe: Any = silent) -> Host:
        return Host(self.fake.run, check_mode, str(self.folder), probe)

    def run(self, desired: Desired | None, **more: Any) -> Result:
        return present(self.host(), "gpumesh0", desired, **more)

    def start(self) -> None:
        self.fake.start(self.conf.read_text(encoding="utf-8"), self.key.read_text(encoding="utf-8").strip())

    def changing(self) -> list[tuple[str, ...]]:
        """The commands that changed something since the last call."""
        found = [command for command in self.fake.commands if command[:2] not in READS]
        self.fake.commands.clear()
        return found


@pytest.fixture(name="lab")
def _lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(mesh_interface, "find", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(mesh_interface, "_TUN", str(tmp_path))
    return Lab(tmp_path / "wireguard")


def test_from_nothing_to_running_to_unchanged(lab: Lab) -> None:
    first = lab.run(None)
    assert first.changed and first.public_key and not first.interface_up
    assert stat.S_IMODE(lab.key.stat().st_mode) == 0o600
    written = lab.run(wanted(2, 3))
    assert written.changed and written.peers.added == ["n2", "n3"]
    assert stat.S_IMODE(lab.conf.stat().st_mode) == 0o600
    lab.start()
    lab.changing()
    again = lab.run(wanted(2, 3))
    assert again.interface_up and not again.changed
    assert again.public_key == first.public_key
    assert {one["machine"] for one in again.handshakes.values()} == {"n2", "n3"}
    assert lab.changing() == []


def test_no_secret_leaves_the_host(lab: Lab) -> None:
    results = [lab.run(None), lab.run(wanted(2))]
    lab.start()
    lab.fake.peers.clear()
    results += [lab.run(wanted(2, 3)), absent(lab.host(), "gpumesh0")]
    assert key("private 1") not in repr(results)
    assert key("private 1") not in repr(lab.fake.commands)


def test_an_endpoint_that_has_moved_is_set_although_the_first_try_was_cut_off(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.run(wanted(2))
    lab.start()
    peer = lab.fake.peers[key("n2")]
    # A live session, which keeps its endpoint unless the desired one has changed.
    peer["handshake"] = int(time.time())
    moved = wanted(2)
    moved = moved._replace(peers=tuple(one._replace(endpoint="203.0.113.9:51820") for one in moved.peers))

    def cut_off(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(mesh_interface, "_apply", cut_off)
        with pytest.raises(KeyboardInterrupt):
            lab.run(moved)
    assert lab.run(moved).changed
    assert peer["endpoint"] == "203.0.113.9:51820"
    assert not lab.run(moved).changed


def test_adding_and_removing_touch_nobody_else(lab: Lab) -> None:
    lab.run(wanted(2, 3))
    lab.start()
    for peer in lab.fake.peers.values():
        peer["handshake"] = 99
    lab.changing()
    result = lab.run(wanted(3, 4))
    assert (result.peers.added, result.peers.removed, result.peers.updated) == (["n4"], ["n2"], [])
    assert lab.changing() == [
        ("wg", "addconf", "gpumesh0", "/dev/stdin"),
        ("wg", "set", "gpumesh0", "peer", key("n2"), "remove"),
    ]
    assert lab.fake.peers[key("n3")]["handshake"] == 99
    assert not lab.run(wanted(3, 4)).changed


def test_a_peer_removed_by_hand_comes_back(lab: Lab) -> None:
    lab.run(wanted(2, 3))
    lab.start()
    del lab.fake.peers[key("n2")]
    result = lab.run(wanted(2, 3))
    assert result.changed and result.peers.updated == ["n2"]
    assert "# running: peer n2 set" in result.after
    assert set(lab.fake.peers) == {key("n2"), key("n3")}


def test_check_mode_changes_nothing_and_says_what_would(lab: Lab) -> None:
    fresh = present(lab.host(check_mode=True), "gpumesh0", wanted(2))
    assert fresh.changed and fresh.public_key is None and fresh.peers.added == ["n2"]
    assert not lab.folder.exists()
    lab.run(wanted(2))
    lab.start()
    lab.changing()
    before = lab.conf.read_text(encoding="utf-8")
    would = present(lab.host(check_mode=True), "gpumesh0", wanted(2, 3))
    assert would.changed and would.peers.added == ["n3"]
    assert "n3" in would.after
    assert lab.conf.read_text(encoding="utf-8") == before
    absent(lab.host(check_mode=True), "gpumesh0")
    assert lab.changing() == []


def test_a_key_that_the_peers_do_not_know_is_made_known_first(lab: Lab) -> None:
    """Neither a new host nor one that lost its key gets a tunnel whose key the peers do not know."""
    for expected in ("", key("another")):
        result = lab.run(wanted(2), expected_key=expected)
        assert result.public_key not in (None, expected)
        assert not lab.conf.exists()
    known = lab.run(wanted(2), expected_key=result.public_key)
    assert known.peers.added == ["n2"] and lab.conf.exists()


def test_without_wg_the_host_says_what_is_missing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_interface, "find", lambda program: None)
    result = lab.run(wanted(2), expected_key="")
    assert (result.changed, result.tools, result.implementation) == (False, False, "missing")
    assert present(lab.host(check_mode=True), "gpumesh0", wanted(2)).changed
    with pytest.raises(HostStateError, match="wireguard-tools"):
        lab.run(wanted(2))


def test_without_tun_and_module_the_host_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_interface, "_TUN", "/nonexistent/tun")
    with pytest.raises(HostStateError, match="--device /nonexistent/tun"):
        lab.run(None)


def test_somebody_elses_tunnel_is_left_alone(lab: Lab) -> None:
    lab.folder.mkdir()
    lab.conf.write_text("[Interface]\nPrivateKey = SECRET=\n", encoding="utf-8")
    with pytest.raises(HostStateError, match="was not written by this collection") as refused:
        lab.run(wanted(2))
    assert "SECRET" not in str(refused.value)
    assert lab.key.exists()
    gone = absent(lab.host(), "gpumesh0")
    assert (gone.foreign, gone.changed, lab.key.exists(), "SECRET" in str(gone)) == (True, True, False, False)
    assert lab.conf.read_text(encoding="utf-8") == "[Interface]\nPrivateKey = SECRET=\n"
    assert not absent(lab.host(), "gpumesh0").changed
    lab.fake.kind, lab.fake.up = "bridge", True
    with pytest.raises(HostStateError, match="bridge"):
        lab.run(None)


def test_a_port_of_another_tunnel_is_refused_before_anything_is_written(lab: Lab) -> None:
    with pytest.raises(HostStateError) as refused:
        lab.run(wanted(2, listen_port=51999))
    assert refused.value.details == {"port": 51999, "interface": "wg9"}
    assert not lab.conf.exists()


def test_a_damaged_key_is_named_and_not_quoted(lab: Lab) -> None:
    lab.folder.mkdir()
    lab.key.write_text("half a key", encoding="utf-8")
    with pytest.raises(HostStateError) as refused:
        lab.run(None)
    assert refused.value.details == {"path": str(lab.key)}
    assert "half a key" not in str(refused.value)


def test_a_key_that_others_can_read_is_closed(lab: Lab) -> None:
    lab.run(None)
    lab.key.chmod(0o644)
    assert lab.run(None).changed
    assert stat.S_IMODE(lab.key.stat().st_mode) == 0o600
    assert not lab.run(None).changed


def test_absent_removes_all_and_then_nothing(lab: Lab) -> None:
    lab.run(wanted(2))
    lab.start()
    gone = absent(lab.host(), "gpumesh0")
    assert gone.changed and gone.peers.removed == ["n2"]
    assert not lab.fake.up and list(lab.folder.iterdir()) == []
    assert not absent(lab.host(), "gpumesh0").changed


@pytest.mark.parametrize("check_mode", [False, True])
def test_who_leaves_names_the_tunnels_that_supervisord_still_runs(lab: Lab, tmp_path: Path, check_mode: bool) -> None:
    places = Places(supervisor_programs=str(tmp_path / "programs"))
    host = lab.host(check_mode=check_mode)._replace(places=places)
    assert absent(host, "gpumesh0").others == ()
    (tmp_path / "programs").mkdir()
    for name in ("wg-quick@gpumesh0", "wg-quick@lan1", "slurmd"):
        Path(places.program(name)).touch()
    assert absent(host, "gpumesh0").others == ("lan1",)


def test_the_mtu_follows_the_path_and_is_remembered(lab: Lab) -> None:
    seen: list[dict[str, int]] = []

    carries = {"203.0.113.2": 1500, "203.0.113.3": 1400}

    def path(sizes: Mapping[str, int]) -> dict[str, bool]:
        seen.append(dict(sizes))
        return {address: size <= carries[address] for address, size in sizes.items()}

    def run(desired: Desired, probe: Any = path) -> Result:
        return present(lab.host(probe=probe), "gpumesh0", desired, probe_mtu=True)

    narrow = run(wanted(2, 3))
    # WireGuard over IPv4 adds 60 bytes; the search is accurate to 8.
    assert 1400 - 60 - 8 <= narrow.mtu <= 1400 - 60
    seen.clear()
    assert run(wanted(2, 3)).mtu == narrow.mtu
    assert [len(sizes) for sizes in seen] == [2, 1], "one packet to each, and a second one to the narrow one"
    # Both are down: the earlier results are kept.
    assert run(wanted(2, 3), silent).mtu == narrow.mtu
    # The path MTU increases, and decreases again.
    carries["203.0.113.3"] = 1450
    grown = run(wanted(2, 3))
    assert 1450 - 60 - 8 <= grown.mtu <= 1450 - 60
    assert not run(wanted(2, 3)).changed
    carries["203.0.113.3"] = 1500
    assert run(wanted(2, 3)).mtu == 1420
    carries["203.0.113.3"] = 1400
    assert run(wanted(2, 3)).mtu == narrow.mtu
    # The narrow one leaves.
    assert run(wanted(2)).mtu == 1420


def test_the_measured_mtu_of_an_ipv6_mesh_is_one_that_ipv6_can_use(lab: Lab) -> None:
    def narrow(sizes: Mapping[str, int]) -> dict[str, bool]:
        return {address: size <= 1300 for address, size in sizes.items()}

    wide = wanted(2, address="fd00:99::1/64")
    assert present(lab.host(probe=narrow), "gpumesh0", wide, probe_mtu=True).mtu == 1280
    assert present(lab.host(probe=narrow), "gpumesh0", wanted(2), probe_mtu=True).mtu < 1280


def test_an_endpoint_whose_name_does_not_resolve_for_a_moment_keeps_the_mtu(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy host, where the name server answers too late."""
    named = wanted(2, 3)
    named = named._replace(peers=(named.peers[0], named.peers[1]._replace(endpoint="n3.example:51820")))
    known = {"203.0.113.2:51820": ("203.0.113.2:51820",), "n3.example:51820": ("203.0.113.3:51820",)}
    monkeypatch.setattr(mesh_interface, "resolve", lambda endpoints: {one: known[one] for one in endpoints})
    carries = {"203.0.113.2": 1500, "203.0.113.3": 1400}

    def run() -> Result:
        probe = lab.host(probe=lambda sizes: {address: size <= carries[address] for address, size in sizes.items()})
        return present(probe, "gpumesh0", named, probe_mtu=True)

    narrow = run()
    assert narrow.mtu < 1400
    known["n3.example:51820"] = ()
    silent_server = run()
    assert (silent_server.mtu, silent_server.changed) == (narrow.mtu, False)
    assert silent_server.warnings
    known["n3.example:51820"] = ("203.0.113.3:51820",)
    assert not run().changed
    carries["203.0.113.3"] = 1500
    assert run().mtu == 1420


def test_an_endpoint_that_was_silent_at_first_is_measured_by_the_next_run(lab: Lab) -> None:
    def run(probe: Any) -> Result:
        return present(lab.host(probe=probe), "gpumesh0", wanted(2), probe_mtu=True)

    def narrow(sizes: Mapping[str, int]) -> dict[str, bool]:
        return {address: size <= 1400 for address, size in sizes.items()}

    assert run(silent).mtu == 1420
    assert not run(silent).changed
    found = run(narrow)
    assert found.changed and 1400 - 60 - 8 <= found.mtu <= 1400 - 60
    assert not run(narrow).changed


def strange(lab: Lab) -> None:
    """A running interface with this name, which something else has set up, with a key and peers of its own."""
    conf = f"[Peer]\nPublicKey = {key('office')}\nAllowedIPs = 10.1.0.0/16\n"
    lab.fake.start(conf, "a private key of systemd-networkd's")


@pytest.mark.parametrize("desired", [None, wanted(2)], ids=["key", "tunnel"])
@pytest.mark.parametrize("check_mode", [True, False])
def test_an_interface_that_something_else_runs_is_refused(lab: Lab, desired: Desired | None, check_mode: bool) -> None:
    strange(lab)
    with pytest.raises(HostStateError, match=r"gpumesh0 .*gpumesh0.conf does not exist.*networkd.*mesh_interface"):
        present(lab.host(check_mode), "gpumesh0", desired)
    assert lab.changing() == []
    assert list(lab.fake.peers) == [key("office")]
    assert not lab.folder.exists()


def test_who_leaves_does_not_take_it_away(lab: Lab) -> None:
    strange(lab)
    assert not absent(lab.host(), "gpumesh0").changed
    assert lab.changing() == []
    assert lab.fake.up


def test_an_interface_of_ours_whose_configuration_is_lost_gets_it_back(lab: Lab) -> None:
    lab.run(wanted(2))
    lab.start()
    lab.conf.unlink()
    lab.run(wanted(2))
    assert lab.conf.exists()
    lab.conf.unlink()
    assert absent(lab.host(), "gpumesh0").changed
    assert not lab.fake.up
