# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.versions import read_versions
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

#: As others have published them.
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.135  Fri Jan 10 20:00:00 UTC 2025"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3-B17-02-5)  "
    "Tue Sep 23 09:55:41 UTC 2025"
)
OTHER_BUILD = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 595.71.05"
GCC = "\nGCC version:  gcc version 13.3.0 (GCC)\n"


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "version"),
    [(PROPRIETARY + GCC, "550.135"), (OPEN + GCC, "580.95.05"), (OPEN, "580.95.05"), (OTHER_BUILD, "595.71.05")],
)
def test_version_of_the_driver(tmp_path: Path, text: str, version: str) -> None:
    write(tmp_path, "proc/driver/nvidia/version", text)
    assert read_versions(Tree(str(tmp_path))) == {"driver": version}


def test_versions_of_a_host(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia/version", OPEN + GCC)
    write(tmp_path, "proc/sys/kernel/osrelease", "6.1.0-28-amd64\n")
    for bus_id, vbios in (("0000:19:00.0", "96.00.89.00.01"), ("0000:1a:00.0", "??.??.??.??.??")):
        information = f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nVideo BIOS: \t {vbios}\nBus Type: \t PCIe\n"
        write(tmp_path, f"proc/driver/nvidia/gpus/{bus_id}/information", information)
    for name in ("libnccl.so", "libnccl.so.2", "libnccl.so.2.23.4", "libnccl-net.so.9.9.9"):
        write(tmp_path, f"usr/lib/x86_64-linux-gnu/{name}", "")
    assert read_versions(Tree(str(tmp_path))) == {
        "driver": "580.95.05",
        "kernel": "6.1.0-28-amd64",
        "models": ["NVIDIA H100 80GB HBM3"],
        "nccl": ["2.23.4"],
        "vbios": ["96.00.89.00.01"],
    }


def test_host_without_gpus_has_a_kernel(tmp_path: Path) -> None:
    write(tmp_path, "proc/sys/kernel/osrelease", "6.12.43+deb13-amd64\n")
    assert read_versions(Tree(str(tmp_path))) == {"kernel": "6.12.43+deb13-amd64"}
