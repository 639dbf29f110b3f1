# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the machine: memory, disks, mounts, clock, name, RDMA ports.

Each consists of a reading and a pure judgement.
"""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import stat
import subprocess
import sys
import tempfile
from types import MappingProxyType
from typing import Any, Container, Dict, Hashable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.logins import LoginResults
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    SLURMD_NAMES,
    Judgement,
    failed,
    passed,
    skipped,
    unknown,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import command
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import MountEntry, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import runs_as_root
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import RdmaPort
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.rdma import (
    NATIVE_LAYERS,
    card_address,
    name_fabric,
    read_board_ids,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment.host import (
    SETTINGS_PATH,
    JobPorts,
    name_port,
)

_BYTES_PER_MIB = 1024 * 1024
#: A program that reads the directory, and unless it is read-only, writes, syncs and removes a file. It is a process of
#: its own, since a process that waits for a dead server cannot be killed, and must not block the module. It uses only
#: descriptors, since other users may write to the directory: they must neither redirect it, nor make it fail.
_MOUNT_PROGRAM = """
import errno, os, sys

def attempt(top):
    # The room is asked of the server each time, while what is in a folder may be remembered.
    os.fstatvfs(top)
    with os.scandir(top) as entries:
        next(entries, None)
    os.write(1, b"answers")
    if sys.argv[2] == "read":
        return
    name = ".gpumesh-health-" + os.urandom(8).hex()
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=top)
    try:
        try:
            os.write(handle, b"x")
            os.fsync(handle)
        finally:
            try:
                os.unlink(name, dir_fd=top)
            finally:
                os.close(handle)
    except OSError as failure:
        # Somebody has removed the file meanwhile; of NFS it is stale then.
        if failure.errno not in (errno.ENOENT, errno.ESTALE):
            raise

try:
    attempt(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY))
except OSError as failure:
    # The server has answered: with root_squash root of a member is nobody there, and what is full is at work.
    if failure.errno not in (errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT):
        # Without the file's name, so that the words are the same each time and on each node.
        sys.exit(os.strerror(failure.errno))
"""


# Memory that can be pinned


def read_memlock(tree: Tree) -> Optional[int]:
    """slurmd's limit of locked memory in bytes, which jobs inherit, or else our own; None for no limit."""
    for pid in tree.list_names("proc"):
        if pid.isdecimal() and runs_as_root(tree.path("proc"), int(pid), SLURMD_NAMES):
            limit_match = re.search(r"^Max locked memory\s+(\S+)", tree.read("proc", pid, "limits") or "", re.MULTILINE)
            if limit_match:
                return parse_whole_number(limit_match.group(1))
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def judge_locked_memory(limit: Optional[int], ports: Sequence[RdmaPort]) -> Judgement:
    """Judge whether jobs can lock as much memory as the buffers of RDMA need."""
    if not ports:
        return skipped("There is no RDMA device, and nothing else locks memory.")
    if limit is None:
        return passed("unlimited", "unlimited")
    return failed(
        round(limit / _BYTES_PER_MIB, 2),
        "unlimited",
        "Jobs can lock only a part of the memory, so RDMA transports cannot register their buffers.",
        "Set LimitMEMLOCK=infinity for slurmd and restart it.",
        "MiB",
    )


# Packages


def judge_packages(unfinished: Sequence[str]) -> Judgement:
    """Judge whether all packages are configured: the programs of the others are present, but do not work."""
    if not unfinished:
        return passed("complete", "complete")
    return failed(
        "incomplete",
        "complete",
        f"An installation was cut off: {'; '.join(unfinished)}.",
        "Run the site playbook, which completes it.",
    )


# Swap


def parse_swap(swaps_text: str) -> float:
    """MiB of swap in use, from /proc/swaps."""
    used = 0
    for line in swaps_text.splitlines()[1:]:
        fields = line.split()
        used += (parse_whole_number(fields[-2]) or 0) if len(fields) >= 4 else 0
    return round(used / 1024, 1)


