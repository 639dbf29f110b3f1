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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.service import ServicePaths
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import interface as mesh_interface
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.interface import (
    WireguardHost,
    WireguardResult,
    ensure_interface,
    remove_interface,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.wireguard import (
    DesiredInterface,
    make_desired,
)
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._layers.mesh.hosts import FakeWireguardHost, key

READS = {("wg", "show"), ("wg", "pubkey"), ("ip", "-j")}


def no_replies(sizes: Mapping[str, int]) -> dict[str, bool]:
    return {}


def desired_with_peers(*numbers: int, **overrides: Any) -> DesiredInterface:
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


class WireguardLab:
    """A fake host with a folder for its files."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeWireguardHost()
        self.folder = folder
        self.conf, self.key = folder / "gpumesh0.conf", folder / "gpumesh0.key"

    def host(self, check_mode: bool = False, probe: Any = no_replies) -> WireguardHost:
        return WireguardHost(self.fake.run, check_mode, str(self.folder), probe)

    def run(self, desired: DesiredInterface | None, **more: Any) -> WireguardResult:
        return ensure_interface(self.host(), "gpumesh0", desired, **more)

    def start(self) -> None:
        self.fake.start(self.conf.read_text(encoding="utf-8"), self.key.read_text(encoding="utf-8").strip())

    def take_changing_commands(self) -> list[tuple[str, ...]]:
        """The commands that changed something since the last call."""
        changing_commands = [command for command in self.fake.commands if command[:2] not in READS]
        self.fake.commands.clear()
        return changing_commands


@pytest.fixture(name="lab")
def _lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WireguardLab:
    monkeypatch.setattr(mesh_interface, "find_program", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(mesh_interface, "_TUN_DEVICE", str(tmp_path))
    return WireguardLab(tmp_path / "wireguard")


def test_interface_is_created_started_and_then_unchanged(lab: WireguardLab) -> None:
    first = lab.run(None)
    assert first.changed and first.public_key and not first.interface_up
    assert stat.S_IMODE(lab.key.stat().st_mode) == 0o600
    written = lab.run(desired_with_peers(2, 3))
    assert written.changed and written.peer_changes.added == ["n2", "n3"]
    assert stat.S_IMODE(lab.conf.stat().st_mode) == 0o600
    lab.start()
    lab.take_changing_commands()
    again = lab.run(desired_with_peers(2, 3))
    assert again.interface_up and not again.changed
    assert again.public_key == first.public_key
    assert {handshake["machine"] for handshake in again.handshakes.values()} == {"n2", "n3"}
    assert lab.take_changing_commands() == []


def test_no_secret_leaves_the_host(lab: WireguardLab) -> None:
    results = [lab.run(None), lab.run(desired_with_peers(2))]
    lab.start()
    lab.fake.peers.clear()
    results += [lab.run(desired_with_peers(2, 3)), remove_interface(lab.host(), "gpumesh0")]
    assert key("private 1") not in repr(results)
    assert key("private 1") not in repr(lab.fake.commands)


def test_moved_endpoint_is_set_after_an_interrupted_run(lab: WireguardLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.run(desired_with_peers(2))
    lab.start()
    peer = lab.fake.peers[key("n2")]
    # A live session, which keeps its endpoint unless the desired one has changed.
    peer["handshake"] = int(time.time())
    moved = desired_with_peers(2)
    moved = moved._replace(peers=tuple(command._replace(endpoint="203.0.113.9:51820") for command in moved.peers))

    def cut_off(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(mesh_interface, "_apply_plan", cut_off)
        with pytest.raises(KeyboardInterrupt):
            lab.run(moved)
    assert lab.run(moved).changed
    assert peer["endpoint"] == "203.0.113.9:51820"
    assert not lab.run(moved).changed


def test_adding_and_removing_peers_leaves_other_peers_unchanged(lab: WireguardLab) -> None:
    lab.run(desired_with_peers(2, 3))
    lab.start()
    for peer in lab.fake.peers.values():
        peer["handshake"] = 99
    lab.take_changing_commands()
    result = lab.run(desired_with_peers(3, 4))
    assert (result.peer_changes.added, result.peer_changes.removed, result.peer_changes.updated) == (["n4"], ["n2"], [])
    assert lab.take_changing_commands() == [
        ("wg", "addconf", "gpumesh0", "/dev/stdin"),
        ("wg", "set", "gpumesh0", "peer", key("n2"), "remove"),
    ]
    assert lab.fake.peers[key("n3")]["handshake"] == 99
    assert not lab.run(desired_with_peers(3, 4)).changed


def test_manually_removed_peer_is_restored(lab: WireguardLab) -> None:
    lab.run(desired_with_peers(2, 3))
    lab.start()
    del lab.fake.peers[key("n2")]
    result = lab.run(desired_with_peers(2, 3))
    assert result.changed and result.peer_changes.updated == ["n2"]
    assert "# running: peer n2 set" in result.diff_after
    assert set(lab.fake.peers) == {key("n2"), key("n3")}


def test_check_mode_reports_changes_without_making_them(lab: WireguardLab) -> None:
    fresh = ensure_interface(lab.host(check_mode=True), "gpumesh0", desired_with_peers(2))
    assert fresh.changed and fresh.public_key is None and fresh.peer_changes.added == ["n2"]
    assert not lab.folder.exists()
    lab.run(desired_with_peers(2))
    lab.start()
    lab.take_changing_commands()
    before = lab.conf.read_text(encoding="utf-8")
    would = ensure_interface(lab.host(check_mode=True), "gpumesh0", desired_with_peers(2, 3))
    assert would.changed and would.peer_changes.added == ["n3"]
    assert "n3" in would.diff_after
    assert lab.conf.read_text(encoding="utf-8") == before
    remove_interface(lab.host(check_mode=True), "gpumesh0")
    assert lab.take_changing_commands() == []


def test_host_with_unregistered_key_is_not_configured(lab: WireguardLab) -> None:
    """Neither a new host nor one that lost its key gets a tunnel whose key the peers do not know."""
    for expected in ("", key("another")):
        result = lab.run(desired_with_peers(2), expected_key=expected)
        assert result.public_key not in (None, expected)
        assert not lab.conf.exists()
    registered = lab.run(desired_with_peers(2), expected_key=result.public_key)
    assert registered.peer_changes.added == ["n2"] and lab.conf.exists()


def test_missing_wg_is_reported(lab: WireguardLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_interface, "find_program", lambda program: None)
    result = lab.run(desired_with_peers(2), expected_key="")
    assert (result.changed, result.tools_installed, result.implementation) == (False, False, "missing")
    assert ensure_interface(lab.host(check_mode=True), "gpumesh0", desired_with_peers(2)).changed
    with pytest.raises(HostStateError, match="wireguard-tools"):
        lab.run(desired_with_peers(2))


def test_host_without_tun_and_kernel_module_is_refused(lab: WireguardLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_interface, "_TUN_DEVICE", "/nonexistent/tun")
    with pytest.raises(HostStateError, match="--device /nonexistent/tun"):
        lab.run(None)


def test_foreign_tunnel_is_left_alone(lab: WireguardLab) -> None:
    lab.folder.mkdir()
    lab.conf.write_text("[Interface]\nPrivateKey = SECRET=\n", encoding="utf-8")
    with pytest.raises(HostStateError, match="was not written by this collection") as refused:
        lab.run(desired_with_peers(2))
    assert "SECRET" not in str(refused.value)
    assert lab.key.exists()
    gone = remove_interface(lab.host(), "gpumesh0")
    assert (gone.foreign_conf, gone.changed, lab.key.exists(), "SECRET" in str(gone)) == (True, True, False, False)
    assert lab.conf.read_text(encoding="utf-8") == "[Interface]\nPrivateKey = SECRET=\n"
    assert not remove_interface(lab.host(), "gpumesh0").changed
    lab.fake.kind, lab.fake.up = "bridge", True
    with pytest.raises(HostStateError, match="bridge"):
        lab.run(None)


def test_port_of_another_tunnel_is_refused_before_any_write(lab: WireguardLab) -> None:
    with pytest.raises(HostStateError) as refused:
        lab.run(desired_with_peers(2, listen_port=51999))
    assert refused.value.details == {"port": 51999, "interface": "wg9"}
    assert not lab.conf.exists()


def test_damaged_key_file_is_named_but_not_quoted(lab: WireguardLab) -> None:
    lab.folder.mkdir()
    lab.key.write_text("half a key", encoding="utf-8")
    with pytest.raises(HostStateError) as refused:
        lab.run(None)
    assert refused.value.details == {"path": str(lab.key)}
    assert "half a key" not in str(refused.value)


def test_permissions_of_a_readable_key_are_restricted(lab: WireguardLab) -> None:
    lab.run(None)
    lab.key.chmod(0o644)
    assert lab.run(None).changed
    assert stat.S_IMODE(lab.key.stat().st_mode) == 0o600
    assert not lab.run(None).changed


def test_absent_removes_everything_once(lab: WireguardLab) -> None:
    lab.run(desired_with_peers(2))
    lab.start()
    gone = remove_interface(lab.host(), "gpumesh0")
    assert gone.changed and gone.peer_changes.removed == ["n2"]
    assert not lab.fake.up and list(lab.folder.iterdir()) == []
    assert not remove_interface(lab.host(), "gpumesh0").changed


@pytest.mark.parametrize("check_mode", [False, True])
def test_absent_reports_other_tunnels_of_supervisord(lab: WireguardLab, tmp_path: Path, check_mode: bool) -> None:
    service_paths = ServicePaths(supervisor_programs=str(tmp_path / "programs"))
    host = lab.host(check_mode=check_mode)._replace(service_paths=service_paths)
    assert remove_interface(host, "gpumesh0").other_interfaces == ()
    (tmp_path / "programs").mkdir()
    for name in ("wg-quick@gpumesh0", "wg-quick@lan1", "slurmd"):
        Path(service_paths.program_path(name)).touch()
    assert remove_interface(host, "gpumesh0").other_interfaces == ("lan1",)


def test_mtu_follows_the_path_and_is_stored(lab: WireguardLab) -> None:
    probed_sizes: list[dict[str, int]] = []

    carries = {"203.0.113.2": 1500, "203.0.113.3": 1400}

    def path(sizes: Mapping[str, int]) -> dict[str, bool]:
        probed_sizes.append(dict(sizes))
        return {address: size <= carries[address] for address, size in sizes.items()}

    def run(desired: DesiredInterface, probe: Any = path) -> WireguardResult:
        return ensure_interface(lab.host(probe=probe), "gpumesh0", desired, probe_mtu=True)

    narrow = run(desired_with_peers(2, 3))
    # WireGuard over IPv4 adds 60 bytes; the search is accurate to 8.
    assert 1400 - 60 - 8 <= narrow.mtu <= 1400 - 60
    probed_sizes.clear()
    assert run(desired_with_peers(2, 3)).mtu == narrow.mtu
    assert [len(sizes) for sizes in probed_sizes] == [2, 1], "one packet to each, and a second one to the narrow one"
    # Both are down: the earlier results are kept.
    assert run(desired_with_peers(2, 3), no_replies).mtu == narrow.mtu
    # A comparison measures as well.
    carries["203.0.113.3"] = 1350
    seen = ensure_interface(lab.host(check_mode=True, probe=path), "gpumesh0", desired_with_peers(2, 3), probe_mtu=True)
    assert seen.changed and 1350 - 60 - 8 <= seen.mtu <= 1350 - 60
    # The path MTU increases, and decreases again.
    carries["203.0.113.3"] = 1450
    grown = run(desired_with_peers(2, 3))
    assert 1450 - 60 - 8 <= grown.mtu <= 1450 - 60
    assert not run(desired_with_peers(2, 3)).changed
    carries["203.0.113.3"] = 1500
    assert run(desired_with_peers(2, 3)).mtu == 1420
    carries["203.0.113.3"] = 1400
    assert run(desired_with_peers(2, 3)).mtu == narrow.mtu
    # The narrow one leaves.
    assert run(desired_with_peers(2)).mtu == 1420


def test_a_key_that_an_interrupted_run_has_left_is_a_difference(lab: WireguardLab) -> None:
    lab.run(desired_with_peers(2))
    lab.start()
    left_path = Path(lab.host().preshared_path("gpumesh0")) / "n2"
    left_path.parent.mkdir()
    left_path.write_text("a key", encoding="ascii")

    def run(check_mode: bool) -> WireguardResult:
        host = lab.host(check_mode=check_mode)
        return ensure_interface(host, "gpumesh0", desired_with_peers(2), preshared_without=["n2"])

    assert run(check_mode=True).changed and left_path.exists()
    assert run(check_mode=False).changed and not left_path.exists()
    assert not run(check_mode=True).changed


def test_measured_mtu_of_an_ipv6_mesh_is_at_least_the_ipv6_minimum(lab: WireguardLab) -> None:
    def narrow(sizes: Mapping[str, int]) -> dict[str, bool]:
        return {address: size <= 1300 for address, size in sizes.items()}

    wide = desired_with_peers(2, address="fd00:99::1/64")
    assert ensure_interface(lab.host(probe=narrow), "gpumesh0", wide, probe_mtu=True).mtu == 1280
    assert ensure_interface(lab.host(probe=narrow), "gpumesh0", desired_with_peers(2), probe_mtu=True).mtu < 1280


def test_mtu_is_kept_while_a_name_does_not_resolve(lab: WireguardLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name server of a busy host responds too late."""
    named = desired_with_peers(2, 3)
    named = named._replace(peers=(named.peers[0], named.peers[1]._replace(endpoint="n3.example:51820")))
    resolvable = {"203.0.113.2:51820": ("203.0.113.2:51820",), "n3.example:51820": ("203.0.113.3:51820",)}
    monkeypatch.setattr(
        mesh_interface,
        "resolve_endpoints",
        lambda endpoints: {endpoint: resolvable[endpoint] for endpoint in endpoints},
    )
    carries = {"203.0.113.2": 1500, "203.0.113.3": 1400}

    def run() -> WireguardResult:
        probe = lab.host(probe=lambda sizes: {address: size <= carries[address] for address, size in sizes.items()})
        return ensure_interface(probe, "gpumesh0", named, probe_mtu=True)

    narrow = run()
    assert narrow.mtu < 1400
    resolvable["n3.example:51820"] = ()
    silent_server = run()
    assert (silent_server.mtu, silent_server.changed) == (narrow.mtu, False)
    assert silent_server.warnings
    resolvable["n3.example:51820"] = ("203.0.113.3:51820",)
    assert not run().changed
    carries["203.0.113.3"] = 1500
    assert run().mtu == 1420


def test_silent_endpoint_is_measured_by_the_next_run(lab: WireguardLab) -> None:
    def run(probe: Any) -> WireguardResult:
        return ensure_interface(lab.host(probe=probe), "gpumesh0", desired_with_peers(2), probe_mtu=True)

    def narrow(sizes: Mapping[str, int]) -> dict[str, bool]:
        return {address: size <= 1400 for address, size in sizes.items()}

    assert run(no_replies).mtu == 1420
    assert not run(no_replies).changed
    result = run(narrow)
    assert result.changed and 1400 - 60 - 8 <= result.mtu <= 1400 - 60
    assert not run(narrow).changed


def strange(lab: WireguardLab) -> None:
    """A running interface with this name, which something else has set up, with a key and peers of its own."""
    conf = f"[Peer]\nPublicKey = {key('office')}\nAllowedIPs = 10.1.0.0/16\n"
    lab.fake.start(conf, "a private key of systemd-networkd's")


@pytest.mark.parametrize("desired", [None, desired_with_peers(2)], ids=["key", "tunnel"])
@pytest.mark.parametrize("check_mode", [True, False])
def test_interface_set_up_by_other_software_is_refused(
    lab: WireguardLab, desired: DesiredInterface | None, check_mode: bool
) -> None:
    strange(lab)
    with pytest.raises(HostStateError, match=r"gpumesh0 .*gpumesh0.conf does not exist.*networkd.*mesh_interface"):
        ensure_interface(lab.host(check_mode), "gpumesh0", desired)
    assert lab.take_changing_commands() == []
    assert list(lab.fake.peers) == [key("office")]
    assert not lab.folder.exists()


def test_absent_leaves_an_interface_of_other_software(lab: WireguardLab) -> None:
    strange(lab)
    assert not remove_interface(lab.host(), "gpumesh0").changed
    assert lab.take_changing_commands() == []
    assert lab.fake.up


def test_lost_configuration_of_our_interface_is_rewritten(lab: WireguardLab) -> None:
    lab.run(desired_with_peers(2))
    lab.start()
    lab.conf.unlink()
    lab.run(desired_with_peers(2))
    assert lab.conf.exists()
    lab.conf.unlink()
    assert remove_interface(lab.host(), "gpumesh0").changed
    assert not lab.fake.up
