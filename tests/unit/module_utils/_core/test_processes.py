# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TCP sockets as the kernel lists them."""

from __future__ import annotations

import sys

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import (
    ESTABLISHED,
    LISTENING,
    TcpSocket,
    parse_tcp_sockets,
)


def test_sockets_of_both_address_families_are_parsed() -> None:
    if sys.byteorder != "little":
        pytest.skip("the table is recorded on a little-endian machine")
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100630A:0016 0200630A:D1F2 01 00000000:00000000 02:000A 00000000  1000        0 4711 4 0000 20 4 31 10\n"
        "   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:0000 00000000     0        0 4712 1 0000 100 0 0 10\n"
    )
    both = {
        "4711": TcpSocket(ESTABLISHED, "10.99.0.1", 22, "10.99.0.2", 1000, 0xD1F2),
        "4712": TcpSocket(LISTENING, "0.0.0.0", 22, "0.0.0.0", 0, 0),
    }
    assert parse_tcp_sockets(table) == both
    mapped = table.replace("0200630A", "0000000000000000FFFF00000200630A")
    assert parse_tcp_sockets(mapped) == both
    six = table.replace("00000000:0016", "B80D0120000000000000000001000000:0016")
    assert parse_tcp_sockets(six)["4712"].local_address == "2001:db8::1"
    assert "4711" not in parse_tcp_sockets(table.replace("  1000 ", "  nobody "))
