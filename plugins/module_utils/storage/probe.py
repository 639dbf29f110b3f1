# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove that a volume is one file system for all members, and measure it, with a few small files of a known name.

Each member has a folder on the volume with a token that the others read, a file that its neighbour reads, and one that
it locks while its neighbour tries to. Nothing is written if that would leave the volume too full, and every measurement
has a time limit. Functions that access the volume may wait for a dead server: see ``bounded``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import stat
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, TypeVar

from ansible_collections.gpumesh.cluster.plugins.module_utils.guarded import account_name, become
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import volumes
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.bounded import VolumeError

PREFIX = ".gpumesh-check-"
_NAMES = {"token", "lock", "data", "files"}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_MIB = 1 << 20
#: Data is synced after this many bytes, so that a slow volume is noticed in time.
_SYNC_EVERY = 8 * _MIB
#: NFS clients cache for a while that a file does not exist.
_TOKEN_SECONDS = 10.0
#: Seconds that an NFS client needs to notice that a lock is free.
_LOCK_SECONDS = 15.0
#: Seconds that it needs to return a file that its server has delegated to it.
_DELEGATED_SECONDS = 15.0
_PAUSE = 0.2
#: The directory of an interrupted run is removed after this many seconds.
_LEFT_BEHIND = 3600

#: UIDs of people start here. Those from 60000 to 65535 are used by systemd and the kernel.
_FIRST_USER = 1000
_NO_USERS = range(60000, 65536)

#: The user that NFS shows if both ends know no common number for the owner.
_UNKNOWN = 65534

GRANTED, BUSY = "granted", "busy"

_T = TypeVar("_T")


class Limits(NamedTuple):
    """``size`` in bytes and ``files`` in number, 0 to measure nothing; ``seconds`` for each measurement."""

    size: int
    files: int
    seconds: float
    max_used_percent: float


def name_of(run: str, machine: str) -> str:
    """The name of a member's folder during a run."""
    return f"{PREFIX}{run}-{machine}"


def _open(name: str, flags: int, folder: Optional[int] = None, mode: int = 0o600) -> int:
    """Open a file or folder of the volume. Links are not followed, and nothing blocks.

    Users of the volume may create links, pipes and devices there, and replace folders. So each component is opened
    relative to the open folder.
    """
    descriptor = _open_delegated(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, folder, mode)
    if stat.S_IFMT(os.fstat(descriptor).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
        os.close(descriptor)
        raise VolumeError(f"{name} is not a file")
    return descriptor


def _open_delegated(name: str, flags: int, folder: Optional[int], mode: int) -> int:
    """Like os.open.

    On the server of a volume, a file may be delegated to a client: a non-blocking open requests it back, and fails
    until the client has returned it.
    """
    deadline = time.monotonic() + _DELEGATED_SECONDS
    while True:
        try:
            return os.open(name, flags, mode, dir_fd=folder)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE)


