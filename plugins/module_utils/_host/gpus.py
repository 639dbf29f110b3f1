# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs that jobs can open, from device files, /proc/driver/nvidia and the PCI bus."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import HostGpus, PciDevice

GPU_VENDORS = {"10de": "nvidia", "1002": "amd"}
#: Display controllers: VGA (0300), XGA (0301), 3D (0302), other (0380), and processing accelerators (1200) as AMD's.
GPU_CLASSES = ("0300", "0301", "0302", "0380", "1200")
_MODEL_LINE = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def read_gpus(tree: Tree, pci_devices: Sequence[PciDevice]) -> HostGpus:
    """Count the GPUs that have a device file.

    One on the bus without a file is reported as a problem: jobs cannot use it.
    """
    nvidia_names = sorted(
        (name for name in tree.list_names("dev") if re.match(r"^nvidia\d+$", name)), key=lambda name: (len(name), name)
    )
    amd_names = _list_amd_render_nodes(tree)
    bus_gpus = [device for device in pci_devices if device["device_class"] in GPU_CLASSES]
    if nvidia_names:
        return _build_gpus("nvidia", [f"/dev/{name}" for name in nvidia_names], _read_nvidia_models(tree), bus_gpus)
    if amd_names:
        return _build_gpus(
            "amd", [f"/dev/dri/{name}" for name in amd_names], _read_amd_models(tree, amd_names), bus_gpus
        )
    return _build_gpus(None, [], [], bus_gpus)


def _build_gpus(
    vendor: Optional[str], device_files: List[str], model_names: List[str], bus_gpus: List[PciDevice]
) -> HostGpus:
    vendor_gpus = [device for device in bus_gpus if GPU_VENDORS.get(device["vendor"]) == vendor]
    unused_gpus = [device for device in bus_gpus if vendor is None and device["vendor"] in GPU_VENDORS]
    return {
        "count": len(device_files),
        "vendor": vendor,
        # Hosts with different models have no single type; Slurm requires them to be listed manually.
        "type": model_names[0] if len(set(model_names)) == 1 else None,
        "files": device_files,
        "pci_addresses": [device["address"] for device in (vendor_gpus if vendor else unused_gpus)],
        "problem": _describe_problem(vendor_gpus if vendor else unused_gpus, len(device_files)),
    }


def _describe_problem(bus_gpus: List[PciDevice], file_count: int) -> Optional[str]:
    """Describe GPUs without a device file. ``bus_gpus`` are of one vendor, or of any if none has a file."""
    if len(bus_gpus) <= file_count:
        return None
    # Files do not have the addresses of their devices.
    explanation = f"{file_count} of {len(bus_gpus)} have one"
    if not file_count:
        explanation = ", ".join(f"{GPU_VENDORS[device['vendor']]} {device['address']}" for device in bus_gpus)
    return (
        f"{len(bus_gpus) - file_count} GPU(s) on the PCI bus have no device file ({explanation}): "
        "the driver is not loaded, or they are not available in this container."
    )


def _read_nvidia_models(tree: Tree) -> List[str]:
    """Read ``Model:`` of each GPU that the driver runs."""
    information_texts = [
        tree.read("proc/driver/nvidia/gpus", name, "information") or ""
        for name in tree.list_names("proc/driver/nvidia/gpus")
    ]
    return [match.group(1) for match in map(_MODEL_LINE.search, information_texts) if match]


def _list_amd_render_nodes(tree: Tree) -> List[str]:
    """List the render nodes of AMD. ROCm opens /dev/kfd and one for each GPU; other vendors have render nodes too."""
    if not tree.exists("dev/kfd"):
        return []
    return [
        name
        for name in tree.list_names("dev/dri")
        if re.match(r"^renderD\d+$", name) and tree.read("sys/class/drm", name, "device/vendor") in ("0x1002", None)
    ]


def _read_amd_models(tree: Tree, render_nodes: Sequence[str]) -> List[str]:
    names = [tree.read("sys/class/drm", node, "device/product_name") for node in render_nodes]
    return [name for name in names if name]
