# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much of its server's disk a volume may take, by project quotas, as ext4 and XFS have them.

A project is a number that a folder gives to everything made in it. Its limit is the size that the kernel shows as that of
the file system to whoever asks within the folder, members included.

/etc/projid and /etc/projects, which repquota and xfs_quota read, hold our projects by names of our own, from before the
first file carries the number until none does. A limit is there only while all files do. So a run that was cut off is taken
up by the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import stat
import struct
import zlib
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.volumes import mount_of
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import whole_number

PROJID, PROJECTS = "/etc/projid", "/etc/projects"

_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?([KMGTP])(?:iB)?")
_UNITS = "KMGTP"
_LARGEST = 1 << 60

#: Our numbers, far from the small ones that people give and from those that container engines count up from.
_FIRST_NUMBER = 1 << 30
_NUMBERS = 1 << 30

#: struct fsxattr and its two ioctls, of linux/fs.h: flags, two fields, the project, one field.
_ATTRIBUTES = struct.Struct("=5I8x")
_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C581F, 0x401C5820
_INHERITS = 0x200

#: quotactl_fd(2), the same number on nearly all architectures. Unlike quotactl(2), it needs no device, which a root file
#: system often does not name.
_QUOTACTL_FD = 443
_OF_PROJECTS = 2
_GET_QUOTA, _SET_QUOTA, _GET_STATE = 0x800007, 0x800008, 0x5808
#: struct if_dqblk of linux/quota.h: hard and soft limit in KiB, bytes used, five fields, which of them are valid.
_QUOTA = struct.Struct("=8QI4x")
_BLOCK_LIMITS = 1
#: struct fs_quota_statv of linux/dqblk_xfs.h: its version, which quotas are counted and enforced, and more.
_STATE = struct.Struct("=bxH156x")
_COUNTED_AND_ENFORCED = 0x30

_REMEDIES = {
    "ext4": "Unmount it, run 'tune2fs -O project,quota {source}', and mount it with the option prjquota; for a root file system "
    "that takes a rescue system, and rootflags=prjquota on the kernel's command line",
    "xfs": "Unmount it and mount it with the option pquota; a root file system needs rootflags=pquota on the kernel's command "
    "line",
    "btrfs": "Limit the volume by 'btrfs qgroup limit'",
    "zfs": "Limit the volume by 'zfs set quota'",
}
_OTHER_REMEDY = "Have the volume on ext4 or XFS"


class Wanted(NamedTuple):
    """The quota that a volume is to have, in bytes."""

    volume: str
    path: str
    limit: int


class Files(NamedTuple):
    """The text of the two files."""

    projid: str
    projects: str


class Project(NamedTuple):
    """A volume's, as the two files have it. ``path`` is empty where one of them has lost its line."""

    number: int
    path: str


class Disk(NamedTuple):
    """What there is where a volume is or will be: whether projects are limited there, to which one its folder belongs (0 is
    none), and of the volume's own one the limit (0 is none) and how much would count."""

    number: int
    filesystem: str
    source: str
    enforced: bool
    owner: int
    limit: int
    used: int


class Step(NamedTuple):
    """A limit to set, and whether the files have to be given the number before."""

    project: Project
    limit: int
    mark: bool


class Plan(NamedTuple):
    """What is given up, what is brought about, and the text of the two files."""

    release: List[Project]
    steps: List[Step]
    files: Files
    changed: bool


def size_of(volume: str, text: str) -> int:
    """The bytes of a quota such as 500G or 2TiB. Raises InputError."""
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match.group(1)) * 1024 ** (_UNITS.index(match.group(2)) + 1)) // 1024 * 1024 if match else 0
    if not 0 < size <= _LARGEST:
        raise InputError(
            f"Volume '{volume}' has the quota '{text}'.",
            "Give a size in binary units, such as 500G, 1.5T or 2TiB.",
            volume=volume,
        )
    return size


