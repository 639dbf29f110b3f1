# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove that a volume is one file system for all members, and measure it, with a few small files of a known name.

Each member has a directory on the volume with a token that the others read, a file that its neighbour reads, and one
of which it locks two bytes: one until the end, while its neighbour tries to, and one that it releases immediately for
its neighbour. Nothing is written if that would leave the volume too full, and every measurement has a time limit. Functions
that access the volume may wait for a dead server: run them with a deadline.
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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.safe_path import account_name, become_account
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.subprocess_deadline import VolumeError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import volumes

DIRECTORY_PREFIX = ".gpumesh-check-"
_OWN_NAMES = {"token", "lock", "data", "files"}
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_BYTES_PER_MIB = 1 << 20
#: Data is synced after this many bytes, so that a slow volume is noticed in time.
_SYNC_INTERVAL = 8 * _BYTES_PER_MIB
#: NFS clients cache for a while that a file does not exist.
_TOKEN_TIMEOUT = 10.0
#: How many seconds an NFS client needs to notice that a lock is free.
_LOCK_TIMEOUT = 15.0
#: How many seconds an NFS client needs to return a file that its server has delegated to it.
_DELEGATION_TIMEOUT = 15.0
_POLL_INTERVAL = 0.2
#: The directory of an interrupted run is removed after this many seconds.
_MAX_LEFTOVER_AGE = 3600

#: UIDs of people start here. Those from 60000 to 65535 are used by systemd and the kernel.
_FIRST_USER_ID = 1000
_SYSTEM_USER_IDS = range(60000, 65536)

#: The user that NFS shows if both ends know no common number for the owner.
_NOBODY_ID = 65534

#: The byte of the file that is locked until the end, and the one that is released immediately.
HELD_BYTE, RELEASED_BYTE = 0, 1
LOCK_GRANTED, LOCK_BUSY = "granted", "busy"

_T = TypeVar("_T")


class ProbeLimits(NamedTuple):
    """``data_size`` in bytes and ``max_files``, 0 to measure nothing; ``max_seconds`` for each measurement."""

    data_size: int
    max_files: int
    max_seconds: float
    max_used_percent: float


def probe_directory_name(run_id: str, machine: str) -> str:
    """Return the name of a member's directory during a run."""
    return f"{DIRECTORY_PREFIX}{run_id}-{machine}"


def _open_safely(name: str, open_flags: int, parent_descriptor: Optional[int] = None, file_mode: int = 0o600) -> int:
    """Open a file or directory of the volume. Links are not followed, and nothing blocks.

    Users of the volume may create links, pipes and devices there, and replace directories. So each component is opened
    relative to the open directory.
    """
    descriptor = _open_delegated(
        name, open_flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, parent_descriptor, file_mode
    )
    if stat.S_IFMT(os.fstat(descriptor).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
        os.close(descriptor)
        raise VolumeError(f"{name} is not a file")
    return descriptor


def _open_delegated(name: str, open_flags: int, parent_descriptor: Optional[int], file_mode: int) -> int:
    """Open a file like os.open, and wait until a client has returned it.

    On the server of a volume, a file may be delegated to a client: a non-blocking open requests it back, and fails
    until then.
    """
    deadline = time.monotonic() + _DELEGATION_TIMEOUT
    while True:
        try:
            return os.open(name, open_flags, file_mode, dir_fd=parent_descriptor)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_INTERVAL)


