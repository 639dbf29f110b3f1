# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs that jobs can open, from device files, /proc/driver/nvidia and the PCI bus."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.net.shapes import Gpus, PciDevice
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree

_VENDORS = {"10de": "nvidia", "1002": "amd"}
#: Display controllers: VGA (0300), XGA (0301), 3D (0302), other (0380), and processing accelerators (1200) as AMD's.
_GPU_CLASSES = ("0300", "0301", "0302", "0380", "1200")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def read_gpus(tree: Tree, pci_devices: Sequence[PciDevice]) -> Gpus:
    """Count the GPUs that have a device file.

    One on the bus without a file is reported as a problem: jobs cannot use it.
    """
    nvidia = sorted(
        (name for name in tree.names("dev") if re.match(r"^nvidia\d+$", name)), key=lambda name: (len(name), name)
    )
    amd = _amd_render_nodes(tree)
    on_bus = [device for device in pci_devices if device["device_class"] in _GPU_CLASSES]
    if nvidia:
        return _gpus("nvidia", [f"/dev/{name}" for name in nvidia], _nvidia_models(tree), on_bus)
    if amd:
        return _gpus("amd", [f"/dev/dri/{name}" for name in amd], _amd_models(tree, amd), on_bus)
    return _gpus(None, [], [], on_bus)


def _gpus(vendor: Optional[str], files: List[str], models: List[str], on_bus: List[PciDevice]) -> Gpus:
    known = [device for device in on_bus if _VENDORS.get(device["vendor"]) == vendor]
    idle = [device for device in on_bus if vendor is None and device["vendor"] in _VENDORS]
    return {
        "count": len(files),
        "vendor": vendor,
        # Hosts with different models have no single type; Slurm requires them to be listed manually.
        "type": models[0] if len(set(models)) == 1 else None,
        "files": files,
        "pci_addresses": [device["address"] for device in (known if vendor else idle)],
        "problem": _problem(known if vendor else idle, len(files)),
    }


def _problem(on_bus: List[PciDevice], files: int) -> Optional[str]:
    """``on_bus`` are GPUs of one vendor, or of any if none has a file."""
    if len(on_bus) <= files:
        return None
    # Files do not have the addresses of their devices.
    names = f"{files} of {len(on_bus)} have one"
    if not files:
        names = ", ".join(f"{_VENDORS[device['vendor']]} {device['address']}" for device in on_bus)
    return (
        f"{len(on_bus) - files} GPU(s) on the PCI bus have no device file ({names}): "
        "the driver is not loaded, or they are not available in this container."
    )


def _nvidia_models(tree: Tree) -> List[str]:
    """``Model:`` of each GPU that the driver runs."""
    texts = [
        tree.read("proc/driver/nvidia/gpus", name, "information") or ""
        for name in tree.names("proc/driver/nvidia/gpus")
    ]
    return [match.group(1) for match in map(_MODEL.search, texts) if match]


def _amd_render_nodes(tree: Tree) -> List[str]:
    """ROCm opens /dev/kfd and one render node for each GPU; other vendors have render nodes as well."""
    if not tree.exists("dev/kfd"):
        return []
    return [
        name
        for name in tree.names("dev/dri")
        if re.match(r"^renderD\d+$", name) and tree.read("sys/class/drm", name, "device/vendor") in ("0x1002", None)
    ]


def _amd_models(tree: Tree, render_nodes: Sequence[str]) -> List[str]:
    names = [tree.read("sys/class/drm", node, "device/product_name") for node in render_nodes]
    return [name for name in names if name]
