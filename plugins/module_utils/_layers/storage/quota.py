# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limit the space that a volume may use on its server's disk, with project quotas of ext4 and XFS.

A project is a number that a directory passes on to everything created in it. The kernel reports its limit as the size
of the file system inside the directory, also to members.

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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    ParseError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import MountEntry, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.units import format_size, parse_size
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage.volumes import require_mount

PROJID_PATH, PROJECTS_PATH = "/etc/projid", "/etc/projects"
#: The program may be missing on a host that has never had a quota.
QUOTA_PROGRAM = "xfs_quota"

#: The first of our projects, far from the small numbers that people use, and from those of container engines.
_FIRST_PROJECT = 1 << 30
_PROJECT_COUNT = 1 << 30

#: The command ignores project files: they may name missing directories, about which it would complain each time.
_XFS_QUOTA_COMMAND = (QUOTA_PROGRAM, "-x", "-f", "-D", os.devnull, "-P", os.devnull, "-c")
#: Used, soft and hard limit in KiB, warnings, and the grace time.
_USAGE_PATTERN = re.compile(r"\s(\d+)\s+\d+\s+(\d+)\s+\d+\s+\[")
#: The mount option that both file systems show if projects are accounted and limited.
_ENFORCED_OPTION = "prjquota"
#: The time limit of a walk through all files of a volume.
_WALK_TIMEOUT = 6 * 3600

#: struct fsxattr and its two ioctls, of linux/fs.h: flags, two fields, the project, one field.
_FSXATTR_STRUCT = struct.Struct("=5I8x")
_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C581F, 0x401C5820
_FLAGS_INDEX, _PROJECT_INDEX = 0, 3
_INHERIT_FLAG = 0x200

_REMEDY_BY_FILESYSTEM = {
    "ext4": "Unmount it, run 'tune2fs -O project,quota {source}', and mount it with the option prjquota; "
    "for a root file system that takes a rescue system, and rootflags=prjquota on the kernel's command line",
    "xfs": "Unmount it and mount it with the option pquota; a root file system needs rootflags=pquota "
    "on the kernel's command line",
    "btrfs": "Limit the volume with 'btrfs qgroup limit'",
    "zfs": "Limit the volume with 'zfs set quota'",
}
_OTHER_REMEDY = "Move the volume to ext4 or XFS"
_CONTAINER_REMEDY = (
    "In a container, where this is not allowed, remove quota from the volume, and limit it on the machine itself."
)


class ProjectFiles(NamedTuple):
    """The current contents of the two files."""

    projid: managed_files.CurrentFile
    projects: managed_files.CurrentFile


class QuotaProject(NamedTuple):
    """A volume's project in the two files. ``path`` is empty if one of them has lost its line."""

    number: int
    path: str


class VolumeQuota(NamedTuple):
    """The desired quota of a volume in bytes, and the current state of its directory, or of where that will be.

    The state is whether projects are limited there, to which project the directory belongs (0 is none), and for the
    volume's own project the limit (0 is none) and the usage.
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


class QuotaChange(NamedTuple):
    """A limit to set for the project, 0 for none. ``limit_before`` is the current one, None if it was not read.

    ``project_move``: from which project to which the files are moved, None if they stay.
    """

    project: QuotaProject
    limit_before: Optional[int]
    new_limit: int
    project_move: Optional[Tuple[int, int]]


class QuotaPlan(NamedTuple):
    """The limits to remove, the two files, and the limits to set, in this order."""

    released_projects: List[QuotaChange]
    file_changes: List[managed_files.FileChange]
    limit_changes: List[QuotaChange]

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return any(self)


def project_name(cluster: str, volume: str) -> str:
    """Return the project's name. Neither part has a dot in it."""
    return f"gpumesh.{cluster}.{volume}"


def parse_projects(project_files: ProjectFiles, cluster: str) -> Dict[str, QuotaProject]:
    """Return our projects by volume."""
    name_prefix = project_name(cluster, "")
    path_by_number = dict(_split_lines(project_files.projects))
    return {
        name[len(name_prefix) :]: QuotaProject(int(number), path_by_number.get(number, ""))
        for name, number in _split_lines(project_files.projid)
        if name.startswith(name_prefix) and parse_whole_number(number) is not None
    }


