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
from typing import Collection, Dict, Iterable, List, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import devices_by_point, unescaped
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable

#: The name that sshd gives a login's process: ``sshd: alice@pts/0`` up to OpenSSH 9.7, then ``sshd-session: …``.
LOGIN = re.compile(r"^sshd(?:-session)?: (?P<user>\S+)@(?P<terminal>\S+)$")


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
    for pid in processes.pids(proc):
        held = list(processes.held(proc, pid))
        points = [
            point
            for point in mount_points
            if any(path == point or path.startswith(point.rstrip("/") + "/") for path in held)
        ]
        if not points:
            continue
        there, others = _mounts(proc, str(pid))
        found += [
            VolumeUser(point, pid, _owner(proc, pid), printable(processes.text(proc, str(pid), "comm").strip()))
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
    sockets = processes.tcp_sockets(proc)
    remote = {inode: one.remote for inode, one in sockets.items() if one.state == processes.ESTABLISHED}
    own = processes.ancestors(proc, os.getpid())
    found = []
    for pid in processes.pids(proc):
        match = LOGIN.match(processes.title(proc, pid))
        if match is None or pid in own:
            continue
        peers = {remote[inode] for inode in processes.sockets(proc, pid) if inode in remote} & wanted
        found += [Login(pid, match.group("user"), match.group("terminal"), peer) for peer in sorted(peers)]
    return found


def _mounts(proc: str, process: str) -> Tuple[str, Dict[str, str]]:
    """The mount namespace of a process, and the devices that it sees by their mount points."""
    try:
        namespace = os.readlink(os.path.join(proc, process, "ns", "mnt"))
    except OSError:
        namespace = ""
    return namespace, devices_by_point(processes.text(proc, process, "mountinfo"))


def _owner(proc: str, pid: int) -> str:
    try:
        number = os.stat(os.path.join(proc, str(pid))).st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
