# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The protocol of listener and prober. Pure: bytes in, values out.

Over TCP each message is a frame: four bytes of length, big endian, and that many bytes of JSON, an object, at most
FRAME_LIMIT. The connecting side sends first, so that a port scanner learns nothing::

    C  {"gpumesh": 1, "nonce": N1}
    S  {"nonce": N2}
    C  {"proof": HMAC-SHA256(token, "client" N1 N2), "machine": name, "echo": text}
    S  {"proof": HMAC-SHA256(token, "server" N1 N2), "echo": text, "seen": address, "session": id, "mtu": bytes}

For anything else the connection is closed without an answer. Then any of these, in any order::

    C  {"do": "time"}                   S  {"received": t, "sent": t}               seconds since the epoch
    C  {"do": "take", "size": n}, n bytes
                                        S  {"sha256": …, "size": n}
    C  {"do": "give", "size": n}        S  n bytes, {"sha256": …}
    C  {"do": "done"}                   S  {"left": how many visitors are still expected}
    C  {"do": "ready", "hosts": n}      S  {"go": true}, to all at once when n have come or the time is over
    C  {"do": "receive"}                S  {"ready": true}; C sends as fast as it can, then half closes;
                                        S  {"size": n, "seconds": s}
    C  {"do": "iperf3"}                 S  {"port": p}, 0 where there is no iperf3

Over UDP a datagram is a head (magic, kind, session, sequence number, size), the first 16 bytes of
HMAC-SHA256(token, "datagram" head), and zeros up to its length. A request has the size that the answer shall have, an
answer the size that the request had. It is answered only while its session lives and its number is new: so nobody can
use a recorded request to make a listener flood somebody else. All sizes are those of the IP packet.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import struct
from typing import Any, Dict, Mapping, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json

PROTOCOL_VERSION = 1
#: The largest frame in bytes. An unauthenticated peer cannot make the other side buffer more than this.
FRAME_LIMIT = 8192
#: The maximum size of a payload in bytes.
PAYLOAD_LIMIT = 1 << 28
CHUNK_SIZE = 1 << 16

_LENGTH_PREFIX = struct.Struct("!I")
LENGTH_SIZE = _LENGTH_PREFIX.size
_DATAGRAM_HEADER = struct.Struct("!4sB8sIH")
_MAGIC_BYTES = b"gmr1"
_TAG_SIZE = 16
REQUEST_KIND, ANSWER_KIND = 1, 2

#: The size of the IP and UDP headers in bytes, by the version of IP.
UDP_OVERHEAD = {4: 28, 6: 48}
#: The smallest packet with a datagram of this protocol.
SMALLEST_PACKET = _DATAGRAM_HEADER.size + _TAG_SIZE + 48


class ProtocolError(GpumeshError):
    """The other side does not follow the protocol."""


class StrangerError(ProtocolError):
    """The other side does not know the token of the run."""


def gather_seconds(hosts: int) -> float:
    """The seconds that the common start waits for missing hosts.

    It grows with their number: Ansible starts five at a time.
    """
    return 60.0 + 8 * hosts


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """A message in the form in which it is sent."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH_PREFIX.pack(len(body)) + body


def parse_body_length(prefix: bytes) -> int:
    """The length of the frame that starts with these LENGTH_SIZE bytes. Raises ProtocolError."""
    (length,) = _LENGTH_PREFIX.unpack(prefix)
    if not 2 <= length <= FRAME_LIMIT:
        raise ProtocolError(f"a frame of {length} bytes was announced")
    return int(length)


def parse_body(body: bytes) -> Dict[str, Any]:
    """The message in a frame. Raises ProtocolError."""
    try:
        message = parse_json(body)
    except ValueError as failure:
        raise ProtocolError("a frame is not JSON") from failure
    if not isinstance(message, dict):
        raise ProtocolError("a frame is not a JSON object")
    return message


def read_text_field(message: Mapping[str, Any], key: str, limit: int = 1024) -> str:
    """A text from a message. Raises ProtocolError."""
    field_text = message.get(key)
    if not isinstance(field_text, str) or len(field_text) > limit:
        raise ProtocolError(f"a message has no {key}")
    return field_text


def read_integer_field(message: Mapping[str, Any], key: str, highest: int) -> int:
    """An integer from 0 to ``highest`` from a message. Raises ProtocolError."""
    field_number = message.get(key)
    if not isinstance(field_number, int) or isinstance(field_number, bool) or not 0 <= field_number <= highest:
        raise ProtocolError(f"a message has no {key} up to {highest}")
    return field_number


def read_time_field(message: Mapping[str, Any], key: str) -> float:
    """A time from a message, in seconds since the epoch. Raises ProtocolError."""
    field_time = message.get(key)
    if not isinstance(field_time, (int, float)) or isinstance(field_time, bool):
        raise ProtocolError(f"a message has no {key}")
    if (isinstance(field_time, int) and field_time.bit_length() > 64) or not math.isfinite(field_time):
        raise ProtocolError(f"a message has no {key}")
    return float(field_time)


def make_nonce() -> str:
    """A nonce, so that each proof is valid for only one connection."""
    return os.urandom(16).hex()


def compute_proof(token: str, side: str, client_nonce: str, server_nonce: str) -> str:
    """The proof that ``side``, client or server, knows the token. It includes the side, so it cannot be sent back."""
    signed_text = "\n".join((side, client_nonce, server_nonce))
    return hmac.new(token.encode(), signed_text.encode(), hashlib.sha256).hexdigest()


def check_proof(token: str, side: str, client_nonce: str, server_nonce: str, received_proof: str) -> None:
    """Compare the proof with the expected one. Raises StrangerError."""
    expected = compute_proof(token, side, client_nonce, server_nonce)
    if not hmac.compare_digest(expected.encode(), received_proof.encode("utf-8", "replace")):
        raise StrangerError("the peer does not know the token of this run")


class Datagram(NamedTuple):
    """One datagram. ``session_id`` has 8 bytes; ``packet_size`` is described above."""

    datagram_kind: int
    session_id: bytes
    sequence_number: int
    packet_size: int


def pack_datagram(token: str, datagram: Datagram, payload_length: int) -> bytes:
    """Encode a datagram. ``payload_length`` is that of the UDP payload in bytes."""
    head = _DATAGRAM_HEADER.pack(
        _MAGIC_BYTES, datagram.datagram_kind, datagram.session_id, datagram.sequence_number, datagram.packet_size
    )
    return (head + _compute_tag(token, head)).ljust(payload_length, b"\0")


def parse_datagram(token: str, datagram_bytes: bytes) -> Datagram:
    """Parse a datagram. Raises ProtocolError, or StrangerError if the sender does not know the token."""
    if len(datagram_bytes) < _DATAGRAM_HEADER.size + _TAG_SIZE:
        raise ProtocolError("a datagram is too short")
    head = datagram_bytes[: _DATAGRAM_HEADER.size]
    magic, kind, session, number, size = _DATAGRAM_HEADER.unpack(head)
    if magic != _MAGIC_BYTES or kind not in (REQUEST_KIND, ANSWER_KIND):
        raise ProtocolError("a datagram does not follow this protocol")
    if not hmac.compare_digest(
        datagram_bytes[_DATAGRAM_HEADER.size : _DATAGRAM_HEADER.size + _TAG_SIZE], _compute_tag(token, head)
    ):
        raise StrangerError("the sender of a datagram does not know the token of this run")
    return Datagram(kind, session, number, size)


def _compute_tag(token: str, head: bytes) -> bytes:
    return hmac.new(token.encode(), b"datagram\n" + head, hashlib.sha256).digest()[:_TAG_SIZE]
