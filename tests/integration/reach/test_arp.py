# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ARP requests to a thousand addresses on one link."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import Host, Network

NUMBER = 1000

ASK = """
import json, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import arp

addresses, batch = json.loads(sys.argv[1]), int(sys.argv[2])
arp._BATCH_SIZE, arp._RECEIVE_BUFFER = batch or arp._BATCH_SIZE, arp._RECEIVE_BUFFER if not batch else 1
print(json.dumps(arp.query_macs(arp.read_nic("eth0"), dict.fromkeys(addresses, "10.60.0.1"), 4.0)))
"""


@pytest.fixture
def hosts(net: Network) -> tuple[Host, Host]:
    """Create two hosts, the second of which has all the addresses."""
    one, many = net.add("one"), net.add("many")
    net.plug(one, address="10.60.0.1/16")
    net.plug(many, address="10.60.9.1/16")
    many.run("ip", "-batch", "-", stdin="".join(f"addr add {address}/16 dev eth0\n" for address in addresses()))
    return one, many


def addresses() -> list[str]:
    return [f"10.60.{1 + number // 250}.{1 + number % 250}" for number in range(NUMBER)]


def ask(host: Host, asked: list[str], batch: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.run(sys.executable, "-c", ASK, json.dumps(asked), str(batch)))
    return found


def test_every_reply_of_a_thousand_is_heard(hosts: tuple[Host, Host]) -> None:
    one, many = hosts
    mac = many.run("cat", "/sys/class/net/eth0/address").strip()
    found = ask(one, [*addresses(), "10.60.0.99"])
    assert found.pop("10.60.0.99") == []
    assert {address for address, macs in found.items() if macs != [mac]} == set()


def test_lost_replies_are_not_taken_for_silence(hosts: tuple[Host, Host]) -> None:
    """The buffer is the smallest one, and all requests are sent at once."""
    one, _many = hosts
    found = ask(one, addresses(), batch=NUMBER)
    assert None in found.values()
    assert [] not in found.values()
