# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether GPUs and network cards can exchange data on the PCI bus without going through the processor.

Access Control Services (ACS) of a switch send each request up to the root port, so that an IOMMU can check it. On a machine
that passes no device to a virtual machine, this only costs bandwidth, and can make peer-to-peer copies hang.

Source: PCI Express Base Specification, ACS Extended Capability; NCCL's user guide, Troubleshooting, PCI Access Control
Services; nvidia-smi topo -h.
"""

from __future__ import annotations

import itertools
import re
import struct
from typing import Dict, List, Mapping, Optional, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    Judgement,
    failed,
    passed,
    skipped,
    unknown,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

P2P_COMMAND = ("nvidia-smi", "topo", "-p2p", "r")
#: A row of the matrix: the GPU, and for each GPU whether it can read from that one.
_MATRIX_ROW = re.compile(r"^\s*(?P<gpu>GPU[0-9]+)\s+(?P<states>(?:(?:X|OK|CNS|GNS|TNS|NS|DR|U)\s*)+)$")
_SELF, _OK = "X", "OK"

#: In the configuration space: the start of the extended capabilities, the identifier of ACS, and its control register.
_FIRST_CAPABILITY, _CONFIG_SIZE = 0x100, 0x1000
_ACS_ID, _CONTROL_OFFSET = 0x000D, 6
_REQUEST_REDIRECT, _COMPLETION_REDIRECT, _DIRECT_TRANSLATED = 1 << 2, 1 << 3, 1 << 6
#: So many bytes of the configuration space can be read by anyone.
_PUBLIC_SIZE = 64
#: The number of bridges that two devices below the same switch have in common: the root port and the switch's own port.
_MIN_SHARED_BRIDGES = 2


def parse_p2p(matrix_output: str) -> Dict[str, List[str]]:
    """The states of each GPU's access to the others, from P2P_COMMAND's output."""
    rows = filter(None, map(_MATRIX_ROW.match, matrix_output.splitlines()))
    return {row.group("gpu"): row.group("states").split() for row in rows}


def find_blocked_pairs(states_by_gpu: Mapping[str, Sequence[str]], exempt_gpus: Sequence[str] = ()) -> List[str]:
    """The pairs of GPUs without access, each once."""
    gpus = list(states_by_gpu)
    return [
        f"{gpus[row]} and {gpus[column]} ({states_by_gpu[gpus[row]][column]})"
        for row, column in itertools.combinations(range(len(gpus)), 2)
        if not {gpus[row], gpus[column]}.intersection(exempt_gpus)
        and column < len(states_by_gpu[gpus[row]])
        and states_by_gpu[gpus[row]][column] not in (_SELF, _OK)
    ]


def parse_acs_control(config_space: bytes) -> Optional[int]:
    """The control register of ACS; None if the device has none. Raises ValueError if it was not readable."""
    if len(config_space) <= _PUBLIC_SIZE:
        raise ValueError("only root can read the configuration space")
    offset = _FIRST_CAPABILITY
    visited: Set[int] = set()
    while _FIRST_CAPABILITY <= offset <= len(config_space) - 8 and offset not in visited:
        visited.add(offset)
        (header,) = struct.unpack_from("<I", config_space, offset)
        if header & 0xFFFF == _ACS_ID:
            (control,) = struct.unpack_from("<H", config_space, offset + _CONTROL_OFFSET)
            return int(control)
        offset = header >> 20
    return None


def is_redirecting(control: Optional[int]) -> bool:
    """Whether peer-to-peer requests go up to the root port. Those with translated addresses may be exempt."""
    return (
        control is not None
        and bool(control & (_REQUEST_REDIRECT | _COMPLETION_REDIRECT))
        and not control & _DIRECT_TRANSLATED
    )


def find_switch_ports(paths_by_device: Mapping[str, Sequence[str]]) -> List[str]:
    """The ports of switches between two devices, from the path of each device from its root port on."""
    switch_ports: Set[str] = set()
    for path, other_path in itertools.combinations(paths_by_device.values(), 2):
        shared_count = sum(1 for _pair in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(path, other_path)))
        if shared_count >= _MIN_SHARED_BRIDGES:
            switch_ports.update(path[shared_count:-1], other_path[shared_count:-1])
    return sorted(switch_ports)


def read_acs_controls(tree: Tree, addresses: Sequence[str]) -> Dict[str, Optional[int]]:
    """The control register of ACS of each port. Raises OSError or ValueError if one cannot be read."""
    controls = {}
    for address in addresses:
        with open(tree.path("sys/bus/pci/devices", address, "config"), "rb") as stream:
            controls[address] = parse_acs_control(stream.read(_CONFIG_SIZE))
    return controls


def judge_acs(controls: Mapping[str, Optional[int]]) -> Judgement:
    """Judge whether the switches between GPUs and RDMA cards let them exchange data directly."""
    if not controls:
        return skipped("No two GPUs or RDMA cards of this host are below the same PCI switch.")
    redirecting_ports = [address for address, control in controls.items() if is_redirecting(control)]
    good_count = len(controls) - len(redirecting_ports)
    if not redirecting_ports:
        return passed(good_count, len(controls), "switch ports")
    return failed(
        good_count,
        len(controls),
        f"ACS sends what GPUs and RDMA cards exchange through the processor, at {', '.join(redirecting_ports)}.",
        "If no device is passed to a virtual machine, disable ACS in the firmware, or at each boot with setpci -s ADDRESS "
        "ECAP_ACS+0x6.w=0000, and start the kernel with iommu=pt.",
        "switch ports",
    )


def judge_p2p(matrix_output: str, exit_status: int, is_board: bool, partitioned_gpus: Sequence[str] = ()) -> Judgement:
    """Judge whether each GPU has access to the memory of the others.

    ``is_board``: NVLink connects all of them. ``partitioned_gpus``: the indexes of those that do not need it.
    """
    states_by_gpu = parse_p2p(matrix_output)
    if exit_status or (not states_by_gpu and matrix_output.strip()):
        return unknown("nvidia-smi does not show which GPUs have access to each other.", "Run nvidia-smi topo -p2p r.")
    if len(states_by_gpu) <= 1:
        return skipped("This host has fewer than two GPUs.")
    blocked_pairs = find_blocked_pairs(states_by_gpu, [f"GPU{index}" for index in partitioned_gpus])
    pair_count = len(states_by_gpu) * (len(states_by_gpu) - 1) // 2
    if not blocked_pairs:
        return passed(pair_count, pair_count, "pairs")
    if not is_board:
        return skipped(
            f"{len(blocked_pairs)} of {pair_count} pairs of GPUs have no access, as the model or board may have it."
        )
    return failed(
        pair_count - len(blocked_pairs),
        pair_count,
        f"GPUs have no access to each other's memory: {', '.join(blocked_pairs[:8])}.",
        "Check nvidia-fabricmanager, MIG (nvidia-smi -q -d MIG) and the settings of the IOMMU, and reboot.",
        "pairs",
    )
