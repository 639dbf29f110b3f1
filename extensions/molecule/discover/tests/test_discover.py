# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file of facts that the playbook writes about real hosts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    path = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "facts.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def interface(found: dict[str, Any], host: str, name: str) -> dict[str, Any]:
    (item,) = [item for item in found["hosts"][host]["interfaces"] if item["name"] == name]
    return dict(item)


def test_the_shared_networks_are_found_and_nothing_else(found: dict[str, Any]) -> None:
    assert [item["subnet"] for item in found["candidates"]] == ["10.77.40.0/24", "10.77.41.0/24", "fd00:77:41::/64"]
    assert {host: member["address"] for host, member in found["candidates"][0]["members"].items()} == {
        "d1": "10.77.40.11",
        "d2": "10.77.40.12",
    }


@pytest.mark.parametrize(
    ("subnet", "words"),
    [
        ("172.17.0.0/16", "docker0 belongs to a container runtime or hypervisor"),
        ("172.18.0.0/16", "br-3f2a9c41d07e belongs to a container runtime or hypervisor"),
        ("10.5.0.0/24", "internal0 is a bridge without a physical port"),
        ("10.6.0.0/24", "10.6.0.1 is on d1 and d2"),
        ("10.99.0.0/16", "gpumesh0 is the cluster's own tunnel"),
    ],
)
def test_a_decoy_is_out_with_its_reason(found: dict[str, Any], subnet: str, words: str) -> None:
    (entry,) = [entry for entry in found["rejected"] if entry["subnet"] == subnet]
    assert words in entry["reason"]


def test_a_host_that_is_not_there_is_listed(found: dict[str, Any]) -> None:
    assert list(found["unreachable"]) == ["d3"]
    assert "10.77.40.13" in found["unreachable"]["d3"]
    assert found["failed"] == {}


def test_interfaces_are_what_they_are(found: dict[str, Any]) -> None:
    eth0 = interface(found, "d1", "eth0")
    assert (eth0["kind"], eth0["physical"], eth0["state"], eth0["speed_mbps"]) == ("veth", False, "up", None)
    assert interface(found, "d1", "docker0")["kind"] == "bridge"
    assert interface(found, "d1", "gpumesh0")["kind"] == "tun"
    assert interface(found, "d2", "lo")["kind"] == "loopback"


def test_the_trap_is_seen_on_the_host_that_has_it(found: dict[str, Any]) -> None:
    assert found["hosts"]["d1"]["host"]["hostname"]["problem"] is None
    hostname = found["hosts"]["d2"]["host"]["hostname"]
    assert hostname["loopback"] is True
    assert "d2 resolves to 127.0.1.1 (in /etc/hosts)" in hostname["problem"]


def test_gpus_are_counted_by_their_device_files(found: dict[str, Any]) -> None:
    assert found["hosts"]["d1"]["host"]["gpus"]["files"] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert found["hosts"]["d2"]["host"]["gpus"]["count"] == 0


def test_the_default_route_is_known(found: dict[str, Any]) -> None:
    (route,) = found["hosts"]["d1"]["host"]["default_routes"]
    assert (route["family"], route["interface"]) == ("inet", "eth0")