def choose_number(cluster: str, volume_name: str, project_files: ProjectFiles) -> int:
    """Return the number of the volume, or a free one, which depends only on its name unless it is in use."""
    existing_project = parse_projects(project_files, cluster).get(volume_name)
    if existing_project:
        return existing_project.number
    used_numbers = {number for _name, number in _split_lines(project_files.projid)} | {
        number for number, _path in _split_lines(project_files.projects)
    }
    number = _FIRST_PROJECT + zlib.crc32(project_name(cluster, volume_name).encode()) % _PROJECT_COUNT
    while str(number) in used_numbers:
        number += 1
    return number


def plan_quotas(cluster: str, volumes: Sequence[VolumeQuota], project_files: ProjectFiles) -> QuotaPlan:
    """Decide what to do. Raises HostStateError for a quota that is not possible."""
    path_by_volume = {volume.name: volume.path for volume in volumes}
    own_projects = parse_projects(project_files, cluster)
    obsolete_projects = {
        name: project for name, project in own_projects.items() if project.path != path_by_volume.get(name, "")
    }
    # The directory of a renamed volume still belongs to its former project, which is released first.
    released_paths = [(project.path, project.number) for project in obsolete_projects.values()]
    limit_changes = []
    for volume in volumes:
        owning_project = 0 if (volume.path, volume.owner) in released_paths else volume.owner
        _refuse_unfit(volume._replace(owner=owning_project))
        # If the limit is missing, a run was interrupted before all files had the number.
        needs_marking = volume.owner != volume.number or not volume.limit or volume.name in obsolete_projects
        if needs_marking or volume.limit != volume.quota:
            project_move = (0, volume.number) if needs_marking else None
            limit_changes.append(
                QuotaChange(QuotaProject(volume.number, volume.path), volume.limit, volume.quota, project_move)
            )
    return QuotaPlan(
        [QuotaChange(project, None, 0, (project.number, 0)) for project in obsolete_projects.values()],
        [
            *_plan_block(
                PROJID_PATH,
                cluster,
                project_files.projid,
                [f"{project_name(cluster, quota_volume.name)}:{quota_volume.number}" for quota_volume in volumes],
            ),
            *_plan_block(
                PROJECTS_PATH,
                cluster,
                project_files.projects,
                [f"{quota_volume.number}:{quota_volume.path}" for quota_volume in volumes],
            ),
        ],
        limit_changes,
    )


def _plan_block(
    path: str, cluster: str, current_file: managed_files.CurrentFile, block_lines: Sequence[str]
) -> List[managed_files.FileChange]:
    block_entry = {
        "path": path,
        "marker": managed_files.block_marker(cluster),
        "content": "\n".join(block_lines),
        "state": managed_files.BLOCK if block_lines else managed_files.ABSENT,
    }
    file_changes = (
        managed_files.plan_change(desired_entry, current_file, (None, None))
        for desired_entry in managed_files.parse_entries([block_entry])
    )
    return [step for step in file_changes if step is not None]


def _refuse_unfit(volume: VolumeQuota) -> None:
    volume_description = f"Volume '{volume.name}' at {volume.path}"
    if not volume.enforced:
        remedy = _REMEDY_BY_FILESYSTEM.get(volume.filesystem, _OTHER_REMEDY).format(source=volume.source)
        raise HostStateError(
            f"{volume_description} cannot have a quota: it is on {volume.filesystem} from {volume.source}, "
            "which is mounted without project quotas.",
            f"{remedy}. Or remove quota from the volume in storage_volumes.",
            volume=volume.name,
        )
    if volume.owner not in (0, volume.number):
        raise HostStateError(
            f"{volume_description} cannot have a quota: its directory already belongs to project {volume.owner}.",
            f"Look for that project in {PROJECTS_PATH} and {PROJID_PATH}. If nobody needs it, remove it with "
            f"'chattr -R -p 0 {volume.path}'. A volume with a quota cannot be inside another one.",
            volume=volume.name,
        )
    # A volume that already has a limit may get a larger one, even if root has filled it beyond both.
    if volume.used > volume.quota and not 0 < volume.limit <= volume.quota:
        raise HostStateError(
            f"{volume_description} contains {format_size(volume.used)}, more than its quota of {format_size(volume.quota)}.",
            "Increase the quota, or delete files that are not needed.",
            volume=volume.name,
        )


