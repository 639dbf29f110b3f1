# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What uses a cluster on this host: processes with files on its volumes, and logins over its network. From /proc only.

The links in /proc are read, but never followed, so that a volume whose server is dead does not block this. What
processes have mapped is read with a time limit: it may wait for a process that waits for such a volume.
"""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Any, Collection, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.guarded import account_name
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import (
    Mounted,
    holding,
    parse_mountinfo,
    unescaped,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.bounded import VolumeError, bounded
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable

#: Seconds in which the mapped files of all processes are read.
_MAPS_SECONDS = 30.0
#: The name that sshd gives a login's process: ``sshd: alice@pts/0`` up to OpenSSH 9.7, then ``sshd-session: …``.
LOGIN = re.compile(r"^sshd(?:-session)?: (?P<user>\S+)@(?P<terminal>\S+)$")


class VolumeUser(NamedTuple):
    """A process that keeps a volume mounted."""

    mount_point: str
    pid: int
    user: str
    command: str


class _View(NamedTuple):
    """Where a process sees the volumes: their mount points on this host, by their paths there.

    ``mounts`` are all that it sees, if these are not those of this host.
    """

    places: Mapping[str, str]
    mounts: Sequence[Mounted] = ()

    def volumes(self, paths: Iterable[str]) -> Set[str]:
        """The mount points of the volumes with these files."""
        found = set()
        for path in paths:
            for place, point in self.places.items():
                if path == place or path.startswith(place.rstrip("/") + "/"):
                    mount = holding(self.mounts, path)
                    # On this host, a mount below the volume keeps that mounted as well.
                    if mount is None or mount.point == place:
                        found.add(point)
        return found


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
    """Every process whose folder, program, open file or mapped file is on one of the mount points.

    In another mount namespace, such as that of a container, a volume may be at another path, and another file system at
    the path of the volume.
    """
    if not mount_points:
        return []
    here = parse_mountinfo(processes.text(proc, "self", "mountinfo"))
    points = {point.rstrip("/"): point for point in mount_points}
    volumes = {points[mount.point]: mount for mount in here if mount.point in points}
    own = _namespace(proc, "self")
    views: Dict[Tuple[str, str], _View] = {}
    found: Dict[int, Set[str]] = {}
    rest: Dict[int, _View] = {}
    for pid in processes.pids(proc):
        namespace, root = _namespace(proc, str(pid)), _link(proc, str(pid), "root")
        view = _View(points) if namespace == own else views.get((namespace, root))
        if view is None:
            view = _view(_mounts(proc, str(pid), root), here, volumes)
            # A process that has just ended shows no mounts, while others in its namespace may run.
            if view.mounts:
                views[namespace, root] = view
        if view.places:
            found[pid] = view.volumes(processes.held(proc, pid))
            if found[pid] != set(view.places.values()):
                rest[pid] = view
    for pid, used in _mapped(proc, rest).items():
        found[pid] |= used
    return [
        VolumeUser(point, pid, _owner(proc, pid), printable(processes.text(proc, str(pid), "comm").strip()))
        for pid, used in sorted(found.items())
        for point in mount_points
        if point in used
    ]


def _view(mounts: Sequence[Mounted], here: Sequence[Mounted], volumes: Mapping[str, Mounted]) -> _View:
    """What can be seen of the volumes in another mount namespace.

    It starts with a copy of all mounts. What is mounted at the same path here is a volume only if it is one here, too:
    the directory that a server exports is on the same disk, and its users do not use the volume.
    """
    # Of several mounts on one point, the last one is visible.
    ours, theirs = ({mount.point: mount for mount in table} for table in (here, mounts))
    places: Dict[str, str] = {}
    for place, mount in theirs.items():
        same = ours.get(place)
        copied = same is not None and (same.device, same.root) == (mount.device, mount.root)
        for point, volume in volumes.items():
            if volume.point == place if copied else _is_part(mount, volume):
                places[place] = point
    return _View(places, mounts)


def _is_part(mount: Mounted, volume: Mounted) -> bool:
    """Whether the volume, or a directory in it, is mounted there."""
    pairs = ((mount.root, volume.root), (mount.source, volume.source))
    return mount.device == volume.device and all(
        one == whole or one.startswith(whole.rstrip("/") + "/") for one, whole in pairs
    )


def _mapped(proc: str, views: Mapping[int, _View]) -> Dict[int, Set[str]]:
    """The volumes with files that these processes have mapped, such as the libraries of a Python environment."""

    def look() -> Dict[str, Any]:
        found = ((pid, view.volumes(_mapped_files(proc, pid, view))) for pid, view in views.items())
        return {str(pid): sorted(points) for pid, points in found if points}

    try:
        return {int(pid): set(points) for pid, points in bounded(look, _MAPS_SECONDS).items()}
    except VolumeError:
        # A process that waits for a dead server may block this. What the links show has to suffice.
        return {}


def _mapped_files(proc: str, pid: int, view: _View) -> Iterator[str]:
    """The files that a process has mapped, if there may be one of a volume among them."""
    text = processes.text(proc, str(pid), "maps")
    # Most processes have none, and need no closer look.
    if any(place in text for place in view.places):
        for line in text.splitlines():
            fields = line.split(None, 5)
            if len(fields) == 6:
                yield fields[5]


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


def _namespace(proc: str, process: str) -> str:
    """The mount namespace of a process."""
    return _link(proc, process, os.path.join("ns", "mnt"))


def _mounts(proc: str, process: str, root: str) -> List[Mounted]:
    """The mounts that a process sees, whose paths in /proc are those below its root directory."""
    above = root.rstrip("/")
    mounts = parse_mountinfo(processes.text(proc, process, "mountinfo"))
    return [mount._replace(point=(above + mount.point).rstrip("/") or "/") for mount in mounts]


def _link(proc: str, process: str, name: str) -> str:
    """The target of a link of a process, which may have ended meanwhile."""
    try:
        return os.readlink(os.path.join(proc, process, name))
    except OSError:
        return ""


def _owner(proc: str, pid: int) -> str:
    try:
        return account_name(os.stat(os.path.join(proc, str(pid))).st_uid)
    except OSError:
        return ""