def judge_swap(swaps_text: Optional[str], limit_mib: float) -> Judgement:
    """Judge the swap in use: a training process that swaps delays all others at the next collective."""
    if swaps_text is None:
        return skipped("The kernel shows no /proc/swaps.")
    used = parse_swap(swaps_text)
    if used <= limit_mib:
        return passed(used, limit_mib, "MiB")
    return failed(
        used,
        limit_mib,
        f"{used:g} MiB of swap are in use.",
        "Find out what uses the memory (ps aux --sort -rss), then disable swap with swapoff -a.",
        "MiB",
    )


# Disks


#: File systems to which ordinary users can write on any machine, such as through logs or mail.
_USER_DIRECTORIES = (
    "/home",
    "/var",
    os.path.join("/var", "tmp"),
    os.path.join("/", "tmp"),
    os.path.join("/dev", "shm"),
    tempfile.gettempdir(),
)
#: UIDs from here on belong to people.
_FIRST_USER_ID = 1000


class DiskUsage(NamedTuple):
    """The usage of a file system in percent, as df computes it: root's reserve does not count as free.

    ``users_can_write``: whether ordinary users can write to it.
    """

    path: str
    used_percent: float
    inodes_percent: float
    users_can_write: bool = False


def read_disks(paths: Sequence[str], tree: Tree) -> List[DiskUsage]:
    """Return the file systems of these directories, each once."""
    mounted_filesystems = parse_mountinfo(tree.read("proc/self/mountinfo") or "")
    user_storage = {
        _identify_storage(disk_path, mounted_filesystems)
        for disk_path in find_user_directories(mounted_filesystems)
        if os.path.isdir(disk_path)
    }
    usage_by_device: Dict[int, DiskUsage] = {}
    for disk_path in paths:
        if not os.path.isdir(disk_path):
            continue
        device = os.stat(disk_path).st_dev
        if device in usage_by_device:
            continue
        fs = os.statvfs(disk_path)
        used = fs.f_blocks - fs.f_bfree
        room = used + fs.f_bavail
        usage_by_device[device] = DiskUsage(
            disk_path,
            round(100.0 * used / room, 1) if room else 0.0,
            round(100.0 * (fs.f_files - fs.f_ffree) / fs.f_files, 1) if fs.f_files else 0.0,
            _identify_storage(disk_path, mounted_filesystems) in user_storage,
        )
    return list(usage_by_device.values())


def find_user_directories(mounts: Sequence[MountEntry], top: str = "/") -> List[str]:
    """Return directories that ordinary users can write to: usual ones, and those in the top two levels of this host.

    Mounts below them are not examined, since a dead server must not block this.
    """
    points = {mount.mount_point for mount in mounts}
    user_directories = list(_USER_DIRECTORIES)
    current_level = [top]
    for _depth in range(2):
        below = []
        for above in current_level:
            for path, directory_stat in _scan_directories(above, points):
                below.append(path)
                if directory_stat.st_mode & stat.S_IWOTH or directory_stat.st_uid >= _FIRST_USER_ID:
                    user_directories.append(path)
        current_level = below
    return user_directories


def _scan_directories(path: str, points: Container[str]) -> List[Tuple[str, os.stat_result]]:
    """Return the subdirectories that are not mount points; empty if the directory has disappeared."""
    try:
        with os.scandir(path) as entries:
            return [
                (entry.path, entry.stat(follow_symlinks=False))
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and entry.path not in points
            ]
    except OSError:
        return []


def _identify_storage(path: str, mounts: Sequence[MountEntry]) -> Hashable:
    """The storage of the file system at ``path``: its device, or the pool that it shares with others."""
    above = os.path.realpath(path)
    points = {mount.mount_point: mount for mount in mounts}
    while above not in points and above != "/":
        above = os.path.dirname(above)
    mount = points.get(above)
    if mount is not None and mount.filesystem in ("btrfs", "overlay"):
        return (mount.filesystem, mount.source)
    if mount is not None and mount.filesystem == "zfs":
        return (mount.filesystem, mount.source.split("/")[0])
    return os.stat(path).st_dev


