# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detect the fabric of a cloud, AWS EFA or Google's GPUDirect-TCPX, from files only, without a metadata service."""

from __future__ import annotations

from typing import List, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Nic, Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import (
    FabricHint,
    HostGpus,
    PciDevice,
    RdmaPort,
)

_AMAZON_VENDOR = "1d0f"
_EFA_LIBRARY = "opt/amazon/efa"
#: The paths at which Google's guides install the NCCL plugin for TCPX, TCPXO and their daemon.
_TCPX_PATHS = ("var/lib/tcpx", "var/lib/tcpxo", "usr/local/tcpx", "run/tcpx")
#: An A3 machine has one gVNIC for the host and four (TCPX) or eight (TCPXO) for the GPUs.
_MIN_TCPX_NICS = 5


def detect_efa(tree: Tree, rdma_ports: Sequence[RdmaPort], pci_devices: Sequence[PciDevice]) -> FabricHint:
    """Detect EFA: an RDMA device with the driver efa; on the PCI bus, Amazon's device efa0 and above."""
    efa_devices = sorted({port["device"] for port in rdma_ports if port["driver"] == "efa"})
    bus_addresses = [
        device["address"]
        for device in pci_devices
        if device["vendor"] == _AMAZON_VENDOR and device["device"].startswith("efa")
    ]
    reasons: List[str] = []
    if efa_devices:
        reasons.append(f"RDMA devices with driver efa: {', '.join(efa_devices)}")
    elif bus_addresses:
        reasons.append(f"EFA on the PCI bus without its driver: {', '.join(bus_addresses)}")
    if reasons and not tree.exists(_EFA_LIBRARY):
        reasons.append(f"libfabric for EFA is not installed in /{_EFA_LIBRARY}")
    return {"present": bool(efa_devices), "devices": efa_devices or bus_addresses, "reasons": reasons}


def detect_gpudirect_tcpx(tree: Tree, nic_by_name: Mapping[str, Nic], gpus: HostGpus) -> FabricHint:
    """Detect GPUDirect-TCPX: several gVNICs in addition to GPUs, or the plugin's own directory."""
    gvnic_names = sorted(name for name, nic in nic_by_name.items() if nic.driver == "gve")
    reasons: List[str] = []
    if len(gvnic_names) >= _MIN_TCPX_NICS and gpus["count"]:
        reasons.append(f"{len(gvnic_names)} gVNIC interfaces and {gpus['count']} GPUs")
    reasons += [f"/{tcpx_path} exists" for tcpx_path in _TCPX_PATHS if tree.exists(tcpx_path)]
    return {"present": bool(reasons), "devices": gvnic_names if reasons else [], "reasons": reasons}
