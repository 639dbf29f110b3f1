# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record on disk: one file per cluster, changed under a lock, never half written, never silently replaced.

``<name>.json`` is the record, ``<name>.json.good`` a second copy of what was last written completely, and
``.<name>.lock`` the lock. The lock is a separate file, since the record is replaced by renaming: a process that waits
for a lock on the old file would get one that is no longer used.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import stat
import time
from typing import Iterator, List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, values
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    GpumeshError,
    HostStateError,
    RecordError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json

#: The lock timeout in seconds. A change takes milliseconds; a process that holds the lock longer is stopped or stuck.
DEFAULT_WAIT = 30.0

#: A record of thousands of members is far smaller; a larger file cannot be a record, and is not read.
_MAX_RECORD_BYTES = 64 * 1024 * 1024
_RECORD_SUFFIX = ".json"
#: The number of attempts to create a directory while other processes remove it.
_MAX_ATTEMPTS = 100
_GOOD_SUFFIX = ".good"


class DamagedRecordError(RecordError):
    """The file exists but is not a usable record. It is not changed."""


class LockedRecordError(RecordError):
    """Another process holds the lock longer than we wait."""


class StoredRecord(NamedTuple):
    """A record, and the path of its file."""

    path: str
    record: Record


class DamagedRecord(NamedTuple):
    """A file that cannot be used. ``last_good``: the path of a copy that can, or None."""

    path: str
    reason: str
    last_good: Optional[str]


def format_record(record: Record) -> str:
    """Format a record as on disk and in diffs: equal records have equal texts."""
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