def judge_disks(disks: Sequence[DiskUsage], limit_percent: float) -> Judgement:
    """Judge the fullest file system: logs, checkpoints and Slurm's state need free space."""
    if not disks:
        return unknown("No file system could be checked.", "Check that / can be read.")
    fullest_disk = max(disks, key=lambda disk: max(disk.used_percent, disk.inodes_percent))
    worst = max(fullest_disk.used_percent, fullest_disk.inodes_percent)
    if worst < limit_percent:
        return passed(worst, f"< {limit_percent:g}", "%")
    resource_name = "inodes" if fullest_disk.inodes_percent > fullest_disk.used_percent else "space"
    return failed(
        worst,
        f"< {limit_percent:g}",
        f"{fullest_disk.path} has {worst:g} % of its {resource_name} in use.",
        f"Free some space: du -xh --max-depth=2 {fullest_disk.path} | sort -h shows what uses it.",
        "%",
    )


# Mounts


class MountProblem(NamedTuple):
    """The problem of a mount. ``is_slow``: its server responds, but storing a file takes longer than allowed."""

    message: str
    is_slow: bool = False


def probe_mount(path: str, read_only: bool = False, time_limit: float = 10.0) -> Optional[MountProblem]:
    """Read a mount and write to it. Returns None if that worked, or else the problem."""
    # The killed process is not awaited: one that hangs in the kernel ends only when the kernel allows it.
    test_process = command.ChildProcess(
        [sys.executable, "-IS", "-c", _MOUNT_PROGRAM, path, "read" if read_only else "write"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    try:
        _output, error_output = test_process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired as expired:
        test_process.kill()
        for stream in (test_process.stdout, test_process.stderr):
            if stream is not None:
                stream.close()
        if expired.output:
            return MountProblem(f"it responds, but no file could be written within {time_limit:g} s", True)
        return MountProblem(f"no answer within {time_limit:g} s")
    if test_process.returncode == 0:
        return None
    return MountProblem(
        error_output.strip().splitlines()[-1] if error_output.strip() else f"exit status {test_process.returncode}"
    )


def parse_filesystem_types(mountinfo: str) -> Dict[str, str]:
    """File system type by mount point, from /proc/self/mountinfo.

    Of several mounts on a point, the last one is visible.
    """
    return {mount.mount_point: mount.filesystem for mount in parse_mountinfo(mountinfo)}


def find_filesystem_type(path: str, mounted: Mapping[str, str], external: bool) -> str:
    """Return the type of the file system at ``path``; empty if it is only a directory of the host.

    Our volumes are mount points themselves; external ones may be a directory below a mount point.
    """
    while external and path != "/" and path not in mounted:
        path = os.path.dirname(path)
    return mounted.get(path, "") if path != "/" else ""


def judge_mounts(
    problem_by_path: Mapping[str, Optional[MountProblem]], type_by_path: Mapping[str, str], drains_node: bool = False
) -> Judgement:
    """Judge whether each shared volume is mounted and can store a file. ``type_by_path``: the file system at each path.

    With ``drains_node``, a slow volume is not a problem: its server is busy, and draining nodes would not help.
    """
    if not problem_by_path:
        return skipped("No volume in the record is mounted here.")
    problem_texts = []
    for path, trouble in problem_by_path.items():
        if trouble and not (trouble.is_slow and drains_node):
            problem_texts.append(f"{path}: {trouble.message}")
        elif type_by_path.get(path, "") in ("", "autofs"):
            problem_texts.append(f"{path}: nothing is mounted there")
    good_count = len(problem_by_path) - len(problem_texts)
    if not problem_texts:
        return passed(good_count, len(problem_by_path), "mounts")
    return failed(
        good_count,
        len(problem_by_path),
        "; ".join(problem_texts) + ".",
        "Check the server of the volume, then run the storage playbook again. An external file system has to be mounted "
        "by its own administrators.",
        "mounts",
    )


# Clock


def judge_clock(synchronized_text: Optional[str], container: bool) -> Judgement:
    """Judge the clock. ``synchronized_text`` is the output of timedatectl, yes or no; None if it cannot be queried."""
    if container:
        return skipped("This is a container and uses the clock of its host.")
    if synchronized_text is None:
        return skipped("timedatectl does not work here; the clocks of the members are compared instead.")
    if synchronized_text == "yes":
        return passed(True, True)
    return failed(
        False,
        True,
        "The clock is not synchronized, and munge rejects credentials that are a few minutes off.",
        "Install and start chrony or systemd-timesyncd.",
    )


def runs_in_container(tree: Tree) -> bool:
    """Whether PID 1 runs in a container. The runtimes of Kubernetes say so only by its own variables."""
    if tree.exists(".dockerenv") or tree.exists("run/.containerenv") or tree.exists("run/systemd/container"):
        return True
    environment = tree.read("proc/1/environ") or ""
    return any(entry.startswith(("container=", "KUBERNETES_SERVICE_HOST=")) for entry in environment.split("\0"))


# Name


def resolve_name(name: str) -> List[str]:
    """The addresses of a name; empty if it has none."""
    try:
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError:
        return []


def judge_name(
    host_name: str,
    resolved_addresses: Sequence[str],
    expected_address: Optional[str],
    peers: Container[str] = (),
    machine: Optional[str] = None,
) -> Judgement:
    """Judge the address of the host's own name, which Gloo and MPI announce: others cannot connect to 127.0.1.1.

    ``peers``: the other members. ``machine``: the name of this one in the cluster.
    """
    if expected_address is None:
        return skipped("The member has no cluster address yet.")
    address_text = ", ".join(resolved_addresses) or "nothing"
    if list(resolved_addresses) == [expected_address]:
        return passed(address_text, expected_address)
    reason = f"{host_name} resolves to {address_text} instead of {expected_address}."
    if any(address.startswith("127.") or address == "::1" for address in resolved_addresses):
        reason = f"{host_name} resolves to {address_text}: other members would connect to themselves."
    if machine and host_name in peers:
        return failed(
            address_text,
            expected_address,
            f"{reason} Another member is {host_name}.",
            f"Give {machine} a name of its own: hostnamectl set-hostname {machine}",
        )
    return failed(
        address_text,
        expected_address,
        reason,
        f"Map {host_name} only to {expected_address} in /etc/hosts; the site playbook does this.",
    )


# RDMA


#: The number of other cards that must have more active ports before a port without a link counts as lost.
_MIN_SIBLING_CARDS = 2


class _PortGroup(NamedTuple):
    """The ports of one kind: of the same link layer, driver and model. Only these can be expected to be equal."""

    rdma_ports: List[RdmaPort]

    @property
    def active_ports(self) -> List[RdmaPort]:
        return [port for port in self.rdma_ports if port["state"] == "active"]

    @property
    def fastest_rate(self) -> float:
        return max((port["rate_gbps"] or 0.0 for port in self.active_ports), default=0.0)

    def count_active(self, card: str) -> int:
        """The number of active ports of a card."""
        return sum(card_address(port) == card for port in self.active_ports)

    def find_without_link(self) -> List[RdmaPort]:
        """The ports that are enabled and look for a link, as with a dead cable or without one."""
        return [
            port
            for port in self.rdma_ports
            if port["state"] != "active" and port["physical_state"] not in (None, "linkup", "disabled")
        ]

    def find_lost_links(self) -> List[RdmaPort]:
        """Return the ports without a link whose card has fewer active ports than every other card."""
        lost_ports = []
        for port in self.find_without_link():
            enabled = [other_port for other_port in self.rdma_ports if other_port["physical_state"] != "disabled"]
            other_cards = {card_address(other_port) for other_port in enabled} - {card_address(port)}
            own_active_count = self.count_active(card_address(port))
            if len(other_cards) >= _MIN_SIBLING_CARDS and all(
                self.count_active(other_port) > own_active_count for other_port in other_cards
            ):
                lost_ports.append(port)
        return lost_ports

    def find_unclear_links(self) -> List[RdmaPort]:
        """Return the other ports without a link whose card has no active port: lost, or never had a cable."""
        lost = self.find_lost_links()
        return [
            port for port in self.find_without_link() if not self.count_active(card_address(port)) and port not in lost
        ]


def _format_port(port: RdmaPort) -> str:
    return f"{port['device']}:{port['port']}"


def judge_rdma(
    rdma_ports: Sequence[RdmaPort],
    rate_gbps: Optional[float],
    model_by_device: Mapping[str, str] = MappingProxyType({}),
    recorded_fabric: Optional[str] = None,
) -> Judgement:
    """Judge whether ports with a cable are active, and as fast as others of their kind.

    Disabled ports and unused ports of cards with several are ignored, as are devices in software, whose rates are
    arbitrary. ``rate_gbps`` is required of the fastest kind. ``recorded_fabric``: infiniband or roce, if the other
    members of the site connect to this host by it.
    """
    fabrics = {name_fabric([rdma_port]) for rdma_port in rdma_ports if rdma_port["state"] == "active"}
    if recorded_fabric not in (None, "none", *fabrics):
        states = ", ".join(
            f"{_format_port(rdma_port)} ({rdma_port['link_layer'] or 'unknown'}) is {rdma_port['state']}"
            for rdma_port in rdma_ports
        )
        return failed(
            0,
            1,
            f"The record says that this host has RDMA ({recorded_fabric}), but no such port is active: "
            f"{states or 'it has no RDMA device'}.",
            "Check the card (lspci), its driver, the cable and, on InfiniBand, the subnet manager (ibstat, rdma link). If "
            "the card was removed, run the playbook join with this machine in cluster_machines.",
            "active ports",
        )
    if not rdma_ports:
        return skipped("This host has no RDMA device.")
    hardware_ports = [rdma_port for rdma_port in rdma_ports if rdma_port["pci_address"]]
    if not hardware_ports:
        return skipped("The RDMA devices of this host are implemented in software.")
    active_ports = [rdma_port for rdma_port in hardware_ports if rdma_port["state"] == "active"]
    if not active_ports:
        return failed(
            0,
            len(hardware_ports),
            "No RDMA port is active: " + ", ".join(f"{_format_port(p)} is {p['state']}" for p in hardware_ports) + ".",
            "Check the cables and, on InfiniBand, the subnet manager (ibstat).",
            "active ports",
        )
    sorted_out: Dict[Hashable, List[RdmaPort]] = {}
    for rdma_port in hardware_ports:
        sorted_out.setdefault(
            (rdma_port["link_layer"], rdma_port["driver"], model_by_device.get(rdma_port["device"])), []
        ).append(rdma_port)
    port_groups = [_PortGroup(of_kind) for of_kind in sorted_out.values()]
    fastest = max(port_group.fastest_rate for port_group in port_groups)
    problem_texts, slow_ports, actual_texts, required_texts = [], [], [], []
    for port_group in port_groups:
        required_rate = (
            rate_gbps if rate_gbps is not None and port_group.fastest_rate == fastest else port_group.fastest_rate
        )
        inactive_ports = [
            p for p in port_group.rdma_ports if p["state"] != "active" and p["physical_state"] in (None, "linkup")
        ]
        lost = port_group.find_lost_links()
        problem_texts += [f"{_format_port(rdma_port)} is {rdma_port['state']}" for rdma_port in inactive_ports]
        problem_texts += [
            f"{_format_port(rdma_port)} has no link ({rdma_port['physical_state']}), unlike all other cards of its kind"
            for rdma_port in lost
        ]
        slow_ports += [p for p in port_group.active_ports if (p["rate_gbps"] or 0.0) < required_rate]
        number = len(port_group.active_ports) + len(inactive_ports) + len(lost)
        actual_texts += (
            [f"{len(port_group.active_ports)} at {port_group.fastest_rate:g} Gbit/s"] if port_group.active_ports else []
        )
        required_texts += [f"{number} at {required_rate:g} Gbit/s"] if number else []
    problem_texts += [
        f"{_format_port(rdma_port)} at {rdma_port['rate_gbps'] or 0.0:g} Gbit/s" for rdma_port in slow_ports
    ]
    if problem_texts:
        return failed(
            f"{len(active_ports) - len(slow_ports)} of {len(active_ports) + len(problem_texts) - len(slow_ports)}",
            ", ".join(required_texts),
            "; ".join(problem_texts) + ".",
            "Replace the cable or transceiver of this port, and check the switch port. Disable a port that is unused.",
            "ports",
        )
    unclear = [rdma_port for port_group in port_groups for rdma_port in port_group.find_unclear_links()]
    if unclear:
        unclear_text = ", ".join(map(_format_port, unclear))
        return skipped(
            f"{', '.join(actual_texts)} are active, but {unclear_text} {'have' if unclear[1:] else 'has'} no link: one host does "
            "not show whether a cable belongs there. Disable ports that are not used."
        )
    return passed(", ".join(actual_texts), ", ".join(required_texts))


def read_job_settings(tree: Tree) -> Optional[Mapping[str, Any]]:
    """The settings of the jobs on this host; None if there are none, or if they do not concern its RDMA ports."""
    try:
        settings = json.loads(tree.read(SETTINGS_PATH.lstrip("/")) or "")
    except ValueError:
        return None
    rdma, variables = (settings.get("rdma"), settings.get("variables")) if isinstance(settings, dict) else (None, None)
    # An earlier version wrote other settings.
    if not isinstance(rdma, dict) or not isinstance(variables, dict):
        return None
    return None if "plugin" in rdma or "NCCL_IB_HCA" in variables else settings


def judge_job_ports(judged: Judgement, settings: Mapping[str, Any], ports: JobPorts, drains_node: bool) -> Judgement:
    """Judge whether jobs can use the RDMA ports that NCCL_IB_HCA names on this host; NCCL hangs with any other.

    ``judged``: the judgement of all ports, to which this adds how many of them jobs use, if it is not all. With
    ``drains_node``, ports that work, but lead to another network than the cluster's, are not a problem of the node.
    """
    named = settings["rdma"]["devices"] if settings["rdma"]["peers"] else []
    active_ports = [port for port in ports.network if port["state"] == "active" and port["link_layer"] in NATIVE_LAYERS]
    # The host is a peer of itself.
    if judged.status == "fail" or not active_ports or len(settings["rdma"]["peers"]) == 1:
        return judged
    active, usable, selected = (set(map(name_port, group)) for group in (active_ports, ports.usable, ports.job))
    problem_texts = [
        f"{device} has no address that other members can reach" if device in active else f"{device} is not active"
        for device in named
        if device not in usable
    ]
    if not problem_texts and not drains_node:
        problem_texts = [
            f"{device} does not lead to the cluster's network" for device in named if device not in selected
        ]
    if problem_texts:
        return failed(
            f"{len(named) - len(problem_texts)} of {len(named)}",
            len(named),
            f"Jobs use RDMA ports that reach no other member: {'; '.join(problem_texts)}.",
            "Correct the address of the port (ip address) or its link (ibstat). If it is right as it is, run the site "
            "playbook, which renews NCCL_IB_HCA.",
            "ports that jobs use",
        )
    if judged.status != "pass" or len(named) == len(active_ports):
        return judged
    return judged._replace(actual=f"{judged.actual}; jobs use {len(named) or 'none'} of {len(active_ports)}")


def read_rdma_models(tree: Tree, ports: Sequence[RdmaPort]) -> Dict[str, str]:
    """The model of each RDMA device: the identifiers on the PCI bus, and that of the board.

    Cards with the same chip have other rates: a DGX H100 has it on its eight cards for GPUs, and on those for storage.
    """
    devices_directory = "sys/bus/pci/devices"
    boards = read_board_ids(tree, ports)
    model_by_device = {}
    for port in ports:
        id_parts = [
            tree.read(devices_directory, port["pci_address"] or "", name) or ""
            for name in ("vendor", "device", "subsystem_vendor", "subsystem_device")
        ]
        model_by_device[port["device"]] = ":".join([*id_parts, boards[port["device"]]])
    return model_by_device


# Peers


def judge_ssh(login_results: LoginResults, ssh_user: str) -> Judgement:
    """Judge the logins of this user."""
    problem_texts = [
        f"{machine}: {trouble.rstrip('.')}"
        for machine, trouble in sorted(login_results.problem_by_machine.items())
        if trouble
    ]
    tried_count, untried_count = len(login_results.problem_by_machine), len(login_results.untried_machines)
    good_count, number = tried_count - len(problem_texts), tried_count + untried_count
    unit = "peers" if number == login_results.peer_count else f"peers, a sample of {login_results.peer_count}"
    if not problem_texts:
        return passed(good_count, number, unit)
    untried_text = (
        f" All of these {tried_count} fail, so {untried_count} others were not tried." if untried_count else ""
    )
    return failed(
        good_count,
        number,
        f"{ssh_user} cannot log in without a prompt. {'; '.join(problem_texts)}.{untried_text}",
        "Run the site playbook, which renews the cluster's keys and known hosts.",
        unit,
    )