@contextlib.contextmanager
def _opened_safely(
    name: str, open_flags: int, parent_descriptor: Optional[int] = None, file_mode: int = 0o600
) -> Iterator[int]:
    descriptor = _open_safely(name, open_flags, parent_descriptor, file_mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened_directory(mount_point: str, run_id: str, machine: str) -> Iterator[int]:
    with _opened_safely(mount_point, _DIRECTORY_FLAGS) as volume_descriptor, _opened_safely(
        probe_directory_name(run_id, machine), _DIRECTORY_FLAGS, volume_descriptor
    ) as directory_descriptor:
        yield directory_descriptor


def list_users() -> Dict[str, int]:
    """Return the UID of each personal account that this host lists. May wait for a directory service."""
    return {
        entry.pw_name: entry.pw_uid
        for entry in pwd.getpwall()
        if entry.pw_uid >= _FIRST_USER_ID and entry.pw_uid not in _SYSTEM_USER_IDS
    }


def read_volume_usage(mount_point: str) -> Dict[str, Any]:
    """Return the mount at a path, and its usage."""
    mount_fields = volumes.locate_mount(mount_point)
    filesystem_stats = os.statvfs(mount_point)
    return {
        **mount_fields,
        "total_bytes": filesystem_stats.f_blocks * filesystem_stats.f_frsize,
        # The space available to all users; the remaining free space is reserved for root.
        "free_bytes": filesystem_stats.f_bavail * filesystem_stats.f_frsize,
        "used_percent": calculate_used_percent(
            filesystem_stats.f_blocks, filesystem_stats.f_bfree, filesystem_stats.f_bavail
        ),
    }


def calculate_used_percent(blocks: int, free: int, available: int) -> float:
    """Return the used space in percent, as df does: space reserved for root is neither used nor free."""
    used = blocks - free
    return round(100.0 * used / (used + available), 1) if used + available else 0.0


def write_and_measure(
    mount_point: str, run_id: str, machine: str, member_count: int, limits: ProbeLimits
) -> Dict[str, Any]:
    """Write this member's files to the volume, and measure the speed."""
    measurements: Dict[str, Any] = {"uid": None, "refusal": "", "write_mbps": None, "files_per_second": None}
    try:
        return {
            **measurements,
            **_run_as_permitted_user(
                mount_point, lambda: _write_files(mount_point, run_id, machine, member_count, limits)
            ),
        }
    except VolumeError as failure:
        return {**measurements, "refusal": failure.message}


def _write_files(mount_point: str, run_id: str, machine: str, member_count: int, limits: ProbeLimits) -> Dict[str, Any]:
    with _opened_safely(mount_point, _DIRECTORY_FLAGS) as volume_descriptor:
        _remove_leftovers(volume_descriptor, machine)
        os.mkdir(probe_directory_name(run_id, machine), 0o755, dir_fd=volume_descriptor)
    with _opened_directory(mount_point, run_id, machine) as directory_descriptor:
        if os.listdir(directory_descriptor):
            raise VolumeError(f"another directory replaced {probe_directory_name(run_id, machine)}")
        _write_file(directory_descriptor, "token", _token_text(run_id, machine), 0o644)
        # The neighbour may be another user there: with root_squash, root of a member is nobody, but root of the server
        # is not.
        _write_file(directory_descriptor, "lock", "", 0o666)
        measurements: Dict[str, Any] = {"uid": os.geteuid()}
        if limits.data_size:
            measurements["refusal"] = _explain_too_full(os.fstatvfs(directory_descriptor), limits, member_count)
        if limits.data_size and not measurements["refusal"]:
            measurements["write_mbps"] = _measure_write_rate(directory_descriptor, limits)
            measurements["files_per_second"] = _measure_file_rate(directory_descriptor, limits)
    return measurements


def _explain_too_full(filesystem_stats: os.statvfs_result, limits: ProbeLimits, member_count: int) -> str:
    """Explain why nothing is measured; empty if it can be. All members write at the same time."""
    needed_blocks = limits.data_size * member_count // filesystem_stats.f_frsize
    percent_after = calculate_used_percent(
        filesystem_stats.f_blocks,
        filesystem_stats.f_bfree - needed_blocks,
        max(filesystem_stats.f_bavail - needed_blocks, 0),
    )
    if filesystem_stats.f_bavail > needed_blocks and percent_after <= limits.max_used_percent:
        return ""
    return (
        f"{member_count} files of {limits.data_size // _BYTES_PER_MIB} MiB would leave it {percent_after:g} % full, "
        f"and the limit is {limits.max_used_percent:g} %"
    )


def _measure_write_rate(directory_descriptor: int, limits: ProbeLimits) -> float:
    # The data is random, since a file system that compresses or deduplicates would be faster than with real data.
    random_block = os.urandom(_BYTES_PER_MIB)
    written_bytes, start_time = 0, time.monotonic()
    with _opened_safely("data", _CREATE_FLAGS, directory_descriptor, 0o644) as descriptor:
        while written_bytes < limits.data_size and (
            not written_bytes or time.monotonic() - start_time < limits.max_seconds
        ):
            for _number in range(_SYNC_INTERVAL // _BYTES_PER_MIB):
                if written_bytes < limits.data_size:
                    written_bytes += os.write(descriptor, random_block[: limits.data_size - written_bytes])
            os.fsync(descriptor)
        return _megabytes_per_second(written_bytes, time.monotonic() - start_time)


def _measure_file_rate(directory_descriptor: int, limits: ProbeLimits) -> float:
    """Return how many small files are created, looked up and removed per second."""
    os.mkdir("files", dir_fd=directory_descriptor)
    file_count, start_time = 0, time.monotonic()
    with _opened_safely("files", _DIRECTORY_FLAGS, directory_descriptor) as files_descriptor:
        while file_count < limits.max_files and time.monotonic() - start_time < limits.max_seconds:
            _write_file(files_descriptor, str(file_count), "x", 0o644)
            os.stat(str(file_count), dir_fd=files_descriptor, follow_symlinks=False)
            os.unlink(str(file_count), dir_fd=files_descriptor)
            file_count += 1
    return round(file_count / max(time.monotonic() - start_time, 1e-6), 1)


def check_members(
    mount_point: str, run_id: str, machines: Sequence[str], neighbour: str, limits: ProbeLimits
) -> Dict[str, Any]:
    """Read the others' tokens and the neighbour's data, and try to get the lock that the neighbour holds."""
    return _run_as_permitted_user(mount_point, lambda: _check_members(mount_point, run_id, machines, neighbour, limits))


def _check_members(
    mount_point: str, run_id: str, machines: Sequence[str], neighbour: str, limits: ProbeLimits
) -> Dict[str, Any]:
    deadline = time.monotonic() + _TOKEN_TIMEOUT
    unseen_machines = [machine for machine in machines if not _has_token(mount_point, run_id, machine, deadline)]
    measurements: Dict[str, Any] = {"missing_members": unseen_machines, "read_mbps": None, "lock": None}
    if neighbour and neighbour not in unseen_machines:
        with _opened_directory(mount_point, run_id, neighbour) as directory_descriptor:
            if limits.data_size and "data" in os.listdir(directory_descriptor):
                measurements["read_mbps"] = _measure_read_rate(directory_descriptor, limits)
        measurements["lock"] = try_lock(mount_point, run_id, neighbour, HELD_BYTE)
    return measurements


def _has_token(mount_point: str, run_id: str, machine: str, deadline: float) -> bool:
    expected_token = _token_text(run_id, machine).encode()
    while True:
        try:
            with _opened_directory(mount_point, run_id, machine) as directory_descriptor, _opened_safely(
                "token", os.O_RDONLY, directory_descriptor
            ) as token_descriptor:
                return os.read(token_descriptor, len(expected_token) + 1) == expected_token
        except FileNotFoundError:
            if time.monotonic() > deadline:
                return False
        time.sleep(_POLL_INTERVAL)


def _measure_read_rate(directory_descriptor: int, limits: ProbeLimits) -> float:
    with _opened_safely("data", os.O_RDONLY, directory_descriptor) as descriptor:
        # This host has not read the neighbour's file before. If all members are on one machine, it is in memory anyway.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        bytes_read, start_time = 0, time.monotonic()
        while time.monotonic() - start_time < limits.max_seconds:
            chunk_size = len(os.read(descriptor, _BYTES_PER_MIB))
            bytes_read += chunk_size
            if not chunk_size:
                break
        return _megabytes_per_second(bytes_read, time.monotonic() - start_time)


def take_released_lock(mount_point: str, run_id: str, neighbour: str) -> Dict[str, Any]:
    """Try to get the lock that the neighbour has released."""
    return _run_as_permitted_user(
        mount_point, lambda: {"released_lock": _wait_for_released_lock(mount_point, run_id, neighbour)}
    )


def _wait_for_released_lock(mount_point: str, run_id: str, machine: str) -> str:
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        lock_status = try_lock(mount_point, run_id, machine, RELEASED_BYTE)
        if lock_status != LOCK_BUSY or time.monotonic() > deadline:
            return lock_status
        time.sleep(_POLL_INTERVAL)


def try_lock(mount_point: str, run_id: str, machine: str, locked_byte: int) -> str:
    """Return ``granted``, ``busy``, or why the file system has no locks. A granted lock is released."""
    try:
        with _opened_directory(mount_point, run_id, machine) as directory_descriptor, _opened_safely(
            "lock", os.O_RDWR, directory_descriptor
        ) as descriptor:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, locked_byte)
            except OSError as failure:
                return LOCK_BUSY if failure.errno in (errno.EACCES, errno.EAGAIN) else os.strerror(failure.errno or 0)
    except FileNotFoundError:
        return "the file does not exist"
    return LOCK_GRANTED


class HeldLock(NamedTuple):
    """The lock of a process on its member's own file, until it ends. ``trouble``: why it has none, or empty."""

    descriptor: Optional[int]
    trouble: str = ""

    def close(self) -> None:
        """Close the file, which releases the lock."""
        if self.descriptor is not None:
            os.close(self.descriptor)


def hold_lock(mount_point: str, run_id: str, machine: str) -> HeldLock:
    """Take this member's own locks: one until the process ends, and one that is released for the neighbour."""

    def acquire_lock() -> HeldLock:
        with _opened_directory(mount_point, run_id, machine) as directory_descriptor:
            descriptor = _open_safely("lock", os.O_RDWR, directory_descriptor)
        for locked_byte in (HELD_BYTE, RELEASED_BYTE):
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, locked_byte)
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, RELEASED_BYTE)
        return HeldLock(descriptor)

    try:
        return _run_as_permitted_user(mount_point, acquire_lock)
    except OSError as failure:
        return HeldLock(None, failure.strerror or "no reason given")
    except VolumeError as failure:
        return HeldLock(None, failure.message)


