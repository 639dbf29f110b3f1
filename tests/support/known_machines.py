# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Known machines: their network cards and GPUs, and the files that the kernel has for them.

``source`` shows the names of the devices, their link layer and the number of GPUs, unless ``assumed`` names these. What
the source does not say is assumed, and named so. The states, formats and links are those of the kernel:
Documentation/ABI/stable/sysfs-class-infiniband, and drivers/infiniband/core/sysfs.c. PCI addresses are made up.
"""

from __future__ import annotations

import ipaddress
import json
import os
from pathlib import Path
from typing import NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

IB, ROCE, EFA = "InfiniBand", "Ethernet", "Unspecified"
DOWN = "1: DOWN"
#: The kernel's names of rates.
_RATES = {10: "4X SDR", 25: "1X EDR", 40: "4X QDR", 100: "4X EDR", 200: "4X HDR", 400: "4X NDR"}
#: Vendor, device and driver of a card by the start of its RDMA device's name, or by the driver of one without RDMA.
_KINDS = {
    "mlx5": ("15b3", "1021", "mlx5_core"),  # all of them the same chip, so that only the board tells models apart
    "roce": ("15b3", "1021", "mlx5_core"),
    "ibp": ("15b3", "1021", "mlx5_core"),
    "bnxt": ("14e4", "1760", "bnxt_en"),
    "rdma": ("1d0f", "efa1", "efa"),
    "gve": ("1ae0", "0042", "gve"),
    "": ("8086", "1563", "ixgbe"),
}


class Card(NamedTuple):
    """A port of a card: its RDMA device (empty without RDMA), interface (empty without one), layer, rate, address.

    ``board``: the model of the card. ``bond``: the interface above, which has the address. ``is_bridge``: it leads to the
    NVSwitches of the board. ``driver``: of a card without RDMA, if it matters.
    """

    device: str
    interface: str
    layer: str
    rate: int
    address: str = ""
    board: str = ""
    state: str = "4: ACTIVE"
    bond: str = ""
    is_bridge: bool = False
    driver: str = ""


class Machine(NamedTuple):
    """A machine, its cluster interface and address, and whether a member is at another site."""

    source: str
    assumed: str
    gpus: int
    cluster: tuple[str, str]
    cards: list[Card]
    gpu_vendor: str = "nvidia"
    is_split: bool = False


def rails(
    device: str, count: int, rate: int, layer: str = ROCE, first: int = 0, board: str = "", suffix: str = ""
) -> list[Card]:
    """Ports with numbered devices, each in a network of its own."""
    return [
        Card(
            f"{device}{number}{suffix}",
            "" if layer == EFA else f"rail{number}",
            layer,
            rate,
            f"10.10.{number}.7/24" if layer == ROCE else "",
            board,
        )
        for number in range(first, first + count)
    ]


def chosen(device: str, numbers: list[int], rate: int, layer: str, board: str) -> list[Card]:
    """Ports with these numbers, of one model of card."""
    return [card for number in numbers for card in rails(device, 1, rate, layer, number, board)]


MANAGEMENT = Card("", "eno1", "", 10, "10.1.0.7/24")
_EFA_NUMBERS = [*range(79, 83), *range(96, 100), *range(113, 117), *range(130, 134)]
_EFA_NUMBERS += [*range(147, 151), *range(164, 168), *range(181, 185), *range(198, 202)]
_B300_NUMBERS = [*range(86, 90), *range(111, 115), *range(136, 140), *range(189, 193)]
_P6_CARDS = [
    Card("", "enp71s0", "", 100, "172.31.47.177/20"),
    *(Card(f"rdmap{number}s0", "", EFA, 400) for number in _B300_NUMBERS),
    Card("ibp198s0f0", "ibp198s0f0", IB, 400, is_bridge=True),
    Card("ibp199s0f0", "ibp199s0f0", IB, 400, is_bridge=True),
]
_A3_MEGA_CARDS = [
    Card("", "enp0s12", "", 0, "10.128.0.9/32", driver="gve"),
    *(Card("", f"enp{bus}s0", "", 0, f"10.{bus}.0.9/32", driver="gve") for bus in (6, 7, 13, 14, 134, 135, 141, 142)),
]
_B200_RAILS = [
    *rails("mlx5_", 8, 400, board="compute"),
    *(
        Card(f"mlx5_{number}", f"ibp9s0f{number - 8}", IB, 400, "", "bridge", is_bridge=number == 8)
        for number in range(8, 12)
    ),
]

MACHINES = {
    # The machines that are named in the requirements, and variants of them.
    "DGX A100, Ethernet for storage": Machine(
        "https://github.com/rapidsai/ucx-py/issues/749 (nvidia-smi topo -m: 0-3 and 6-9 are next to GPUs)",
        "the storage ports are Ethernet; which of them has the cluster's address; the addresses",
        8,
        ("enp225s0f0", "10.1.0.7/24"),
        [
            *chosen("mlx5_", [0, 1, 2, 3, 6, 7, 8, 9], 200, IB, "MT_0000000223"),
            Card("mlx5_4", "enp97s0f0", ROCE, 100, "10.50.0.7/24", "MT_0000000224"),
            Card("mlx5_5", "enp97s0f1", ROCE, 10, "", "MT_0000000224", DOWN),
            Card("mlx5_10", "enp225s0f0", ROCE, 100, "10.1.0.7/24", "MT_0000000224"),
            Card("mlx5_11", "enp225s0f1", ROCE, 10, "", "MT_0000000224", DOWN),
        ],
    ),
    "DGX A100, InfiniBand of the same rate for storage": Machine(
        "https://github.com/NVIDIA/nccl/issues/1505 (mlx5_4 is a second model of card, InfiniBand at 200 Gbit/s)",
        "the identifiers of the models; the management card; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [
            MANAGEMENT,
            *chosen("mlx5_", [0, 1, 2, 3, 6, 7, 8, 9], 200, IB, "MT_0000000223"),
            *chosen("mlx5_", [4, 10], 200, IB, "MT_0000000224"),
        ],
    ),
    "DGX H100, Ethernet for storage": Machine(
        "https://docs.nvidia.com/dgx/dgxh100-user-guide/ (table 6), https://github.com/NVIDIA/nccl-tests/issues/185",
        "the names and rates of the storage ports; the identifiers of the models; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [
            MANAGEMENT,
            *chosen("mlx5_", [0, 3, 4, 5, 6, 9, 10, 11], 400, IB, "compute"),
            Card("mlx5_1", "enp41s0f0np0", ROCE, 200, "10.50.0.7/24", "storage"),
            Card("mlx5_2", "enp41s0f1np1", ROCE, 200, "10.50.1.7/24", "storage"),
            Card("mlx5_7", "enp170s0f0np0", ROCE, 200, "10.50.2.7/24", "storage"),
            Card("mlx5_8", "enp170s0f1np1", ROCE, 200, "10.50.3.7/24", "storage"),
        ],
    ),
    "DGX H100, slower InfiniBand for storage": Machine(
        "https://docs.nvidia.com/dgx/dgxh100-user-guide/ (table 6)",
        "storage is connected by HDR; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [
            MANAGEMENT,
            *chosen("mlx5_", [0, 3, 4, 5, 6, 9, 10, 11], 400, IB, "compute"),
            *chosen("mlx5_", [1, 7], 200, IB, "storage"),
        ],
    ),
    "DGX H100, InfiniBand of the same rate for storage": Machine(
        "https://docs.nvidia.com/dgx/dgxh100-user-guide/ (table 6)",
        "storage is connected by NDR; the identifiers of the models; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [
            MANAGEMENT,
            *chosen("mlx5_", [0, 3, 4, 5, 6, 9, 10, 11], 400, IB, "compute"),
            *chosen("mlx5_", [1, 2, 7, 8], 400, IB, "storage"),
        ],
    ),
    "DGX H100, one link down": Machine(
        "https://docs.nvidia.com/dgx/dgxh100-user-guide/ (table 6)",
        "storage is connected by NDR; the identifiers of the models; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [
            MANAGEMENT,
            *chosen("mlx5_", [0, 3, 4, 5, 6, 9, 10], 400, IB, "compute"),
            Card("mlx5_11", "ibp220s0", IB, 10, board="compute", state=DOWN),
            *chosen("mlx5_", [1, 2, 7, 8], 400, IB, "storage"),
        ],
    ),
    "DGX H100, a member at another site": Machine(
        "https://docs.nvidia.com/dgx/dgxh100-user-guide/ (table 6)",
        "all but the ports of the GPUs",
        8,
        ("gpumesh0", "10.99.0.1/24"),
        [MANAGEMENT, *chosen("mlx5_", [0, 3, 4, 5, 6, 9, 10, 11], 400, IB, "compute")],
        is_split=True,
    ),
    "HGX H200, 8 rails, cluster on a management card": Machine(
        "https://docs.nvidia.com/enterprise-reference-architectures/",
        "the management card is a ConnectX of 25 Gbit/s, which has RoCE too; the names; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [Card("mlx5_8", "eno1", ROCE, 25, "10.1.0.7/24", "management"), *rails("mlx5_", 8, 400)],
    ),
    "HGX H200, 8 rails, cluster on the first": Machine(
        "https://docs.nvidia.com/enterprise-reference-architectures/",
        "a storage card of 200 Gbit/s; the names; the addresses",
        8,
        ("rail0", "10.10.0.7/24"),
        [*rails("mlx5_", 8, 400), Card("mlx5_8", "ens9", ROCE, 200, "10.50.0.7/24", "storage")],
    ),
    "HGX B200, RoCE rails and bridges to the NVSwitches": Machine(
        "https://github.com/siderolabs/extensions/issues/893 (mlx5_8 to mlx5_11 are four functions of one bridge)",
        "the rails are RoCE; the bridges are as fast as rails, and only one function has the marker; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [MANAGEMENT, *_B200_RAILS],
    ),
    "HGX B200, BlueField-3 for storage": Machine(
        "https://docs.nvidia.com/enterprise-reference-architectures/",
        "the DPUs are as fast as the rails; the identifiers of the models; the names; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [
            MANAGEMENT,
            *rails("mlx5_", 8, 400, board="compute"),
            Card("mlx5_8", "dpu0", ROCE, 400, "10.50.0.7/24", "storage"),
            Card("mlx5_9", "dpu1", ROCE, 400, "10.50.1.7/24", "storage"),
        ],
    ),
    "DGX B200, cluster on a bond": Machine(
        "https://github.com/NVIDIA/nccl/issues/1646 (NCCL_IB_HCA and NCCL_SOCKET_IFNAME that its users set)",
        "0 to 3 are the bridge to the NVSwitches, 5, 6, 11 and 12 the BlueField-3 cards; their rates; the addresses",
        8,
        ("bond0", "10.1.0.7/24"),
        [
            *(Card(f"mlx5_{number}", f"ibp9s0f{number}", IB, 400, "", "bridge", is_bridge=True) for number in range(4)),
            *chosen("mlx5_", [4, 7, 8, 9, 10, 13, 14, 15], 400, IB, "compute"),
            Card("mlx5_5", "enp41s0f0np0", ROCE, 200, "10.1.0.7/24", "dpu", bond="bond0"),
            Card("mlx5_6", "enp41s0f1np1", ROCE, 200, "10.50.0.7/24", "dpu"),
            Card("mlx5_11", "enp170s0f0np0", ROCE, 200, "10.1.0.7/24", "dpu", bond="bond0"),
            Card("mlx5_12", "enp170s0f1np1", ROCE, 200, "10.50.1.7/24", "dpu"),
        ],
    ),
    "p5.48xlarge": Machine(
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html, https://github.com/aws/eks-charts/pull/1144",
        "the interface; the addresses; the numbers of the last devices",
        8,
        ("ens32", "10.1.0.7/24"),
        [
            Card("", "ens32", "", 100, "10.1.0.7/24"),
            *(Card(f"rdmap{number}s0", "", EFA, 100) for number in _EFA_NUMBERS),
        ],
    ),
    "p5.48xlarge, a member at another site": Machine(
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html, https://github.com/aws/eks-charts/pull/1144",
        "all but the devices",
        8,
        ("gpumesh0", "10.99.0.1/24"),
        [
            Card("", "ens32", "", 100, "10.1.0.7/24"),
            *(Card(f"rdmap{number}s0", "", EFA, 100) for number in _EFA_NUMBERS),
        ],
        is_split=True,
    ),
    "p6-b300.48xlarge": Machine(
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html; public notes (2026-04-20) with ibv_devinfo: 16 "
        "rdmap86s0 to rdmap192s0, and ibp198s0f0 and ibp199s0f0, which NCCL chooses, with local access violations",
        "the numbers of the devices between these; the rate of the bridges; the prefix of the address",
        8,
        ("enp71s0", "172.31.47.177/20"),
        _P6_CARDS,
    ),
    "p6-b300.48xlarge, a member at another site": Machine(
        "as above", "as above", 8, ("gpumesh0", "10.99.0.1/24"), _P6_CARDS, is_split=True
    ),
    "a3-megagpu-8g": Machine(
        "https://github.com/GoogleCloudPlatform/cluster-toolkit (NCCL_FASTRAK_IFNAME of a3-megagpu-8g)",
        "the addresses",
        8,
        ("enp0s12", "10.128.0.9/32"),
        _A3_MEGA_CARDS,
    ),
    "a3-megagpu-8g, a member at another site": Machine(
        "as above", "as above", 8, ("gpumesh0", "10.99.0.1/24"), _A3_MEGA_CARDS, is_split=True
    ),
    "ND H100 v5, an InfiniBand VM": Machine(
        "https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/ndh100v5-series, and "
        "https://github.com/Azure/azhpc-diagnostics/issues/59 (mlx5_an0 has a rate of 40 Gbit/s)",
        "the addresses",
        8,
        ("eth0", "10.1.0.7/24"),
        [Card("mlx5_an0", "eth1", ROCE, 40, "10.1.0.7/24", bond="eth0"), *rails("mlx5_ib", 8, 400, IB)],
    ),
    "two RTX 4090": Machine("any workstation", "the addresses", 2, ("eno1", "10.1.0.7/24"), [MANAGEMENT]),
    "two RTX 4090 and a card with two ports, one for storage": Machine(
        "any workstation with a ConnectX-5",
        "the addresses",
        2,
        ("ens1f0", "10.1.0.7/24"),
        [
            Card("mlx5_0", "ens1f0", ROCE, 100, "10.1.0.7/24"),
            Card("mlx5_1", "ens1f1", ROCE, 100, "10.50.0.7/24"),
        ],
    ),
    "MI300X with RoCE": Machine(
        "https://rocm.docs.amd.com/projects/gpu-cluster-networking/ (NCCL_IB_HCA of bnxt_re0 to bnxt_re7)",
        "the management card has no RDMA; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [MANAGEMENT, *rails("bnxt_re", 8, 400)],
        "amd",
    ),
    "MI300X with RoCE, two ports of the front end": Machine(
        "scripts of the ROCm project for Megatron-LM: NCCL_IB_HCA=bnxt_re0,bnxt_re1,bnxt_re2,bnxt_re3,bnxt_re6,bnxt_re7,"
        "bnxt_re8,bnxt_re9 and NCCL_SOCKET_IFNAME=ens51f0np0",
        "4 and 5 are the front end, a card of another model, at 200 Gbit/s; the addresses",
        8,
        ("ens51f0np0", "10.1.0.7/24"),
        [
            *chosen("bnxt_re", [0, 1, 2, 3, 6, 7, 8, 9], 400, ROCE, ""),
            Card("bnxt_re4", "ens51f0np0", ROCE, 200, "10.1.0.7/24", "front end"),
            Card("bnxt_re5", "ens51f1np1", ROCE, 200, "10.50.0.7/24", "front end"),
        ],
        "amd",
    ),
    "MI300X with RoCE, IPv6 addresses only": Machine(
        "https://github.com/uccl-project/uccl/pull/803 (identifiers of bnxt_re: fe80:: and fd93::)",
        "the GPUs and the management card; the addresses",
        8,
        ("eno1", "10.1.0.7/24"),
        [
            MANAGEMENT,
            *(card._replace(address=f"fd93:16d3:{n}::7/64") for n, card in enumerate(rails("bnxt_re", 8, 400))),
        ],
        "amd",
    ),
    "GH200, one InfiniBand port, cluster on a bond": Machine(
        "https://github.com/NVIDIA/nccl/issues/1291 (two ports of 100GbE in bond0, and NCCL_IB_HCA=mlx5_2)",
        "the bond has one RDMA device for both ports; the identifiers of the models; the addresses",
        1,
        ("bond0", "10.1.0.7/24"),
        [
            Card("mlx5_bond_0", "enP2p1s0f0", ROCE, 100, "10.1.0.7/24", "ethernet", bond="bond0"),
            Card("mlx5_2", "ib0", IB, 400, "fe80::a288:c203:d2:aaf2/64", "compute"),
        ],
    ),
    # Outputs that people have published.
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
    ),
    "H100 with InfiniBand but no IPoIB": Machine(
        "https://github.com/imbue-ai/cluster-health/issues/4 (ibdev2netdev and the model of each card)",
        "which port has the cluster's address; the rates and identifiers of the models; the addresses",
        8,
        ("enp27s0f0np0", "10.1.0.7/24"),
        [
            *chosen("mlx5_", [0, 3, 4, 5, 6, 9, 10, 11], 400, IB, "CX-7"),
            Card("mlx5_1", "enp27s0f0np0", ROCE, 100, "10.1.0.7/24", "CX-6"),
            Card("mlx5_2", "enp27s0f1np1", ROCE, 10, "", "CX-6", DOWN),
            Card("mlx5_7", "enp157s0f0np0", ROCE, 100, "10.50.0.7/24", "CX-6"),
            Card("mlx5_8", "enp157s0f1np1", ROCE, 10, "", "CX-6", DOWN),
        ],
    ),
    "H20 with one rail for two GPUs": Machine(
        "https://github.com/deepseek-ai/DeepEP/issues/17 (ibstatus: mlx5_0 at 200, mlx5_1 to mlx5_4 at 400 Gbit/s)",
        "mlx5_4 is as the others, mlx5_0 of another model; the names of the interfaces; the addresses",
        8,
        ("eth0", "10.1.0.7/24"),
        [Card("mlx5_0", "eth0", ROCE, 200, "10.1.0.7/24", "front end"), *rails("mlx5_", 4, 400, first=1)],
    ),
    "8 rails with /31 networks, cluster on a bond of two cards": Machine(
        "https://github.com/devopsrustem/slurmv4 (ip -br address, ibdev2netdev, nvidia-smi topo -m, NCCL_IB_HCA of tpgds-aihub0007)",
        "the rates and models of the cards",
        8,
        ("bond0", "10.73.175.137/29"),
        [
            *(
                Card(f"mlx5_{number}", interface, ROCE, 400, f"10.99.{network}.59/31", "rail")
                for number, interface, network in (
                    (0, "enp25s0np0", 91),
                    (1, "enp41s0np0", 92),
                    (2, "enp59s0np0", 93),
                    (5, "enp92s0np0", 94),
                    (6, "enp155s0np0", 95),
                    (7, "enp170s0np0", 96),
                    (8, "enp187s0np0", 97),
                    (11, "enp218s0np0", 98),
                )
            ),
            Card("mlx5_3", "enp83s0f0np0", ROCE, 200, "10.73.175.137/29", "two ports", bond="bond0"),
            Card("mlx5_4", "enp83s0f1np1", ROCE, 10, "", "two ports", DOWN),
            Card("mlx5_9", "enp210s0f0np0", ROCE, 200, "10.73.175.137/29", "two ports", bond="bond0"),
            Card("mlx5_10", "enp210s0f1np1", ROCE, 10, "", "two ports", DOWN),
        ],
    ),
    "8 bonds for rails, and one for management": Machine(
        "https://github.com/NVIDIA/nccl/issues/997 (NET/IB : Using mlx5_bond_0 to mlx5_bond_8; OOB bond1:30.14.4.51)",
        "mlx5_bond_0 is for management, another model; the rates; the prefix of the address; all other addresses",
        8,
        ("bond1", "30.14.4.51/26"),
        [
            Card("mlx5_bond_0", "eth0", ROCE, 100, "10.1.0.7/24", "management", bond="bond0"),
            *(
                Card(f"mlx5_bond_{number}", f"eth{2 * number}", ROCE, 100, address, "rail", bond=f"bond{number}")
                for number, address in enumerate(["30.14.4.51/26", *(f"30.14.{n}.51/26" for n in range(5, 12))], 1)
            ),
        ],
    ),
    "BM.GPU.H100.8, two ports for each GPU": Machine(
        "https://docs.oracle.com/iaas/Content/Compute/References/computeshapes.htm; public notes with ibdev2netdev: eth0 is "
        "mlx5_2, eth1 mlx5_11",
        "the addresses; the identifiers of the models",
        8,
        ("eth0", "10.1.0.7/24"),
        [
            *chosen("mlx5_", [0, 1, *range(3, 11), *range(12, 18)], 200, ROCE, "rail"),
            Card("mlx5_2", "eth0", ROCE, 100, "10.1.0.7/24", "ethernet"),
            Card("mlx5_11", "eth1", ROCE, 100, "10.50.0.7/24", "ethernet"),
        ],
    ),
    "HGX H100, one rail with a card of another model": Machine(
        "a repaired machine",
        "all",
        8,
        ("eno1", "10.1.0.7/24"),
        [MANAGEMENT, *rails("mlx5_", 7, 400, board="old"), *rails("mlx5_", 1, 400, first=7, board="new")],
    ),
    "two fast ports, cluster on a slower card with RoCE": Machine(
        "any server with a ConnectX-4 Lx for management",
        "the fast ports reach the other members; the addresses",
        4,
        ("eno1", "10.1.0.7/24"),
        [Card("mlx5_2", "eno1", ROCE, 25, "10.1.0.7/24", "management"), *rails("mlx5_", 2, 200)],
    ),
    "RoCE ports with link-local addresses only": Machine(
        "https://github.com/NVIDIA/nccl/issues/1053",
        "a management card without RDMA",
        8,
        ("eno1", "10.1.0.7/24"),
        [
            MANAGEMENT,
            Card("mlx5_0", "lan0", ROCE, 100, "fe80::ac0:ebff:fedd:ee01/64"),
            Card("mlx5_1", "lan1", ROCE, 100, "fe80::ac0:ebff:feaa:bb01/64"),
        ],
    ),
}


def create_tree(root: Path, machine: Machine) -> Tree:
    """Create the files of the kernel below ``root``."""
    for number in range(machine.gpus):
        _create_gpu(root, machine.gpu_vendor, number)
    for number, card in enumerate(machine.cards):
        _create_card(root, card, f"0000:{0x20 + number:02x}:00.0")
    bridge_cards = [card for card in machine.cards if card.board == "bridge"]
    for number, card in enumerate(bridge_cards):
        # Functions of one card.
        link = root / f"sys/class/infiniband/{card.device}"
        device = link.resolve().parents[1]
        moved = device.parent / f"0000:09:00.{number}"
        device.rename(moved)
        (root / f"sys/bus/pci/devices/{device.name}").unlink()
        for path, target in (
            (link, moved / "infiniband" / card.device),
            (root / f"sys/bus/pci/devices/{moved.name}", moved),
            (root / f"sys/class/net/{card.interface}", moved / "net" / card.interface),
        ):
            path.unlink(missing_ok=True)
            path.symlink_to(os.path.relpath(target, path.parent))
    return Tree(str(root))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def _create_pci_device(root: Path, address: str, ids: tuple[str, str], pci_class: str, board: str = "") -> Path:
    vendor, device = ids
    folder = root / f"sys/devices/pci0000:00/{address}"
    _write(folder / "vendor", f"0x{vendor}")
    _write(folder / "device", f"0x{device}")
    _write(folder / "subsystem_vendor", f"0x{vendor}")
    _write(folder / "subsystem_device", f"0x{sum(map(ord, board)):04x}")
    _write(folder / "numa_node", "0")
    numbers = f"v0000{vendor.upper()}d0000{device.upper()}sv00000000sd00000000"
    _write(folder / "modalias", f"pci:{numbers}bc{pci_class[:2]}sc{pci_class[2:]}i00")
    _link(root / f"sys/bus/pci/devices/{address}", folder)
    return folder


def _create_gpu(root: Path, vendor: str, number: int) -> None:
    address = f"0000:{0x80 + number:02x}:00.0"
    (root / "dev/dri").mkdir(parents=True, exist_ok=True)
    if vendor == "nvidia":
        _create_pci_device(root, address, ("10de", "2330"), "0302")
        (root / f"dev/nvidia{number}").touch()
    else:
        folder = _create_pci_device(root, address, ("1002", "74a1"), "1200")
        (root / "dev/kfd").touch()
        (root / f"dev/dri/renderD{128 + number}").touch()
        _link(root / f"sys/class/drm/renderD{128 + number}/device", folder)


def _create_card(root: Path, card: Card, address: str) -> None:
    kind = next(start for start in _KINDS if card.device.startswith(start) and (start or not card.device))
    vendor, device, driver = _KINDS[card.driver if not card.device else kind]
    pci_class = "0207" if card.layer == IB else "0200"
    folder = _create_pci_device(root, address, (vendor, device), pci_class, card.board)
    driver_folder = root / f"sys/bus/pci/drivers/{driver}"
    driver_folder.mkdir(parents=True, exist_ok=True)
    _link(folder / "driver", driver_folder)
    if card.interface:
        interface = folder / "net" / card.interface
        _write(interface / "dev_port", "0")
        _link(interface / "device", folder)
        _link(root / f"sys/class/net/{card.interface}", interface)
    if card.bond:
        (root / f"sys/devices/virtual/net/{card.bond}").mkdir(parents=True, exist_ok=True)
    if card.device:
        rdma = folder / "infiniband" / card.device
        _link(rdma / "device", folder)
        if driver == "mlx5_core":
            _write(rdma / "board_id", card.board)
        _create_port(rdma / "ports/1", card)
        _link(root / f"sys/class/infiniband/{card.device}", rdma)
    if card.is_bridge:
        (folder / "vpd").write_bytes(b"\x82\x2d\x00NVIDIA ConnectX-7 bridge\x90\x21\x00V0\x06SW_MNG\xff\x78")


def _create_port(port: Path, card: Card) -> None:
    is_active = card.state != DOWN
    _write(port / "state", card.state)
    _write(port / "phys_state", "5: LinkUp" if is_active else "3: Disabled")
    _write(port / "link_layer", card.layer)
    _write(port / "rate", f"{card.rate} Gb/sec ({_RATES[card.rate]})")
    link_local = f"fe80:0000:0000:0000:{sum(map(ord, card.device)):04x}:03ff:fe00:0001"
    gids = [link_local, link_local] if card.layer == ROCE else [link_local]
    if card.layer == ROCE and is_active and card.address and "fe80" not in card.address:
        octets = ipaddress.ip_interface(card.address).ip.packed
        mapped = f"0000:0000:0000:0000:0000:ffff:{octets[:2].hex()}:{octets[2:].hex()}"
        gids += [mapped if len(octets) == 4 else ipaddress.IPv6Address(octets).exploded] * 2
    # The kernel has up to 256.
    for index in range(6):
        has_gid = index < len(gids)
        _write(port / f"gids/{index}", gids[index] if has_gid else ":".join(["0000"] * 8))
        if has_gid and card.layer == ROCE:
            # Reading those of other entries, and of InfiniBand, fails: the kernel returns EINVAL.
            _write(port / f"gid_attrs/types/{index}", "RoCE v2" if index % 2 else "IB/RoCE v1")
            _write(port / f"gid_attrs/ndevs/{index}", card.bond or card.interface)


def print_addresses(machine: Machine) -> str:
    """What ``ip -j -d address`` prints, abridged."""
    links: dict[str, dict[str, object]] = {}
    for card in machine.cards:
        for name in filter(None, (card.interface, card.bond)):
            address = ipaddress.ip_interface(card.address) if card.address and name == (card.bond or name) else None
            entry = address and {
                "family": "inet" if address.version == 4 else "inet6",
                "local": str(address.ip),
                "prefixlen": address.network.prefixlen,
                "scope": "link" if address.is_link_local and address.version == 6 else "global",
            }
            kind = "infiniband" if card.layer == IB else "ether"
            link = {"ifname": name, "flags": ["UP"], "mtu": 1500, "link_type": kind}
            links[name] = {**link, "addr_info": [entry] if entry else []}
    interface, cluster_address = machine.cluster
    if interface not in links:
        mesh = ipaddress.ip_interface(cluster_address)
        entry = {"family": "inet", "local": str(mesh.ip), "prefixlen": mesh.network.prefixlen, "scope": "global"}
        links[interface] = {
            "ifname": interface,
            "flags": ["UP"],
            "mtu": 1420,
            "link_type": "none",
            "addr_info": [entry],
        }
    return json.dumps(list(links.values()))
