# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The individual rules: kinds, speeds, states, rates, names and subnets."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import hostname, kernel
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.addresses import normalise_subnet
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.gpus import read_gpus
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.kinds import (
    classify_interface,
    normalise_state,
    parse_speed,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import PciDevice
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.rdma import parse_rate, parse_state


@pytest.mark.parametrize(
    ("raw", "kind", "physical", "expected"),
    [
        ("25000", "ethernet", True, 25000),
        ("200000", "bond", False, 200000),
        ("10000", "veth", False, None),
        ("10000", "bridge", False, None),
        ("10000", "tun", False, None),
        ("-1", "ethernet", True, None),
        ("4294967295", "ethernet", True, None),
        (None, "ethernet", True, None),
        ("", "ethernet", True, None),
        ("fast", "ethernet", True, None),
    ],
)
def test_meaningless_speeds_are_ignored(raw: str | None, kind: str, physical: bool, expected: int | None) -> None:
    assert parse_speed(raw, kind, physical) == expected


@pytest.mark.parametrize(
    ("operstate", "up", "carrier", "expected"),
    [
        ("UP", True, True, "up"),
        ("UNKNOWN", True, True, "up"),
        ("UNKNOWN", True, False, "unknown"),
        ("UNKNOWN", False, True, "down"),
        ("LOWERLAYERDOWN", True, False, "lowerlayerdown"),
        ("0x7", True, True, "unknown"),
    ],
)
def test_states(operstate: str, up: bool, carrier: bool, expected: str) -> None:
    assert normalise_state(operstate, up, carrier) == expected


@pytest.mark.parametrize(
    ("link_type", "link_kind", "expected"),
    [
        ("ether", None, "ethernet"),
        ("loopback", None, "loopback"),
        ("infiniband", None, "infiniband"),
        ("infiniband", "ipoib", "infiniband"),
        ("ether", "team", "bond"),
        ("ether", "openvswitch", "bridge"),
        ("none", "wireguard", "wireguard"),
        ("ether", "macvlan", "other"),
        ("sit", "sit", "other"),
        ("none", None, "other"),
    ],
)
def test_kinds(link_type: str, link_kind: str | None, expected: str) -> None:
    assert classify_interface(link_type, link_kind) == expected


def test_rates_and_states_of_rdma_ports() -> None:
    assert parse_rate("200 Gb/sec (4X HDR)") == 200.0
    assert parse_rate("2.5 Gb/sec (1X SDR)") == 2.5
    assert parse_rate("unknown") is None
    assert parse_rate(None) is None
    assert parse_state("4: ACTIVE") == "active"
    assert parse_state(None) == "unknown"


HOSTS = """
127.0.0.1 localhost
127.0.1.1   gpu7.example.com GPU7  # 10.0.0.9 gpu7
#192.168.1.11 gpu7
192.168.1.11 gpu7
"""


def test_loopback_entry_of_debian_is_reported_with_a_remedy() -> None:
    found = hostname.assess_resolution("gpu7", HOSTS, ["127.0.1.1"])
    assert found["hosts_file"] == ["127.0.1.1", "192.168.1.11"]
    assert found["loopback"]
    assert "gpu7 resolves to 127.0.1.1 (in /etc/hosts)" in (found["problem"] or "")
    assert "instead of 127.0.1.1" in (found["remedy"] or "")


@pytest.mark.parametrize(
    ("resolved", "words"),
    [([], "does not resolve"), (None, "did not resolve within 2 s"), (["::1"], "by the system's resolver")],
)
def test_unresolved_hostname_is_reported(resolved: list[str] | None, words: str) -> None:
    assert words in (hostname.assess_resolution("gpu7", "", resolved)["problem"] or "")


def test_resolvable_hostname_has_no_problem() -> None:
    found = hostname.assess_resolution("gpu7", "", ["192.168.1.11", "fe80::1%eth0"])
    assert (found["loopback"], found["problem"], found["remedy"]) == (False, None, None)


def test_localhost_resolves() -> None:
    assert "127.0.0.1" in (hostname.resolve_hostname("localhost") or [])


def test_unresponsive_name_server_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = threading.Event()
    monkeypatch.setattr(hostname, "RESOLVE_TIMEOUT", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: hang.wait(10) and [])
    assert hostname.resolve_hostname("gpu7") is None
    hang.set()


def test_invalid_hostname_does_not_resolve() -> None:
    assert hostname.resolve_hostname("a" * 300) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.77.0.11/24", "10.77.0.0/24"),
        (" 192.168.1.11/255.255.255.0 ", "192.168.1.0/24"),
        ("fd12:3456::21/64", "fd12:3456::/64"),
    ],
)
def test_subnet_with_host_bits_is_accepted(text: str, expected: str) -> None:
    assert str(normalise_subnet(text)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10.77.0.11", "prefix length"),
        ("10.77.0.11/32", "single address"),
        ("fd00::1/128", "single address"),
        ("10.77.0/24", "10.77.0/24"),
        ("10.77.0.1/33", "10.77.0.1/33"),
        ("127.0.1.1/8", "loopback"),
        ("fe80::1/64", "link-local"),
        ("", "prefix length"),
    ],
)
def test_an_invalid_subnet_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        normalise_subnet(text)
    assert "cluster_subnet" in caught.value.remedy