def remove_own_files(mount_point: str, run_id: str, machine: str) -> Dict[str, Any]:
    """Remove this member's files."""

    def remove_directory() -> None:
        with _opened_safely(mount_point, _DIRECTORY_FLAGS) as volume:
            _remove_directory(volume, probe_directory_name(run_id, machine))

    _run_as_permitted_user(mount_point, remove_directory)
    return {}


def _remove_directory(volume_descriptor: int, name: str) -> None:
    """Remove a directory of ours.

    One with other content stays: any user who may rename directories could give it this name.
    """
    try:
        with _opened_safely(name, _DIRECTORY_FLAGS, volume_descriptor) as directory_descriptor:
            entry_names = os.listdir(directory_descriptor)
            if not set(entry_names) <= _OWN_NAMES:
                return
            for entry_name in entry_names:
                if entry_name != "files":
                    os.unlink(entry_name, dir_fd=directory_descriptor)
                    continue
                with _opened_safely(entry_name, _DIRECTORY_FLAGS, directory_descriptor) as files_descriptor:
                    for file_name in os.listdir(files_descriptor):
                        os.unlink(file_name, dir_fd=files_descriptor)
                os.rmdir(entry_name, dir_fd=directory_descriptor)
        os.rmdir(name, dir_fd=volume_descriptor)
    except FileNotFoundError:
        return


