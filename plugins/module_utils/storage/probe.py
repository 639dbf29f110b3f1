# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove that a volume is one file system for all members, and measure it, with a few small files of a known name.

Each member has a folder of its own on the volume: a token that the others read, a file that its neighbour reads and one
that it locks while its neighbour tries to. Nothing is written where that would leave the volume too full, and every
measurement ends after a given time. Functions that touch the volume may wait for a dead server: see ``bounded``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shutil
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, TypeVar

from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import volumes
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.bounded import VolumeError

PREFIX = ".gpumesh-check-"
_MIB = 1 << 20
#: Synced at every so many bytes, so that a slow volume is noticed in time.
_SYNC_EVERY = 8 * _MIB
#: NFS clients remember for a while what was not there.
_TOKEN_SECONDS = 10.0
#: What an NFS client needs to notice that a lock is free.
_LOCK_SECONDS = 15.0
_PAUSE = 0.2
#: A folder that an earlier run has left, having been cut off, goes after this many seconds.
_LEFT_BEHIND = 3600

#: Accounts of people begin here. From 60000 on to 65535 are those that systemd and the kernel make up.
_FIRST_USER = 1000
_NO_USERS = range(60000, 65536)

GRANTED, BUSY = "granted", "busy"

_T = TypeVar("_T")


class Limits(NamedTuple):
    """``size`` in bytes and ``files`` in number, 0 to measure nothing; ``seconds`` for each measurement."""

    size: int
    files: int
    seconds: float
    max_used_percent: float


def folder_of(mount_point: str, run: str, machine: str) -> str:
    """Where a member has its files during a run."""
    return os.path.join(mount_point, f"{PREFIX}{run}-{machine}")


def lock_of(mount_point: str, run: str, machine: str) -> str:
    """The file that the member locks."""
    return os.path.join(folder_of(mount_point, run, machine), "lock")


def users() -> Dict[str, int]:
    """The number of each account of a person that this host lists. May wait for a directory: see ``bounded``."""
    return {
        entry.pw_name: entry.pw_uid
        for entry in pwd.getpwall()
        if entry.pw_uid >= _FIRST_USER and entry.pw_uid not in _NO_USERS
    }


def look(mount_point: str) -> Dict[str, Any]:
    """What is mounted there, and how full it is."""
    mount = volumes.locate(mount_point)
    room = os.statvfs(mount_point)
    return {
        "filesystem": mount["filesystem"],
        "source": mount["source"],
        "point": mount["point"],
        "read_only": mount["read_only"],
        "total_bytes": room.f_blocks * room.f_frsize,
        # What everybody may take; the rest of what is free is root's.
        "free_bytes": room.f_bavail * room.f_frsize,
        "used_percent": used_percent(room.f_blocks, room.f_bfree, room.f_bavail),
    }


def used_percent(blocks: int, free: int, available: int) -> float:
    """As df counts: what is kept for root is neither used nor free."""
    used = blocks - free
    return round(100.0 * used / (used + available), 1) if used + available else 0.0


def write(mount_point: str, run: str, machine: str, members: int, limits: Limits) -> Dict[str, Any]:
    """Leave this member's files on the volume, and measure what it takes to write them."""
    value: Dict[str, Any] = {"uid": None, "refusal": "", "write_mbps": None, "files_per_second": None}
    try:
        return {**value, **_as_whoever_may(mount_point, lambda: _write(mount_point, run, machine, members, limits))}
    except VolumeError as failure:
        return {**value, "refusal": failure.message}


def _write(mount_point: str, run: str, machine: str, members: int, limits: Limits) -> Dict[str, Any]:
    _remove_left_behind(mount_point, machine)
    folder = folder_of(mount_point, run, machine)
    os.mkdir(folder, 0o755)
    _leave(os.path.join(folder, "token"), _token(run, machine), 0o644)
    # The neighbour may be another user there: with root_squash, root of a member is nobody, and root of the server is not.
    _leave(lock_of(mount_point, run, machine), "", 0o666)
    value: Dict[str, Any] = {"uid": os.geteuid()}
    if limits.size:
        value["refusal"] = _too_full(os.statvfs(mount_point), limits, members)
    if limits.size and not value["refusal"]:
        value["write_mbps"] = _write_rate(os.path.join(folder, "data"), limits)
        value["files_per_second"] = _file_rate(os.path.join(folder, "files"), limits)
    return value


def _too_full(room: os.statvfs_result, limits: Limits, members: int) -> str:
    """Why nothing is measured; empty where it can be. All members write at the same time."""
    wanted = limits.size * members // room.f_frsize
    after = used_percent(room.f_blocks, room.f_bfree - wanted, max(room.f_bavail - wanted, 0))
    if room.f_bavail > wanted and after <= limits.max_used_percent:
        return ""
    return (
        f"{members} files of {limits.size // _MIB} MiB would leave it {after:g} % full, and {limits.max_used_percent:g} % "
        "is the limit"
    )


