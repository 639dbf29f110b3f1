# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read sysfs, procfs and /dev without running a program.

All paths are relative to a root, so that tests can use their own.
"""

from __future__ import annotations

import os
import re
from typing import List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import bounded_read
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import PciDevice

PCI_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_DEVICE_NAME = re.compile(f"^{PCI_ADDRESS}$")

#: The form of pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00, which has the content of five other files.
_MODALIAS = re.compile(r"^pci:v([0-9A-F]{8})d([0-9A-F]{8})sv[0-9A-F]*sd[0-9A-F]*bc([0-9A-F]{2})sc([0-9A-F]{2})i")


class Tree:
    """The files below a root. A missing or unreadable file is None: sysfs has both (the speed of lo)."""

    def __init__(self, root: str = "/") -> None:
        self._root_directory = root

    def path(self, *parts: str) -> str:
        """Return the path of a file on this machine."""
        return os.path.join(self._root_directory, *parts)

    def read(self, *parts: str) -> Optional[str]:
        """Read a file without surrounding white space. One that is too large, as processes can create, is None."""
        try:
            with open(self.path(*parts), encoding="utf-8", errors="replace") as stream:
                text = bounded_read.read(stream)
        except OSError:
            return None
        return None if text is None else text.strip()

    def read_integer(self, *parts: str) -> Optional[int]:
        """Read the number in a file, or None if it has none."""
        try:
            return int(self.read(*parts) or "", 0)
        except ValueError:
            return None

    def list_names(self, *parts: str) -> List[str]:
        """List the entries of a directory, sorted; empty if it does not exist."""
        try:
            return sorted(os.listdir(self.path(*parts)))
        except OSError:
            return []

    def exists(self, *parts: str) -> bool:
        """Whether the file, directory or device exists."""
        return os.path.exists(self.path(*parts))

    def link_target_name(self, *parts: str) -> Optional[str]:
        """Return the last component of a link's target, such as the driver for ``device/driver``."""
        try:
            return os.path.basename(os.readlink(self.path(*parts)))
        except OSError:
            return None

    def find_pci_address(self, *parts: str) -> Optional[str]:
        """Return the PCI function that a ``device`` link refers to.

        A virtio device is below its PCI function, so the last component that is an address is used.
        """
        components = os.path.realpath(self.path(*parts)).split(os.sep)
        return next((name for name in reversed(components) if _DEVICE_NAME.match(name)), None)

    def read_numa_node(self, pci_address: Optional[str]) -> Optional[int]:
        """Read the NUMA node of a PCI function; None if the machine has only one, which the kernel shows as -1."""
        if pci_address is None:
            return None
        numa_node = self.read_integer("sys/bus/pci/devices", pci_address, "numa_node")
        return numa_node if numa_node is not None and numa_node >= 0 else None

    def list_pci_devices(self) -> List[PciDevice]:
        """List all devices on the PCI bus, in the order of their addresses."""
        devices: List[PciDevice] = []
        for address in self.list_names("sys/bus/pci/devices"):
            match = _MODALIAS.match(self.read("sys/bus/pci/devices", address, "modalias") or "")
            if match:
                vendor, device, base_class, sub_class = (number.lower() for number in match.groups())
                devices.append(
                    {
                        "address": address,
                        "vendor": vendor[-4:],
                        "device": device[-4:],
                        "device_class": base_class + sub_class,
                    }
                )
        return devices


class Nic(NamedTuple):
    """The data in sysfs about one interface."""

    physical: bool
    speed_text: Optional[str]  # unchecked: see kinds.parse_speed
    driver: Optional[str]
    pci_address: Optional[str]
    numa_node: Optional[int]
    rdma_devices: List[str]
    port_index: int  # of a device with several ports, from 0


def read_nic(tree: Tree, interface_name: str) -> Nic:
    """Read /sys/class/net/NAME. An interface with ``device`` is a physical card, or one that a hypervisor provides."""
    interface_directory = f"sys/class/net/{interface_name}"
    if not tree.exists(interface_directory, "device"):
        return Nic(False, tree.read(interface_directory, "speed"), None, None, None, [], 0)
    pci_address = tree.find_pci_address(interface_directory, "device")
    return Nic(
        physical=True,
        speed_text=tree.read(interface_directory, "speed"),
        driver=tree.link_target_name(interface_directory, "device/driver"),
        pci_address=pci_address,
        numa_node=tree.read_numa_node(pci_address),
        rdma_devices=tree.list_names(interface_directory, "device/infiniband"),
        # dev_port since Linux 3.15; IPoIB of older drivers counted in dev_id.
        port_index=tree.read_integer(interface_directory, "dev_port")
        or tree.read_integer(interface_directory, "dev_id")
        or 0,
    )
