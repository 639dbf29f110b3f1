# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the machine: memory, disks, mounts, clock, name, RDMA ports.

Each consists of a reading and a pure judgement.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import stat
import subprocess
import sys
import tempfile
from types import MappingProxyType
from typing import Container, Dict, Hashable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import command
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.shapes import (
    SLURMD,
    Judgement,
    failed,
    passed,
    skipped,
    unknown,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import Mounted, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.rdma import fabric_of
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.shapes import RdmaPort
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import is_roots
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import whole_number

_MIB = 1024 * 1024
#: Reads the folder, and unless it is read-only, writes, syncs and removes a file. Runs in a process of its own, since a
#: process that waits for a dead server cannot be killed, and must not block the module. Uses only descriptors, since
#: others may write to the folder: they must neither be able to redirect it, nor to make it fail.
_MOUNT_TEST = """
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
    for pid in tree.names("proc"):
        if pid.isdecimal() and is_roots(tree.path("proc"), int(pid), SLURMD):
            found = re.search(r"^Max locked memory\s+(\S+)", tree.read("proc", pid, "limits") or "", re.MULTILINE)
            if found:
                return whole_number(found.group(1))
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def judge_memlock(limit: Optional[int], ports: Sequence[RdmaPort]) -> Judgement:
    """RDMA locks the memory of its buffers."""
    if not ports:
        return skipped("There is no RDMA device, and nothing else locks memory.")
    if limit is None:
        return passed("unlimited", "unlimited")
    return failed(
        round(limit / _MIB, 2),
        "unlimited",
        "Jobs can lock only a part of the memory, so RDMA transports cannot register their buffers.",
        "Set LimitMEMLOCK=infinity for slurmd and restart it.",
        "MiB",
    )


# Packages


def judge_packages(unfinished: Sequence[str]) -> Judgement:
    """Without their configuration, programs are there that do not work."""
    if not unfinished:
        return passed("complete", "complete")
    return failed(
        "incomplete",
        "complete",
        f"An installation was cut off: {'; '.join(unfinished)}.",
        "Run the site playbook, which completes it.",
    )


# Swap


def parse_swap(text: str) -> float:
    """MiB of swap in use, from /proc/swaps."""
    used = 0
    for line in text.splitlines()[1:]:
        fields = line.split()
        used += (whole_number(fields[-2]) or 0) if len(fields) >= 4 else 0
    return round(used / 1024, 1)


def judge_swap(text: Optional[str], limit_mib: float) -> Judgement:
    """A training process that swaps delays all others at the next collective."""
    if text is None:
        return skipped("The kernel shows no /proc/swaps.")
    used = parse_swap(text)
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
_USERS_FOLDERS = (
    "/home",
    "/var",
    os.path.join("/var", "tmp"),
    os.path.join("/", "tmp"),
    os.path.join("/dev", "shm"),
    tempfile.gettempdir(),
)
#: UIDs from here on belong to people.
_FIRST_USER = 1000


class Disk(NamedTuple):
    """The usage of a file system in percent, as df computes it: root's reserve does not count as free.

    ``users``: whether ordinary users can write to it.
    """

    path: str
    used_percent: float
    inodes_percent: float
    users: bool = False


def read_disks(paths: Sequence[str], tree: Tree) -> List[Disk]:
    """The file systems of these folders, each once."""
    mounts = parse_mountinfo(tree.read("proc/self/mountinfo") or "")
    theirs = {_space(path, mounts) for path in users_folders(mounts) if os.path.isdir(path)}
    seen: Dict[int, Disk] = {}
    for path in paths:
        if not os.path.isdir(path):
            continue
        device = os.stat(path).st_dev
        if device in seen:
            continue
        fs = os.statvfs(path)
        used = fs.f_blocks - fs.f_bfree
        room = used + fs.f_bavail
        seen[device] = Disk(
            path,
            round(100.0 * used / room, 1) if room else 0.0,
            round(100.0 * (fs.f_files - fs.f_ffree) / fs.f_files, 1) if fs.f_files else 0.0,
            _space(path, mounts) in theirs,
        )
    return list(seen.values())


def users_folders(mounts: Sequence[Mounted], top: str = "/") -> List[str]:
    """Folders that ordinary users can write to: those of every machine, and those in the top two levels of this one.

    Mounts below them are not examined, since a dead server must not block this.
    """
    points = {mount.point for mount in mounts}
    found = list(_USERS_FOLDERS)
    level = [top]
    for _depth in range(2):
        below = []
        for above in level:
            for path, about in _folders(above, points):
                below.append(path)
                if about.st_mode & stat.S_IWOTH or about.st_uid >= _FIRST_USER:
                    found.append(path)
        level = below
    return found


def _folders(path: str, points: Container[str]) -> List[Tuple[str, os.stat_result]]:
    """The folders in a folder, except mount points; empty if it has disappeared."""
    try:
        with os.scandir(path) as entries:
            return [
                (entry.path, entry.stat(follow_symlinks=False))
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and entry.path not in points
            ]
    except OSError:
        return []


def _space(path: str, mounts: Sequence[Mounted]) -> Hashable:
    """The storage of the file system at ``path``: its device, or the pool that it shares with others."""
    above = os.path.realpath(path)
    points = {mount.point: mount for mount in mounts}
    while above not in points and above != "/":
        above = os.path.dirname(above)
    mount = points.get(above)
    if mount is not None and mount.filesystem in ("btrfs", "overlay"):
        return (mount.filesystem, mount.source)
    if mount is not None and mount.filesystem == "zfs":
        return (mount.filesystem, mount.source.split("/")[0])
    return os.stat(path).st_dev


def judge_disks(disks: Sequence[Disk], limit_percent: float) -> Judgement:
    """Logs, checkpoints and Slurm's state need free space."""
    if not disks:
        return unknown("No file system could be checked.", "Check that / can be read.")
    fullest = max(disks, key=lambda disk: max(disk.used_percent, disk.inodes_percent))
    worst = max(fullest.used_percent, fullest.inodes_percent)
    if worst < limit_percent:
        return passed(worst, f"< {limit_percent:g}", "%")
    what = "inodes" if fullest.inodes_percent > fullest.used_percent else "space"
    return failed(
        worst,
        f"< {limit_percent:g}",
        f"{fullest.path} has {worst:g} % of its {what} in use.",
        f"Free some space: du -xh --max-depth=2 {fullest.path} | sort -h shows what uses it.",
        "%",
    )


# Mounts


class Trouble(NamedTuple):
    """The problem of a mount. ``slow``: its server answers, but storing a file takes longer than allowed."""

    words: str
    slow: bool = False


def try_mount(path: str, read_only: bool = False, seconds: float = 10.0) -> Optional[Trouble]:
    """Read a mount and write to it. Returns None if that worked, or else the problem."""
    # It is not waited for after it was killed: a process that hangs in the kernel ends only when the kernel allows it.
    process = command.Process(
        [sys.executable, "-IS", "-c", _MOUNT_TEST, path, "read" if read_only else "write"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    try:
        _output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as expired:
        process.kill()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        if expired.output:
            return Trouble(f"it responds, but no file could be written within {seconds:g} s", True)
        return Trouble(f"no answer within {seconds:g} s")
    if process.returncode == 0:
        return None
    return Trouble(errors.strip().splitlines()[-1] if errors.strip() else f"exit status {process.returncode}")


def parse_mounted(mountinfo: str) -> Dict[str, str]:
    """File system type by mount point, from /proc/self/mountinfo.

    Of several mounts on a point, the last one is visible.
    """
    return {mount.point: mount.filesystem for mount in parse_mountinfo(mountinfo)}


def kind_at(path: str, mounted: Mapping[str, str], external: bool) -> str:
    """The type of the file system at ``path``; empty if it is only a folder of the host.

    Our volumes are mount points themselves; external ones may be a folder below a mount point.
    """
    while external and path != "/" and path not in mounted:
        path = os.path.dirname(path)
    return mounted.get(path, "") if path != "/" else ""


def judge_mounts(
    attempts: Mapping[str, Optional[Trouble]], kinds: Mapping[str, str], drains: bool = False
) -> Judgement:
    """Judge whether each shared volume is mounted and can store a file. ``kinds``: the file system at each path.

    With ``drains``, a slow volume is not a problem: its server is busy, and draining nodes would not make it faster.
    """
    if not attempts:
        return skipped("No volume in the record is mounted here.")
    troubles = []
    for path, trouble in attempts.items():
        if trouble and not (trouble.slow and drains):
            troubles.append(f"{path}: {trouble.words}")
        elif kinds.get(path, "") in ("", "autofs"):
            troubles.append(f"{path}: nothing is mounted there")
    good = len(attempts) - len(troubles)
    if not troubles:
        return passed(good, len(attempts), "mounts")
    return failed(
        good,
        len(attempts),
        "; ".join(troubles) + ".",
        "Check the server of the volume, then run the storage playbook again. An external file system has to be mounted "
        "by its own administrators.",
        "mounts",
    )


# Clock


def judge_clock(synchronised: Optional[str], container: bool) -> Judgement:
    """``synchronised`` is the output of timedatectl, yes or no; None if it cannot be queried."""
    if container:
        return skipped("This is a container and uses the clock of its host.")
    if synchronised is None:
        return skipped("timedatectl does not work here; the clocks of the members are compared instead.")
    if synchronised == "yes":
        return passed(True, True)
    return failed(
        False,
        True,
        "The clock is not synchronized, and munge rejects credentials that are a few minutes off.",
        "Install and start chrony or systemd-timesyncd.",
    )


def is_container(tree: Tree) -> bool:
    """Whether PID 1 runs in a container. The runtimes of Kubernetes say so only by its own variables."""
    if tree.exists(".dockerenv") or tree.exists("run/.containerenv") or tree.exists("run/systemd/container"):
        return True
    environment = tree.read("proc/1/environ") or ""
    return any(entry.startswith(("container=", "KUBERNETES_SERVICE_HOST=")) for entry in environment.split("\0"))


# Name


def resolve(name: str) -> List[str]:
    """The addresses of a name; empty if it has none."""
    try:
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError:
        return []


def judge_name(name: str, addresses: Sequence[str], expected: Optional[str]) -> Judgement:
    """Gloo and MPI announce the address of the host's own name: with 127.0.1.1, the others would connect to themselves."""
    if expected is None:
        return skipped("The member has no cluster address yet.")
    shown = ", ".join(addresses) or "nothing"
    if list(addresses) == [expected]:
        return passed(shown, expected)
    reason = f"{name} resolves to {shown} instead of {expected}."
    if any(address.startswith("127.") or address == "::1" for address in addresses):
        reason = f"{name} resolves to {shown}: other members would connect to themselves."
    return failed(shown, expected, reason, f"Map {name} only to {expected} in /etc/hosts; the site playbook does this.")


# RDMA


#: Only if at least this many other cards have more active ports is a port without a link taken for a lost one.
_LEAST_SIBLINGS = 2


class _Kind(NamedTuple):
    """The ports of one kind: of the same link layer, driver and model. Only these can be expected to be equal."""

    ports: List[RdmaPort]

    @property
    def active(self) -> List[RdmaPort]:
        return [port for port in self.ports if port["state"] == "active"]

    @property
    def fastest(self) -> float:
        return max((port["rate_gbps"] or 0.0 for port in self.active), default=0.0)

    def active_of(self, card: str) -> int:
        """The number of active ports of a card."""
        return sum(_card(port) == card for port in self.active)

    def without_link(self) -> List[RdmaPort]:
        """The ports that are enabled and look for a link, as with a dead cable or without one."""
        return [
            port
            for port in self.ports
            if port["state"] != "active" and port["physical_state"] not in (None, "linkup", "disabled")
        ]

    def lost(self) -> List[RdmaPort]:
        """Those without a link whose card has fewer active ports than every other one."""
        found = []
        for port in self.without_link():
            enabled = [other for other in self.ports if other["physical_state"] != "disabled"]
            others = {_card(other) for other in enabled} - {_card(port)}
            own = self.active_of(_card(port))
            if len(others) >= _LEAST_SIBLINGS and all(self.active_of(other) > own for other in others):
                found.append(port)
        return found

    def unclear(self) -> List[RdmaPort]:
        """Those without a link whose card has no other one, which may be lost, or never had a cable."""
        lost = self.lost()
        return [port for port in self.without_link() if not self.active_of(_card(port)) and port not in lost]


def _card(port: RdmaPort) -> str:
    """The ports of a card are functions of one PCI device, or ports of one function."""
    return (port["pci_address"] or "").rpartition(".")[0]


def _named(port: RdmaPort) -> str:
    return f"{port['device']}:{port['port']}"


def judge_rdma(
    ports: Sequence[RdmaPort],
    rate_gbps: Optional[float],
    models: Mapping[str, str] = MappingProxyType({}),
    fabric: Optional[str] = None,
) -> Judgement:
    """Judge whether ports with a cable are active, and as fast as others of their kind.

    Disabled ports and unused ports of cards with several are ignored, as are devices in software, whose rates are
    arbitrary. ``rate_gbps`` is required of the fastest kind. ``models``: the model by device. ``fabric``: infiniband or
    roce, if the other members of the site connect to this host by it.
    """
    fabrics = {fabric_of([port]) for port in ports if port["state"] == "active"}
    if fabric not in (None, "none", *fabrics):
        states = ", ".join(f"{_named(port)} ({port['link_layer'] or 'unknown'}) is {port['state']}" for port in ports)
        return failed(
            0,
            1,
            f"The record says that this host has RDMA ({fabric}), but no such port is active: "
            f"{states or 'it has no RDMA device'}.",
            "Check the card (lspci), its driver, the cable and, on InfiniBand, the subnet manager (ibstat, rdma link). If "
            "the card was removed, run the playbook join with this machine in cluster_machines.",
            "active ports",
        )
    if not ports:
        return skipped("This host has no RDMA device.")
    hardware = [port for port in ports if port["pci_address"]]
    if not hardware:
        return skipped("The RDMA devices of this host are implemented in software.")
    active = [port for port in hardware if port["state"] == "active"]
    if not active:
        return failed(
            0,
            len(hardware),
            "No RDMA port is active: " + ", ".join(f"{_named(p)} is {p['state']}" for p in hardware) + ".",
            "Check the cables and, on InfiniBand, the subnet manager (ibstat).",
            "active ports",
        )
    sorted_out: Dict[Hashable, List[RdmaPort]] = {}
    for port in hardware:
        sorted_out.setdefault((port["link_layer"], port["driver"], models.get(port["device"])), []).append(port)
    kinds = [_Kind(of_kind) for of_kind in sorted_out.values()]
    fastest = max(kind.fastest for kind in kinds)
    troubles, slow, actual, required = [], [], [], []
    for kind in kinds:
        wanted = rate_gbps if rate_gbps is not None and kind.fastest == fastest else kind.fastest
        inactive = [p for p in kind.ports if p["state"] != "active" and p["physical_state"] in (None, "linkup")]
        lost = kind.lost()
        troubles += [f"{_named(port)} is {port['state']}" for port in inactive]
        troubles += [
            f"{_named(port)} has no link ({port['physical_state']}), unlike all other cards of its kind"
            for port in lost
        ]
        slow += [p for p in kind.active if (p["rate_gbps"] or 0.0) < wanted]
        number = len(kind.active) + len(inactive) + len(lost)
        actual += [f"{len(kind.active)} at {kind.fastest:g} Gbit/s"] if kind.active else []
        required += [f"{number} at {wanted:g} Gbit/s"] if number else []
    troubles += [f"{_named(port)} at {port['rate_gbps'] or 0.0:g} Gbit/s" for port in slow]
    if troubles:
        return failed(
            f"{len(active) - len(slow)} of {len(active) + len(troubles) - len(slow)}",
            ", ".join(required),
            "; ".join(troubles) + ".",
            "Replace the cable or transceiver of this port, and check the switch port. Disable a port that is unused.",
            "ports",
        )
    unclear = [port for kind in kinds for port in kind.unclear()]
    if unclear:
        named = ", ".join(map(_named, unclear))
        return skipped(
            f"{', '.join(actual)} are active, but {named} {'have' if unclear[1:] else 'has'} no link: one host does "
            "not show whether a cable belongs there. Disable ports that are not used."
        )
    return passed(", ".join(actual), ", ".join(required))


def read_rdma_models(tree: Tree, ports: Sequence[RdmaPort]) -> Dict[str, str]:
    """The model of each RDMA device: the identifiers of its vendor and of the product on the PCI bus."""
    folder = "sys/bus/pci/devices"
    found = {}
    for port in ports:
        words = [tree.read(folder, port["pci_address"] or "", name) or "" for name in ("vendor", "device")]
        found[port["device"]] = ":".join(words)
    return found


# Peers


def judge_ssh(attempts: Dict[str, Optional[str]], user: str, left: Sequence[str] = ()) -> Judgement:
    """``attempts`` is the problem by machine, None for none. ``left`` are the machines that were not tried then."""
    troubles = [f"{machine}: {trouble.rstrip('.')}" for machine, trouble in sorted(attempts.items()) if trouble]
    good, number = len(attempts) - len(troubles), len(attempts) + len(left)
    if not troubles:
        return passed(good, number, "peers")
    rest = f" All of these {len(attempts)} fail, so {len(left)} others were not tried." if left else ""
    return failed(
        good,
        number,
        f"{user} cannot log in without a prompt. {'; '.join(troubles)}.{rest}",
        "Run the site playbook, which renews the cluster's keys and known hosts.",
        "peers",
    )
