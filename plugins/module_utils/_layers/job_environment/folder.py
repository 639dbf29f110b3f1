# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small separate file system for the directory that every job can write to, so that no job can fill the host's.

Running jobs keep their files: these are copied by descriptor, and only those that belong to jobs, since everyone can
write to the directory.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import contextmanager
from typing import Iterator, List, NamedTuple, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import MountEntry, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import (
    CAP_SYS_ADMIN,
    has_capability,
    runs_systemd,
)

JOBS_DIRECTORY = "/run/gpumesh/jobs"
UNIT_DIRECTORY = "/etc/systemd/system"
_MOUNT_SOURCE = "gpumesh-jobs"
#: The options have room for the hostfiles of thousands of steps, and limit what a job can use up.
MOUNT_OPTIONS = "mode=1777,nosuid,nodev,noexec,size=128m,nr_inodes=32768"
#: The file that the task prolog writes: the hostfile of a job or a step.
_HOSTFILE_NAME = re.compile(r"^[0-9]+(?:\.[0-9]+)?\.hosts$")
_MAX_HOSTFILE_SIZE = 16 * 1024 * 1024
_COMMAND_TIMEOUT = 60


class JobsMountState(NamedTuple):
    """The current state. ``current_unit`` is the text of the mount unit, empty for none."""

    is_mounted: bool
    current_unit: str
    systemd_runs: bool


class JobsMountPlan(NamedTuple):
    """Whether to write or delete the unit, and to mount or unmount the file system."""

    write_unit: bool = False
    mount: bool = False
    delete_unit: bool = False
    unmount: bool = False

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return any(self)


class JobsMountResult(NamedTuple):
    """The result of a run, or of check mode. ``failure_reason``: why nothing is mounted in a container."""

    changed: bool
    failure_reason: str = ""
    before: str = ""
    after: str = ""


def ensure_jobs_mount(run: Runner, present: bool, check_mode: bool, path: str = JOBS_DIRECTORY) -> JobsMountResult:
    """Set up or remove the file system. systemd mounts it at each boot; without systemd, each run does."""
    systemd_runs = runs_systemd()
    mount_state = read_mount_state(path, parse_mountinfo(_read_proc_file("/proc/self/mountinfo")), systemd_runs)
    mount_plan, failure_reason = plan_jobs_mount(path, mount_state, present), ""
    if mount_plan.mount and not has_capability(_read_proc_file("/proc/self/status"), CAP_SYS_ADMIN):
        failure_reason = "it lacks CAP_SYS_ADMIN."
    elif mount_plan.changed and not check_mode:
        failure_reason = apply_jobs_mount(run, mount_plan, path)
    if failure_reason:
        failure_reason = (
            f"Nothing can be mounted in this container, so a job can fill the file system of {path}: {failure_reason}"
        )
        return JobsMountResult(False, failure_reason)
    absent_note = f"# {path} is not mounted\n"
    before = mount_state.current_unit + ("" if mount_state.is_mounted else absent_note)
    after = (render_unit(path) if present and systemd_runs else "") + ("" if present else absent_note)
    return JobsMountResult(mount_plan.changed, "", before, after)


