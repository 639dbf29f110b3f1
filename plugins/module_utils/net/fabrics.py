# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detect a cloud's own fabric, AWS EFA or Google's GPUDirect-TCPX, from files only, without a metadata service."""

from __future__ import annotations

from typing import List, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.net.shapes import Gpus, Hint, PciDevice, RdmaPort
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Nic, Tree

_AMAZON = "1d0f"
_EFA_LIBRARY = "opt/amazon/efa"
#: Where Google's guides install the NCCL plugin for TCPX, TCPXO and their daemon.
_TCPX_PLACES = ("var/lib/tcpx", "var/lib/tcpxo", "usr/local/tcpx", "run/tcpx")
#: An A3 machine has one gVNIC for the host and four (TCPX) or eight (TCPXO) for the GPUs.
_TCPX_NICS = 5


def efa_hint(tree: Tree, ports: Sequence[RdmaPort], pci_devices: Sequence[PciDevice]) -> Hint:
    """EFA is an RDMA device with the driver efa; on the PCI bus it is Amazon's device efa0 and above."""
    devices = sorted({port["device"] for port in ports if port["driver"] == "efa"})
    on_bus = [
        device["address"]
        for device in pci_devices
        if device["vendor"] == _AMAZON and device["device"].startswith("efa")
    ]
    reasons: List[str] = []
    if devices:
        reasons.append(f"RDMA devices with driver efa: {', '.join(devices)}")
    elif on_bus:
        reasons.append(f"EFA on the PCI bus without its driver: {', '.join(on_bus)}")
    if reasons and not tree.exists(_EFA_LIBRARY):
        reasons.append(f"libfabric for EFA is not installed in /{_EFA_LIBRARY}")
    return {"present": bool(devices), "devices": devices or on_bus, "reasons": reasons}


def gpudirect_tcpx_hint(tree: Tree, nics: Mapping[str, Nic], gpus: Gpus) -> Hint:
    """Several gVNICs in addition to GPUs, or the plugin's own folder."""
    devices = sorted(name for name, nic in nics.items() if nic.driver == "gve")
    reasons: List[str] = []
    if len(devices) >= _TCPX_NICS and gpus["count"]:
        reasons.append(f"{len(devices)} gVNIC interfaces and {gpus['count']} GPUs")
    reasons += [f"/{place} exists" for place in _TCPX_PLACES if tree.exists(place)]
    return {"present": bool(reasons), "devices": devices if reasons else [], "reasons": reasons}