class Store:
    """The record of one cluster in one directory of this host."""

    def __init__(self, directory: str, cluster_name: str, lock_timeout: float = DEFAULT_WAIT) -> None:
        self.directory = directory
        # The name becomes part of a file name here, so it is checked here.
        try:
            self.name = values.cluster_name(cluster_name)
        except ValueError as failure:
            raise RecordError(f"{failure}.", "Set a valid cluster_name.") from failure
        self.lock_timeout = lock_timeout
        self.path = os.path.join(directory, cluster_name + _RECORD_SUFFIX)
        self.good_path = self.path + _GOOD_SUFFIX
        self.lock_path = os.path.join(directory, f".{cluster_name}.lock")

    def read(self) -> Optional[Record]:
        """Return the record, or None if there is none. No lock is needed, since a file is replaced in one step.

        Raises DamagedRecordError with the path, the reason and the last good copy; changes nothing.
        """
        _check_directory(self.directory)
        try:
            record = _load_record(self.path)
        except GpumeshError as failure:
            raise self._damage_error(failure) from failure
        if record is not None and record["name"] != self.name:
            name_mismatch = model.InvalidRecordError("name", f"it is the record of '{record['name']}'")
            raise self._damage_error(name_mismatch)
        if record is None and os.path.exists(self.good_path) and not os.path.exists(self.path):
            # Creation writes the record first, and deletion removes the good copy first: a good copy alone means a lost
            # record.
            raise self._damage_error(RecordError("it is missing, although its last good copy exists"))
        return record

    def exists(self) -> bool:
        """Whether there is any file of this cluster, valid or not."""
        return any(os.path.lexists(path) for path in (self.path, self.good_path))

    @contextlib.contextmanager
    def locked(self, actor_name: str) -> Iterator[None]:
        """Hold the lock; ``actor_name`` is shown to those who wait.

        The kernel releases the lock when this process ends in any way.
        """
        lock_descriptor = self._acquire_lock(actor_name)
        try:
            yield
        finally:
            os.close(lock_descriptor)

    def write(self, record: Record) -> None:
        """Replace the record. Only inside ``locked``. A record that could not be read back is never written."""
        checked_record = model.parse(json.loads(json.dumps(record)))
        if checked_record["name"] != self.name:
            raise RecordError(f"The record of '{checked_record['name']}' cannot be written to {self.path}.")
        record_text = format_record(checked_record)
        _remove_temporary_files(self.directory, os.path.basename(self.path))
        for target_path in (self.path, self.good_path):
            try:
                files.write_atomic(target_path, record_text)
            except OSError as failure:
                remaining_version = "new" if files.read_text(self.path) == record_text else "old"
                raise HostStateError(
                    f"{target_path} cannot be written: {failure.strerror}.",
                    f"Free some space or make the file system writable, and run again; the {remaining_version} record is in place.",
                    path=target_path,
                ) from failure

    def remove(self) -> bool:
        """Delete the record, its copy and the lock. Returns whether there was one. Only inside ``locked``.

        The lock is removed last: a process that waits for it notices that the locked file is gone, and starts over.
        """
        _remove_temporary_files(self.directory, os.path.basename(self.path))
        had_copy = files.remove_file(self.good_path)
        had_record = files.remove_file(self.path)
        files.remove_file(self.lock_path)
        # Only our own empty directories are removed, never the one that contains them.
        for directory in (self.directory, os.path.dirname(self.directory)):
            if os.path.basename(directory) in ("clusters", "gpumesh"):
                files.remove_empty_directory(directory)
        return had_copy or had_record

    def _open_lock(self) -> int:
        """Open the lock file, and create its directory if that does not exist."""
        open_flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        for _attempt in range(_MAX_ATTEMPTS):
            try:
                _create_directory(self.directory)
                return os.open(self.lock_path, open_flags, 0o600)
            except FileNotFoundError:
                # Another process that deletes the last record removes the directory and its parent.
                continue
            except OSError as failure:
                raise HostStateError(
                    f"The lock {self.lock_path} cannot be opened: {failure.strerror}.",
                    "Remove it, unless it is a plain file.",
                    path=self.lock_path,
                ) from failure
        raise HostStateError(
            f"{self.directory} cannot be created: another process keeps deleting it.", path=self.directory
        )

    def _acquire_lock(self, actor_name: str) -> int:
        deadline = time.monotonic() + self.lock_timeout
        while True:
            lock_descriptor = self._open_lock()
            try:
                fcntl.flock(lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _refers_to(lock_descriptor, self.lock_path):
                    os.ftruncate(lock_descriptor, 0)
                    os.pwrite(
                        lock_descriptor,
                        f"{actor_name}, process {os.getpid()}, since {values.current_time()}\n".encode(),
                        0,
                    )
                    return lock_descriptor
            except OSError as failure:
                if failure.errno not in (errno.EAGAIN, errno.EACCES):
                    os.close(lock_descriptor)
                    raise HostStateError(f"{self.lock_path} cannot be locked: {failure.strerror}.") from failure
                lock_owner = os.pread(lock_descriptor, 200, 0).decode("utf-8", "replace").strip()
                if time.monotonic() >= deadline:
                    os.close(lock_descriptor)
                    raise LockedRecordError(
                        f"The record {self.path} is being changed by {lock_owner or 'a process that is just starting'}; "
                        f"it did not end within {self.lock_timeout:g} s.",
                        "Wait until it has ended, or kill that process if it hangs, and run again.",
                        path=self.path,
                        holder=lock_owner,
                    ) from failure
            os.close(lock_descriptor)
            # The pauses are random, so that processes that were started together do not retry together.
            time.sleep(random.uniform(0.005, 0.03))

    def _damage_error(self, failure: GpumeshError) -> DamagedRecordError:
        good_record: Optional[Record] = None
        with contextlib.suppress(GpumeshError):
            good_record = _load_record(self.good_path)
        if good_record is None:
            last_good = None
            remedy = f"Inspect it, then replace it with a member's copy of {self.path}."
        else:
            last_good = self.good_path
            remedy = f"Inspect it, then replace it with the last good copy, {self.good_path}."
        if isinstance(failure, model.FutureSchemaError):
            remedy = failure.remedy
        reason = failure.message.rstrip(".")
        good_copy_description = (
            f"generation {good_record['generation']} is in {last_good}" if good_record else "none on this host"
        )
        return DamagedRecordError(
            f"The cluster record {self.path} is invalid: {reason}. Last good copy: {good_copy_description}.",
            remedy,
            path=self.path,
            reason=reason,
            last_good=last_good,
            last_good_generation=good_record["generation"] if good_record else None,
        )


class StoreContents(NamedTuple):
    """The content of a directory."""

    records: List[StoredRecord]
    damaged_records: List[DamagedRecord]

    @property
    def unreadable(self) -> List[str]:
        """The names of the clusters whose record is damaged."""
        return [
            os.path.basename(damaged_record.path)[: -len(_RECORD_SUFFIX)] for damaged_record in self.damaged_records
        ]


def scan_directory(directory: str, cluster_name: Optional[str] = None) -> StoreContents:
    """Return the records of all clusters in a directory, or that of ``cluster_name``, valid and damaged.

    A missing directory counts as empty.
    """
    contents = StoreContents([], [])
    try:
        _check_directory(directory)
        # A good copy without its record counts as damage too, so both names are considered.
        record_names = {
            entry_name[: -len(_GOOD_SUFFIX)] if entry_name.endswith(_RECORD_SUFFIX + _GOOD_SUFFIX) else entry_name
            for entry_name in os.listdir(directory)
        }
    except FileNotFoundError:
        return contents
    except OSError as failure:
        raise HostStateError(f"{directory} cannot be read: {failure.strerror}.", path=directory) from failure
    for entry_name in sorted(record_names):
        entry_cluster = entry_name[: -len(_RECORD_SUFFIX)]
        if (
            not entry_name.endswith(_RECORD_SUFFIX)
            or entry_name.startswith(".")
            or cluster_name not in (None, entry_cluster)
        ):
            continue
        record_path = os.path.join(directory, entry_name)
        try:
            record = Store(directory, entry_cluster).read()
        except GpumeshError as failure:
            details = failure.details
            contents.damaged_records.append(
                DamagedRecord(record_path, str(details.get("reason", failure.message)), details.get("last_good"))
            )
            continue
        if record is not None:
            contents.records.append(StoredRecord(record_path, record))
    return contents


def _load_record(record_path: str) -> Optional[Record]:
    """Load the record in a file; None if there is no file. Raises RecordError with only the reason."""
    try:
        descriptor = os.open(record_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as failure:
        if failure.errno == errno.ELOOP:
            raise RecordError("it is a symbolic link") from failure
        raise RecordError(f"it cannot be opened: {failure.strerror}") from failure
    try:
        file_status = os.fstat(descriptor)
        if not stat.S_ISREG(file_status.st_mode):
            raise RecordError("it is not a plain file")
        _check_ownership(file_status, "it")
        if file_status.st_size > _MAX_RECORD_BYTES:
            raise RecordError(f"it has {file_status.st_size} bytes, but a record has at most {_MAX_RECORD_BYTES}")
        with open(descriptor, "rb", closefd=False) as stream:
            raw_record = stream.read(_MAX_RECORD_BYTES)
    except OSError as failure:
        raise RecordError(f"it cannot be read: {failure.strerror}") from failure
    finally:
        os.close(descriptor)
    if not raw_record.strip():
        raise RecordError("it is empty")
    try:
        document = parse_json(raw_record.decode("utf-8"))
    except ValueError as failure:
        raise RecordError(f"it is not JSON ({failure})") from failure
    return model.parse(document)


def _check_ownership(file_status: os.stat_result, description: str) -> None:
    """Refuse a file that other users own or can write: root acts on the record on every member."""
    if file_status.st_uid != os.geteuid():
        raise RecordError(f"{description} belongs to user {file_status.st_uid}, not to {os.geteuid()}")
    if file_status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RecordError(f"{description} can be written by others (mode {stat.S_IMODE(file_status.st_mode):04o})")


def _check_directory(directory: str) -> None:
    """Refuse a directory in which another user could replace the files. A missing one is accepted."""
    try:
        directory_status = os.stat(directory)
    except FileNotFoundError:
        return
    except OSError as failure:
        raise HostStateError(f"{directory} cannot be read: {failure.strerror}.", path=directory) from failure
    if not stat.S_ISDIR(directory_status.st_mode):
        raise HostStateError(f"{directory} is not a directory.", "Move it away.", path=directory)
    try:
        _check_ownership(directory_status, f"the directory {directory}")
    except RecordError as failure:
        raise HostStateError(
            f"The records in {directory} are refused: {failure.message}.",
            f"Make the user that runs this its owner and allow nobody else to write: chown and chmod 0700 {directory}.",
            path=directory,
        ) from failure


def _create_directory(directory: str) -> None:
    """Create a directory and its parents.

    Raises HostStateError, or FileNotFoundError if another process removes the parent directory meanwhile.
    """
    parent_directory = os.path.dirname(directory) or "/"
    try:
        try:
            os.makedirs(parent_directory, mode=0o755, exist_ok=True)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(parent_directory).st_mode):
                raise
            # The directory was removed before makedirs could check it, and then created again.
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise HostStateError(f"{directory} cannot be created: {failure.strerror}.", path=directory) from failure


def _remove_temporary_files(directory: str, record_name: str) -> None:
    """Remove the temporary files of a killed writer. Under the lock, there is no other writer."""
    for entry_name in os.listdir(directory):
        if entry_name.startswith(f".{record_name}."):
            files.remove_file(os.path.join(directory, entry_name))


def _refers_to(descriptor: int, path: str) -> bool:
    """Whether the path still refers to the opened file."""
    try:
        current_status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened_status = os.fstat(descriptor)
    return (opened_status.st_dev, opened_status.st_ino) == (current_status.st_dev, current_status.st_ino)
