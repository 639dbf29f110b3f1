# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of GPUs and NVSwitches among the kernel's messages, of the drivers of NVIDIA and AMD.

Each pattern matches from the start of a message and requires more than the 15 characters that the name of a program can
contribute to the start of the kernel's message about its crash. So no user can cause a match.

Source: NVIDIA's catalogue of Xid errors and its Fabric Manager user guide (SXid); the messages of nvidia.ko and
amdgpu.ko; the kernel's drivers/pci/pcie/err.c.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import PCI_ADDRESS

#: Xid errors after which a GPU or its link cannot be trusted (NVIDIA's catalogue of Xid errors: hardware, ECC, NVLink,
#: fallen off the bus). Others, such as 13, 31 and 43, are caused by programs. Programs can also cause 46 and 109: where
#: these need a reset, the driver says so with Xid 154.
HARDWARE_XIDS = {
    48: "double-bit memory error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    63: "memory row remapped, not yet in effect",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "fell off the bus",
    92: "high rate of single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    110: "security fault",
    119: "GPU system processor does not respond",
    120: "GPU system processor error",
    136: "NVLink training failed",
    140: "unrecovered memory error",
    143: "GPU could not be initialized",
    149: "NVLink error",
    156: "faulty part retired, not yet in effect",
    158: "fatal timeout of the GPU",
}
#: The Xid errors of NVLink 5, whose messages say whether they are fatal.
_NVLINK5_XIDS = range(144, 151)
#: The Xid with which the driver says what a GPU needs; its action may be that nothing is needed any more.
_RECOVERY_XID = 154
_LOST_XID = 79

#: The address of a PCI device as drivers write it, who may use capitals and leave out the function.
_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
#: The driver's own message, from its start: "NVRM: Xid (PCI:0000:3d:00): 79, pid=...". For a partitioned GPU, the
#: address is followed by the instances that are affected.
_XID_MESSAGE = re.compile(
    rf"NVRM: Xid \((?:PCI:)?(?P<device>{_ADDRESS})(?: GPU-I:[0-9]+)?(?: GPU-CI:[0-9]+)?\): "
    r"(?P<number>[0-9]{1,4})(?![^,\s])(?:, pid=[^,]*, name=[^,]*)?(?P<text>.*)"
)
_NVLINK5_SEVERITY = re.compile(r", ?[\w/]+\s+(?P<severity>Fatal|Non-?fatal)\b")
_RECOVERY_ACTION = re.compile(r".*GPU recovery action changed from .* to 0x[0-9a-fA-F]+ \((?P<action>[^)]+)\)")
_FATAL_SXID = re.compile(
    rf"nvidia-nvswitch[0-9]+:? SXid \((?:PCI:)?(?P<device>{_ADDRESS})\): (?P<number>[0-9]+), Fatal\b"
)
#: The driver has looked at a GPU when it was loaded. This message has several lines, in one record or in several.
_PROBED_GPU = re.compile(rf"NVRM: The NVIDIA GPU (?P<device>{_ADDRESS})")
_LOST_PROBED_GPU = re.compile(r"NVRM: (?:installed in this )?(?:system has )?fallen off the bus and is not responding")
_LOST_GPU = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?(?P<device>{_ADDRESS}):? (?:GPU )?has fallen off the bus")
_FAILED_START = re.compile(
    rf"NVRM: (?:GPU (?:at )?(?:PCI:)?(?P<device>{_ADDRESS})(?: / {_ADDRESS})?: )?RmInitAdapter failed!"
)
#: An uncorrectable error of the PCI bus. One that is not fatal may be the answer to a request that a device does not
#: support, as at the start of a driver. The name of the driver may be missing.
BUS_ERROR = re.compile(
    rf"(?:[\w-]{{1,32}} )?(?P<device>{PCI_ADDRESS}): (?:AER: )?PCIe Bus Error: "
    r"severity=Uncorrect(?:ed|able) \((?P<severity>Fatal|Non-Fatal)\)"
)
FATAL = "Fatal"
#: What the kernel says after it, about a device whose driver cannot reset it.
_UNRECOVERED_GPU = re.compile(rf"nvidia (?P<device>{_ADDRESS}): AER: can't recover \(no error_detected callback\)")
_DRIVER_LOAD = "NVRM: loading NVIDIA UNIX"
#: A line break in a record of /dev/kmsg.
_ESCAPED_LINE_BREAK = "\\x0a"