def in_words(size: int) -> str:
    """Bytes in the largest unit that they fill."""
    amount, unit = size / 1024, 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.4g} {_UNITS[unit]}iB"


def name_of(cluster: str, volume: str) -> str:
    """The project's name. Neither part has a dot in it."""
    return f"gpumesh.{cluster}.{volume}"


def parse(files: Files, cluster: str) -> Dict[str, Project]:
    """Our projects by volume."""
    prefix = name_of(cluster, "")
    paths = dict(map(_halves, files.projects.splitlines()))
    return {
        name[len(prefix) :]: Project(int(number), paths.get(number, ""))
        for name, number in map(_halves, files.projid.splitlines())
        if name.startswith(prefix) and whole_number(number) is not None
    }


def number_for(cluster: str, volume: str, files: Files) -> int:
    """The one that the volume has, or a free one, which is the same wherever none of its neighbours is taken."""
    known = parse(files, cluster).get(volume)
    if known:
        return known.number
    taken = {number for _name, number in map(_halves, files.projid.splitlines())}
    taken |= {number for number, _path in map(_halves, files.projects.splitlines())}
    number = _FIRST_NUMBER + zlib.crc32(name_of(cluster, volume).encode()) % _NUMBERS
    while str(number) in taken:
        number += 1
    return number


def make_plan(cluster: str, wanted: Sequence[Wanted], disks: Mapping[str, Disk], files: Files) -> Plan:
    """What to do; ``disks`` by volume. Raises HostStateError for what cannot be."""
    ours = parse(files, cluster)
    paths = {one.volume: one.path for one in wanted}
    release = [project for volume, project in ours.items() if project.path != paths.get(volume, "")]
    steps = []
    for one in wanted:
        disk = disks[one.volume]
        _refuse_unfit(one, disk)
        mark = disk.owner != disk.number or not disk.limit or ours.get(one.volume) in release
        if mark or disk.limit != one.limit:
            steps.append(Step(Project(disk.number, one.path), one.limit, mark))
    names = [f"{name_of(cluster, one.volume)}:{disks[one.volume].number}" for one in wanted]
    lines = [f"{disks[one.volume].number}:{one.path}" for one in wanted]
    numbers = {str(one.number) for one in ours.values()} | {str(disk.number) for disk in disks.values()}
    after = Files(
        _edited(files.projid, lambda left: left.startswith(name_of(cluster, "")), names),
        _edited(files.projects, lambda left: left in numbers, lines),
    )
    return Plan(release, steps, after, bool(steps) or after != files)


def _refuse_unfit(wanted: Wanted, disk: Disk) -> None:
    what = f"Volume '{wanted.volume}' at {wanted.path}"
    if not disk.enforced:
        remedy = _REMEDIES.get(disk.filesystem, _OTHER_REMEDY).format(source=disk.source)
        raise HostStateError(
            f"{what} cannot have a quota: it is on {disk.filesystem} from {disk.source}, which is mounted without project "
            "quotas (or this kernel is older than 5.14).",
            f"{remedy}. Or take quota out of the volume in storage_volumes.",
            volume=wanted.volume,
        )
    if disk.owner not in (0, disk.number):
        raise HostStateError(
            f"{what} cannot have a quota: its folder is in the project {disk.owner} already.",
            f"Look for that number in {PROJECTS} and {PROJID}. If nobody needs it, take it off by "
            f"'chattr -R -p 0 {wanted.path}'. A volume with a quota cannot be within another one.",
            volume=wanted.volume,
        )
    # What already has a limit may be given a larger one, though root may have filled it beyond both.
    if disk.used > wanted.limit and not 0 < disk.limit <= wanted.limit:
        raise HostStateError(
            f"{what} has {in_words(disk.used)} in it, more than its quota of {in_words(wanted.limit)}.",
            "Give it a larger quota, or remove what is not needed.",
            volume=wanted.volume,
        )


