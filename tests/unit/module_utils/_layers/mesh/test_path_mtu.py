# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The search for what a path carries, and the packets that it sends."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import path_mtu

ONE, OTHER = "192.0.2.1", "2001:db8::1"


def fake_network(carries: Mapping[str, int], rounds: list[int] | None = None) -> path_mtu.MtuProbe:
    """Addresses with the sizes that their paths carry; missing addresses do not answer."""

    def probe(sizes: Mapping[str, int]) -> dict[str, bool]:
        if rounds is not None:
            rounds.append(len(sizes))
        return {address: size <= carries[address] for address, size in sizes.items() if address in carries}

    return probe


def test_full_size_needs_one_packet() -> None:
    for known_mtus in (0, 1480):
        rounds: list[int] = []
        mtu_by_address = path_mtu.find_path_mtus(
            {ONE: known_mtus, OTHER: 0}, 1420, fake_network({ONE: 1500, OTHER: 1500}, rounds)
        )
        assert mtu_by_address == {ONE: 1480, OTHER: 1500}
        assert rounds == [2]


def test_unanswered_probe_does_not_lower_the_mtu() -> None:
    assert path_mtu.find_path_mtus({ONE: 0}, 1420, fake_network({})) == {ONE: None}
    assert path_mtu.find_path_mtus({ONE: 1400}, 1420, fake_network({})) == {ONE: None}
    assert path_mtu.find_path_mtus({}, 1420, fake_network({})) == {}


@given(st.dictionaries(st.integers(1, 250).map(lambda n: f"192.0.2.{n}"), st.integers(576, 1600), max_size=8))
def test_the_search_never_exceeds_the_path_and_is_exact_to_a_step(carries: dict[str, int]) -> None:
    rounds: list[int] = []
    mtu_by_address = path_mtu.find_path_mtus(dict.fromkeys(carries, 0), 1420, fake_network(carries, rounds))
    for address, limit in carries.items():
        size = mtu_by_address[address]
        assert size is not None
        assert min(limit, 1480) - 8 <= size <= limit
    assert len(rounds) <= 12, "all addresses are searched at once"


@given(st.integers(576, 1600), st.integers(576, 1600))
def test_known_mtu_is_confirmed_or_measured_again(before: int, after: int) -> None:
    known_mtus = path_mtu.find_path_mtus({ONE: 0}, 1420, fake_network({ONE: before}))[ONE]
    assert known_mtus is not None
    rounds: list[int] = []
    mtu_by_address = path_mtu.find_path_mtus({ONE: known_mtus}, 1420, fake_network({ONE: after}, rounds))[ONE]
    assert mtu_by_address is not None
    assert min(after, 1480) - 8 <= mtu_by_address <= after
    if known_mtus <= after < known_mtus + 8:
        assert mtu_by_address == known_mtus and len(rounds) <= 2, "what has not changed stays as it was, to the byte"


@pytest.mark.parametrize(("address", "mtu"), [("192.0.2.1", 1440), ("2001:db8::1", 1420)])
def test_tunnel_overhead(address: str, mtu: int) -> None:
    assert path_mtu.tunnel_mtu(1500, address) == mtu


def test_the_checksum_of_rfc_1071() -> None:
    data = bytes.fromhex("0001f203f4f5f6f7")
    assert path_mtu._checksum(data) == 0xFFFF - 0xDDF2
    assert path_mtu._checksum(data + struct.pack("!H", path_mtu._checksum(data))) == 0