#: The driver of AMD may print its name twice, and the number of the event before the text.
_AMD_MESSAGE = re.compile(rf"amdgpu (?P<device>{_ADDRESS}): (?:amdgpu: )?(?:\{{[0-9]+\}} ?)?(?P<text>.*)")
_AMD_ERROR_COUNT = re.compile(
    r"(?:socket: ?[0-9]+,? (?:die: ?[0-9]+,? )?)?(?P<count>[0-9]+) (?:new )?uncorrectable hardware errors detected in "
    r"(?P<block>\w+) block",
    re.IGNORECASE,
)
_AMD_FAULTS = (
    (re.compile(r"uncorrectable hardware error ?\(\w+\) detected"), "uncorrectable hardware error of GPU {}"),
    (re.compile(r"RAS records: ?[0-9]+ exceeds? threshold"), "too many bad memory pages of GPU {}"),
    (re.compile(r"Saved bad pages ?\(?[0-9]+\)? reaches threshold"), "too many bad memory pages of GPU {}"),
    (re.compile(r"Fatal error during GPU init"), "the driver could not start GPU {}"),
    (re.compile(r"device lost from bus"), "GPU {} fell off the bus"),
)
_AMD_RESET_FAILED = re.compile(r"GPU reset end with ret = -?[1-9][0-9]*|GPU reset ?\([0-9]+\) failed")
_AMD_RESET_SUCCEEDED = re.compile(r"GPU reset ?\([0-9]+\) succeeded")
#: A register of a GPU that sleeps reads as ones only, and this is what the driver then adds to its count of errors.
_AMD_FALSE_COUNT = 0xFFFF0


def is_real_error_count(count: int) -> bool:
    """Whether AMD's driver counts errors, and not only readings of a GPU that sleeps."""
    return count % _AMD_FALSE_COUNT != 0


def _without_function(address: str) -> str:
    """Return an address for comparisons: messages may leave out the function of a PCI device, and differ in case."""
    return address.partition(".")[0].lower()


def _name_gpu(address: str) -> str:
    return f"GPU {address}" if address else "a GPU"


def name_device(kind: str, address: str) -> str:
    """Return the name under which the faults of a device are remembered; empty without an address."""
    return f"{kind} {_without_function(address)}" if address else ""


