# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which lines of a rank's output show a fault of its node. The messages of the driver are in NVIDIA's documentation."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import error_words


@pytest.mark.parametrize(
    ("line", "is_hardware"),
    [
        ("NVRM: Xid (PCI:0000:02:00): 79, pid=1, GPU has fallen off the bus.", True),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, Contained: SM (0x1). RST: No, D-RST: No", True),
        ("NVRM: Xid (PCI:0000:02:00): 13, Graphics Exception: ESR 0x405840=0xa2040a0e", False),
        ("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x004505c6 0x00000000)", True),
        ("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 01 (0x004505c6 0x00000000)", False),
        ("NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link -1 (0x00000001 0x80000000)", False),
        ("NVRM: Xid (PCI:0018:01:00): 145, RLW_SRC_TRACK Fatal XC1 i2 Link 04 (0x00000004 0x80000000)", True),
        ("nvidia-nvswitch3: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", True),
        ("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 22013, Non-fatal, Link 00 minion link_intr", False),
        ("OSError: [Errno 5] Input/output error: '/tmp/tmp1'", True),
        ("OSError: [Errno 5] Input/output error: '/tmp/tmp1' -> '/mnt/shared/7.ckpt'", False),
        ("OSError: [Errno 5] Input/output error: '/tmp/tmp1' -> '/var/tmp/7.ckpt'", True),
    ],
)
def test_a_fault_of_the_node_is_told_from_one_of_the_program(line: str, is_hardware: bool) -> None:
    assert bool(error_words.HARDWARE_ERROR.search(line)) == is_hardware