def as_diff(cluster: str, plan: Plan, files: Files, disks: Iterable[Disk]) -> Tuple[str, str]:
    """Our projects and their limits, before and after."""
    limits = {disk.number: disk.limit for disk in disks}
    coming = {**limits, **{step.project.number: step.limit for step in plan.steps}}
    return _shown(cluster, parse(files, cluster), limits), _shown(cluster, parse(plan.files, cluster), coming)


def _shown(cluster: str, ours: Mapping[str, Project], limits: Mapping[int, int]) -> str:
    lines = []
    for volume, project in sorted(ours.items()):
        limit = limits.get(project.number)
        size = "with a quota" if limit is None else in_words(limit) if limit else "not limited"
        lines.append(f"{name_of(cluster, volume)}: {project.path} {size}\n")
    return "".join(lines)


def _halves(line: str) -> Tuple[str, str]:
    """A line of either file; see projid(5) and projects(5)."""
    left, _colon, right = line.strip().partition(":")
    return left.strip(), right.strip()


def _edited(text: str, ours: Callable[[str], bool], lines: Sequence[str]) -> str:
    """``text`` with these lines, and without any other of ours."""
    present = text.splitlines()
    kept = [line for line in present if line in lines or not ours(_halves(line)[0])]
    after = [*kept, *(line for line in lines if line not in kept)]
    return text if after == present else "".join(f"{line}\n" for line in after)


def read_files() -> Files:
    """What they hold now."""
    return Files(read_text(PROJID) or "", read_text(PROJECTS) or "")


def look(path: str, number: int) -> Disk:
    """What there is at ``path``, or where it will be. Counts every file of a folder that is new to the project."""
    there = _existing(path)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as stream:
        mount = mount_of(parse_mountinfo(stream.read()), there)
    disk = Disk(number, mount.filesystem, mount.source, enforced=False, owner=0, limit=0, used=0)
    with _told(path), _opened(there) as descriptor:
        if not _enforced(descriptor):
            return disk
        flags, owner = _read_attributes(descriptor)
        limit, used = _read_quota(descriptor, number)
        if there != os.path.realpath(path):
            # A folder that is made there is in the same project if that one is inherited.
            owner, used = owner if flags & _INHERITS else 0, 0
        elif owner != number:
            used = _disk_usage(there)
        return disk._replace(enforced=True, owner=owner, limit=limit, used=used)


def apply(plan: Plan, projid: str = PROJID, projects: str = PROJECTS) -> None:
    """Carry it out."""
    for project in plan.release:
        _release(project)
    for path, text in ((projid, plan.files.projid), (projects, plan.files.projects)):
        _write(path, text)
    for (number, path), limit, mark in plan.steps:
        root = os.path.realpath(path)
        with _told(path), _opened(root) as descriptor:
            if mark:
                _write_limit(descriptor, number, 0)
                _move(root, 0, number)
            _write_limit(descriptor, number, limit)


def _release(project: Project) -> None:
    """Of a folder that is gone, the limit alone."""
    if not project.path:
        return
    there = _existing(project.path)
    with _told(project.path), _opened(there) as descriptor:
        if _enforced(descriptor):
            _write_limit(descriptor, project.number, 0)
            if there == os.path.realpath(project.path):
                _move(there, project.number, 0)


def _write(path: str, text: str) -> None:
    entry = {"path": path, "content": text, "state": host_files.FILE if text else host_files.ABSENT}
    for one in host_files.parse([entry]):
        step = host_files.plan(one, host_files.read(path), host_files.owner_ids(one))
        if step is not None:
            host_files.apply(step)


def _move(root: str, old: int, new: int) -> None:
    """Give the project ``new`` to what is of ``old``. What is of another one is left."""
    for found in _inodes(root):
        # Through this the very same one is opened, whatever its user puts there meanwhile.
        link = f"/proc/self/fd/{found}"
        with _told(os.readlink(link)), _opened(link) as descriptor:
            flags, owner = _read_attributes(descriptor)
            inherits = _INHERITS if new and stat.S_ISDIR(os.fstat(descriptor).st_mode) else 0
            if owner in (old, new) and (owner, flags & _INHERITS) != (new, inherits):
                _write_attributes(descriptor, flags & ~_INHERITS | inherits, new)