class FaultLog:
    """The faults in the kernel's messages, which are added in their order."""

    def __init__(self) -> None:
        self._fault_counts: Dict[str, int] = {}
        #: By fault in these counts, the name of its device.
        self._device_names: Dict[str, str] = {}
        self._recovery_actions: Dict[str, str] = {}
        self._failed_starts: Dict[str, int] = {}
        self._failed_resets: Dict[str, str] = {}
        #: By address, GPUs that fell off the bus, and those of which an Xid error tells that.
        self._lost_gpus: Dict[str, str] = {}
        self._xid_lost_gpus: Set[str] = set()
        self._probed_address = ""
        self._is_bus_error_fatal = False

    def count_faults(self) -> Dict[str, int]:
        """How often each fault occurred. A GPU that fell off the bus is only counted once, however it was reported."""
        counts = dict(self._fault_counts)
        for address, device in self._lost_gpus.items():
            if address not in self._xid_lost_gpus:
                counts[f"{device} fell off the bus"] = 1
        for device, times in self._failed_starts.items():
            counts[f"the driver could not start {_name_gpu(device)}"] = times
        for device, action in self._recovery_actions.items():
            counts[f"Xid {_RECOVERY_XID} (the driver requires: {action}) on {device}"] = 1
        for device, text in self._failed_resets.items():
            counts[f"failed reset of GPU {device} ({text})"] = 1
        return counts

    def list_devices(self) -> Tuple[str, ...]:
        """The names of the devices with these faults, as far as messages tell them."""
        addresses = [*self._lost_gpus, *self._failed_starts, *self._recovery_actions, *self._failed_resets]
        names = {*self._device_names.values(), *(name_device("GPU", address) for address in addresses)}
        return tuple(sorted(names - {""}))

    def _count(self, name: str, device_name: str) -> None:
        self._fault_counts[name] = self._fault_counts.get(name, 0) + 1
        self._device_names[name] = device_name

    def add_message(self, message: str, judges_amd: bool) -> None:
        """Add a message of the kernel."""
        self.add_nvidia_message(message)
        if judges_amd:
            self.add_amd_message(message)

    def add_nvidia_message(self, message: str) -> None:
        """Add a message if it is one of NVIDIA's driver about a fault."""
        xid = _XID_MESSAGE.match(message)
        if xid:
            self._add_xid(xid.group("device"), int(xid.group("number")), xid.group("text"))
            return
        sxid = _FATAL_SXID.match(message)
        if sxid:
            self._count(
                f"SXid {int(sxid.group('number'))} (fatal NVSwitch error) on {sxid.group('device')}",
                name_device("NVSwitch", sxid.group("device")),
            )
            return
        probed = _PROBED_GPU.match(message)
        if probed:
            self._probed_address = probed.group("device")
        lines = message.split(_ESCAPED_LINE_BREAK)
        if (probed and "fallen off the bus" in message) or _LOST_PROBED_GPU.match(lines[0]):
            self._lost_gpus[_without_function(self._probed_address)] = _name_gpu(self._probed_address)
            return
        lost = _LOST_GPU.match(message)
        if lost:
            self._lost_gpus[_without_function(lost.group("device"))] = _name_gpu(lost.group("device"))
        bus_error = BUS_ERROR.match(message)
        if bus_error:
            self._is_bus_error_fatal = bus_error.group("severity") == FATAL
        unrecovered = _UNRECOVERED_GPU.match(message)
        if unrecovered and self._is_bus_error_fatal:
            device = unrecovered.group("device")
            self._count(f"uncorrectable PCIe error of GPU {device}", name_device("GPU", device))
        failed_start = _FAILED_START.match(message)
        if failed_start:
            device = failed_start.group("device") or ""
            self._failed_starts[device] = self._failed_starts.get(device, 0) + 1
        if message.startswith(_DRIVER_LOAD):
            # Another driver, which may start them.
            self._failed_starts.clear()

    def _add_xid(self, device: str, number: int, text: str) -> None:
        if number == _RECOVERY_XID:
            recovery = _RECOVERY_ACTION.match(text)
            if recovery and recovery.group("action") == "None":
                self._recovery_actions.pop(device, None)
            elif recovery:
                self._recovery_actions[device] = recovery.group("action")
            return
        severity = _NVLINK5_SEVERITY.match(text) if number in _NVLINK5_XIDS else None
        if severity:
            if severity.group("severity") == "Fatal":
                self._count(f"Xid {number} (fatal NVLink error) on {device}", name_device("GPU", device))
        elif number in HARDWARE_XIDS:
            if number == _LOST_XID:
                self._xid_lost_gpus.add(_without_function(device))
            self._count(f"Xid {number} ({HARDWARE_XIDS[number]}) on {device}", name_device("GPU", device))

    def add_amd_message(self, message: str) -> None:
        """Add a message if it is one of AMD's driver about a fault. A reset that ends well repairs a failed one."""
        amd_message = _AMD_MESSAGE.match(message)
        if not amd_message:
            return
        device, text = amd_message.group("device"), amd_message.group("text")
        errors = _AMD_ERROR_COUNT.match(text)
        if errors and is_real_error_count(int(errors.group("count"))):
            fault_name = f"uncorrectable errors in the {errors.group('block')} block of GPU {device}"
            self._count(fault_name, name_device("GPU", device))
        for pattern, template in _AMD_FAULTS:
            if pattern.match(text):
                self._count(template.format(device), name_device("GPU", device))
        if _AMD_RESET_SUCCEEDED.match(text):
            self._failed_resets.pop(device, None)
        elif _AMD_RESET_FAILED.match(text):
            self._failed_resets[device] = text.rstrip("!. ")


def read_faults(messages: Iterable[str], judges_amd: bool) -> FaultLog:
    """Return the faults of GPUs in the kernel's messages.

    ``judges_amd``: whether GPUs of AMD are those of the jobs, and not only for a display.
    """
    fault_log = FaultLog()
    for message in messages:
        fault_log.add_message(message, judges_amd)
    return fault_log
