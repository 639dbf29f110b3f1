# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of this host that Slurm needs: control groups, GPUs, memory, its own version and plugins."""

from __future__ import annotations

import glob
import os
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import CAP_SYS_NICE, has_capability
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.service import (
    SYSTEMD,
    find_command_lines,
    service_manager,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.gpus import read_gpus

_PLUGIN_DIRECTORIES = (
    "/usr/lib/*/slurm-wlm",
    "/usr/lib/slurm-wlm",
    "/usr/lib64/slurm",
    "/usr/lib/slurm",
    "/usr/lib/*/slurm",
    "/usr/local/lib/slurm",
)
_VERSION_PATTERN = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})")
#: The controllers that Slurm's plugin for version 1 uses for tracking, binding and limits.
_V1_CONTROLLERS = ("freezer", "cpuset")


class CgroupSupport(NamedTuple):
    """The control groups that slurmd can use. ``version`` is v1, v2 or none."""

    version: str
    controllers: Tuple[str, ...]
    missing_reason: str = ""


class GpuDevices(NamedTuple):
    """Devices of one type. ``autodetect`` is the plugin that finds them, or empty."""

    type: str
    files: Tuple[str, ...]
    autodetect: str


class SlurmHost(NamedTuple):
    """The detected facts. ``version`` is None if Slurm is not installed."""

    version: Optional[Tuple[int, int, int]]
    cgroups: CgroupSupport
    gpu: Optional[GpuDevices]
    memory_mb: int
    cpu_count: int
    hostname: str
    #: Whether slurmd may bind processes of other users to CPUs. If it may not, a job with bound tasks fails to start.
    may_bind_tasks: bool = True


def parse_version(version_output: str) -> Tuple[int, int, int]:
    """Parse the output of -V, such as ``slurm-wlm 24.11.5``."""
    match = _VERSION_PATTERN.search(version_output)
    if match is None:
        raise ParseError("slurmd -V", f"there is no version in {version_output.strip()!r}")
    return int(match.group(1)), int(match.group(2)), int(match.group(3))


def parse_cgroups(mounts_text: str, controllers_text: str, systemd_runs: bool) -> CgroupSupport:
    """Parse /proc/self/mounts, and for version 2, /sys/fs/cgroup/cgroup.controllers.

    slurmd needs a writable subtree of its own. systemd delegates one; in a rented container without systemd, the tree
    belongs to the provider.
    """
    if not systemd_runs:
        return CgroupSupport("none", (), "systemd does not run as PID 1")
    v1_controllers: List[str] = []
    for mount_line in mounts_text.splitlines():
        fields = mount_line.split()
        if len(fields) < 4:
            continue
        _device, mount_point, filesystem, options_text = fields[:4]
        mount_options = options_text.split(",")
        if filesystem == "cgroup2" and mount_point == "/sys/fs/cgroup":
            if "rw" not in mount_options:
                return CgroupSupport("none", (), "/sys/fs/cgroup is mounted read-only")
            return CgroupSupport("v2", tuple(sorted(controllers_text.split())))
        if filesystem == "cgroup" and "rw" in mount_options and mount_point.startswith("/sys/fs/cgroup/"):
            v1_controllers += [flag for flag in mount_options if not flag.startswith("name=")]
    usable_controllers = tuple(
        sorted(set(v1_controllers) & {"cpuset", "memory", "devices", "freezer", "cpuacct", "cpu"})
    )
    missing_controllers = [name for name in _V1_CONTROLLERS if name not in usable_controllers]
    if missing_controllers:
        return CgroupSupport("none", (), f"no writable control group for {join_names(missing_controllers)}")
    return CgroupSupport("v1", usable_controllers)


def format_gres_type(model: Optional[str]) -> str:
    """Format a GPU's model like Slurm's own detection: ``NVIDIA H100 80GB HBM3`` is nvidia_h100_80gb_hbm3."""
    return re.sub(r"[^a-z0-9_.-]+", "_", (model or "").strip().lower()).strip("_")


