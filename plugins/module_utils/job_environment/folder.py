# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small separate file system for the directory that every job can write to, so that no job can fill the host's.

Running jobs keep their files: these are copied by descriptor, and only those that belong to jobs, since everyone can
write to the folder.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import contextmanager
from typing import Iterator, List, NamedTuple, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import Mounted, parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import (
    CAP_SYS_ADMIN,
    has_capability,
    runs_systemd,
)

PATH = "/run/gpumesh/jobs"
UNIT_FOLDER = "/etc/systemd/system"
_SOURCE = "gpumesh-jobs"
#: Room for the hostfiles of thousands of steps, and the most that a job can use up.
OPTIONS = "mode=1777,nosuid,nodev,noexec,size=128m,nr_inodes=32768"
#: The file that the task prolog writes: the hostfile of a job or a step.
_HOSTFILE = re.compile(r"^[0-9]+(?:\.[0-9]+)?\.hosts$")
_LARGEST_HOSTFILE = 16 * 1024 * 1024
_SECONDS = 60


class Host(NamedTuple):
    """The current state. ``unit`` is the text of the mount unit, empty for none; ``systemd`` is whether systemd runs."""

    mounted: bool
    unit: str
    systemd: bool


class Plan(NamedTuple):
    """Whether to ``write`` or ``delete`` the unit, and to ``mount`` or ``unmount`` the file system."""

    write: bool = False
    mount: bool = False
    delete: bool = False
    unmount: bool = False

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return any(self)


class Result(NamedTuple):
    """What was done, or would be. ``trouble``: why the folder stays as it is in a container that may not mount."""

    changed: bool
    trouble: str = ""
    before: str = ""
    after: str = ""


def see_to(run: Runner, present: bool, check_mode: bool, path: str = PATH) -> Result:
    """Set up or remove the file system. systemd mounts it at each boot; without systemd, each run does."""
    systemd = runs_systemd()
    host = read(path, parse_mountinfo(_text("/proc/self/mountinfo")), systemd)
    plan, trouble = make_plan(path, host, present), ""
    if plan.mount and not has_capability(_text("/proc/self/status"), CAP_SYS_ADMIN):
        trouble = "it lacks CAP_SYS_ADMIN."
    elif plan.changed and not check_mode:
        trouble = apply(run, plan, path)
    if trouble:
        trouble = f"Nothing can be mounted in this container, so a job can fill the file system of {path}: {trouble}"
        return Result(False, trouble)
    absent = f"# {path} is not mounted\n"
    before = host.unit + ("" if host.mounted else absent)
    after = (unit_text(path) if present and systemd else "") + ("" if present else absent)
    return Result(plan.changed, "", before, after)


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def unit_name(path: str) -> str:
    """The unit name that systemd requires for a mount point without characters to escape."""
    return path.strip("/").replace("/", "-") + ".mount"


def unit_text(path: str) -> str:
    """The unit that mounts it at boot, before anything that starts jobs."""
    return f"""# Written by gpumesh.cluster.
[Unit]
Description=What the jobs of a gpumesh cluster write for themselves
Before=slurmd.service

[Mount]
What={_SOURCE}
Where={path}
Type=tmpfs
Options={OPTIONS}

[Install]
WantedBy=local-fs.target
"""


def read(path: str, mounts: List[Mounted], systemd: bool, folder: str = UNIT_FOLDER) -> Host:
    """Read the mount table and the unit."""
    mounted = any(mount.point == path and mount.source == _SOURCE for mount in mounts)
    return Host(mounted, read_text(os.path.join(folder, unit_name(path))) or "", systemd)


def make_plan(path: str, host: Host, present: bool) -> Plan:
    """Decide what to do."""
    if present:
        return Plan(write=host.systemd and host.unit != unit_text(path), mount=not host.mounted)
    return Plan(delete=bool(host.unit), unmount=host.mounted)


def apply(run: Runner, plan: Plan, path: str, folder: str = UNIT_FOLDER) -> str:
    """Carry out the plan. Returns why a container could not mount it, or an empty string."""
    unit = unit_name(path)
    if plan.delete:
        run(["systemctl", "disable", unit], check=False)
        remove_file(os.path.join(folder, unit))
        run(["systemctl", "daemon-reload"], check=False)
    if plan.unmount:
        # Lazily, so that open files of jobs stay until the jobs end.
        run(["umount", "--lazy", path], timeout=_SECONDS)
    if plan.mount:
        trouble = _mount(run, path)
        if trouble:
            return trouble
    if plan.write:
        write_atomic(os.path.join(folder, unit), unit_text(path), 0o644)
        run(["systemctl", "daemon-reload"], timeout=_SECONDS)
        run(["systemctl", "enable", unit], timeout=_SECONDS)
    return ""


def _mount(run: Runner, path: str) -> str:
    """Mount it over the folder, with the files of the running jobs."""
    with _opened(path) as old:
        stage = f"{path}.new"
        # Left by an interrupted run.
        run(["umount", "--lazy", stage], check=False)
        os.makedirs(stage, mode=0o700, exist_ok=True)
        try:
            run(["mount", "-t", "tmpfs", "-o", OPTIONS, _SOURCE, stage], timeout=_SECONDS)
        except CommandError as failure:
            os.rmdir(stage)
            return failure.message
        try:
            with _opened(stage) as new:
                taken = _take_along(old, new, set())
                # A mount cannot be moved out of a shared mount, but can be bound.
                run(["mount", "--bind", stage, path], timeout=_SECONDS)
                # Copy files that were written meanwhile.
                _take_along(old, new, taken)
                _empty(old)
        finally:
            run(["umount", stage], timeout=_SECONDS)
            os.rmdir(stage)
    return ""


@contextmanager
def _opened(path: str) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield handle
    finally:
        os.close(handle)


def _take_along(old: int, new: int, taken: Set[str]) -> Set[str]:
    """Copy the hostfiles that are not in ``taken``. Returns those that are now."""
    names = set(taken)
    for name in sorted(os.listdir(old)):
        if _HOSTFILE.match(name) and name not in names and _copy(name, old, new):
            names.add(name)
    return names


def _copy(name: str, old: int, new: int) -> bool:
    """Copy a hostfile.

    Returns whether it existed and there was room. Keeps its owner and permissions, except setuid bits.
    """
    try:
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=old)
    except OSError:
        return False
    try:
        about = os.fstat(source)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1 or about.st_size > _LARGEST_HOSTFILE:
            return False
        try:
            target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=new)
        except OSError:
            return False
        try:
            with open(source, "rb", closefd=False) as reader, open(target, "wb", closefd=False) as writer:
                writer.write(reader.read(_LARGEST_HOSTFILE))
            os.fchown(target, about.st_uid, about.st_gid)
            os.fchmod(target, stat.S_IMODE(about.st_mode) & 0o755)
            os.utime(target, (about.st_atime, about.st_mtime))
        except OSError:
            # No room: one job lacks its file, and the others continue.
            os.unlink(name, dir_fd=new)
            return False
        finally:
            os.close(target)
    finally:
        os.close(source)
    return True


def _empty(folder: int) -> None:
    """Delete the files below the new mount, which would be out of sight."""
    for name in os.listdir(folder):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            shutil.rmtree(f"/proc/self/fd/{folder}/{name}", ignore_errors=True)
        except FileNotFoundError:
            # Its owner has removed it.
            continue