def format_quota_diff(plan: QuotaPlan) -> Tuple[str, str]:
    """Format the two files and the limits, before and after."""
    quota_changes = [*plan.released_projects, *plan.limit_changes]
    before, after = managed_files.format_diff(plan.file_changes)
    before += "".join(_format_limit(step, step.limit_before) for step in quota_changes)
    return before, after + "".join(_format_limit(step, step.new_limit) for step in quota_changes)


def _format_limit(step: QuotaChange, limit: Optional[int]) -> str:
    return f"{step.project.path}: {'limited' if limit is None else format_size(limit) if limit else 'not limited'}\n"


def _split_lines(current_file: managed_files.CurrentFile) -> List[Tuple[str, str]]:
    """Return the two parts of each line of either file; see projid(5) and projects(5)."""
    line_parts = (line.partition(":") for line in current_file.text.splitlines())
    return [(left_part.strip(), right_part.strip()) for left_part, _colon, right_part in line_parts]


def read_project_files() -> ProjectFiles:
    """Read the current files."""
    return ProjectFiles(managed_files.read_current(PROJID_PATH), managed_files.read_current(PROJECTS_PATH))


def read_volume_quota(run: Runner, volume_name: str, path: str, quota_text: str, project_number: int) -> VolumeQuota:
    """Read the current state. Counts every file of a directory that is new to the project."""
    existing_directory, mount = _find_existing_directory(path)
    is_enforced = _ENFORCED_OPTION in mount.filesystem_options
    volume_quota = VolumeQuota(
        volume_name,
        path,
        parse_size(volume_name, quota_text),
        project_number,
        mount.filesystem,
        mount.source,
        is_enforced,
    )
    if not is_enforced:
        return volume_quota
    with _report_os_errors(path), _opened_path(existing_directory) as descriptor:
        attributes = _read_attributes(descriptor)
    # If the program is not installed yet, nothing has been limited yet either.
    quota_output = (
        _run_xfs_quota(run, f"quota -p -n -N -b -v {project_number}", mount.mount_point)
        if find_program(QUOTA_PROGRAM)
        else ""
    )
    limit_bytes, used_bytes = parse_usage(quota_output)
    owning_project = attributes[_PROJECT_INDEX]
    if existing_directory != os.path.realpath(path):
        # A directory created there is in the same project if that is inherited.
        owning_project, used_bytes = owning_project if attributes[_FLAGS_INDEX] & _INHERIT_FLAG else 0, 0
    elif owning_project != project_number or not quota_output:
        used_bytes = _measure_disk_usage(run, existing_directory)
    return volume_quota._replace(owner=owning_project, limit=limit_bytes, used=used_bytes)


def apply_quota_plan(run: Runner, plan: QuotaPlan) -> None:
    """Apply the plan."""
    for quota_change in plan.released_projects:
        _apply_change(run, quota_change)
    managed_files.apply_file_changes(plan.file_changes)
    for quota_change in plan.limit_changes:
        _apply_change(run, quota_change)


def _apply_change(run: Runner, quota_change: QuotaChange) -> None:
    project_number, path = quota_change.project
    existing_directory, mount = _find_existing_directory(path)
    if not path or _ENFORCED_OPTION not in mount.filesystem_options:
        # One of the lines was lost, or the disk was replaced.
        return
    if quota_change.project_move:
        _write_limit(run, mount.mount_point, project_number, 0)
        # Only the limit is left of a missing directory.
        if existing_directory == os.path.realpath(path):
            _move_files(existing_directory, *quota_change.project_move)
    if quota_change.new_limit:
        _write_limit(run, mount.mount_point, project_number, quota_change.new_limit)


def parse_usage(quota_output: str) -> Tuple[int, int]:
    """Parse limit and usage in bytes from xfs_quota's output for one project. XFS omits projects that have neither."""
    match = _USAGE_PATTERN.search(quota_output)
    used_kib, limit_kib = (parse_whole_number(field) for field in match.groups()) if match else (0, 0)
    if (quota_output.strip() and not match) or used_kib is None or limit_kib is None:
        raise ParseError(f"{QUOTA_PROGRAM} -c 'quota -p'", f"it printed {quota_output.strip()[:200]!r}")
    return limit_kib << 10, used_kib << 10


def _write_limit(run: Runner, point: str, number: int, limit: int) -> None:
    _run_xfs_quota(run, f"limit -p bsoft=0 bhard={limit >> 10}k {number}", point)