def test_ten_gpus_are_in_numeric_order(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in [f"nvidia{number}" for number in range(11)] + ["nvidiactl", "nvidia-uvm", "nvidia-modeset"]:
        (tmp_path / "dev" / name).touch()
    gpus = read_gpus(Tree(str(tmp_path)), [])
    assert (gpus["count"], gpus["files"][2], gpus["files"][10]) == (11, "/dev/nvidia2", "/dev/nvidia10")
    assert gpus["type"] is None


def pci_bus(vendor: str, number: int) -> list[PciDevice]:
    return [
        {"address": f"0000:{index:02x}:00.0", "vendor": vendor, "device": "2330", "device_class": "0302"}
        for index in range(number)
    ]


@pytest.mark.parametrize(
    ("on_bus", "problem"),
    [
        (pci_bus("10de", 8), "1 GPU(s) on the PCI bus have no device file (7 of 8 have one)"),
        (pci_bus("10de", 7), None),
        # The files are not those of another vendor's, such as of a processor that has graphics.
        ([*pci_bus("10de", 7), *pci_bus("1002", 1)], None),
    ],
)
def test_gpu_without_device_file_is_reported(tmp_path: Path, on_bus: list[PciDevice], problem: str | None) -> None:
    (tmp_path / "dev").mkdir()
    for number in range(7):
        (tmp_path / "dev" / f"nvidia{number}").touch()
    gpus = read_gpus(Tree(str(tmp_path)), on_bus)
    assert gpus["count"] == 7
    assert gpus["problem"] is None if problem is None else str(gpus["problem"]).startswith(problem)


def test_different_models_have_no_common_type(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for number, model in enumerate(["NVIDIA A100", "NVIDIA H100"]):
        (tmp_path / "dev" / f"nvidia{number}").touch()
        folder = tmp_path / "proc/driver/nvidia/gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\n")
    assert read_gpus(Tree(str(tmp_path)), [])["type"] is None


@pytest.mark.parametrize(
    ("port_range", "reserved", "expected"),
    [
        ("32768\t60999\n", "\n", {"first": 32768, "last": 60999, "reserved": []}),
        ("1024 65535", "15000-19999,29500\n", {"first": 1024, "last": 65535, "reserved": ["15000-19999", "29500"]}),
        ("", "", None),
        ("many", "", None),
    ],
)
def test_local_ports_are_parsed(tmp_path, port_range, reserved, expected):
    folder = tmp_path / "proc/sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text(port_range)
    (folder / "ip_local_reserved_ports").write_text(reserved)
    assert kernel.read_local_ports(Tree(str(tmp_path))) == expected


def test_unreported_local_ports_are_none(tmp_path):
    assert kernel.read_local_ports(Tree(str(tmp_path))) is None
