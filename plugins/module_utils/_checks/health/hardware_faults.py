# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors of the host that no retry and no code corrects: on the PCI bus of GPUs and network cards, and in its memory.

Errors that are corrected are normal in small numbers, and are not judged. Each pattern matches from the start of a
message of the kernel and requires more than the 15 characters that a program's name can contribute, so that no user can
cause a match.

Source: the kernel's Documentation/PCI/pcieaer-howto.rst, ABI/testing/sysfs-bus-pci-devices-aer_stats and admin-guide/RAS.
"""

from __future__ import annotations

import os
import re
from typing import Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.kernel_faults import BUS_ERROR, FATAL
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    Judgement,
    failed,
    passed,
    skipped,
    unknown,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import PCI_ADDRESS, Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.gpus import GPU_CLASSES, GPU_VENDORS
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import RdmaPort

_PCI_DEVICES = "sys/bus/pci/devices"
_ADDRESS_IN_PATH = re.compile(PCI_ADDRESS)
#: Lines of aer_dev_nonfatal about data that was damaged on its way. Others can be the answer to a request that the
#: device does not support, as at the start of a driver.
_DAMAGED_DATA = ("TLP", "ECRC")
_FATAL_TOTAL = "TOTAL_ERR_FATAL"
_COUNTER_LINE = re.compile(r"^(?P<name>\w+) (?P<count>[0-9]+)$", re.MULTILINE)

_MEMORY_MESSAGES = (
    re.compile(r"mce: Uncorrected hardware memory error in user-access at (?P<place>[0-9a-f]+)"),
    re.compile(r"Memory failure: (?P<place>0x[0-9a-f]+): (?:recovery action for |already hardware poisoned)"),
    re.compile(r"mce: \[Hardware Error\]: (?P<place>CPU [0-9]+): Machine Check Exception: "),
    re.compile(r"\[Hardware Error\]: (?P<place>Uncorrected, software (?:restartable|containable) error)"),
    re.compile(r"EDAC (?P<place>MC[0-9]+): [0-9]+ UE [^:\[]+ on [^:\[]+\("),
)
_CONTROLLERS = "sys/devices/system/edac/mc"
_NO_LOG_REMEDY = "Run as root."


# The PCI bus


def find_watched_devices(tree: Tree, rdma_ports: Sequence[RdmaPort]) -> Dict[str, List[str]]:
    """The GPUs and RDMA cards, each with the bridges above it, from the root port down to itself."""
    addresses: Set[str] = {
        device["address"]
        for device in tree.list_pci_devices()
        if device["vendor"] in GPU_VENDORS and device["device_class"] in GPU_CLASSES
    }
    addresses |= {port["pci_address"] for port in rdma_ports if port["pci_address"]}
    return {
        address: _ADDRESS_IN_PATH.findall(os.path.realpath(tree.path(_PCI_DEVICES, address))) or [address]
        for address in sorted(addresses)
    }


def read_pci_errors(tree: Tree, addresses: Iterable[str]) -> Dict[str, int]:
    """The number of errors of each device that has had fatal ones, or that got damaged data, since the boot."""
    error_counts = {}
    for address in addresses:
        fatal, nonfatal = (
            {
                line.group("name"): int(line.group("count"))
                for line in _COUNTER_LINE.finditer(tree.read(_PCI_DEVICES, address, file_name) or "")
            }
            for file_name in ("aer_dev_fatal", "aer_dev_nonfatal")
        )
        count = fatal.get(_FATAL_TOTAL, 0) + sum(nonfatal.get(name, 0) for name in _DAMAGED_DATA)
        if count:
            error_counts[address] = count
    return error_counts


def find_fatal_messages(messages: Iterable[str], watched_devices: Collection[str]) -> Dict[str, int]:
    """How often the kernel has reported a fatal error of each of these devices."""
    counts: Dict[str, int] = {}
    for message in messages:
        bus_error = BUS_ERROR.match(message)
        if bus_error and bus_error.group("severity") == FATAL and bus_error.group("device") in watched_devices:
            counts[bus_error.group("device")] = counts.get(bus_error.group("device"), 0) + 1
    return counts


def judge_pci_errors(
    device_count: int, error_counts: Mapping[str, int], message_counts: Optional[Mapping[str, int]], container: bool
) -> Judgement:
    """Judge whether there were errors on the bus of GPUs and RDMA cards.

    ``message_counts``: from the kernel log; None if it cannot be read.
    """
    if not device_count:
        return skipped("There is no GPU and no RDMA card on the PCI bus of this host.")
    # The same errors, unless the firmware handles them, or the log has forgotten them.
    counts = {
        address: max(error_counts.get(address, 0), (message_counts or {}).get(address, 0))
        for address in sorted({*error_counts, *(message_counts or {})})
    }
    if counts:
        error_text = ", ".join(f"{address}: {count}" for address, count in counts.items())
        return failed(
            sum(counts.values()),
            0,
            f"Uncorrectable errors on the PCI bus: {error_text}.",
            "Drain the node, wait for its jobs to end and reboot it. If they recur, reseat the card, and then replace it, "
            "its riser or its retimer.",
            "errors",
        )
    if message_counts is None and not container:
        return unknown("/dev/kmsg cannot be read.", _NO_LOG_REMEDY)
    return passed(0, 0, "errors")


# Memory and processors


def read_memory_errors(tree: Tree) -> Dict[str, int]:
    """The number of uncorrectable errors that each memory controller has counted, if it has."""
    return {
        name: count
        for name in tree.list_names(_CONTROLLERS)
        for count in [tree.read_integer(_CONTROLLERS, name, "ue_count")]
        if count
    }


def find_memory_messages(messages: Iterable[str]) -> List[str]:
    """Where the kernel has reported uncorrectable errors, each place once."""
    matches = (pattern.match(message) for message in messages for pattern in _MEMORY_MESSAGES)
    return list(dict.fromkeys(match.group("place") for match in matches if match))


def judge_memory_errors(
    error_counts: Mapping[str, int], message_places: Optional[Collection[str]], container: bool
) -> Judgement:
    """Judge whether memory and processors had uncorrectable errors. ``message_places``: None without the kernel log."""
    locations = [f"{name}: {count}" for name, count in error_counts.items()]
    locations += [location for location in message_places or () if location.lower() not in error_counts]
    if locations:
        return failed(
            len(locations),
            0,
            f"Uncorrectable errors of memory or processors: {', '.join(locations[:8])}.",
            "Drain the node. Find the module in the log of the BMC or with ras-mc-ctl --errors, and replace it.",
            "places",
        )
    if message_places is None and container:
        return skipped("This is a container that cannot read the kernel log of its host.")
    if message_places is None:
        return unknown("/dev/kmsg cannot be read.", _NO_LOG_REMEDY)
    return passed(0, 0, "places")
