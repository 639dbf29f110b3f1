# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import protocol

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=10), json_values, max_size=5))
def test_frame_round_trip(message: dict[str, Any]) -> None:
    wire = protocol.encode_frame(message)
    body = wire[protocol.LENGTH_SIZE :]
    assert protocol.parse_body_length(wire[: protocol.LENGTH_SIZE]) == len(body)
    assert protocol.parse_body(body) == message


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protocol_error(body: bytes) -> None:
    with suppress(protocol.ProtocolError):
        assert isinstance(protocol.parse_body(body), dict)


def test_deep_nesting_is_a_protocol_error() -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.parse_body(b"[" * 100000)


@pytest.mark.parametrize("length", [0, 1, protocol.FRAME_LIMIT + 1, 2**32 - 1])
def test_oversized_frame_announcement_is_refused(length: int) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.parse_body_length(length.to_bytes(4, "big"))


@pytest.mark.parametrize("value", [None, "7", 1.5, True, -1, 11])
def test_numbers_are_checked(value: object) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.read_integer_field({"size": value}, "size", 10)


@pytest.mark.parametrize("value", [None, 7, "x" * 1025])
def test_texts_are_checked(value: object) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.read_text_field({"nonce": value}, "nonce")


@pytest.mark.parametrize("value", [None, "7", True])
def test_times_are_checked(value: object) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.read_time_field({"sent": value}, "sent")


def test_proof_is_valid_only_for_its_token_side_and_nonces() -> None:
    good = protocol.compute_proof("token", "client", "a", "b")
    protocol.check_proof("token", "client", "a", "b", good)
    for different_proof in (
        ("tokem", "client", "a", "b"),
        ("token", "server", "a", "b"),
        ("token", "client", "b", "a"),
    ):
        with pytest.raises(protocol.StrangerError):
            protocol.check_proof(*different_proof, good)
    with pytest.raises(protocol.StrangerError):
        protocol.check_proof("token", "client", "a", "b", "ä")


@settings(deadline=None)
@given(
    st.sampled_from([protocol.REQUEST_KIND, protocol.ANSWER_KIND]),
    st.binary(min_size=8, max_size=8),
    st.integers(0, 2**32 - 1),
    st.integers(0, 65535),
    st.integers(0, 2000),
)
def test_datagram_round_trip(kind: int, session: bytes, number: int, size: int, length: int) -> None:
    datagram = protocol.Datagram(kind, session, number, size)
    wire = protocol.pack_datagram("token", datagram, length)
    assert len(wire) == max(length, 35)
    assert protocol.parse_datagram("token", wire) == datagram
    with pytest.raises(protocol.StrangerError):
        protocol.parse_datagram("other", wire)


@settings(deadline=None)
@given(st.binary(max_size=100), st.integers(0, 40))
def test_modified_datagram_is_refused(noise: bytes, changed_index: int) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.parse_datagram("token", noise)
    wire = bytearray(protocol.pack_datagram("token", protocol.Datagram(1, b"12345678", 1, 100), 35))
    wire[changed_index % 35] ^= 1
    with pytest.raises(protocol.ProtocolError):
        protocol.parse_datagram("token", bytes(wire))


def test_smallest_packet_contains_header_and_tag_in_both_families() -> None:
    wire = protocol.pack_datagram("token", protocol.Datagram(1, b"12345678", 1, 100), 0)
    assert protocol.SMALLEST_PACKET - max(protocol.UDP_OVERHEAD.values()) == len(wire)
