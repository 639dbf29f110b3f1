# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the GPUs from the sections of nvidia-smi -q, which is run once for all of them.

Parsing and judging only; nothing is run here.

Source: the manual page of nvidia-smi; NVML's nvmlClocksEventReasons.
"""

from __future__ import annotations

import re
from typing import Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    Judgement,
    failed,
    passed,
    skipped,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number

#: The head of a GPU's section, and a line of it, which is a field or the head of a section within it.
_GPU_SECTION = re.compile(r"^GPU (?P<address>[0-9a-fA-F]+:\S+)\s*$")
_FIELD = re.compile(r"^(?P<indent> +)(?P<name>[^:]+?)\s*(?::\s*(?P<value>.*?)\s*)?$")

_GPU_COUNT = re.compile(r"^Attached GPUs\s*:\s*([0-9]{1,4})\s*$")
_QUERY, _LAST_SECTION = "nvidia-smi -q", "processes"

#: The names of a field's sections and its own, in lower case, from the outside.
FieldPath = Tuple[str, ...]
#: The fields of a GPU in their order. Each process has fields of the same names.
GpuDetails = List[Tuple[FieldPath, str]]


def parse_details(query_output: str) -> Dict[str, GpuDetails]:
    """The fields of each GPU in the output of nvidia-smi -q, by PCI address. Raises ParseError.

    The processes come last, with names that users choose. A line break in one must not begin another section.
    """
    details_by_gpu: Dict[str, GpuDetails] = {}
    gpu_details: Optional[GpuDetails] = None
    gpu_count: Optional[int] = None
    sections: List[Tuple[int, str]] = []
    for line in query_output.splitlines():
        gpu_section, field = _GPU_SECTION.match(line), _FIELD.match(line)
        if gpu_section:
            if gpu_section.group("address") in details_by_gpu:
                raise ParseError(_QUERY, f"GPU {gpu_section.group('address')} has two sections")
            gpu_details = details_by_gpu[gpu_section.group("address")] = []
            sections = []
        elif field and gpu_details is not None:
            indent, name = len(field.group("indent")), field.group("name").lower()
            if sections and sections[0][1] == _LAST_SECTION and indent <= sections[0][0]:
                continue
            sections = [section for section in sections if section[0] < indent]
            sections.append((indent, name))
            if field.group("value"):
                gpu_details.append((tuple(section_name for _indent, section_name in sections), field.group("value")))
        elif gpu_count is None and not details_by_gpu and (attached := _GPU_COUNT.match(line)):
            gpu_count = int(attached.group(1))
    if gpu_count is not None and len(details_by_gpu) > gpu_count:
        raise ParseError(_QUERY, f"it has {len(details_by_gpu)} sections of {gpu_count} GPUs")
    return details_by_gpu


def _find_field(gpu_details: GpuDetails, *path: str) -> Optional[str]:
    """The first field with this path."""
    return next((value for field_path, value in gpu_details if field_path == path), None)


# Clocks


#: The section has the second name since driver 535.
_REASON_SECTIONS = ("clocks throttle reasons", "clocks event reasons")
#: The reasons that halve the clocks or worse. The power limit and the target temperature of the driver are none: they
#: are the normal state of a GPU under load.
_SLOWDOWN_REASONS = ("hw slowdown", "hw thermal slowdown", "hw power brake slowdown")
_IDLE_REASON, _ACTIVE = "idle", "active"


class ClockState(NamedTuple):
    """The clocks of the GPUs. ``reporting``: how many GPUs report what holds them down.

    ``slowdowns``: by PCI address, why the hardware holds them down.
    """

    reporting: int
    slowdowns: Dict[str, List[str]]


def find_slowdowns(details_by_gpu: Mapping[str, GpuDetails]) -> ClockState:
    """Find the GPUs whose clocks the hardware holds down. On one without work, that means nothing."""
    reporting, slowdowns = 0, {}
    for address, gpu_details in details_by_gpu.items():
        is_active_by_reason = {
            path[-1]: value.lower() == _ACTIVE for path, value in gpu_details if path[0] in _REASON_SECTIONS
        }
        if not set(_SLOWDOWN_REASONS).intersection(is_active_by_reason):
            continue
        reporting += 1
        reasons = [reason for reason in _SLOWDOWN_REASONS if is_active_by_reason.get(reason)]
        if reasons and not is_active_by_reason.get(_IDLE_REASON):
            slowdowns[address] = reasons
    return ClockState(reporting, slowdowns)


def judge_clocks(clock_state: ClockState, earlier_slowdowns: Optional[Collection[str]] = None) -> Judgement:
    """Judge whether the hardware holds down the clocks of a GPU.

    ``earlier_slowdowns``: the GPUs of which it also did so a moment ago, if that was queried: others do not count.
    """
    if not clock_state.reporting:
        return skipped("These GPUs do not report why their clocks are throttled.")
    slowed_gpus = {
        address: reasons
        for address, reasons in clock_state.slowdowns.items()
        if earlier_slowdowns is None or address in earlier_slowdowns
    }
    good_count = clock_state.reporting - len(slowed_gpus)
    if not slowed_gpus:
        return passed(good_count, clock_state.reporting, "GPUs")
    reason_text = "; ".join(f"GPU {address}: {', '.join(reasons)}" for address, reasons in slowed_gpus.items())
    return failed(
        good_count,
        clock_state.reporting,
        f"The hardware throttles the clocks, to half or less: {reason_text}.",
        "Check the fans, the temperature of the room and the heat sinks, and for a power brake the power supplies and "
        "their cables (nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE).",
        "GPUs",
    )


# The PCIe speed under load


#: Percent of the time in which a GPU that is at work runs kernels. Others save power by a lower speed of the link.
_MIN_UTILIZATION = 50
_HIGHEST_PERFORMANCE = "P0"
_LINK_SECTION = ("pci", "gpu link info", "pcie generation")


def judge_pcie_speed(details_by_gpu: Mapping[str, GpuDetails]) -> Judgement:
    """Judge whether the PCIe links of GPUs at work have the speed that both the GPU and the host support."""
    slow_links, judged_count = [], 0
    for address, gpu_details in details_by_gpu.items():
        current, maximum = (
            parse_whole_number(_find_field(gpu_details, *_LINK_SECTION, name)) for name in ("current", "max")
        )
        utilization = parse_whole_number((_find_field(gpu_details, "utilization", "gpu") or "").rstrip(" %"))
        is_at_work = (
            utilization is not None
            and utilization >= _MIN_UTILIZATION
            and _find_field(gpu_details, "performance state") == _HIGHEST_PERFORMANCE
        )
        if current is None or maximum is None or not is_at_work:
            continue
        judged_count += 1
        if current < maximum:
            slow_links.append(f"GPU {address} at generation {current} of {maximum}")
    if not judged_count:
        return skipped("No GPU is busy, and idle links are slower to save power.")
    if not slow_links:
        return passed(judged_count, judged_count, "links")
    return failed(
        judged_count - len(slow_links),
        judged_count,
        f"PCIe links are slow under load: {'; '.join(slow_links)}.",
        "Reseat the card or its riser, and look for a limit in the settings of the firmware.",
        "links",
    )


# Processes and memory that are left on a GPU


#: The types of processes that compute, also together with graphics.
_COMPUTE_TYPE = re.compile(r"\bM?\+?C\b|C\+G")
#: MiB in use on a GPU without processes. The driver and a display need less.
_MAX_IDLE_MEMORY_MIB = 1024
#: The memory of these models is also memory of the host.
_COHERENT_MODEL = re.compile(r"\bG[HB][0-9]{2,3}\b")
#: A part of a GPU in a virtual machine, some of which belongs to the host.
_SHARED_MODE = "VGPU"


class GpuUse(NamedTuple):
    """What uses a GPU. ``compute_pids``: the processes that compute. ``unexplained_mib``: memory without a process."""

    minor_number: Optional[int]
    compute_pids: List[int]
    unexplained_mib: int


def read_gpu_uses(details_by_gpu: Mapping[str, GpuDetails]) -> Dict[str, GpuUse]:
    """The processes and the memory without a process on each GPU, by PCI address."""
    gpu_uses = {}
    for address, gpu_details in details_by_gpu.items():
        pids, compute_pids = [], []
        for path, value in gpu_details:
            if path[0] != "processes":
                continue
            if path[-1] == "process id":
                pids.append(parse_whole_number(value))
            elif path[-1] == "type" and pids and pids[-1] is not None and _COMPUTE_TYPE.search(value):
                compute_pids.append(pids[-1])
        used_mib = parse_whole_number((_find_field(gpu_details, "fb memory usage", "used") or "").partition(" ")[0])
        is_explained = (
            bool(pids)
            or _find_field(gpu_details, "mig mode", "current") == "Enabled"
            or _find_field(gpu_details, "gpu virtualization mode", "virtualization mode") == _SHARED_MODE
            or _COHERENT_MODEL.search(_find_field(gpu_details, "product name") or "") is not None
        )
        gpu_uses[address] = GpuUse(
            parse_whole_number(_find_field(gpu_details, "minor number")),
            compute_pids,
            0 if is_explained or used_mib is None or used_mib <= _MAX_IDLE_MEMORY_MIB else used_mib,
        )
    return gpu_uses


def select_job_gpus(gpu_uses: Mapping[str, GpuUse], job_gpus: Sequence[int]) -> List[str]:
    """The PCI addresses of the GPUs of a job, by the numbers that Slurm gives to its prolog.

    Slurm counts them as it has found them. Empty if the device files are numbered in another order, and it is not clear
    which GPUs are meant.
    """
    addresses = list(gpu_uses)
    if [gpu_uses[address].minor_number for address in addresses] != list(range(len(addresses))):
        return []
    return [addresses[number] for number in job_gpus if number < len(addresses)]


def judge_leftovers(gpu_uses: Mapping[str, GpuUse], leftover_by_pid: Mapping[int, str]) -> Tuple[Judgement, List[str]]:
    """Judge whether these GPUs are free. Returns the occupied ones, too.

    ``leftover_by_pid``: the processes that cannot be killed, with their names.
    """
    leftover_texts, occupied_gpus = [], []
    for address, gpu_use in gpu_uses.items():
        names = [f"{leftover_by_pid[pid]} ({pid})" for pid in gpu_use.compute_pids if pid in leftover_by_pid]
        if gpu_use.unexplained_mib:
            names.append(f"{gpu_use.unexplained_mib} MiB without a process")
        if names:
            occupied_gpus.append(address)
            leftover_texts.append(f"GPU {address}: {', '.join(names)}")
    good_count = len(gpu_uses) - len(occupied_gpus)
    if not leftover_texts:
        return passed(good_count, len(gpu_uses), "free GPUs"), []
    return (
        failed(
            good_count,
            len(gpu_uses),
            f"GPUs are still in use before the job starts: {'; '.join(leftover_texts)}.",
            "Look for the cause in the kernel log, and reboot the node.",
            "free GPUs",
        ),
        occupied_gpus,
    )