def _disk_usage(root: str) -> int:
    """The bytes of the files that would count. One that has several names counts once."""
    blocks, counted = 0, set()
    for entry in map(os.fstat, _inodes(root)):
        if entry.st_ino not in counted:
            blocks += entry.st_blocks
        if entry.st_nlink > 1:
            counted.add(entry.st_ino)
    return 512 * blocks


def _inodes(root: str) -> Iterator[int]:
    """Each file and folder from ``root`` down on its own file system, folders before what is in them, as a descriptor that
    only names it. No link is followed: they are of the volume's users, who may change them at any time."""
    with _opened(root, os.O_PATH) as descriptor:
        device = os.fstat(descriptor).st_dev
        yield descriptor
    for _path, folders, names, folder in os.fwalk(root):
        if os.fstat(folder).st_dev != device:
            folders.clear()
            continue
        for name in (*folders, *names):
            with contextlib.suppress(FileNotFoundError), _opened(name, os.O_PATH | os.O_NOFOLLOW, folder) as descriptor:
                entry = os.fstat(descriptor)
                if entry.st_dev == device and (stat.S_ISREG(entry.st_mode) or stat.S_ISDIR(entry.st_mode)):
                    yield descriptor


def _existing(path: str) -> str:
    """The folder, or the nearest one above that is there."""
    there = os.path.realpath(path)
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    return there


def _enforced(descriptor: int) -> bool:
    try:
        state = _quotactl(descriptor, _GET_STATE, 0, _STATE.pack(1, 0))
    except OSError as failure:
        if failure.errno in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    flags: int = _STATE.unpack(state)[1]
    return flags & _COUNTED_AND_ENFORCED == _COUNTED_AND_ENFORCED


def _read_quota(descriptor: int, number: int) -> Tuple[int, int]:
    """Limit and usage in bytes. XFS knows no project that has neither."""
    try:
        quota = _QUOTA.unpack(_quotactl(descriptor, _GET_QUOTA, number, bytes(_QUOTA.size)))
    except FileNotFoundError:
        return 0, 0
    return quota[0] * 1024, quota[2]


def _write_limit(descriptor: int, number: int, limit: int) -> None:
    _quotactl(descriptor, _SET_QUOTA, number, _QUOTA.pack(limit // 1024, 0, 0, 0, 0, 0, 0, 0, _BLOCK_LIMITS))


def _quotactl(descriptor: int, command: int, number: int, memory: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(memory, len(memory))
    words = (_QUOTACTL_FD, descriptor, command << 8 | _OF_PROJECTS, number)
    if ctypes.CDLL(None, use_errno=True).syscall(*map(ctypes.c_long, words), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw


def _read_attributes(descriptor: int) -> Tuple[int, int]:
    """Flags and project of a file or folder."""
    flags, _size, _extents, project, _cow = _ATTRIBUTES.unpack(fcntl.ioctl(descriptor, _GET_ATTRIBUTES, bytes(28)))
    return flags, project


def _write_attributes(descriptor: int, flags: int, project: int) -> None:
    fields = list(_ATTRIBUTES.unpack(fcntl.ioctl(descriptor, _GET_ATTRIBUTES, bytes(28))))
    fields[0], fields[3] = flags, project
    fcntl.ioctl(descriptor, _SET_ATTRIBUTES, _ATTRIBUTES.pack(*fields))


@contextlib.contextmanager
def _opened(path: str, flags: int = os.O_RDONLY, folder: Optional[int] = None) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """An error of the file system as one of ours."""
    try:
        yield
    except OSError as failure:
        raise HostStateError(
            f"The quota of {path} cannot be read or set: {failure.strerror}.",
            "Look at what forbids it, such as an attribute that lsattr shows. In a container, which may not do this, take "
            "quota out of the volume, and limit it on the machine itself.",
            path=path,
        ) from failure