@contextlib.contextmanager
def _opened(name: str, flags: int, folder: Optional[int] = None, mode: int = 0o600) -> Iterator[int]:
    descriptor = _open(name, flags, folder, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _folder(mount_point: str, run: str, machine: str) -> Iterator[int]:
    with _opened(mount_point, _FOLDER) as volume, _opened(name_of(run, machine), _FOLDER, volume) as folder:
        yield folder


def users() -> Dict[str, int]:
    """The UID of each person's account that this host lists. May wait for a directory service: see ``bounded``."""
    return {
        entry.pw_name: entry.pw_uid
        for entry in pwd.getpwall()
        if entry.pw_uid >= _FIRST_USER and entry.pw_uid not in _NO_USERS
    }


def look(mount_point: str) -> Dict[str, Any]:
    """What is mounted there, and its usage."""
    mount = volumes.locate(mount_point)
    room = os.statvfs(mount_point)
    return {
        "filesystem": mount["filesystem"],
        "source": mount["source"],
        "point": mount["point"],
        "read_only": mount["read_only"],
        "total_bytes": room.f_blocks * room.f_frsize,
        # The space available to all users; the remaining free space is reserved for root.
        "free_bytes": room.f_bavail * room.f_frsize,
        "used_percent": used_percent(room.f_blocks, room.f_bfree, room.f_bavail),
    }


def used_percent(blocks: int, free: int, available: int) -> float:
    """As df computes it: space reserved for root is neither used nor free."""
    used = blocks - free
    return round(100.0 * used / (used + available), 1) if used + available else 0.0


def write(mount_point: str, run: str, machine: str, members: int, limits: Limits) -> Dict[str, Any]:
    """Write this member's files to the volume, and measure the speed."""
    value: Dict[str, Any] = {"uid": None, "refusal": "", "write_mbps": None, "files_per_second": None}
    try:
        return {**value, **_as_whoever_may(mount_point, lambda: _write(mount_point, run, machine, members, limits))}
    except VolumeError as failure:
        return {**value, "refusal": failure.message}


def _write(mount_point: str, run: str, machine: str, members: int, limits: Limits) -> Dict[str, Any]:
    with _opened(mount_point, _FOLDER) as volume:
        _remove_left_behind(volume, machine)
        os.mkdir(name_of(run, machine), 0o755, dir_fd=volume)
    with _folder(mount_point, run, machine) as folder:
        if os.listdir(folder):
            raise VolumeError(f"another directory was put in the place of {name_of(run, machine)}")
        _leave(folder, "token", _token(run, machine), 0o644)
        # The neighbour may be another user there: with root_squash, root of a member is nobody, but root of the server
        # is not.
        _leave(folder, "lock", "", 0o666)
        value: Dict[str, Any] = {"uid": os.geteuid()}
        if limits.size:
            value["refusal"] = _too_full(os.fstatvfs(folder), limits, members)
        if limits.size and not value["refusal"]:
            value["write_mbps"] = _write_rate(folder, limits)
            value["files_per_second"] = _file_rate(folder, limits)
    return value


def _too_full(room: os.statvfs_result, limits: Limits, members: int) -> str:
    """Why nothing is measured; empty if it can be. All members write at the same time."""
    wanted = limits.size * members // room.f_frsize
    after = used_percent(room.f_blocks, room.f_bfree - wanted, max(room.f_bavail - wanted, 0))
    if room.f_bavail > wanted and after <= limits.max_used_percent:
        return ""
    return (
        f"{members} files of {limits.size // _MIB} MiB would leave it {after:g} % full, and the limit "
        f"is {limits.max_used_percent:g} %"
    )


def _write_rate(folder: int, limits: Limits) -> float:
    # Random, since a file system that compresses or deduplicates would be faster than with real data.
    block = os.urandom(_MIB)
    written, began = 0, time.monotonic()
    with _opened("data", _NEW, folder, 0o644) as descriptor:
        while written < limits.size and (not written or time.monotonic() - began < limits.seconds):
            for _number in range(_SYNC_EVERY // _MIB):
                if written < limits.size:
                    written += os.write(descriptor, block[: limits.size - written])
            os.fsync(descriptor)
        return _rate(written, time.monotonic() - began)


def _file_rate(folder: int, limits: Limits) -> float:
    """The number of small files that are created, looked up and removed per second."""
    os.mkdir("files", dir_fd=folder)
    done, began = 0, time.monotonic()
    with _opened("files", _FOLDER, folder) as files:
        while done < limits.files and time.monotonic() - began < limits.seconds:
            _leave(files, str(done), "x", 0o644)
            os.stat(str(done), dir_fd=files, follow_symlinks=False)
            os.unlink(str(done), dir_fd=files)
            done += 1
    return round(done / max(time.monotonic() - began, 1e-6), 1)


def compare(mount_point: str, run: str, machines: Sequence[str], neighbour: str, limits: Limits) -> Dict[str, Any]:
    """Read the others' tokens and the neighbour's data, and try the lock that the neighbour holds."""
    return _as_whoever_may(mount_point, lambda: _compare(mount_point, run, machines, neighbour, limits))


def _compare(mount_point: str, run: str, machines: Sequence[str], neighbour: str, limits: Limits) -> Dict[str, Any]:
    deadline = time.monotonic() + _TOKEN_SECONDS
    unseen = [machine for machine in machines if not _has_token(mount_point, run, machine, deadline)]
    value: Dict[str, Any] = {"unseen": unseen, "read_mbps": None, "lock": None}
    if neighbour and neighbour not in unseen:
        with _folder(mount_point, run, neighbour) as folder:
            if limits.size and "data" in os.listdir(folder):
                value["read_mbps"] = _read_rate(folder, limits)
        value["lock"] = try_lock(mount_point, run, neighbour)
    return value


def _has_token(mount_point: str, run: str, machine: str, deadline: float) -> bool:
    wanted = _token(run, machine).encode()
    while True:
        try:
            with _folder(mount_point, run, machine) as folder, _opened("token", os.O_RDONLY, folder) as token:
                return os.read(token, len(wanted) + 1) == wanted
        except FileNotFoundError:
            if time.monotonic() > deadline:
                return False
        time.sleep(_PAUSE)


def _read_rate(folder: int, limits: Limits) -> float:
    with _opened("data", os.O_RDONLY, folder) as descriptor:
        # This host has not read the neighbour's file before. If all members are on one machine, it is in memory anyway.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        done, began = 0, time.monotonic()
        while time.monotonic() - began < limits.seconds:
            part = len(os.read(descriptor, _MIB))
            done += part
            if not part:
                break
        return _rate(done, time.monotonic() - began)


def take(mount_point: str, run: str, neighbour: str) -> Dict[str, Any]:
    """Try to get the lock, which the neighbour has released."""
    return _as_whoever_may(mount_point, lambda: {"lock": _get_lock(mount_point, run, neighbour)})


def _get_lock(mount_point: str, run: str, machine: str) -> str:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        outcome = try_lock(mount_point, run, machine)
        if outcome != BUSY or time.monotonic() > deadline:
            return outcome
        time.sleep(_PAUSE)


def try_lock(mount_point: str, run: str, machine: str) -> str:
    """``granted``, ``busy``, or why the file system has no locks. A lock that was granted is released."""
    try:
        with _folder(mount_point, run, machine) as folder, _opened("lock", os.O_RDWR, folder) as descriptor:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as failure:
                return BUSY if failure.errno in (errno.EACCES, errno.EAGAIN) else os.strerror(failure.errno or 0)
    except FileNotFoundError:
        return "the file does not exist"
    return GRANTED


def hold(mount_point: str, run: str, machine: str) -> str:
    """Take this member's own lock and hold it until the process ends. Returns why that failed, or an empty string."""

    def lock() -> str:
        with _folder(mount_point, run, machine) as folder:
            fcntl.lockf(_open("lock", os.O_RDWR, folder), fcntl.LOCK_EX | fcntl.LOCK_NB)
        return ""

    try:
        return _as_whoever_may(mount_point, lock)
    except OSError as failure:
        return failure.strerror or "no reason given"
    except VolumeError as failure:
        return failure.message


def clean(mount_point: str, run: str, machine: str) -> Dict[str, Any]:
    """Remove this member's files."""

    def remove() -> None:
        with _opened(mount_point, _FOLDER) as volume:
            _remove(volume, name_of(run, machine))

    _as_whoever_may(mount_point, remove)
    return {}


def _remove(volume: int, name: str) -> None:
    """Remove a folder of ours.

    One with other content stays: any user who may rename folders could give it this name.
    """
    try:
        with _opened(name, _FOLDER, volume) as folder:
            names = os.listdir(folder)
            if not set(names) <= _NAMES:
                return
            for each in names:
                if each != "files":
                    os.unlink(each, dir_fd=folder)
                    continue
                with _opened(each, _FOLDER, folder) as files:
                    for file in os.listdir(files):
                        os.unlink(file, dir_fd=files)
                os.rmdir(each, dir_fd=folder)
        os.rmdir(name, dir_fd=volume)
    except FileNotFoundError:
        return


def _as_whoever_may(mount_point: str, work: Callable[[], _T]) -> _T:
    """Do the work as the owner of the volume, so that it can harm only that user, or else as root.

    If root is mapped to nobody, it is done as the owner as well.
    """
    owner = os.stat(mount_point)
    if os.geteuid() == 0 and owner.st_uid not in (0, _UNKNOWN):
        become(owner.st_uid, owner.st_gid)
    try:
        return work()
    except PermissionError as failure:
        if os.geteuid() != 0 or owner.st_uid == 0:
            who = "root" if os.geteuid() == 0 else account_name(os.geteuid())
            raise VolumeError(
                f"{who} of this host cannot write to it, and it is owned by user {owner.st_uid} with mode "
                f"{owner.st_mode & 0o7777:04o}"
            ) from failure
        become(owner.st_uid, owner.st_gid)
    return work()


def _token(run: str, machine: str) -> str:
    return f"{machine} in run {run}\n"


def _leave(folder: int, name: str, text: str, mode: int) -> None:
    with _opened(name, _NEW, folder) as descriptor:
        os.write(descriptor, text.encode())
        os.fchmod(descriptor, mode)


def _rate(size: int, seconds: float) -> float:
    """The rate in 10^6 bytes/s."""
    return round(size / 1e6 / max(seconds, 1e-6), 2)


def _remove_left_behind(volume: int, machine: str) -> None:
    now = time.time()
    with os.scandir(volume) as entries:
        old = [entry for entry in entries if entry.name.startswith(PREFIX) and entry.name.endswith(f"-{machine}")]
    for entry in old:
        # A user may have created one that we cannot remove.
        with contextlib.suppress(OSError, VolumeError):
            if now - entry.stat(follow_symlinks=False).st_mtime > _LEFT_BEHIND:
                _remove(volume, entry.name)


def neighbour_of(machine: str, machines: Sequence[str]) -> Optional[str]:
    """The next one in the ring of participants; None for one that is alone, or does not take part."""
    if machine not in machines or len(machines) < 2:
        return None
    return machines[(machines.index(machine) + 1) % len(machines)]


def others(machine: str, machines: Sequence[str]) -> List[str]:
    """All machines except this one."""
    return [other for other in machines if other != machine]
