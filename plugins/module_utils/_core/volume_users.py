# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find what uses a cluster on this host, in /proc: processes with files on its volumes, and logins over its network.

The links in /proc are read, but never followed, so that a volume whose server is dead does not block this. Mapped files
are read with a time limit, since reading them may wait for a process that waits for such a volume.
"""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Any, Collection, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import (
    MountEntry,
    find_mount,
    parse_mountinfo,
    unescape_path,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.safe_path import account_name
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.subprocess_deadline import (
    VolumeError,
    run_with_deadline,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable

#: The mapped files of all processes are read within this many seconds.
_MAPS_TIMEOUT = 30.0
#: sshd gives the process of a login this title: ``sshd: alice@pts/0`` up to OpenSSH 9.7, then ``sshd-session: …``.
LOGIN_TITLE = re.compile(r"^sshd(?:-session)?: (?P<user>\S+)@(?P<terminal>\S+)$")


class VolumeUser(NamedTuple):
    """A process that keeps a volume mounted."""

    mount_point: str
    pid: int
    user: str
    command: str


class _NamespaceView(NamedTuple):
    """The volumes as a process sees them: their mount points on this host, by their paths in its namespace.

    ``visible_mounts`` are all mounts in its namespace, or empty for the namespace of this host.
    """

    points_by_path: Mapping[str, str]
    visible_mounts: Sequence[MountEntry] = ()

    def used_mount_points(self, paths: Iterable[str]) -> Set[str]:
        """Return the mount points of the volumes that contain these paths."""
        used_points = set()
        for path in paths:
            for visible_path, mount_point in self.points_by_path.items():
                if path == visible_path or path.startswith(visible_path.rstrip("/") + "/"):
                    innermost_mount = find_mount(self.visible_mounts, path)
                    # On this host, a mount below the volume keeps the volume mounted as well.
                    if innermost_mount is None or innermost_mount.mount_point == visible_path:
                        used_points.add(mount_point)
        return used_points


class ClusterLogin(NamedTuple):
    """A login over the network of the cluster. ``terminal`` is ``notty`` for a command."""

    pid: int
    user: str
    terminal: str
    address: str


def select_mounted(mounts_text: str, desired_paths: Collection[str]) -> List[str]:
    """Return the desired paths that are mount points in /proc/self/mounts. An automount alone does not count."""
    mounted_paths = set()
    for line in mounts_text.splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[2] != "autofs":
            mounted_paths.add(unescape_path(fields[1]))
    return [path for path in desired_paths if path.rstrip("/") in mounted_paths]


def find_volume_users(proc: str, mount_points: Collection[str]) -> List[VolumeUser]:
    """Find every process whose working directory, program, open file or mapped file is on one of the mount points.

    In another mount namespace, such as that of a container, a volume may be at another path, and another file system at
    the path of the volume.
    """
    if not mount_points:
        return []
    host_mounts = parse_mountinfo(processes.read_process_file(proc, "self", "mountinfo"))
    points_by_path = {mount_point.rstrip("/"): mount_point for mount_point in mount_points}
    volumes_by_point = {
        points_by_path[mount.mount_point]: mount for mount in host_mounts if mount.mount_point in points_by_path
    }
    own_namespace = _mount_namespace(proc, "self")
    views_by_namespace: Dict[Tuple[str, str], _NamespaceView] = {}
    points_by_pid: Dict[int, Set[str]] = {}
    incomplete_views: Dict[int, _NamespaceView] = {}
    for pid in processes.list_pids(proc):
        namespace, root_directory = _mount_namespace(proc, str(pid)), _read_link(proc, str(pid), "root")
        view = (
            _NamespaceView(points_by_path)
            if namespace == own_namespace
            else views_by_namespace.get((namespace, root_directory))
        )
        if view is None:
            view = _view_namespace(_visible_mounts(proc, str(pid), root_directory), host_mounts, volumes_by_point)
            # A process that has just ended shows no mounts, while others in its namespace may run.
            if view.visible_mounts:
                views_by_namespace[namespace, root_directory] = view
        if view.points_by_path:
            points_by_pid[pid] = view.used_mount_points(processes.linked_paths(proc, pid))
            if points_by_pid[pid] != set(view.points_by_path.values()):
                incomplete_views[pid] = view
    for pid, used_points in _find_mapped_volumes(proc, incomplete_views).items():
        points_by_pid[pid] |= used_points
    return [
        VolumeUser(
            mount_point,
            pid,
            _owner_name(proc, pid),
            printable(processes.read_process_file(proc, str(pid), "comm").strip()),
        )
        for pid, used_points in sorted(points_by_pid.items())
        for mount_point in mount_points
        if mount_point in used_points
    ]


def _view_namespace(
    namespace_mounts: Sequence[MountEntry],
    host_mounts: Sequence[MountEntry],
    volumes_by_point: Mapping[str, MountEntry],
) -> _NamespaceView:
    """Return what can be seen of the volumes in another mount namespace.

    The namespace starts with a copy of all mounts. A mount that is the same here is a volume only if it is one here,
    too: the directory that a server exports is on the same disk, and its users do not use the volume.
    """
    # The last of several mounts on one point is visible.
    host_table, namespace_table = (
        {mount.mount_point: mount for mount in table} for table in (host_mounts, namespace_mounts)
    )
    points_by_path: Dict[str, str] = {}
    for visible_path, mount in namespace_table.items():
        host_mount = host_table.get(visible_path)
        is_copied = host_mount is not None and (host_mount.device, host_mount.root) == (mount.device, mount.root)
        for mount_point, volume in volumes_by_point.items():
            if volume.mount_point == visible_path if is_copied else _is_part_of_volume(mount, volume):
                points_by_path[visible_path] = mount_point
    return _NamespaceView(points_by_path, namespace_mounts)


def _is_part_of_volume(mount: MountEntry, volume: MountEntry) -> bool:
    """Whether the mount shows the volume, or a directory in it."""
    path_pairs = ((mount.root, volume.root), (mount.source, volume.source))
    return mount.device == volume.device and all(
        mounted_path == volume_path or mounted_path.startswith(volume_path.rstrip("/") + "/")
        for mounted_path, volume_path in path_pairs
    )


def _find_mapped_volumes(proc: str, views_by_pid: Mapping[int, _NamespaceView]) -> Dict[int, Set[str]]:
    """Return the volumes with files that these processes have mapped, such as libraries of a Python environment."""

    def read_maps() -> Dict[str, Any]:
        points_by_pid = (
            (pid, view.used_mount_points(_find_mapped_files(proc, pid, view))) for pid, view in views_by_pid.items()
        )
        return {str(pid): sorted(mount_points) for pid, mount_points in points_by_pid if mount_points}

    try:
        return {
            int(pid): set(mount_points) for pid, mount_points in run_with_deadline(read_maps, _MAPS_TIMEOUT).items()
        }
    except VolumeError:
        # A process that waits for a dead server may block the reading. The result of the links has to suffice.
        return {}


def _find_mapped_files(proc: str, pid: int, view: _NamespaceView) -> Iterator[str]:
    """Return the files that a process has mapped, if one of them may be on a volume."""
    maps_text = processes.read_process_file(proc, str(pid), "maps")
    # Most processes have mapped no file of a volume, so their lines need not be parsed.
    if any(visible_path in maps_text for visible_path in view.points_by_path):
        for line in maps_text.splitlines():
            fields = line.split(None, 5)
            if len(fields) == 6:
                yield fields[5]


def refuse_in_use(active_users: Sequence[VolumeUser], force: bool) -> None:
    """Refuse to unmount volumes that processes use. Raises HostStateError, which lists them."""
    if not active_users or force:
        return
    usage_description = "; ".join(
        f"{user.command} of {user.user} (process {user.pid}) uses {user.mount_point}" for user in active_users
    )
    raise HostStateError(
        f"A volume is in use and was not unmounted: {usage_description}.",
        "Wait until they have ended, or end them (scancel, kill), and run the playbook again.",
        users=[user._asdict() for user in active_users],
    )


def find_logins(proc: str, addresses: Iterable[str]) -> List[ClusterLogin]:
    """Find the logins whose connection comes from one of the addresses, except the login that runs this program."""
    cluster_addresses = {str(ipaddress.ip_address(address)) for address in addresses}
    sockets_by_inode = processes.read_tcp_sockets(proc)
    remote_by_inode = {
        inode: tcp_socket.remote_address
        for inode, tcp_socket in sockets_by_inode.items()
        if tcp_socket.state == processes.ESTABLISHED
    }
    own_processes = processes.find_ancestors(proc, os.getpid())
    matching_logins = []
    for pid in processes.list_pids(proc):
        title_match = LOGIN_TITLE.match(processes.process_title(proc, pid))
        if title_match is None or pid in own_processes:
            continue
        peer_addresses = {
            remote_by_inode[inode] for inode in processes.find_socket_inodes(proc, pid) if inode in remote_by_inode
        } & cluster_addresses
        matching_logins += [
            ClusterLogin(pid, title_match.group("user"), title_match.group("terminal"), peer_address)
            for peer_address in sorted(peer_addresses)
        ]
    return matching_logins


def _mount_namespace(proc: str, process_id: str) -> str:
    """Return the mount namespace of a process."""
    return _read_link(proc, process_id, os.path.join("ns", "mnt"))


def _visible_mounts(proc: str, process_id: str, root_directory: str) -> List[MountEntry]:
    """Return the mounts that a process sees. Their paths in /proc are relative to its root directory."""
    root_prefix = root_directory.rstrip("/")
    relative_mounts = parse_mountinfo(processes.read_process_file(proc, process_id, "mountinfo"))
    return [
        mount._replace(mount_point=(root_prefix + mount.mount_point).rstrip("/") or "/") for mount in relative_mounts
    ]


def _read_link(proc: str, process_id: str, link_name: str) -> str:
    """Return the target of a link of a process; empty if the process has ended."""
    try:
        return os.readlink(os.path.join(proc, process_id, link_name))
    except OSError:
        return ""


def _owner_name(proc: str, pid: int) -> str:
    try:
        return account_name(os.stat(os.path.join(proc, str(pid))).st_uid)
    except OSError:
        return ""