def _run_xfs_quota(run: Runner, command: str, mount_point: str) -> str:
    quota_command = [*_XFS_QUOTA_COMMAND, command, mount_point]
    result = run(quota_command, check=False)
    # xfs_quota exits 0 after some of its failures.
    if result.rc or result.stderr:
        raise CommandError(quota_command, f"exited {result.rc}", result.rc, result.stderr, _CONTAINER_REMEDY)
    return str(result.stdout)


def _measure_disk_usage(run: Runner, root_directory: str) -> int:
    """Return the bytes of the files that would count. Files that disappear meanwhile are ignored."""
    du_command = ["du", "--summarize", "--one-file-system", "--block-size=1", root_directory]
    result = run(du_command, timeout=_WALK_TIMEOUT, check=False)
    used_bytes = parse_whole_number(result.stdout.partition("\t")[0])
    if used_bytes is None:
        raise CommandError(du_command, f"exited {result.rc}", result.rc, result.stderr)
    return used_bytes


def _find_existing_directory(path: str) -> Tuple[str, MountEntry]:
    """Return the directory, or its nearest existing parent, and the mount that contains it."""
    existing_directory = os.path.realpath(path)
    while not os.path.isdir(existing_directory):
        existing_directory = os.path.dirname(existing_directory)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as stream:
        return existing_directory, require_mount(parse_mountinfo(stream.read()), existing_directory)


def _move_files(root_directory: str, old_project: int, new_project: int) -> None:
    """Give everything with ``old_project`` the project ``new_project``, only on the file system of the directory.

    Files of other projects are left alone. Links are not followed: the volume's users may change them at any time.
    """
    root_device = os.stat(root_directory).st_dev
    for directory_path, subdirectories, file_names, directory_descriptor in os.fwalk(root_directory):
        if os.fstat(directory_descriptor).st_dev != root_device:
            subdirectories.clear()
            continue
        with _report_os_errors(directory_path):
            _set_project(directory_descriptor, old_project, new_project, _INHERIT_FLAG if new_project else 0)
        for file_name in file_names:
            with contextlib.suppress(FileNotFoundError), _opened_path(
                file_name, os.O_PATH | os.O_NOFOLLOW, directory_descriptor
            ) as path_descriptor:
                file_status = os.fstat(path_descriptor)
                if file_status.st_dev == root_device and stat.S_ISREG(file_status.st_mode):
                    # The file that was examined is opened, whatever its user puts there meanwhile.
                    with _report_os_errors(os.path.join(directory_path, file_name)), _opened_path(
                        f"/proc/self/fd/{path_descriptor}"
                    ) as descriptor:
                        _set_project(descriptor, old_project, new_project, 0)


def _set_project(descriptor: int, old_project: int, new_project: int, inherit_flag: int) -> None:
    attributes = _read_attributes(descriptor)
    current_flags, owning_project = attributes[_FLAGS_INDEX], attributes[_PROJECT_INDEX]
    if owning_project in (old_project, new_project) and (owning_project, current_flags & _INHERIT_FLAG) != (
        new_project,
        inherit_flag,
    ):
        attributes[_FLAGS_INDEX], attributes[_PROJECT_INDEX] = (
            current_flags & ~_INHERIT_FLAG | inherit_flag,
            new_project,
        )
        fcntl.ioctl(descriptor, _SET_ATTRIBUTES, _FSXATTR_STRUCT.pack(*attributes))


def _read_attributes(descriptor: int) -> List[int]:
    return list(_FSXATTR_STRUCT.unpack(fcntl.ioctl(descriptor, _GET_ATTRIBUTES, bytes(_FSXATTR_STRUCT.size))))


@contextlib.contextmanager
def _opened_path(path: str, open_flags: int = os.O_RDONLY, directory_descriptor: Optional[int] = None) -> Iterator[int]:
    descriptor = os.open(path, open_flags | os.O_CLOEXEC, dir_fd=directory_descriptor)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _report_os_errors(path: str) -> Iterator[None]:
    """Convert an error of the file system into HostStateError."""
    try:
        yield
    except OSError as failure:
        raise HostStateError(
            f"The quota of {path} could not be read or set: {failure.strerror}.",
            f"Find out what prevents it, such as an attribute that lsattr shows. {_CONTAINER_REMEDY}",
            path=path,
        ) from failure