class FakeRawSocket:
    """A raw socket to a network in memory. ``passes`` returns which echo requests are answered, by size and number."""

    def __init__(self, version: int, passes: Callable[[int, int], bool]) -> None:
        self._header = b"" if version == 6 else b"\x45" + bytes(19)
        self._reply = {4: 0, 6: 129}[version]
        self._passes, self._size = passes, {4: 20, 6: 40}[version]
        self._far, self._near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._senders: list[str] = []
        self.sent: list[int] = []

    def __enter__(self) -> FakeRawSocket:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._far.close()
        self._near.close()

    def fileno(self) -> int:
        return self._near.fileno()

    def sendto(self, packet: bytes, target: tuple[str, int]) -> None:
        size = len(packet) + self._size
        self.sent.append(size)
        if size > 9000:
            raise OSError(errno.EMSGSIZE, "Message too long")
        if self._passes(size, len(self.sent)):
            self._senders.append(target[0])
            self._far.send(self._header + bytes([self._reply]) + packet[1:])

    def recvfrom(self, size: int) -> tuple[bytes, tuple[str, int]]:
        return self._near.recv(size), (self._senders.pop(0), 0)


@pytest.fixture(name="talk")
def _talk(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, Callable[[int, int], bool]], tuple[object, int]]:
    """Probe one address in a network in memory. Returns the verdict (None for silence), and the number of packets."""
    monkeypatch.setattr(path_mtu, "_PAIR_INTERVAL", 0.01)
    monkeypatch.setattr(path_mtu, "_FINAL_WAIT", 0.01)

    def probe(address: str, size: int, passes: Callable[[int, int], bool]) -> tuple[object, int]:
        raw = FakeRawSocket(6 if ":" in address else 4, passes)
        monkeypatch.setattr(path_mtu, "_open_raw_socket", lambda _version: raw)
        return path_mtu.probe_by_echo({address: size}).get(address), len(raw.sent)

    return probe


@pytest.mark.parametrize("address", [ONE, OTHER])
def test_single_lost_packet_does_not_count_as_a_narrow_path(
    talk: Callable[..., tuple[object, int]], address: str
) -> None:
    assert talk(address, 1480, lambda _size, _number: True) == (True, 2)
    # The large packets of three pairs are lost, and then one passes.
    assert talk(address, 1480, lambda size, number: size < 1480 or number > 6) == (True, 8)
    # A host that is too busy to answer, or answers only once, shows nothing about its path.
    assert talk(address, 1480, lambda _size, _number: False) == (None, 8)
    assert talk(address, 1480, lambda size, number: size < 1480 and number > 6) == (None, 8)
    # The small ones are always answered, the large ones never.
    assert talk(address, 1480, lambda size, _number: size < 1480) == (False, 8)


def test_packet_larger_than_the_own_interface_is_decided_at_once(talk: Callable[..., tuple[object, int]]) -> None:
    assert talk(ONE, 9001, lambda _size, _number: True) == (False, 2)
    assert talk(ONE, 9001, lambda _size, _number: False) == (None, 8)


def test_replies_received_while_the_host_was_busy_count(
    talk: Callable[..., tuple[object, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait is over before it starts, as for a process that was not scheduled."""
    held_back = True

    def wait(
        read: list[FakeRawSocket], write: list[object], exceptional_sockets: list[object], seconds: float
    ) -> tuple[list[object], ...]:
        return ([], [], []) if held_back else select_really(read, write, exceptional_sockets, 0)

    def passes(_size: int, number: int) -> bool:
        nonlocal held_back
        held_back = number < 8
        return True

    select_really = select.select
    monkeypatch.setattr(path_mtu.select, "select", wait)
    monkeypatch.setattr(path_mtu, "_PAIR_INTERVAL", 0.0)
    monkeypatch.setattr(path_mtu, "_FINAL_WAIT", 0.0)
    assert talk(ONE, 1480, passes) == (True, 8)


@pytest.mark.skipif(os.geteuid() != 0, reason="not checked: raw sockets need root")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_real_echo_requests_have_the_size_and_are_answered(address: str) -> None:
    if address == "::1" and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("not checked: this host has no IPv6")
    assert path_mtu.probe_by_echo({address: 1480}) == {address: True}
    assert path_mtu.probe_by_echo({address: 70000}) == {address: False}
