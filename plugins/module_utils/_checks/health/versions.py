# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The versions on a host that members with the same GPUs should have in common, read from files.

Source: the proc files of NVIDIA's driver (its README, chapter The /proc Interface); proc_sys_kernel(5), osrelease.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

_GPU_DIRECTORY = "proc/driver/nvidia/gpus"
_DRIVER_VERSION = re.compile(r"Kernel Module\b.*?\s(?P<version>[0-9]{3,}(?:\.[0-9]+){1,2})\s")
_MODEL_LINE = re.compile(r"^Model:\s*(?P<model>.+?)\s*$", re.MULTILINE)
#: Question marks stand for a version that the driver has not read yet, as no program uses the GPU.
_VBIOS_LINE = re.compile(r"^Video BIOS:\s*(?P<version>[0-9a-fA-F.]+)\s*$", re.MULTILINE)
_NCCL_FILE = re.compile(r"libnccl\.so\.(?P<version>[0-9]+\.[0-9]+\.[0-9]+)")
_LIBRARY_DIRECTORIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/lib",
    "usr/local/cuda/lib64",
    "opt/rocm/lib",
)


def read_versions(tree: Tree) -> Dict[str, Any]:
    """The models of the GPUs, and the versions of the driver, their VBIOS, the kernel and the NCCL library.

    What the host does not have is left out.
    """
    gpu_texts = [tree.read(_GPU_DIRECTORY, name, "information") or "" for name in tree.list_names(_GPU_DIRECTORY)]
    versions = {
        "models": sorted({match.group("model") for match in map(_MODEL_LINE.search, gpu_texts) if match}),
        "driver": _read_driver_version(tree),
        "vbios": sorted({match.group("version") for match in map(_VBIOS_LINE.search, gpu_texts) if match}),
        "kernel": tree.read("proc/sys/kernel/osrelease"),
        "nccl": _find_nccl_versions(tree),
    }
    return {name: version for name, version in versions.items() if version}


def _read_driver_version(tree: Tree) -> Optional[str]:
    driver = _DRIVER_VERSION.search((tree.read("proc/driver/nvidia/version") or "") + "\n")
    return driver.group("version") if driver else tree.read("sys/module/amdgpu/version")


def _find_nccl_versions(tree: Tree) -> List[str]:
    """The versions of the libraries that the system provides. Those in a job's own environment are not among them."""
    matches = (_NCCL_FILE.fullmatch(name) for directory in _LIBRARY_DIRECTORIES for name in tree.list_names(directory))
    return sorted({match.group("version") for match in matches if match})
