# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits the space that a volume may use on its server's disk, with project quotas of ext4 and XFS.

A project is a number that a folder passes on to everything created in it. Its limit is what the kernel reports as the
size of the file system inside the folder, also to members.

/etc/projid and /etc/projects, which repquota and xfs_quota read, contain our projects under names of our own, from
before the first file has the number until after the last one. A limit is set only while all files have the number. So
an interrupted run is completed by the next.

``xfs_quota`` sets and reads the limits, on ext4 too. Existing files get their number here, since neither xfs_quota nor
chattr is safe for that: the former fails on the files of ext4, and both open files by name after examining them, so a
user of the volume could meanwhile replace one by a link to another user's file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import struct
import zlib
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError, ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import Mounted, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.volumes import mount_of
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import whole_number
from ansible_collections.gpumesh.cluster.plugins.module_utils.units import in_words, size_of

PROJID, PROJECTS = "/etc/projid", "/etc/projects"
#: May be missing on a host that has never had a quota.
PROGRAM = "xfs_quota"

#: Our numbers, far from the small ones that people use, and from those that container engines count up from.
_FIRST_NUMBER = 1 << 30
_NUMBERS = 1 << 30

#: Its own project files may name missing folders, about which it would complain each time.
_XFS_QUOTA = (PROGRAM, "-x", "-f", "-D", os.devnull, "-P", os.devnull, "-c")
#: Used, soft and hard limit in KiB, warnings, and the grace time.
_USAGE = re.compile(r"\s(\d+)\s+\d+\s+(\d+)\s+\d+\s+\[")
#: The mount option that both file systems show if projects are accounted and limited.
_ENFORCED = "prjquota"
#: The time limit of a walk through all files of a volume.
_WALK_SECONDS = 6 * 3600

#: struct fsxattr and its two ioctls, of linux/fs.h: flags, two fields, the project, one field.
_ATTRIBUTES = struct.Struct("=5I8x")
_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C581F, 0x401C5820
_FLAGS, _PROJECT = 0, 3
_INHERITS = 0x200

_REMEDIES = {
    "ext4": "Unmount it, run 'tune2fs -O project,quota {source}', and mount it with the option prjquota; for a root file system "
    "that takes a rescue system, and rootflags=prjquota on the kernel's command line",
    "xfs": "Unmount it and mount it with the option pquota; a root file system needs rootflags=pquota on the kernel's command "
    "line",
    "btrfs": "Limit the volume with 'btrfs qgroup limit'",
    "zfs": "Limit the volume with 'zfs set quota'",
}
_OTHER_REMEDY = "Move the volume to ext4 or XFS"
_ELSEWHERE = (
    "In a container, where this is not allowed, remove quota from the volume, and limit it on the machine itself."
)


class Files(NamedTuple):
    """The current contents of the two files."""

    projid: host_files.Current
    projects: host_files.Current


class Project(NamedTuple):
    """A volume's project in the two files. ``path`` is empty if one of them has lost its line."""

    number: int
    path: str


class Volume(NamedTuple):
    """The wanted quota of a volume in bytes, and the current state of its folder, or of where that will be.

    The state is whether projects are limited there, to which project it belongs (0 is none), and for the volume's own
    project the limit (0 is none) and the usage.
    """

    name: str
    path: str
    quota: int
    number: int
    filesystem: str
    source: str
    enforced: bool
    owner: int = 0
    limit: int = 0
    used: int = 0


class Step(NamedTuple):
    """A limit to set for the project, 0 for none. ``before`` is the current one, None if it was not read.

    ``move``: from which project to which the files are moved, None if they stay.
    """

    project: Project
    before: Optional[int]
    limit: int
    move: Optional[Tuple[int, int]]


class Plan(NamedTuple):
    """The limits to remove, the two files, and the limits to set, in this order."""

    release: List[Step]
    files: List[host_files.Step]
    limit: List[Step]

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return any(self)


def name_of(cluster: str, volume: str) -> str:
    """The project's name. Neither part has a dot in it."""
    return f"gpumesh.{cluster}.{volume}"


def parse(files: Files, cluster: str) -> Dict[str, Project]:
    """Our projects by volume."""
    prefix = name_of(cluster, "")
    paths = dict(_lines(files.projects))
    return {
        name[len(prefix) :]: Project(int(number), paths.get(number, ""))
        for name, number in _lines(files.projid)
        if name.startswith(prefix) and whole_number(number) is not None
    }


def number_for(cluster: str, volume: str, files: Files) -> int:
    """The number that the volume has, or a free one, which depends only on its name unless it is taken."""
    known = parse(files, cluster).get(volume)
    if known:
        return known.number
    taken = {number for _name, number in _lines(files.projid)} | {number for number, _path in _lines(files.projects)}
    number = _FIRST_NUMBER + zlib.crc32(name_of(cluster, volume).encode()) % _NUMBERS
    while str(number) in taken:
        number += 1
    return number


