# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file of facts that the playbook discover writes about two of the hosts, which share two networks.

Beside these, the hosts have what must not be taken for a shared network, and a third host does not answer.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from lab_hosts import Lab

HOSTS = ("n1", "n2")
#: Interfaces by name: the type, and the address, where {} is the number of the host.
DECOYS = {
    # The same under a name that tells nothing.
    "internal0": ("bridge", "10.5.0.1/24"),
    # Addresses that differ, so that the name alone gives it away.
    "br-3f2a9c41d07e": ("bridge", "172.18.0.{}/16"),
    # A real one with the same address on both hosts.
    "twin0": ("veth peer name twin1", "10.6.0.1/24"),
}
#: Docker switches IPv6 off for networks without an IPv6 range.
DISABLED = "/proc/sys/net/ipv6/conf/eth2/disable_ipv6"


def prepare(lab: Lab, host: str, number: str) -> None:
    for name, (kind, address) in DECOYS.items():
        lab.run(host, "ip", "link", "add", name, "type", *kind.split())
        lab.run(host, "ip", "address", "add", address.format(number), "dev", name)
        lab.run(host, "ip", "link", "set", name, "up")
    lab.run(host, "ip", "link", "set", "twin1", "up")
    lab.run(host, "sh", "-c", f"echo 0 > {DISABLED}")
    lab.run(host, "ip", "-6", "address", "add", f"fd00:77:41::{number}/64", "dev", "eth2", "nodad")


def restore(lab: Lab, host: str) -> None:
    for name in DECOYS:
        lab.run(host, "ip", "link", "delete", name)
    lab.run(host, "sh", "-c", f"echo 1 > {DISABLED}")


@pytest.fixture(scope="module")
def found(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is found on the hosts, which are restored afterwards."""
    folder = tmp_path_factory.mktemp("discover")
    absent = folder / "absent.yml"
    absent.write_text("cluster: {hosts: {n9: {ansible_host: 10.78.0.99, ansible_ssh_timeout: 3}}}\n", encoding="utf-8")
    known_names = lab.read("n2", "/etc/hosts").decode()
    for host in HOSTS:
        prepare(lab, host, host[1:])
    lab.run("n1", "sh", "-c", "for gpu in 0 1; do mknod /dev/nvidia$gpu c 1 3; done")
    # As Debian's installer leaves it; n1 has the entry of the cluster.
    lab.run("n2", "sh", "-c", "printf '127.0.0.1 localhost\n127.0.1.1 n2\n' >/etc/hosts")
    try:
        run = lab.run_playbook(
            "gpumesh.cluster.discover",
            *("--limit", "n1,n2,n9", "-e", f"discover_facts_file={folder / 'facts.json'}"),
            inventories=[absent],
        )
    finally:
        for host in HOSTS:
            restore(lab, host)
        lab.run("n1", "rm", "/dev/nvidia0", "/dev/nvidia1")
        lab.run("n2", "sh", "-c", 'printf %s "$1" >/etc/hosts', "-", known_names)
    assert run.exit_status == 0, run.failure_report
    document: dict[str, Any] = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return document


def interface(found: dict[str, Any], host: str, name: str) -> dict[str, Any]:
    (item,) = [item for item in found["hosts"][host]["interfaces"] if item["name"] == name]
    return dict(item)


def test_the_shared_networks_are_found_and_nothing_else(found: dict[str, Any]) -> None:
    assert [item["subnet"] for item in found["candidates"]] == ["10.78.0.0/24", "10.78.104.0/24", "fd00:77:41::/64"]
    assert {host: member["address"] for host, member in found["candidates"][0]["members"].items()} == {
        "n1": "10.78.0.11",
        "n2": "10.78.0.12",
    }


@pytest.mark.parametrize(
    ("subnet", "words"),
    [
        ("172.17.0.0/16", "docker0 belongs to a container runtime or hypervisor"),
        ("172.18.0.0/16", "br-3f2a9c41d07e belongs to a container runtime or hypervisor"),
        ("10.5.0.0/24", "internal0 is a bridge without a physical port"),
        ("10.6.0.0/24", "10.6.0.1 is on n1 and n2"),
        ("10.99.0.0/16", "gpumesh0 is the cluster's own tunnel"),
    ],
)
def test_a_decoy_is_out_with_its_reason(found: dict[str, Any], subnet: str, words: str) -> None:
    (entry,) = [entry for entry in found["rejected"] if entry["subnet"] == subnet]
    assert words in entry["reason"]


def test_a_host_that_is_not_there_is_listed(found: dict[str, Any]) -> None:
    assert list(found["unreachable"]) == ["n9"]
    assert "10.78.0.99" in found["unreachable"]["n9"]
    assert found["failed"] == {}


def test_interfaces_are_what_they_are(found: dict[str, Any]) -> None:
    eth0 = interface(found, "n1", "eth0")
    assert (eth0["kind"], eth0["physical"], eth0["state"], eth0["speed_mbps"]) == ("veth", False, "up", None)
    assert interface(found, "n1", "docker0")["kind"] == "bridge"
    assert interface(found, "n1", "gpumesh0")["kind"] == "tun"
    assert interface(found, "n2", "lo")["kind"] == "loopback"


def test_the_trap_is_seen_on_the_host_that_has_it(found: dict[str, Any]) -> None:
    assert found["hosts"]["n1"]["host"]["hostname"]["problem"] is None
    hostname = found["hosts"]["n2"]["host"]["hostname"]
    assert hostname["loopback"] is True
    assert "n2 resolves to 127.0.1.1 (in /etc/hosts)" in hostname["problem"]


def test_gpus_are_counted_by_their_device_files(found: dict[str, Any]) -> None:
    assert found["hosts"]["n1"]["host"]["gpus"]["files"] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert found["hosts"]["n2"]["host"]["gpus"]["count"] == 0


def test_the_default_route_is_known(found: dict[str, Any]) -> None:
    (route,) = found["hosts"]["n1"]["host"]["default_routes"]
    assert (route["family"], route["interface"]) == ("inet", "eth0")
