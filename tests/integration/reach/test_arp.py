# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ARP requests to a thousand addresses on one link."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import NamespaceHost, NamespaceNetwork

ADDRESS_COUNT = 1000

ARP_PROGRAM = """
import json, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import arp

addresses, batch = json.loads(sys.argv[1]), int(sys.argv[2])
arp._BATCH_SIZE, arp._RECEIVE_BUFFER = batch or arp._BATCH_SIZE, arp._RECEIVE_BUFFER if not batch else 1
print(json.dumps(arp.query_macs(arp.read_nic("eth0"), dict.fromkeys(addresses, "10.60.0.1"), 4.0)))
"""


@pytest.fixture
def hosts(net: NamespaceNetwork) -> tuple[NamespaceHost, NamespaceHost]:
    """Create two hosts, the second of which has all the addresses."""
    requester, responder = net.add_host("one"), net.add_host("many")
    net.connect_host(requester, address="10.60.0.1/16")
    net.connect_host(responder, address="10.60.9.1/16")
    responder.run(
        "ip", "-batch", "-", stdin="".join(f"addr add {address}/16 dev eth0\n" for address in all_addresses())
    )
    return requester, responder


def all_addresses() -> list[str]:
    return [f"10.60.{1 + number // 250}.{1 + number % 250}" for number in range(ADDRESS_COUNT)]


def send_arp_requests(host: NamespaceHost, requested: list[str], batch: int = 0) -> dict[str, Any]:
    replies: dict[str, Any] = json.loads(host.run(sys.executable, "-c", ARP_PROGRAM, json.dumps(requested), str(batch)))
    return replies


def test_all_of_a_thousand_replies_are_received(hosts: tuple[NamespaceHost, NamespaceHost]) -> None:
    requester, responder = hosts
    mac = responder.run("cat", "/sys/class/net/eth0/address").strip()
    replies = send_arp_requests(requester, [*all_addresses(), "10.60.0.99"])
    assert replies.pop("10.60.0.99") == []
    assert {address for address, macs in replies.items() if macs != [mac]} == set()


def test_lost_replies_are_not_reported_as_silence(hosts: tuple[NamespaceHost, NamespaceHost]) -> None:
    """The buffer is the smallest one, and all requests are sent at once."""
    requester, _responder = hosts
    replies = send_arp_requests(requester, all_addresses(), batch=ADDRESS_COUNT)
    assert None in replies.values()
    assert [] not in replies.values()