def list_plugins() -> List[str]:
    """Return the names of the installed plugins, such as gpu_nvml."""
    files = [path for directory in _PLUGIN_DIRECTORIES for path in glob.glob(os.path.join(directory, "*.so"))]
    return sorted({os.path.basename(path)[: -len(".so")] for path in files})


def choose_autodetect(vendor: Optional[str], driver_loaded: bool, installed_plugins: List[str]) -> str:
    """Choose the value of AutoDetect in gres.conf: an installed plugin whose driver is loaded, or empty."""
    if not driver_loaded:
        return ""
    candidate_names = {"nvidia": ("nvml", "nvidia"), "amd": ("rsmi",)}.get(vendor or "", ())
    return next((name for name in candidate_names if f"gpu_{name}" in installed_plugins), "")


def _read_gpu_devices(tree: Tree) -> Optional[GpuDevices]:
    detected_gpus = read_gpus(tree, [])
    if not detected_gpus["count"]:
        return None
    driver_loaded = (
        tree.exists("proc/driver/nvidia/version") if detected_gpus["vendor"] == "nvidia" else tree.exists("dev/kfd")
    )
    return GpuDevices(
        format_gres_type(detected_gpus["type"]),
        tuple(detected_gpus["files"]),
        choose_autodetect(detected_gpus["vendor"], driver_loaded, list_plugins()),
    )


def read_memory(tree: Tree) -> int:
    """Return the memory in MB that jobs can use; 0 if it is unknown.

    In a container, /proc/meminfo has the memory of the machine, which may be much more than the container may use.
    """
    match = re.search(r"^MemTotal:\s+(\d+) kB", tree.read("proc/meminfo") or "", re.MULTILINE)
    total_bytes = int(match.group(1)) * 1024 if match else 0
    memory_limits = [] if service_manager(tree) == SYSTEMD else _read_memory_limits(tree)
    return min([total_bytes, *memory_limits]) // 1024**2


def _read_memory_limits(tree: Tree) -> List[int]:
    """Read the limits in bytes of the control group of PID 1 and those above it that this container shows."""
    memory_limits = []
    for line in (tree.read("proc/1/cgroup") or "").splitlines():
        _number, _colon, group_entry = line.partition(":")
        controllers, _colon, group_path = group_entry.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        controller_directory, limit_file = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        path_components = [part for part in group_path.split("/") if part not in ("", "..")]
        # The container may have its own group mounted at the top, and then lacks the lower ones of the path.
        for depth in range(len(path_components) + 1):
            limit_bytes = tree.read_integer("sys/fs/cgroup", controller_directory, *path_components[:depth], limit_file)
            if limit_bytes is not None and limit_bytes > 0:
                memory_limits.append(limit_bytes)
    return memory_limits


def running_slurmd_options(tree: Tree, node_name: str) -> Dict[str, str]:
    """Return the options and arguments of this node's slurmd, which root runs; empty if it does not run.

    When the controller is reconfigured, slurmd restarts itself with its previous options. So a slurmd that started
    after its settings were written may not use them.
    """
    for arguments in find_command_lines(tree, "slurmd"):
        options_by_name = dict(zip(arguments, arguments[1:]))
        if options_by_name.get("-N") == node_name:
            return {name: options_by_name.get(name, "") for name in ("-N", "--conf-server", "--conf")}
    return {}


def read_slurm_host(run: Runner, tree: Tree) -> SlurmHost:
    """Read this host's facts, with one process, or none if Slurm is not installed."""
    slurm_version = parse_version(run(["slurmd", "-V"]).stdout) if find_program("slurmd") else None
    cgroups = parse_cgroups(
        tree.read("proc/self/mounts") or "",
        tree.read("sys/fs/cgroup/cgroup.controllers") or "",
        (tree.read("proc/1/comm") or "") == "systemd",
    )
    hostname = os.uname().nodename.split(".")[0]
    # Container engines drop this capability.
    may_bind_tasks = has_capability(tree.read("proc/self/status") or "", CAP_SYS_NICE)
    return SlurmHost(
        slurm_version,
        cgroups,
        _read_gpu_devices(tree),
        read_memory(tree),
        os.cpu_count() or 1,
        hostname,
        may_bind_tasks,
    )