def make_plan(cluster: str, volumes: Sequence[Volume], files: Files) -> Plan:
    """Decide what to do. Raises HostStateError for what is not possible."""
    paths = {volume.name: volume.path for volume in volumes}
    ours = parse(files, cluster)
    left = {name: project for name, project in ours.items() if project.path != paths.get(name, "")}
    # A renamed volume has another project, and its folder still belongs to the former one, which is released first.
    freed = [(project.path, project.number) for project in left.values()]
    steps = []
    for volume in volumes:
        owner = 0 if (volume.path, volume.owner) in freed else volume.owner
        _refuse_unfit(volume._replace(owner=owner))
        # If the limit is missing, a run was interrupted before all files had the number.
        mark = volume.owner != volume.number or not volume.limit or volume.name in left
        if mark or volume.limit != volume.quota:
            move = (0, volume.number) if mark else None
            steps.append(Step(Project(volume.number, volume.path), volume.limit, volume.quota, move))
    return Plan(
        [Step(project, None, 0, (project.number, 0)) for project in left.values()],
        [
            *_block(PROJID, cluster, files.projid, [f"{name_of(cluster, one.name)}:{one.number}" for one in volumes]),
            *_block(PROJECTS, cluster, files.projects, [f"{one.number}:{one.path}" for one in volumes]),
        ],
        steps,
    )


def _block(path: str, cluster: str, current: host_files.Current, lines: Sequence[str]) -> List[host_files.Step]:
    entry = {
        "path": path,
        "marker": host_files.marker(cluster),
        "content": "\n".join(lines),
        "state": host_files.BLOCK if lines else host_files.ABSENT,
    }
    planned = (host_files.plan(one, current, (None, None)) for one in host_files.parse([entry]))
    return [step for step in planned if step is not None]


def _refuse_unfit(volume: Volume) -> None:
    what = f"Volume '{volume.name}' at {volume.path}"
    if not volume.enforced:
        remedy = _REMEDIES.get(volume.filesystem, _OTHER_REMEDY).format(source=volume.source)
        raise HostStateError(
            f"{what} cannot have a quota: it is on {volume.filesystem} from {volume.source}, which is mounted without project "
            "quotas.",
            f"{remedy}. Or remove quota from the volume in storage_volumes.",
            volume=volume.name,
        )
    if volume.owner not in (0, volume.number):
        raise HostStateError(
            f"{what} cannot have a quota: its directory already belongs to project {volume.owner}.",
            f"Look for that project in {PROJECTS} and {PROJID}. If nobody needs it, remove it with "
            f"'chattr -R -p 0 {volume.path}'. A volume with a quota cannot be inside another one.",
            volume=volume.name,
        )
    # A volume that already has a limit may get a larger one, even if root has filled it beyond both.
    if volume.used > volume.quota and not 0 < volume.limit <= volume.quota:
        raise HostStateError(
            f"{what} contains {in_words(volume.used)}, more than its quota of {in_words(volume.quota)}.",
            "Increase the quota, or delete files that are not needed.",
            volume=volume.name,
        )


def as_diff(plan: Plan) -> Tuple[str, str]:
    """The two files and the limits, before and after."""
    steps = [*plan.release, *plan.limit]
    before, after = host_files.as_diff(plan.files)
    before += "".join(_shown(step, step.before) for step in steps)
    return before, after + "".join(_shown(step, step.limit) for step in steps)


def _shown(step: Step, limit: Optional[int]) -> str:
    return f"{step.project.path}: {'limited' if limit is None else in_words(limit) if limit else 'not limited'}\n"


def _lines(current: host_files.Current) -> List[Tuple[str, str]]:
    """The two parts of each line of either file; see projid(5) and projects(5)."""
    halves = (line.partition(":") for line in current.text.splitlines())
    return [(left.strip(), right.strip()) for left, _colon, right in halves]


def read_files() -> Files:
    """The current files."""
    return Files(host_files.read(PROJID), host_files.read(PROJECTS))


def look(run: Runner, name: str, path: str, quota: str, number: int) -> Volume:
    """The current state. Counts every file of a folder that is new to the project."""
    there, mount = _existing(path)
    enforced = _ENFORCED in mount.options
    volume = Volume(name, path, size_of(name, quota), number, mount.filesystem, mount.source, enforced)
    if not enforced:
        return volume
    with _told(path), _opened(there) as descriptor:
        fields = _attributes(descriptor)
    # If the program is not installed yet, nothing has been limited yet either.
    asked = _xfs_quota(run, f"quota -p -n -N -b -v {number}", mount.point) if find(PROGRAM) else ""
    limit, used = parse_usage(asked)
    owner = fields[_PROJECT]
    if there != os.path.realpath(path):
        # A folder created there is in the same project if that is inherited.
        owner, used = owner if fields[_FLAGS] & _INHERITS else 0, 0
    elif owner != number or not asked:
        used = _disk_usage(run, there)
    return volume._replace(owner=owner, limit=limit, used=used)