def _read_proc_file(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def unit_name(path: str) -> str:
    """Return the unit name that systemd requires for a mount point without characters to escape."""
    return path.strip("/").replace("/", "-") + ".mount"


def render_unit(path: str) -> str:
    """Return the unit that mounts the file system at boot, before anything that starts jobs."""
    return f"""# Written by gpumesh.cluster.
[Unit]
Description=What the jobs of a gpumesh cluster write for themselves
Before=slurmd.service

[Mount]
What={_MOUNT_SOURCE}
Where={path}
Type=tmpfs
Options={MOUNT_OPTIONS}

[Install]
WantedBy=local-fs.target
"""


def read_mount_state(
    path: str, mount_entries: List[MountEntry], systemd_runs: bool, unit_directory: str = UNIT_DIRECTORY
) -> JobsMountState:
    """Read the mount table and the unit."""
    is_mounted = any(mount.mount_point == path and mount.source == _MOUNT_SOURCE for mount in mount_entries)
    return JobsMountState(is_mounted, read_text(os.path.join(unit_directory, unit_name(path))) or "", systemd_runs)


def plan_jobs_mount(path: str, mount_state: JobsMountState, present: bool) -> JobsMountPlan:
    """Decide what to do."""
    if present:
        return JobsMountPlan(
            write_unit=mount_state.systemd_runs and mount_state.current_unit != render_unit(path),
            mount=not mount_state.is_mounted,
        )
    return JobsMountPlan(delete_unit=bool(mount_state.current_unit), unmount=mount_state.is_mounted)


def apply_jobs_mount(run: Runner, mount_plan: JobsMountPlan, path: str, unit_directory: str = UNIT_DIRECTORY) -> str:
    """Apply the plan. Returns why a container could not mount the file system, or an empty string."""
    mount_unit = unit_name(path)
    if mount_plan.delete_unit:
        run(["systemctl", "disable", mount_unit], check=False)
        remove_file(os.path.join(unit_directory, mount_unit))
        run(["systemctl", "daemon-reload"], check=False)
    if mount_plan.unmount:
        # A lazy unmount keeps open files of jobs until the jobs end.
        run(["umount", "--lazy", path], timeout=_COMMAND_TIMEOUT)
    if mount_plan.mount:
        failure_reason = _mount_over_directory(run, path)
        if failure_reason:
            return failure_reason
    if mount_plan.write_unit:
        write_atomic(os.path.join(unit_directory, mount_unit), render_unit(path), 0o644)
        run(["systemctl", "daemon-reload"], timeout=_COMMAND_TIMEOUT)
        run(["systemctl", "enable", mount_unit], timeout=_COMMAND_TIMEOUT)
    return ""


def _mount_over_directory(run: Runner, path: str) -> str:
    """Mount the file system over the directory, with the files of the running jobs."""
    with _opened_directory(path) as old_descriptor:
        staging_directory = f"{path}.new"
        # An interrupted run may have left this mount.
        run(["umount", "--lazy", staging_directory], check=False)
        os.makedirs(staging_directory, mode=0o700, exist_ok=True)
        try:
            run(
                ["mount", "-t", "tmpfs", "-o", MOUNT_OPTIONS, _MOUNT_SOURCE, staging_directory],
                timeout=_COMMAND_TIMEOUT,
            )
        except CommandError as failure:
            os.rmdir(staging_directory)
            return failure.message
        try:
            with _opened_directory(staging_directory) as new_descriptor:
                copied_names = _copy_hostfiles(old_descriptor, new_descriptor, set())
                # A mount cannot be moved out of a shared mount, but can be bound.
                run(["mount", "--bind", staging_directory, path], timeout=_COMMAND_TIMEOUT)
                # Copy files that were written meanwhile.
                _copy_hostfiles(old_descriptor, new_descriptor, copied_names)
                _delete_entries(old_descriptor)
        finally:
            run(["umount", staging_directory], timeout=_COMMAND_TIMEOUT)
            os.rmdir(staging_directory)
    return ""


@contextmanager
def _opened_directory(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _copy_hostfiles(old_descriptor: int, new_descriptor: int, already_copied: Set[str]) -> Set[str]:
    """Copy the hostfiles that are not in ``already_copied``. Returns all that are copied now."""
    copied_names = set(already_copied)
    for file_name in sorted(os.listdir(old_descriptor)):
        if (
            _HOSTFILE_NAME.match(file_name)
            and file_name not in copied_names
            and _copy_hostfile(file_name, old_descriptor, new_descriptor)
        ):
            copied_names.add(file_name)
    return copied_names


def _copy_hostfile(file_name: str, old_descriptor: int, new_descriptor: int) -> bool:
    """Copy a hostfile.

    Returns whether it existed and there was room. Keeps its owner and permissions, except setuid bits.
    """
    try:
        source_descriptor = os.open(file_name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=old_descriptor)
    except OSError:
        return False
    try:
        file_status = os.fstat(source_descriptor)
        if (
            not stat.S_ISREG(file_status.st_mode)
            or file_status.st_nlink != 1
            or file_status.st_size > _MAX_HOSTFILE_SIZE
        ):
            return False
        try:
            target_descriptor = os.open(
                file_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=new_descriptor
            )
        except OSError:
            return False
        try:
            with open(source_descriptor, "rb", closefd=False) as reader, open(
                target_descriptor, "wb", closefd=False
            ) as writer:
                writer.write(reader.read(_MAX_HOSTFILE_SIZE))
            os.fchown(target_descriptor, file_status.st_uid, file_status.st_gid)
            os.fchmod(target_descriptor, stat.S_IMODE(file_status.st_mode) & 0o755)
            os.utime(target_descriptor, (file_status.st_atime, file_status.st_mtime))
        except OSError:
            # One job lacks its file if there is no room, and the others continue.
            os.unlink(file_name, dir_fd=new_descriptor)
            return False
        finally:
            os.close(target_descriptor)
    finally:
        os.close(source_descriptor)
    return True


def _delete_entries(directory_descriptor: int) -> None:
    """Delete the files below the new mount, which would be out of sight."""
    for entry_name in os.listdir(directory_descriptor):
        try:
            os.unlink(entry_name, dir_fd=directory_descriptor)
        except IsADirectoryError:
            shutil.rmtree(f"/proc/self/fd/{directory_descriptor}/{entry_name}", ignore_errors=True)
        except FileNotFoundError:
            # The owner has removed the file.
            continue