def _write_rate(path: str, limits: Limits) -> float:
    # What a file system could compress or share would be faster than data is.
    block = os.urandom(_MIB)
    written, began = 0, time.monotonic()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        while written < limits.size and (not written or time.monotonic() - began < limits.seconds):
            for _number in range(_SYNC_EVERY // _MIB):
                if written < limits.size:
                    written += os.write(descriptor, block[: limits.size - written])
            os.fsync(descriptor)
        return _rate(written, time.monotonic() - began)
    finally:
        os.close(descriptor)


def _file_rate(folder: str, limits: Limits) -> float:
    """Small files that are made, looked at and removed in one second."""
    os.mkdir(folder)
    done, began = 0, time.monotonic()
    while done < limits.files and time.monotonic() - began < limits.seconds:
        path = os.path.join(folder, str(done))
        _leave(path, "x", 0o644)
        os.stat(path)
        os.unlink(path)
        done += 1
    return round(done / max(time.monotonic() - began, 1e-6), 1)


def compare(mount_point: str, run: str, machines: Sequence[str], neighbour: str, limits: Limits) -> Dict[str, Any]:
    """Find the others' tokens, read the neighbour's data, and try the lock that the neighbour holds."""
    return _as_whoever_may(mount_point, lambda: _compare(mount_point, run, machines, neighbour, limits))


def _compare(mount_point: str, run: str, machines: Sequence[str], neighbour: str, limits: Limits) -> Dict[str, Any]:
    deadline = time.monotonic() + _TOKEN_SECONDS
    unseen = [machine for machine in machines if not _has_token(mount_point, run, machine, deadline)]
    value: Dict[str, Any] = {"unseen": unseen, "read_mbps": None, "lock": None}
    if neighbour and neighbour not in unseen:
        data = os.path.join(folder_of(mount_point, run, neighbour), "data")
        if limits.size and os.path.exists(data):
            value["read_mbps"] = _read_rate(data, limits)
        value["lock"] = try_lock(lock_of(mount_point, run, neighbour))
    return value


def _has_token(mount_point: str, run: str, machine: str, deadline: float) -> bool:
    path = os.path.join(folder_of(mount_point, run, machine), "token")
    while True:
        try:
            with open(path, encoding="utf-8") as stream:
                return stream.read() == _token(run, machine)
        except FileNotFoundError:
            if time.monotonic() > deadline:
                return False
        time.sleep(_PAUSE)


def _read_rate(path: str, limits: Limits) -> float:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # This host has not read the neighbour's file. Where all are on one machine, it has it in memory all the same.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        done, began = 0, time.monotonic()
        while time.monotonic() - began < limits.seconds:
            part = len(os.read(descriptor, _MIB))
            done += part
            if not part:
                break
        return _rate(done, time.monotonic() - began)
    finally:
        os.close(descriptor)


def take(mount_point: str, run: str, neighbour: str) -> Dict[str, Any]:
    """The neighbour has let its lock go: it can be had now."""
    return _as_whoever_may(mount_point, lambda: {"lock": _get_lock(lock_of(mount_point, run, neighbour))})


def _get_lock(path: str) -> str:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        outcome = try_lock(path)
        if outcome != BUSY or time.monotonic() > deadline:
            return outcome
        time.sleep(_PAUSE)


def try_lock(path: str) -> str:
    """``granted``, ``busy``, or why the file system has no locks. A lock that was granted is let go."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return "there is no such file"
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as failure:
        return BUSY if failure.errno in (errno.EACCES, errno.EAGAIN) else os.strerror(failure.errno or 0)
    else:
        return GRANTED
    finally:
        os.close(descriptor)


def hold(mount_point: str, run: str, machine: str) -> str:
    """Take this member's own lock and keep it until the process ends; empty, or why that did not work."""

    def lock() -> str:
        descriptor = os.open(lock_of(mount_point, run, machine), os.O_RDWR)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return ""

    try:
        return _as_whoever_may(mount_point, lock)
    except OSError as failure:
        return failure.strerror or "no reason given"


def clean(mount_point: str, run: str, machine: str) -> Dict[str, Any]:
    """Remove this member's files."""
    folder = folder_of(mount_point, run, machine)
    _as_whoever_may(mount_point, lambda: shutil.rmtree(folder) if os.path.isdir(folder) else None)
    return {}


def _as_whoever_may(mount_point: str, work: Callable[[], _T]) -> _T:
    """Do it as root or, where root is nobody, as the user whom the volume belongs to."""
    try:
        return work()
    except PermissionError as failure:
        owner = os.stat(mount_point)
        if os.geteuid() != 0 or owner.st_uid == 0:
            raise VolumeError(
                f"root of this host may not write there, and it belongs to user {owner.st_uid} with mode "
                f"{owner.st_mode & 0o7777:04o}"
            ) from failure
        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
    return work()


def _token(run: str, machine: str) -> str:
    return f"{machine} in run {run}\n"


def _leave(path: str, text: str, mode: int) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(path, mode)


def _rate(size: int, seconds: float) -> float:
    """10^6 bytes a second."""
    return round(size / 1e6 / max(seconds, 1e-6), 2)


def _remove_left_behind(mount_point: str, machine: str) -> None:
    now = time.time()
    with os.scandir(mount_point) as entries:
        old = [entry for entry in entries if entry.name.startswith(PREFIX) and entry.name.endswith(f"-{machine}")]
    for entry in old:
        if now - entry.stat(follow_symlinks=False).st_mtime > _LEFT_BEHIND:
            shutil.rmtree(entry.path)


def neighbour_of(machine: str, machines: Sequence[str]) -> Optional[str]:
    """The next one in the ring of those that take part; None for one that is alone or does not."""
    if machine not in machines or len(machines) < 2:
        return None
    return machines[(machines.index(machine) + 1) % len(machines)]


def others(machine: str, machines: Sequence[str]) -> List[str]:
    """All but this one."""
    return [other for other in machines if other != machine]
