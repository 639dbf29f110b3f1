# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NCCL settings that follow from the network cards of known machines.

The devices, rates and numbers of GPUs are those of the source. What it does not say is assumed, and named so.
"""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment import files, host

IB, ROCE, EFA = "InfiniBand", "Ethernet", "Unspecified"


class Card(NamedTuple):
    """A port of a card: its RDMA device (empty without RDMA), interface (empty without one), layer, rate, address, model."""

    device: str
    interface: str
    layer: str
    rate: int
    address: str = ""
    board: str = ""
    state: str = "4: ACTIVE"


class Machine(NamedTuple):
    """A machine, its cluster interface and address, and the settings in /etc/nccl.conf if every member is like it."""

    source: str
    assumed: str
    gpus: int
    cluster: tuple[str, str]
    cards: list[Card]
    expected: list[str]


def rails(device: str, count: int, rate: int, layer: str = ROCE, first: int = 0) -> list[Card]:
    return [
        Card(f"{device}{number}", f"rail{number}", layer, rate, "" if layer == IB else f"10.10.{number}.7/24")
        for number in range(first, first + count)
    ]


def hca(*devices: str) -> str:
    return "NCCL_IB_HCA==" + ",".join(f"{device}:1" for device in devices)


def numbered(device: str, count: int) -> str:
    return hca(*(f"{device}{number}" for number in range(count)))


OFF = ["NCCL_IB_DISABLE=1", "NCCL_NET=Socket"]
MACHINES = {
    "DGX Spark, one cable to another machine": Machine(
        "https://build.nvidia.com/spark/nccl/stacked-sparks",
        "the addresses",
        1,
        ("enP2p1s0f1np1", "10.100.0.13/24"),
        [
            Card("rocep1s0f0", "enp1s0f0np0", ROCE, 200, "10.0.0.2/24"),
            Card("rocep1s0f1", "enp1s0f1np1", ROCE, 200),
            Card("roceP2p1s0f0", "enP2p1s0f0np0", ROCE, 200, "169.254.18.52/16"),
            Card("roceP2p1s0f1", "enP2p1s0f1np1", ROCE, 200, "10.100.0.13/24"),
        ],
        [hca("roceP2p1s0f1")],
    ),
    "DGX Spark, four networks": Machine(
        "https://build.nvidia.com/spark/nccl/stacked-sparks",
        "the addresses",
        1,
        ("enP2p1s0f1np1", "10.100.0.13/24"),
        [
            Card("rocep1s0f0", "enp1s0f0np0", ROCE, 200, "10.0.0.2/24"),
            Card("rocep1s0f1", "enp1s0f1np1", ROCE, 200, "10.0.1.2/24"),
            Card("roceP2p1s0f0", "enP2p1s0f0np0", ROCE, 200, "10.0.2.2/24"),
            Card("roceP2p1s0f1", "enP2p1s0f1np1", ROCE, 200, "10.100.0.13/24"),
        ],
        [hca("roceP2p1s0f1")],
    ),
    "HGX H200, 8 rails, cluster on a management card": Machine(
        "https://docs.nvidia.com/enterprise-reference-architectures/",
        "the management card is a ConnectX of 25 Gbit/s, which has RoCE too; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [Card("mlx5_8", "eno1", ROCE, 25, "10.1.0.7/24"), *rails("mlx5_", 8, 400)],
        [numbered("mlx5_", 8)],
    ),
    "HGX H200, 8 rails, cluster on the first": Machine(
        "https://docs.nvidia.com/enterprise-reference-architectures/",
        "a storage card of 200 Gbit/s; the addresses",
        8,
        ("rail0", "10.10.0.7/24"),
        [*rails("mlx5_", 8, 400), Card("mlx5_8", "ens9", ROCE, 200, "10.50.0.7/24")],
        [numbered("mlx5_", 8)],
    ),
    "DGX A100, InfiniBand": Machine(
        "https://docs.nvidia.com/dgx/dgxa100-user-guide/",
        "the storage ports are Ethernet; the addresses",
        8,
        ("enp225s0f0", "10.1.0.7/24"),
        [*rails("mlx5_", 8, 200, IB), Card("mlx5_8", "enp225s0f0", ROCE, 200, "10.1.0.7/24")],
        [numbered("mlx5_", 8)],
    ),
    "DGX H100, slower InfiniBand for storage": Machine(
        "https://docs.nvidia.com/dgx/dgxh100-user-guide/",
        "storage is connected by HDR; the addresses",
        8,
        ("eno3", "10.1.0.7/24"),
        [
            Card("", "eno3", "", 10, "10.1.0.7/24"),
            *rails("mlx5_", 8, 400, IB),
            *rails("mlx5_", 2, 200, IB, first=8),
        ],
        [numbered("mlx5_", 8)],
    ),
    "DGX H100, InfiniBand of the same rate for storage": Machine(
        "https://docs.nvidia.com/dgx/dgxh100-user-guide/",
        "the identifiers of the cards; the addresses",
        8,
        ("eno3", "10.1.0.7/24"),
        [
            Card("", "eno3", "", 10, "10.1.0.7/24"),
            *(card._replace(board="compute") for card in rails("mlx5_", 8, 400, IB)),
            *(card._replace(board="storage") for card in rails("mlx5_", 4, 400, IB, first=8)),
        ],
        [numbered("mlx5_", 8)],
    ),
    "DGX H100, one link down": Machine(
        "https://docs.nvidia.com/dgx/dgxh100-user-guide/",
        "the identifiers of the cards; the addresses",
        8,
        ("eno3", "10.1.0.7/24"),
        [
            Card("", "eno3", "", 10, "10.1.0.7/24"),
            *(card._replace(board="compute") for card in rails("mlx5_", 7, 400, IB)),
            Card("mlx5_7", "rail7", IB, 10, board="compute", state="1: DOWN"),
            *(card._replace(board="storage") for card in rails("mlx5_", 4, 400, IB, first=8)),
        ],
        [numbered("mlx5_", 7)],
    ),
    "HGX B200, BlueField-3 for storage": Machine(
        "https://docs.nvidia.com/enterprise-reference-architectures/",
        "the DPUs are as fast as the rails; the identifiers of the cards; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [
            Card("", "eno1", "", 10, "10.1.0.7/24"),
            *(card._replace(board="compute") for card in rails("mlx5_", 8, 400)),
            Card("mlx5_8", "dpu0", ROCE, 400, "10.50.0.7/24", "storage"),
            Card("mlx5_9", "dpu1", ROCE, 400, "10.50.1.7/24", "storage"),
        ],
        [numbered("mlx5_", 8)],
    ),
    "HGX H100, one rail with a card of another model": Machine(
        "a repaired machine",
        "all",
        8,
        ("eno1", "10.1.0.7/24"),
        [
            Card("", "eno1", "", 10, "10.1.0.7/24"),
            *(card._replace(board="old") for card in rails("mlx5_", 7, 400)),
            *(card._replace(board="new") for card in rails("mlx5_", 1, 400, first=7)),
        ],
        [numbered("mlx5_", 8)],
    ),
    "GH200, one InfiniBand port": Machine(
        "https://docs.nvidia.com/dgx/dgxgh200-user-guide/",
        "the addresses",
        1,
        ("enP6p3s0f0", "10.1.0.7/24"),
        [Card("", "enP6p3s0f0", "", 25, "10.1.0.7/24"), Card("mlx5_0", "", IB, 400)],
        [hca("mlx5_0")],
    ),
    "ND H100 v5, an InfiniBand VM": Machine(
        "https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/ndh100v5-series",
        "the addresses",
        8,
        ("eth0", "10.1.0.7/24"),
        [Card("mlx5_an0", "eth0", ROCE, 100, "10.1.0.7/24"), *rails("mlx5_ib", 8, 400, IB)],
        [numbered("mlx5_ib", 8)],
    ),
    "BM.GPU.H100.8, two ports for each GPU": Machine(
        "https://docs.oracle.com/iaas/Content/Compute/References/computeshapes.htm",
        "the names of the devices; the addresses",
        8,
        ("eth0", "10.1.0.7/24"),
        [Card("mlx5_16", "eth0", ROCE, 100, "10.1.0.7/24"), *rails("mlx5_", 16, 200)],
        ["NCCL_IB_HCA==" + ",".join(f"{device}:1" for device in sorted(f"mlx5_{number}" for number in range(16)))],
    ),
    "MI300X with RoCE": Machine(
        "https://rocm.docs.amd.com/projects/gpu-cluster-networking/",
        "the management card has no RDMA; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [Card("", "eno1", "", 10, "10.1.0.7/24"), *rails("bnxt_re", 8, 400)],
        [numbered("bnxt_re", 8)],
    ),
    "p5.48xlarge": Machine(
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html",
        "the names of the devices; the addresses",
        8,
        ("ens32", "10.1.0.7/24"),
        [Card("", "ens32", "", 100, "10.1.0.7/24"), *(Card(f"rdmap{n}s0", "", EFA, 100) for n in range(32))],
        [],
    ),
    "two RTX 4090": Machine(
        "any workstation", "the addresses", 2, ("eno1", "10.1.0.7/24"), [Card("", "eno1", "", 10, "10.1.0.7/24")], []
    ),
    "two RTX 4090 and a card with two ports, one for storage": Machine(
        "any workstation with a ConnectX-5",
        "the addresses",
        2,
        ("ens1f0", "10.1.0.7/24"),
        [
            Card("mlx5_0", "ens1f0", ROCE, 100, "10.1.0.7/24"),
            Card("mlx5_1", "ens1f1", ROCE, 100, "10.50.0.7/24"),
        ],
        [hca("mlx5_0")],
    ),
    "two fast ports, cluster on a slower card with RoCE": Machine(
        "any server with a ConnectX-4 Lx for management",
        "the fast ports reach the other members; the addresses",
        4,
        ("eno1", "10.1.0.7/24"),
        [Card("mlx5_2", "eno1", ROCE, 25, "10.1.0.7/24"), *rails("mlx5_", 2, 200)],
        [numbered("mlx5_", 2)],
    ),
    "RoCE ports with link-local addresses only": Machine(
        "https://github.com/NVIDIA/nccl/issues/1053",
        "a management card without RDMA",
        8,
        ("eno1", "10.1.0.7/24"),
        [
            Card("", "eno1", "", 10, "10.1.0.7/24"),
            Card("mlx5_0", "lan0", ROCE, 100, "fe80::ac0:ebff:fedd:ee01/64"),
            Card("mlx5_1", "lan1", ROCE, 100, "fe80::ac0:ebff:feaa:bb01/64"),
        ],
        OFF,
    ),
}


def create_tree(root: Path, machine: Machine) -> Tree:
    for number in range(machine.gpus):
        (root / "dev").mkdir(exist_ok=True)
        (root / f"dev/nvidia{number}").touch()
    for card in machine.cards:
        if card.interface and card.device:
            (root / f"sys/class/net/{card.interface}/device/infiniband/{card.device}").mkdir(parents=True)
        if card.device:
            port = root / f"sys/class/infiniband/{card.device}/ports/1"
            port.mkdir(parents=True)
            for name, text in (("state", card.state), ("link_layer", card.layer), ("rate", f"{card.rate} Gb/sec")):
                (port / name).write_text(f"{text}\n", encoding="utf-8")
            (port.parents[1] / "board_id").write_text(f"{card.board}\n", encoding="utf-8")
    return Tree(str(root))


def print_addresses(machine: Machine) -> str:
    links = []
    for card in machine.cards:
        address = ipaddress.ip_interface(card.address) if card.address else None
        entry = address and {
            "family": "inet" if address.version == 4 else "inet6",
            "local": str(address.ip),
            "prefixlen": address.network.prefixlen,
            "scope": "link" if address.is_link_local else "global",
        }
        kind = "infiniband" if card.layer == IB else "ether"
        link = {"ifname": card.interface, "flags": ["UP"], "mtu": 1500, "link_type": kind}
        links += [{**link, "addr_info": [entry] if entry else []}] if card.interface else []
    return json.dumps(links)


@pytest.mark.parametrize("name", MACHINES)
def test_nccl_uses_the_ports_of_the_clusters_fabric(name: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    interface, address = machine.cluster
    own_address = ipaddress.ip_interface(address)
    members = {"n1": str(own_address.ip), "n2": str(own_address.ip + 1)}
    settings: dict[str, Any] = {
        "members": members,
        "interface": interface,
        "rdma": {"devices": [], "peers": [*members]},
    }
    found = host.read_job_host(
        lambda *_args, **_options: CommandResult(0, print_addresses(machine), ""),
        create_tree(tmp_path, machine),
        settings,
    )
    conf = files.render_nccl_conf(files.add_rdma_devices(settings, found, rdma_enabled=True))
    conf_lines = [line for line in conf.splitlines() if not line.startswith("#")]
    assert conf_lines == [f"NCCL_SOCKET_IFNAME=={interface}", *machine.expected]
