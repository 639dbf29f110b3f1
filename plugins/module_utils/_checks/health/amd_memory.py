# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory and link errors of AMD GPUs, from sysfs, where amd-smi and rocm-smi read them too.

Source: the kernel's Documentation/gpu/amdgpu/ras.rst.
"""

from __future__ import annotations

import re
from typing import Dict, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.kernel_faults import is_real_error_count
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    Judgement,
    failed,
    passed,
    skipped,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

#: The name of a file with the errors of a block such as umc (memory) or xgmi_wafl (links), of older and newer kernels.
_COUNT_FILE = re.compile(r"(?P<old_name>\w+)_err_count|aca_(?P<new_name>\w+)")
_UNCORRECTABLE_LINE = re.compile(r"^ue: *(?P<count>[0-9]+)\s*$", re.MULTILINE)
#: A page with its address and size, and whether it is retired (R), will be (P), or could not be (F).
_FAILED_PAGE = re.compile(r"^0x[0-9a-fA-F]+ : 0x[0-9a-fA-F]+ : F\s*$", re.MULTILINE)
_BAD_PAGES_FILE = "gpu_vram_bad_pages"


def _ras_directory(device_file: str) -> Sequence[str]:
    """The directory of a GPU, by its device file such as /dev/dri/renderD128."""
    return ("sys/class/drm", device_file.rpartition("/")[2], "device", "ras")


def _name_gpu(tree: Tree, device_file: str) -> str:
    return tree.find_pci_address(*_ras_directory(device_file)) or device_file


def read_error_counts(tree: Tree, device_files: Sequence[str]) -> Dict[str, Dict[str, int]]:
    """Read the number of uncorrectable errors since the driver was loaded, by GPU and block."""
    counts_by_gpu: Dict[str, Dict[str, int]] = {}
    for device_file in device_files:
        directory = _ras_directory(device_file)
        for file_name in tree.list_names(*directory):
            count_file = _COUNT_FILE.fullmatch(file_name)
            line = _UNCORRECTABLE_LINE.search(tree.read(*directory, file_name) or "") if count_file else None
            if count_file and line:
                block = count_file.group("old_name") or count_file.group("new_name")
                counts_by_gpu.setdefault(_name_gpu(tree, device_file), {})[block] = int(line.group("count"))
    return counts_by_gpu


def judge_errors(counts_by_gpu: Mapping[str, Mapping[str, int]], remedy: str) -> Judgement:
    """Judge whether there were errors that could not be corrected."""
    if not counts_by_gpu:
        return skipped("These GPUs do not report memory errors (RAS).")
    faults = [
        (address, block, count)
        for address, counts in counts_by_gpu.items()
        for block, count in counts.items()
        if is_real_error_count(count)
    ]
    if not faults:
        return passed(0, 0, "errors")
    error_text = ", ".join(f"GPU {address}, block {block}: {count}" for address, block, count in faults)
    total, devices = sum(count for *_names, count in faults), dict.fromkeys(f"GPU {fault[0]}" for fault in faults)
    return failed(total, 0, f"Uncorrectable errors: {error_text}.", remedy, "errors", devices=tuple(devices))


def read_bad_pages(tree: Tree, device_files: Sequence[str]) -> Dict[str, str]:
    """Read the list of the bad memory pages of each GPU that has such a list."""
    texts: Dict[str, Optional[str]] = {
        _name_gpu(tree, device_file): tree.read(*_ras_directory(device_file), _BAD_PAGES_FILE)
        for device_file in device_files
    }
    return {address: text for address, text in texts.items() if text is not None}


def judge_bad_pages(pages_by_gpu: Mapping[str, str]) -> Judgement:
    """Judge whether all bad pages could be retired. Retired ones are no problem."""
    if not pages_by_gpu:
        return skipped("These GPUs do not report retired memory.")
    faulty_gpus = [address for address, pages in pages_by_gpu.items() if _FAILED_PAGE.search(pages)]
    if not faulty_gpus:
        return passed(0, 0, "GPUs")
    reason = f"Bad memory pages could not be retired on {', '.join(faulty_gpus)}."
    devices = tuple(f"GPU {address}" for address in faulty_gpus)
    return failed(len(faulty_gpus), 0, reason, "Drain the node and replace the GPU.", "GPUs", devices=devices)
