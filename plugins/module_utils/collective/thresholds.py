# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bandwidths that healthy hardware reaches, as data.

Values are the bus bandwidth of all_reduce at large messages, in 10^9 bytes/s. ``gate`` is what a healthy system must
reach: given by the source, or nine tenths of the typical value. They apply to all GPUs of a machine together; other
numbers of GPUs have no entry, and are not judged. The user's own entries take precedence.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Sequence


class Machine(NamedTuple):
    """One machine whose GPUs are linked with each other."""

    pattern: str
    gpus: int
    typical: float
    gate: float
    source: str


class Fabric(NamedTuple):
    """The rate of one network card of ``nic_gbps`` between nodes, in 10^9 bytes/s."""

    kind: str
    nic_gbps: float
    typical: float
    source: str


_TYPICAL = "typical of healthy machines; the threshold is nine tenths of it"

MACHINES = (
    Machine(r"\bB200\b", 8, 838.0, 754.0, f"8 × B200, NVLink 5: {_TYPICAL}"),
    Machine(r"\bH200\b", 8, 473.0, 431.0, "8 × H200, NVLink 4: 473 to 482 typical; acceptance threshold 431"),
    Machine(r"\bH100\b", 8, 480.0, 460.0, "8 × H100, NVLink 4: 480 typical; acceptance threshold 460"),
    Machine(r"\bA100\b", 8, 233.0, 210.0, f"8 × A100, NVLink 3: {_TYPICAL}"),
    Machine(r"\bMI300X\b", 8, 313.0, 282.0, f"8 × MI300X, Infinity Fabric: {_TYPICAL}"),
    Machine(r"RTX 4090", 2, 2.0, 1.5, "2 × RTX 4090 over PCIe, without peer-to-peer: 2 to 4 typical"),
)

#: Cards for a PCIe slot, such as "NVIDIA H100 PCIe", "NVIDIA H200 NVL" and "NVIDIA A100-PCIE-40GB". They have the chip
#: of these machines, but at most bridges between some of them, so their bandwidth differs.
_IN_A_SLOT = re.compile(r"\b(?:PCIe|NVL)\b", re.IGNORECASE)

FABRICS = (
    Fabric("rdma", 100.0, 12.0, "a 100 Gbit/s NIC with RDMA reaches 12 GB/s"),
    Fabric("rdma", 200.0, 24.0, "a 200 Gbit/s NIC with RDMA reaches 24 GB/s"),
    Fabric("rdma", 400.0, 48.0, "a 400 Gbit/s NIC with RDMA reaches 48 GB/s"),
    Fabric("tcp", 100.0, 5.0, "TCP over a 100 Gbit/s NIC reaches about 5 GB/s"),
)
_SHARE_OF_WIRE = 0.8

#: Messages from this size on are large: below it, latency matters too, and the table does not apply.
LARGE_BYTES = 1 << 30


class Own(NamedTuple):
    """An entry of the user's. None matches everything."""

    min_busbw_gbps: float
    collective: Optional[str] = None
    gpu: Optional[str] = None
    gpus: Optional[int] = None
    nodes: Optional[int] = None
    source: Optional[str] = None


class Threshold(NamedTuple):
    """A gate and its source. ``wire``: it is the rate of the network, so Ring is compared with it."""

    gbps: float
    source: str
    wire: bool = False


class Ran(NamedTuple):
    """What was run, by which a threshold is looked up."""

    collective: Optional[str]
    names: Sequence[str]
    nodes: int
    largest_bytes: int


def between_nodes(nic_gbps: float, nics: int, kind: str = "rdma") -> Threshold:
    """The gate for several nodes, each with ``nics`` cards of ``nic_gbps`` Gbit/s: four fifths of the cards' rate."""
    known = [fabric for fabric in FABRICS if fabric.kind == kind]
    # A rate that is not in the table is scaled from the nearest one.
    nearest = min(known, key=lambda fabric: abs(fabric.nic_gbps - nic_gbps))
    carried = nearest.typical * nic_gbps / nearest.nic_gbps * nics
    return Threshold(
        round(carried * _SHARE_OF_WIRE, 2), f"{nics} × {nearest.source}; the threshold is 80 % of it", True
    )


def _fits(own: Own, ran: Ran) -> bool:
    return (
        own.collective in (None, ran.collective)
        and own.nodes in (None, ran.nodes)
        and own.gpus in (None, len(ran.names))
        and (own.gpu is None or (bool(ran.names) and all(re.search(own.gpu, name) for name in ran.names)))
    )


def _is_of(name: str, machine: Machine) -> bool:
    return bool(re.search(machine.pattern, name)) and not _IN_A_SLOT.search(name)


def look_up(
    ran: Ran,
    nic_gbps: Optional[float] = None,
    nics: int = 1,
    kind: str = "rdma",
    own: Sequence[Own] = (),
) -> Optional[Threshold]:
    """The gate for what was run; None if neither the user nor the table has one, or the messages are too small."""
    for entry in own:
        if _fits(entry, ran):
            return Threshold(entry.min_busbw_gbps, entry.source or "your own entry")
    if ran.collective != "all_reduce" or ran.largest_bytes < LARGE_BYTES:
        return None
    if ran.nodes > 1:
        return between_nodes(nic_gbps, nics, kind) if nic_gbps else None
    for machine in MACHINES:
        if len(ran.names) == machine.gpus and all(_is_of(name, machine) for name in ran.names):
            return Threshold(machine.gate, machine.source)
    return None
