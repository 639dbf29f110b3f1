# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What uses a cluster on this host: processes with files on its volumes, and logins over its network. From /proc only.

The links in /proc are read, but never followed, so that a volume whose server is dead does not block this.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import socket
import struct
from typing import Collection, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import devices_by_point, unescaped
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable

#: Links of a process that hold a mount: see proc(5).
_LINKS = ("cwd", "root", "exe")
_ESTABLISHED = "01"
#: An address in such a table: one or four words of 32 bits.
_DIGITS = re.compile(r"[0-9A-Fa-f]{8}(?:[0-9A-Fa-f]{24})?")
#: The name that sshd gives a login's process: ``sshd: alice@pts/0`` up to OpenSSH 9.7, then ``sshd-session: …``.
_LOGIN = re.compile(r"^sshd(?:-session)?: (?P<user>\S+)@(?P<terminal>\S+)$")
_NATIVE_WORD = "=I"


class VolumeUser(NamedTuple):
    """A process that keeps a volume mounted."""

    mount_point: str
    pid: int
    user: str
    command: str


class Login(NamedTuple):
    """A login over the cluster's network. ``terminal`` is ``notty`` for a command."""

    pid: int
    user: str
    terminal: str
    address: str


def mounted(mounts: str, wanted: Collection[str]) -> List[str]:
    """Those of ``wanted`` that are mount points, from the text of /proc/self/mounts. An automount alone does not count."""
    found = set()
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[2] != "autofs":
            found.add(unescaped(fields[1]))
    return [path for path in wanted if path.rstrip("/") in found]


def volume_users(proc: str, mount_points: Collection[str]) -> List[VolumeUser]:
    """Every process whose folder, program or open file is on one of the mount points.

    A container with its own mounts may have another file system at the same path, which its device shows.
    """
    here, devices = _mounts(proc, "self")
    found = []
    for pid in _processes(proc):
        held = list(_held(proc, pid))
        points = [
            point
            for point in mount_points
            if any(path == point or path.startswith(point.rstrip("/") + "/") for path in held)
        ]
        if not points:
            continue
        there, others = _mounts(proc, str(pid))
        found += [
            VolumeUser(point, pid, _owner(proc, pid), printable(_text(proc, str(pid), "comm").strip()))
            for point in points
            if here == there or devices.get(point) == others.get(point)
        ]
    return found


def refuse_in_use(users: Sequence[VolumeUser], force: bool) -> None:
    """Raises HostStateError listing the processes that use volumes to be unmounted."""
    if not users or force:
        return
    words = "; ".join(f"{user.command} of {user.user} (process {user.pid}) uses {user.mount_point}" for user in users)
    raise HostStateError(
        f"A volume is in use and was not unmounted: {words}.",
        "Wait until they have ended, or end them (scancel, kill), and run the playbook again.",
        users=[user._asdict() for user in users],
    )


def logins(proc: str, addresses: Iterable[str]) -> List[Login]:
    """Logins whose connection comes from one of the addresses, except the one that runs this."""
    wanted = {str(ipaddress.ip_address(address)) for address in addresses}
    remote = {
        **connections(_text(proc, "", "net/tcp")),
        **connections(_text(proc, "", "net/tcp6")),
    }
    own = _ancestors(proc, os.getpid())
    found = []
    for pid in _processes(proc):
        match = _LOGIN.match(_text(proc, str(pid), "cmdline").replace("\0", " ").strip())
        if match is None or pid in own:
            continue
        peers = {remote[inode] for inode in _sockets(proc, pid) if inode in remote} & wanted
        found += [Login(pid, match.group("user"), match.group("terminal"), peer) for peer in sorted(peers)]
    return found


def connections(table: str) -> Dict[str, str]:
    """The remote address of each established connection by its socket's inode, from the text of /proc/net/tcp or tcp6."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        digits = fields[2].partition(":")[0] if len(fields) > 9 and fields[3] == _ESTABLISHED else ""
        if _DIGITS.fullmatch(digits):
            found[fields[9]] = _address(digits)
    return found


def _address(digits: str) -> str:
    """Decode words of 32 bits in the host's byte order, each as eight digits."""
    packed = b"".join(
        struct.pack(_NATIVE_WORD, int(digits[start : start + 8], 16)) for start in range(0, len(digits), 8)
    )
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    address = ipaddress.IPv6Address(packed)
    return str(address.ipv4_mapped or address)


def _processes(proc: str) -> Iterator[int]:
    return (int(name) for name in os.listdir(proc) if name.isdigit())


def _mounts(proc: str, process: str) -> Tuple[str, Dict[str, str]]:
    """The mount namespace of a process, and the devices that it sees by their mount points."""
    try:
        namespace = os.readlink(os.path.join(proc, process, "ns", "mnt"))
    except OSError:
        namespace = ""
    return namespace, devices_by_point(_text(proc, process, "mountinfo"))


def _text(proc: str, process: str, name: str) -> str:
    """A file of a process, which may have ended meanwhile."""
    try:
        with open(os.path.join(proc, process, name), encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _held(proc: str, pid: int) -> Iterator[str]:
    folder = os.path.join(proc, str(pid))
    try:
        opened = [os.path.join("fd", name) for name in os.listdir(os.path.join(folder, "fd"))]
    except OSError:
        opened = []
    for name in [*_LINKS, *opened]:
        try:
            yield os.readlink(os.path.join(folder, name))
        except OSError:
            continue


def _sockets(proc: str, pid: int) -> Set[str]:
    return {path[len("socket:[") : -1] for path in _held(proc, pid) if path.startswith("socket:[")}


def _ancestors(proc: str, pid: int) -> Set[int]:
    found = set()
    while pid and pid not in found:
        found.add(pid)
        # The name, in brackets, may contain any character; the parent is the second field after it.
        fields = _text(proc, str(pid), "stat").rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found


def _owner(proc: str, pid: int) -> str:
    try:
        number = os.stat(os.path.join(proc, str(pid))).st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
