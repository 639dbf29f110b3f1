# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of this host that Slurm needs: control groups, GPUs, memory, its own version and plugins."""

from __future__ import annotations

import glob
import os
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.daemon import SYSTEMD, commands_of, service_manager
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.gpus import read_gpus
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import CAP_SYS_NICE, has_capability

_PLUGIN_FOLDERS = (
    "/usr/lib/*/slurm-wlm",
    "/usr/lib/slurm-wlm",
    "/usr/lib64/slurm",
    "/usr/lib/slurm",
    "/usr/lib/*/slurm",
    "/usr/local/lib/slurm",
)
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})")
#: What Slurm's plugin for version 1 uses for tracking, binding and limits.
_V1_NEEDED = ("freezer", "cpuset")


class Cgroups(NamedTuple):
    """The control groups that slurmd can use. ``version`` is v1, v2 or none; ``why`` is the reason for none."""

    version: str
    controllers: Tuple[str, ...]
    why: str = ""


class Gpu(NamedTuple):
    """Devices of one type. ``autodetect`` is the plugin that finds them, or empty."""

    type: str
    files: Tuple[str, ...]
    autodetect: str


class SlurmHost(NamedTuple):
    """The detected facts. ``memory`` is in MB; ``version`` is None if Slurm is not installed."""

    version: Optional[Tuple[int, int, int]]
    cgroups: Cgroups
    gpu: Optional[Gpu]
    memory: int
    cpus: int
    hostname: str
    #: Whether slurmd may bind the processes of other users to CPUs. Without it, a job that is to be bound fails to start.
    binds: bool = True


def parse_version(text: str) -> Tuple[int, int, int]:
    """``slurm-wlm 24.11.5`` as printed by -V."""
    match = _VERSION.search(text)
    if match is None:
        raise ParseError("slurmd -V", f"there is no version in {text.strip()!r}")
    return int(match.group(1)), int(match.group(2)), int(match.group(3))


def parse_cgroups(mounts: str, controllers: str, systemd: bool) -> Cgroups:
    """Parse /proc/self/mounts, and for version 2, /sys/fs/cgroup/cgroup.controllers.

    slurmd needs a writable subtree of its own. systemd delegates one; in a rented container without systemd, the tree
    belongs to the provider.
    """
    if not systemd:
        return Cgroups("none", (), "systemd does not run as PID 1")
    found: List[str] = []
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        _device, place, kind, options = fields[:4]
        flags = options.split(",")
        if kind == "cgroup2" and place == "/sys/fs/cgroup":
            if "rw" not in flags:
                return Cgroups("none", (), "/sys/fs/cgroup is mounted read-only")
            return Cgroups("v2", tuple(sorted(controllers.split())))
        if kind == "cgroup" and "rw" in flags and place.startswith("/sys/fs/cgroup/"):
            found += [flag for flag in flags if not flag.startswith("name=")]
    known = tuple(sorted(set(found) & {"cpuset", "memory", "devices", "freezer", "cpuacct", "cpu"}))
    missing = [name for name in _V1_NEEDED if name not in known]
    if missing:
        return Cgroups("none", (), f"no writable control group for {' and '.join(missing)}")
    return Cgroups("v1", known)


def gres_type(model: Optional[str]) -> str:
    """A GPU's model in the form of Slurm's own detection: ``NVIDIA H100 80GB HBM3`` is nvidia_h100_80gb_hbm3."""
    return re.sub(r"[^a-z0-9_.-]+", "_", (model or "").strip().lower()).strip("_")


def plugins() -> List[str]:
    """The names of the installed plugins, such as gpu_nvml."""
    files = [path for folder in _PLUGIN_FOLDERS for path in glob.glob(os.path.join(folder, "*.so"))]
    return sorted({os.path.basename(path)[: -len(".so")] for path in files})


def choose_autodetect(vendor: Optional[str], driver: bool, installed: List[str]) -> str:
    """The values for AutoDetect in gres.conf: only installed plugins with a driver."""
    if not driver:
        return ""
    wanted = {"nvidia": ("nvml", "nvidia"), "amd": ("rsmi",)}.get(vendor or "", ())
    return next((name for name in wanted if f"gpu_{name}" in installed), "")


def _gpu(tree: Tree) -> Optional[Gpu]:
    found = read_gpus(tree, [])
    if not found["count"]:
        return None
    driver = tree.exists("proc/driver/nvidia/version") if found["vendor"] == "nvidia" else tree.exists("dev/kfd")
    return Gpu(
        gres_type(found["type"]),
        tuple(found["files"]),
        choose_autodetect(found["vendor"], driver, plugins()),
    )


def read_memory(tree: Tree) -> int:
    """The memory in MB that jobs can use; 0 if it is unknown.

    In a container, /proc/meminfo has the memory of the machine, which may be much more than the container may use.
    """
    match = re.search(r"^MemTotal:\s+(\d+) kB", tree.read("proc/meminfo") or "", re.MULTILINE)
    total = int(match.group(1)) * 1024 if match else 0
    limits = [] if service_manager(tree) == SYSTEMD else _memory_limits(tree)
    return min([total, *limits]) // 1024**2


def _memory_limits(tree: Tree) -> List[int]:
    """The limits in bytes of the control group of PID 1 and those above it, as far as this container shows them."""
    found = []
    for line in (tree.read("proc/1/cgroup") or "").splitlines():
        _number, _colon, rest = line.partition(":")
        controllers, _colon, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        # The container may have its own group mounted at the top, and then lacks the lower ones of the path.
        for depth in range(len(parts) + 1):
            limit = tree.integer("sys/fs/cgroup", top, *parts[:depth], name)
            if limit is not None and limit > 0:
                found.append(limit)
    return found


def running_options(tree: Tree, machine: str) -> Dict[str, str]:
    """The options, each with the word that follows it, of this node's slurmd that root runs; empty if it does not run.

    When the controller is reconfigured, slurmd restarts itself with its previous options: that it is newer than its
    settings does not prove that it uses them.
    """
    for words in commands_of(tree, "slurmd"):
        told = dict(zip(words, words[1:]))
        if told.get("-N") == machine:
            return {name: told.get(name, "") for name in ("-N", "--conf-server", "--conf")}
    return {}


def read_host(run: Runner, tree: Tree) -> SlurmHost:
    """Read this host's facts, with one process, or none if Slurm is not installed."""
    version = parse_version(run(["slurmd", "-V"]).stdout) if find("slurmd") else None
    cgroups = parse_cgroups(
        tree.read("proc/self/mounts") or "",
        tree.read("sys/fs/cgroup/cgroup.controllers") or "",
        (tree.read("proc/1/comm") or "") == "systemd",
    )
    hostname = os.uname().nodename.split(".")[0]
    # Container engines drop this capability.
    binds = has_capability(tree.read("proc/self/status") or "", CAP_SYS_NICE)
    return SlurmHost(version, cgroups, _gpu(tree), read_memory(tree), os.cpu_count() or 1, hostname, binds)
