# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bandwidths that healthy hardware reaches, as data.

Values are the bus bandwidth of all_reduce at large messages, in 10^9 bytes/s. ``required_gbps`` is what a healthy
system must reach: given by the source, or nine tenths of the typical value. They apply to all GPUs of a machine
together; other numbers of GPUs have no entry, and are not judged. The user's own entries take precedence.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Sequence


class MachineBandwidth(NamedTuple):
    """One machine whose GPUs are linked with each other."""

    gpu_pattern: str
    gpu_count: int
    typical_gbps: float
    required_gbps: float
    source: str


class FabricBandwidth(NamedTuple):
    """The rate of one network card of ``nic_gbps`` between nodes, in 10^9 bytes/s."""

    kind: str
    nic_gbps: float
    typical_gbps: float
    source: str


_TYPICAL_NOTE = "typical of healthy machines; the threshold is nine tenths of it"

MACHINE_BANDWIDTHS = (
    MachineBandwidth(r"\bB200\b", 8, 838.0, 754.0, f"8 × B200, NVLink 5: {_TYPICAL_NOTE}"),
    MachineBandwidth(r"\bH200\b", 8, 473.0, 431.0, "8 × H200, NVLink 4: 473 to 482 typical; acceptance threshold 431"),
    MachineBandwidth(r"\bH100\b", 8, 480.0, 460.0, "8 × H100, NVLink 4: 480 typical; acceptance threshold 460"),
    MachineBandwidth(r"\bA100\b", 8, 233.0, 210.0, f"8 × A100, NVLink 3: {_TYPICAL_NOTE}"),
    MachineBandwidth(r"\bMI300X\b", 8, 313.0, 282.0, f"8 × MI300X, Infinity Fabric: {_TYPICAL_NOTE}"),
    MachineBandwidth(r"RTX 4090", 2, 2.0, 1.5, "2 × RTX 4090 over PCIe, without peer-to-peer: 2 to 4 typical"),
)

#: Cards for a PCIe slot, such as "NVIDIA H100 PCIe", "NVIDIA H200 NVL" and "NVIDIA A100-PCIE-40GB". They have the chip
#: of these machines, but at most bridges between some of them, so their bandwidth differs.
_PCIE_CARD_NAME = re.compile(r"\b(?:PCIe|NVL)\b", re.IGNORECASE)

FABRIC_BANDWIDTHS = (
    FabricBandwidth("rdma", 100.0, 12.0, "a 100 Gbit/s NIC with RDMA reaches 12 GB/s"),
    FabricBandwidth("rdma", 200.0, 24.0, "a 200 Gbit/s NIC with RDMA reaches 24 GB/s"),
    FabricBandwidth("rdma", 400.0, 48.0, "a 400 Gbit/s NIC with RDMA reaches 48 GB/s"),
    FabricBandwidth("tcp", 100.0, 5.0, "TCP over a 100 Gbit/s NIC reaches about 5 GB/s"),
)
_WIRE_SHARE = 0.8

#: Messages from this size on are large: below it, latency matters too, and the table does not apply.
LARGE_BYTES = 1 << 30


class CustomThreshold(NamedTuple):
    """An entry of the user's. None matches everything."""

    min_busbw_gbps: float
    collective: Optional[str] = None
    gpu: Optional[str] = None
    gpus: Optional[int] = None
    nodes: Optional[int] = None
    source: Optional[str] = None


class Threshold(NamedTuple):
    """A gate and its source. ``is_wire_rate``: it is the rate of the network, so Ring is compared with it."""

    required_gbps: float
    source: str
    is_wire_rate: bool = False


class RunDescription(NamedTuple):
    """The run for which a threshold is looked up."""

    collective: Optional[str]
    device_names: Sequence[str]
    node_count: int
    largest_bytes: int


def fabric_threshold(nic_gbps: float, nics: int, kind: str = "rdma") -> Threshold:
    """The gate for several nodes, each with ``nics`` cards of ``nic_gbps`` Gbit/s: four fifths of the cards' rate."""
    known_fabrics = [fabric for fabric in FABRIC_BANDWIDTHS if fabric.kind == kind]
    # A rate that is not in the table is scaled from the nearest one.
    nearest = min(known_fabrics, key=lambda fabric: abs(fabric.nic_gbps - nic_gbps))
    typical_rate = nearest.typical_gbps * nic_gbps / nearest.nic_gbps * nics
    return Threshold(
        round(typical_rate * _WIRE_SHARE, 2), f"{nics} × {nearest.source}; the threshold is 80 % of it", True
    )


def _applies_to(custom_threshold: CustomThreshold, run_description: RunDescription) -> bool:
    return (
        custom_threshold.collective in (None, run_description.collective)
        and custom_threshold.nodes in (None, run_description.node_count)
        and custom_threshold.gpus in (None, len(run_description.device_names))
        and (
            custom_threshold.gpu is None
            or (
                bool(run_description.device_names)
                and all(re.search(custom_threshold.gpu, name) for name in run_description.device_names)
            )
        )
    )


def _matches_machine(name: str, machine: MachineBandwidth) -> bool:
    return bool(re.search(machine.gpu_pattern, name)) and not _PCIE_CARD_NAME.search(name)


def find_threshold(
    run_description: RunDescription,
    nic_gbps: Optional[float] = None,
    nic_count: int = 1,
    fabric_kind: str = "rdma",
    custom_thresholds: Sequence[CustomThreshold] = (),
) -> Optional[Threshold]:
    """The gate for what was run; None if neither the user nor the table has one, or the messages are too small."""
    for entry in custom_thresholds:
        if _applies_to(entry, run_description):
            return Threshold(entry.min_busbw_gbps, entry.source or "your own entry")
    if run_description.collective != "all_reduce" or run_description.largest_bytes < LARGE_BYTES:
        return None
    if run_description.node_count > 1:
        return fabric_threshold(nic_gbps, nic_count, fabric_kind) if nic_gbps else None
    for machine in MACHINE_BANDWIDTHS:
        if len(run_description.device_names) == machine.gpu_count and all(
            _matches_machine(name, machine) for name in run_description.device_names
        ):
            return Threshold(machine.required_gbps, machine.source)
    return None
