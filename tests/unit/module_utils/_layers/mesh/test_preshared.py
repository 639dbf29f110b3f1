# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The preshared keys of pairs on disk. tests/integration covers that WireGuard accepts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import preshared, wireguard

KEY = "a" * 42 + "A="
OTHER = "b" * 42 + "A="


def peer(machine: str, letter: str) -> dict[str, object]:
    return {"machine": machine, "public_key": letter * 42 + "A=", "allowed_ips": [f"10.99.0.{ord(letter)}/32"]}


def test_machine_that_sorts_first_generates_the_key(tmp_path: Path) -> None:
    folder = str(tmp_path / "wg0.preshared")
    offered = preshared.generate_keys(folder, "n2", ["n1", "n3", "n4"])
    assert sorted(offered) == ["n3", "n4"]
    assert offered["n3"] != offered["n4"]
    assert not Path(folder).exists(), "an offer is nothing yet"
    preshared.store_keys(folder, offered, check_mode=False)
    assert preshared.generate_keys(folder, "n2", ["n1", "n3", "n4"]) == offered
    renewed = preshared.generate_keys(folder, "n2", ["n1", "n3", "n4"], renew=True)
    assert sorted(renewed) == ["n3", "n4"]
    assert not set(renewed.values()) & set(offered.values())


def test_only_changed_keys_are_stored(tmp_path: Path) -> None:
    folder = str(tmp_path / "wg0.preshared")
    assert preshared.store_keys(folder, {"n3": KEY}, check_mode=True) == ["n3"]
    assert not Path(folder).exists()
    assert preshared.store_keys(folder, {"n3": KEY, "n4": OTHER}, check_mode=False) == ["n3", "n4"]
    assert preshared.store_keys(folder, {"n3": f"{KEY}\n", "n4": KEY}, check_mode=False) == ["n4"]


@pytest.mark.parametrize("keys", [{"n3": "short"}, {"../n3": KEY}, {"..": KEY}])
def test_invalid_key_is_refused_and_not_shown(tmp_path: Path, keys: dict[str, str]) -> None:
    with pytest.raises(InputError) as failure:
        preshared.store_keys(str(tmp_path / "wg0.preshared"), keys, check_mode=False)
    assert not any(key in str(failure.value) for key in keys.values())


def test_configuration_contains_the_key_file_but_not_the_key(tmp_path: Path) -> None:
    folder = str(tmp_path / "wg0.preshared")
    preshared.store_keys(folder, {"n3": KEY}, check_mode=False)
    desired = wireguard.make_desired("wg0", "10.99.0.1/16", 51820, 1420, [peer("n3", "c"), peer("n4", "d")])
    conf = wireguard.render_conf(preshared.add_preshared_keys(folder, desired), "/etc/wireguard/wg0.key")
    assert f"preshared-key {folder}/n3" in conf
    assert KEY not in conf
    assert f"{folder}/n4" not in conf
    assert "preshared-key" not in wireguard.render_conf(desired, "/etc/wireguard/wg0.key")


def test_keys_of_removed_peers_are_deleted(tmp_path: Path) -> None:
    folder = str(tmp_path / "wg0.preshared")
    preshared.remove_other_keys(folder, [])
    preshared.store_keys(folder, {"n3": KEY, "n4": OTHER}, check_mode=False)
    preshared.remove_other_keys(folder, ["n4", "n5"])
    assert [path.name for path in Path(folder).iterdir()] == ["n4"]
    preshared.remove_other_keys(folder, [])
    assert not Path(folder).exists()


def test_removing_a_preshared_key_differs_from_leaving_it(tmp_path: Path) -> None:
    """The running interface keeps its key if none is specified; an explicit empty one removes it."""
    folder = str(tmp_path / "wg0.preshared")
    preshared.store_keys(folder, {"n3": KEY}, check_mode=False)
    desired = wireguard.make_desired("wg0", "10.99.0.1/16", 51820, 1420, [peer("n3", "c"), peer("n4", "d")])
    unshared = preshared.add_preshared_keys(folder, desired, without=["n3"])
    assert [peer.preshared_key for peer in unshared.peers] == [wireguard.NO_PRESHARED_KEY, None]
    assert wireguard.render_conf(unshared, "/etc/wireguard/wg0.key") == wireguard.render_conf(
        desired, "/etc/wireguard/wg0.key"
    )
    live = {
        peer.public_key: wireguard.RunningPeer(
            peer.public_key, None, peer.allowed_ips, 0, 0, 0, 0, wireguard.compute_digest(KEY)
        )
        for peer in desired.peers
    }
    running = wireguard.RunningInterface(
        wireguard.WireguardDump("own", 51820, live),
        wireguard.InterfaceLink(1420, True, ("10.99.0.1/16",), "wireguard"),
        frozenset(),
    )
    steps = wireguard.plan_interface(unshared, running, "own", {}, {}, 0)
    assert wireguard.preshared_arguments(steps.set_peers) == ["peer", "c" * 42 + "A=", "preshared-key", "/dev/null"]
    fresh = running._replace(wg_dump=wireguard.WireguardDump("own", 51820, {}))
    assert wireguard.preshared_arguments(wireguard.plan_interface(unshared, fresh, "own", {}, {}, 0).set_peers) == []


def test_dump_contains_only_the_digest_of_a_preshared_key() -> None:
    line = "\t".join(["c" * 42 + "A=", KEY, "(none)", "10.99.0.3/32", "0", "0", "0", "off"])
    dump = wireguard.parse_dump("\t".join(["secret", "d" * 42 + "A=", "51820", "off"]) + "\n" + line + "\n")
    live = dump.peers_by_key["c" * 42 + "A="]
    assert live.preshared_digest == wireguard.compute_digest(KEY)
    assert KEY not in str(dump)