def apply(run: Runner, plan: Plan) -> None:
    """Carry out the plan."""
    for step in plan.release:
        _apply(run, step)
    host_files.apply_all(plan.files)
    for step in plan.limit:
        _apply(run, step)


def _apply(run: Runner, step: Step) -> None:
    number, path = step.project
    there, mount = _existing(path)
    if not path or _ENFORCED not in mount.options:
        # One of the lines was lost, or the disk was replaced.
        return
    if step.move:
        _write_limit(run, mount.point, number, 0)
        # Of a missing folder, only the limit is left.
        if there == os.path.realpath(path):
            _move(there, *step.move)
    if step.limit:
        _write_limit(run, mount.point, number, step.limit)


def parse_usage(text: str) -> Tuple[int, int]:
    """Parse limit and usage in bytes from xfs_quota's output for one project. XFS omits projects that have neither."""
    found = _USAGE.search(text)
    used, limit = (whole_number(field) for field in found.groups()) if found else (0, 0)
    if (text.strip() and not found) or used is None or limit is None:
        raise ParseError(f"{PROGRAM} -c 'quota -p'", f"it says {text.strip()[:200]!r}")
    return limit << 10, used << 10


def _write_limit(run: Runner, point: str, number: int, limit: int) -> None:
    _xfs_quota(run, f"limit -p bsoft=0 bhard={limit >> 10}k {number}", point)


def _xfs_quota(run: Runner, command: str, point: str) -> str:
    argv = [*_XFS_QUOTA, command, point]
    done = run(argv, check=False)
    # It exits 0 after some of its failures.
    if done.rc or done.stderr:
        raise CommandError(argv, f"exited {done.rc}", done.rc, done.stderr, _ELSEWHERE)
    return str(done.stdout)


def _disk_usage(run: Runner, root: str) -> int:
    """The bytes of the files that would count. Files that disappear meanwhile are ignored."""
    argv = ["du", "--summarize", "--one-file-system", "--block-size=1", root]
    done = run(argv, timeout=_WALK_SECONDS, check=False)
    size = whole_number(done.stdout.partition("\t")[0])
    if size is None:
        raise CommandError(argv, f"exited {done.rc}", done.rc, done.stderr)
    return size


def _existing(path: str) -> Tuple[str, Mounted]:
    """The folder, or its nearest existing parent, and the mount that contains it."""
    there = os.path.realpath(path)
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as stream:
        return there, mount_of(parse_mountinfo(stream.read()), there)


def _move(root: str, old: int, new: int) -> None:
    """Give the project ``new`` to everything that has ``old``, only on the file system of ``root``.

    Files of other projects are left alone. Links are not followed: the volume's users may change them at any time.
    """
    device = os.stat(root).st_dev
    for path, folders, names, folder in os.fwalk(root):
        if os.fstat(folder).st_dev != device:
            folders.clear()
            continue
        with _told(path):
            _give(folder, old, new, _INHERITS if new else 0)
        for name in names:
            with contextlib.suppress(FileNotFoundError), _opened(name, os.O_PATH | os.O_NOFOLLOW, folder) as found:
                entry = os.fstat(found)
                if entry.st_dev == device and stat.S_ISREG(entry.st_mode):
                    # The file that was examined is opened, whatever its user puts there meanwhile.
                    with _told(os.path.join(path, name)), _opened(f"/proc/self/fd/{found}") as descriptor:
                        _give(descriptor, old, new, 0)


def _give(descriptor: int, old: int, new: int, inherits: int) -> None:
    fields = _attributes(descriptor)
    flags, owner = fields[_FLAGS], fields[_PROJECT]
    if owner in (old, new) and (owner, flags & _INHERITS) != (new, inherits):
        fields[_FLAGS], fields[_PROJECT] = flags & ~_INHERITS | inherits, new
        fcntl.ioctl(descriptor, _SET_ATTRIBUTES, _ATTRIBUTES.pack(*fields))


def _attributes(descriptor: int) -> List[int]:
    return list(_ATTRIBUTES.unpack(fcntl.ioctl(descriptor, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size))))


@contextlib.contextmanager
def _opened(path: str, flags: int = os.O_RDONLY, folder: Optional[int] = None) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Convert an error of the file system into HostStateError."""
    try:
        yield
    except OSError as failure:
        raise HostStateError(
            f"The quota of {path} could not be read or set: {failure.strerror}.",
            f"Find out what prevents it, such as an attribute that lsattr shows. {_ELSEWHERE}",
            path=path,
        ) from failure
