# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The search for what a path carries, and the packets that it sends."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh import path_mtu


def network(carries: Mapping[str, int], rounds: list[int] | None = None) -> path_mtu.Probe:
    """Addresses with the size that their path carries; an address that is not there is silent."""

    def probe(sizes: Mapping[str, int]) -> set[str]:
        if rounds is not None:
            rounds.append(len(sizes))
        return {address for address, size in sizes.items() if size <= carries.get(address, 0)}

    return probe


def test_full_size_needs_one_packet() -> None:
    rounds: list[int] = []
    found = path_mtu.path_mtus(
        ["192.0.2.1", "2001:db8::1"], 1420, network({"192.0.2.1": 1500, "2001:db8::1": 1500}, rounds)
    )
    assert found == {"192.0.2.1": 1480, "2001:db8::1": 1500}
    assert rounds == [2]


def test_silence_is_no_small_mtu() -> None:
    assert path_mtu.path_mtus(["192.0.2.1"], 1420, network({})) == {"192.0.2.1": None}
    assert path_mtu.path_mtus([], 1420, network({})) == {}


@given(st.dictionaries(st.integers(1, 250).map(lambda n: f"192.0.2.{n}"), st.integers(576, 1600), max_size=8))
def test_the_search_never_exceeds_the_path_and_is_exact_to_a_step(carries: dict[str, int]) -> None:
    rounds: list[int] = []
    found = path_mtu.path_mtus(carries, 1420, network(carries, rounds))
    for address, limit in carries.items():
        size = found[address]
        assert size is not None
        assert min(limit, 1480) - 8 <= size <= limit
    assert len(rounds) <= 12, "all addresses are searched at once"


@given(st.integers(576, 1600), st.integers(576, 1600))
def test_a_path_is_unchanged_unless_it_shrank_or_grew(before: int, after: int) -> None:
    known = path_mtus_of(before)
    same = path_mtu.unchanged(known, 1420, network({"192.0.2.1": after}))
    assert bool(same) == (path_mtus_of(after) == known or known["192.0.2.1"] <= after < known["192.0.2.1"] + 8)


def path_mtus_of(carries: int) -> dict[str, int]:
    found = path_mtu.path_mtus(["192.0.2.1"], 1420, network({"192.0.2.1": carries}))
    assert found["192.0.2.1"] is not None
    return {"192.0.2.1": found["192.0.2.1"]}


def test_full_size_is_confirmed_by_one_packet() -> None:
    rounds: list[int] = []
    known = {"192.0.2.1": 1480, "2001:db8::1": 1500}
    assert path_mtu.unchanged(known, 1420, network({"192.0.2.1": 1500, "2001:db8::1": 1500}, rounds)) == set(known)
    assert rounds == [2]


@pytest.mark.parametrize(("address", "mtu"), [("192.0.2.1", 1440), ("2001:db8::1", 1420)])
def test_what_the_tunnel_adds(address: str, mtu: int) -> None:
    assert path_mtu.tunnel_mtu(1500, address) == mtu


def test_the_checksum_of_rfc_1071() -> None:
    data = bytes.fromhex("0001f203f4f5f6f7")
    assert path_mtu._checksum(data) == 0xFFFF - 0xDDF2
    assert path_mtu._checksum(data + struct.pack("!H", path_mtu._checksum(data))) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="not checked: raw sockets need root")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_real_echo_requests_have_the_size_and_are_answered(address: str) -> None:
    if address == "::1" and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("not checked: this host has no IPv6")
    assert path_mtu.echo({address: 1480}) == {address}
    assert path_mtu.echo({"192.0.2.1": 70000}) == set()