def _run_as_permitted_user(mount_point: str, operation: Callable[[], _T]) -> _T:
    """Run the operation as the owner of the volume, so that it can harm only that user, or else as root.

    If root is mapped to nobody, it runs as the owner as well.
    """
    volume_status = os.stat(mount_point)
    if os.geteuid() == 0 and volume_status.st_uid not in (0, _NOBODY_ID):
        become_account(volume_status.st_uid, volume_status.st_gid)
    try:
        return operation()
    except PermissionError as failure:
        if os.geteuid() != 0 or volume_status.st_uid == 0:
            account_text = "root" if os.geteuid() == 0 else account_name(os.geteuid())
            raise VolumeError(
                f"{account_text} of this host cannot write to it, "
                f"and it is owned by user {volume_status.st_uid} with mode {volume_status.st_mode & 0o7777:04o}"
            ) from failure
        become_account(volume_status.st_uid, volume_status.st_gid)
    return operation()


def _token_text(run_id: str, machine: str) -> str:
    return f"{machine} in run {run_id}\n"


def _write_file(directory_descriptor: int, name: str, text: str, mode: int) -> None:
    with _opened_safely(name, _CREATE_FLAGS, directory_descriptor) as descriptor:
        os.write(descriptor, text.encode())
        os.fchmod(descriptor, mode)


def _megabytes_per_second(size: int, seconds: float) -> float:
    """Return the rate in 10^6 bytes/s."""
    return round(size / 1e6 / max(seconds, 1e-6), 2)


def _remove_leftovers(volume_descriptor: int, machine: str) -> None:
    current_time = time.time()
    with os.scandir(volume_descriptor) as entries:
        leftovers = [
            entry for entry in entries if entry.name.startswith(DIRECTORY_PREFIX) and entry.name.endswith(f"-{machine}")
        ]
    for entry in leftovers:
        # A user may have created one that we cannot remove.
        with contextlib.suppress(OSError, VolumeError):
            if current_time - entry.stat(follow_symlinks=False).st_mtime > _MAX_LEFTOVER_AGE:
                _remove_directory(volume_descriptor, entry.name)


def next_machine(machine: str, machines: Sequence[str]) -> Optional[str]:
    """Return the next machine in the ring of participants; None without another, or for one that does not take part."""
    if machine not in machines or len(machines) < 2:
        return None
    return machines[(machines.index(machine) + 1) % len(machines)]


def other_machines(machine: str, machines: Sequence[str]) -> List[str]:
    """Return all machines except this one."""
    return [candidate for candidate in machines if candidate != machine]
